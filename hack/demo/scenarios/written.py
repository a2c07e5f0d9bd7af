"""What somebody has written on a Deployment, and what differs between two looks at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scenarios.watched import Moment


def newest(moment: Moment) -> dict[str, Any]:
    """The last decision, and what became of it."""
    found: dict[str, Any] = next(iter(moment.status.get("decisions", ())), {})
    return found


def is_rolled_out(deployment: Mapping[str, Any]) -> bool:
    """All pods are of the newest template, and serve."""
    status, generation = deployment.get("status", {}), deployment["metadata"]["generation"]
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return bool(status.get("observedGeneration") == generation and counts == {deployment["spec"]["replicas"]})


def own(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """All that somebody has written, without what the API server and the Deployment controller keep themselves."""
    metadata = deployment["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != "deployment.kubernetes.io/revision"}
    return {"labels": metadata.get("labels", {}), "annotations": annotations, "spec": deployment["spec"]}


def differences(path: str, before: Any, after: Any) -> Iterator[str]:
    """Field by field."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from differences(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield f"{path} is {after!r}, was {before!r}"
