"""Objects on the wire -> the facts that decisions read. Pure, one function per kind; no cache, no client, no rule.

Tolerant of what is missing. What cannot be read at all is one typed error that names the object, never a crash: a custom
resource stored under another version of its schema must not stop the operator for everybody else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec, AcceleratorPoolStatus
from metainfer.api.v1alpha1.common import FIELD_MANAGER, ROLLBACK_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec, ModelAdaptationStatus
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.facts import (
    AdaptationFacts,
    JobFacts,
    NodeFacts,
    PodFacts,
    PoolFacts,
    Portrait,
    RuntimeClassFacts,
    Taint,
    TargetFacts,
)  # fmt: skip
from metainfer.decide.ownership import read_managed
from metainfer.observe import pods
from metainfer.observe.pods import controller_of, parse_time, project_template, project_tolerations
from metainfer.observe.quantities import parse_quantities, resolve_share

Raw = Mapping[str, Any]
Facts = NodeFacts | PodFacts | JobFacts | TargetFacts | PoolFacts | AdaptationFacts | Portrait | RuntimeClassFacts
_F = TypeVar("_F", bound=Facts)
_M = TypeVar("_M", bound=BaseModel)
_log = logging.getLogger(__name__)

_BEGINNING = datetime.fromtimestamp(0, UTC)
"""Creation time of an object that has none: only objects that were never stored."""
_QUEUE_KEYS = ("queue-name", "queue")
"""Last parts of the labels and annotations by which queue systems know their Jobs: kueue.x-k8s.io/queue-name, scheduling.volcano.sh/queue-name, ..."""
_VOLATILE_LABELS = (".timestamp",)
"""Labels that labellers rewrite at each of their restarts: nvidia.com/gfd.timestamp, amd.com/hfd.timestamp and the like."""


class ProjectionError(Exception):
    """The object does not have the shape this operator knows. ``message`` says which field and why."""

    def __init__(self, kind: str, namespace: str, name: str, message: str) -> None:
        self.kind, self.namespace, self.name, self.message = kind, namespace, name, message
        where = f"{namespace}/{name}" if namespace else name
        super().__init__(f"{kind} {where} cannot be read: {message}")


def _typed(kind: str) -> Callable[[Callable[[Raw], _F]], Callable[[Raw], _F]]:
    """Turns whatever goes wrong while reading one object into a ProjectionError."""

    def wrap(project: Callable[[Raw], _F]) -> Callable[[Raw], _F]:
        def guarded(raw: Raw) -> _F:
            try:
                return project(raw)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                metadata = raw.get("metadata") or {}
                raise ProjectionError(kind, metadata.get("namespace", ""), metadata.get("name", "?"), _words(error)) from error

        guarded.__name__, guarded.__doc__ = project.__name__, project.__doc__
        return guarded

    return wrap


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


@_typed("Node")
def project_node(raw: Raw) -> NodeFacts:
    """One node."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    machine = status.get("nodeInfo") or {}
    conditions = {sys.intern(item["type"]): item.get("status", "Unknown") for item in status.get("conditions") or ()}
    return NodeFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=metadata.get("labels") or {},
        resource_version=metadata.get("resourceVersion", ""),
        taints=tuple(Taint(item["key"], item.get("value", ""), item["effect"]) for item in spec.get("taints") or ()),
        ready=conditions.get("Ready") == "True",
        unschedulable=bool(spec.get("unschedulable")),
        architecture=machine.get("architecture", "amd64"),
        kernel_version=machine.get("kernelVersion", ""),
        allocatable=parse_quantities(status.get("allocatable")),
        conditions=conditions,
        # The same images are on thousands of nodes: one copy of each name.
        image_bytes={sys.intern(name): int(image.get("sizeBytes", 0)) for image in status.get("images") or () for name in image.get("names") or ()},
    )


def node_fingerprint(node: NodeFacts) -> tuple[object, ...]:
    """What of a node can change a decision. Heartbeats, image lists and labellers' timestamps leave it as it is."""
    labels = frozenset(item for item in node.labels.items() if not item[0].endswith(_VOLATILE_LABELS))
    return (
        node.uid, labels, node.taints, node.ready, node.unschedulable, node.architecture,
        frozenset(node.allocatable.items()), frozenset(node.conditions.items()),
    )  # fmt: skip


project_pod = _typed("Pod")(pods.project_pod)


@_typed("Job")
def project_job(raw: Raw) -> JobFacts:
    """One Job, without its pods."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    holding = {item["type"]: item for item in status.get("conditions") or () if item.get("status") == "True"}
    condition = next((kind for kind in ("Complete", "Failed") if kind in holding), "")
    words = holding.get(condition) or holding.get("FailureTarget") or {}
    return JobFacts(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        created_at=parse_time(metadata.get("creationTimestamp")),
        started_at=parse_time(status.get("startTime")),
        suspended=bool(spec.get("suspend")),
        suspended_at=parse_time(holding.get("Suspended", {}).get("lastTransitionTime")),
        suspended_by=_suspended_by(metadata) if spec.get("suspend") else "",
        active=int(status.get("active", 0)),
        succeeded=int(status.get("succeeded", 0)),
        failed=int(status.get("failed", 0)),
        condition=condition,
        condition_reason=words.get("reason", ""),
        condition_message=words.get("message", ""),
        finished_at=parse_time(words.get("lastTransitionTime")) if condition else None,
        deleting="deletionTimestamp" in metadata,
    )


def _suspended_by(metadata: Raw) -> str:
    """Who holds a Job back: the queue that its labels or annotations name, else the manager that set the field."""
    for key, value in {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}.items():
        domain, _, name = key.rpartition("/")
        if name in _QUEUE_KEYS and domain and value:
            return f"queue {value} of {domain}"
    managers = [item.get("manager", "") for item in metadata.get("managedFields") or () if "f:suspend" in ((item.get("fieldsV1") or {}).get("f:spec") or {})]
    others = [manager for manager in managers if manager and manager != FIELD_MANAGER]
    return others[-1] if others else ""


@_typed("Deployment")
def project_target(raw: Raw) -> TargetFacts:
    """One Deployment, ``raw`` kept for exact pre-images."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    replicas = int(spec.get("replicas", 1))
    strategy = (spec.get("strategy") or {}).get("type", "RollingUpdate")
    surge, unavailable = _resolve_rollout(spec, replicas)
    progressing: Raw = next((item for item in status.get("conditions") or () if item.get("type") == "Progressing"), {})
    return TargetFacts(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        generation=int(metadata.get("generation", 0)),
        template=project_template(spec["template"], metadata["namespace"]),
        replicas=replicas,
        paused=bool(spec.get("paused")),
        controller=controller_of(metadata),
        strategy=strategy,
        max_surge=surge,
        max_unavailable=unavailable,
        match_labels=(spec.get("selector") or {}).get("matchLabels") or {},
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        managed=read_managed(raw),
        observed_generation=int(status.get("observedGeneration", 0)),
        updated_replicas=int(status.get("updatedReplicas", 0)),
        available_replicas=int(status.get("availableReplicas", 0)),
        status_replicas=int(status.get("replicas", 0)),
        progressing_reason=progressing.get("reason", ""),
        progressing_message=progressing.get("message", ""),
        created_at=parse_time(metadata.get("creationTimestamp")),
        min_ready_seconds=int(spec.get("minReadySeconds") or 0),
        raw=raw,
    )


def _resolve_rollout(spec: Raw, replicas: int) -> tuple[int, int]:
    """Surge and unavailable in pods, as the Deployment controller resolves them (ResolveFenceposts, then at most all)."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, replicas
    rolling = strategy.get("rollingUpdate") or {}
    surge = resolve_share(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    unavailable = resolve_share(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        # Both rounded to nothing would never move: the controller lets one go.
        unavailable = 1
    return surge, min(unavailable, replicas)


@_typed("AcceleratorPool")
def project_pool(raw: Raw) -> PoolFacts:
    """One AcceleratorPool."""
    metadata = raw["metadata"]
    return PoolFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation", 0)),
        created_at=parse_time(metadata.get("creationTimestamp")) or _BEGINNING,
        labels=metadata.get("labels") or {},
        spec=AcceleratorPoolSpec.model_validate(raw["spec"]),
        status=_read_status(AcceleratorPoolStatus, raw),
        resource_version=metadata.get("resourceVersion", ""),
        deleting="deletionTimestamp" in metadata,
    )


@_typed("ModelAdaptation")
def project_adaptation(raw: Raw) -> AdaptationFacts:
    """One ModelAdaptation."""
    metadata = raw["metadata"]
    return AdaptationFacts(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation", 0)),
        resource_version=metadata.get("resourceVersion", ""),
        created_at=parse_time(metadata.get("creationTimestamp")) or _BEGINNING,
        spec=ModelAdaptationSpec.model_validate(raw["spec"]),
        status=_read_status(ModelAdaptationStatus, raw),
        labels=metadata.get("labels") or {},
        rollback_to=(metadata.get("annotations") or {}).get(ROLLBACK_ANNOTATION, ""),
        deleting="deletionTimestamp" in metadata,
    )


@_typed("NodePortrait")
def project_portrait(raw: Raw) -> Portrait:
    """One NodePortrait; it has its node's name."""
    metadata = raw["metadata"]
    return Portrait(
        node=metadata["name"],
        spec=NodePortraitSpec.model_validate(raw["spec"]),
        status=_read_status(NodePortraitStatus, raw),
        resource_version=metadata.get("resourceVersion", ""),
    )


@_typed("RuntimeClass")
def project_runtime_class(raw: Raw) -> RuntimeClassFacts:
    """What a RuntimeClass adds to its pods."""
    scheduling = raw.get("scheduling") or {}
    overhead = parse_quantities((raw.get("overhead") or {}).get("podFixed"))
    return RuntimeClassFacts(raw["metadata"]["name"], scheduling.get("nodeSelector") or {}, project_tolerations(scheduling.get("tolerations")), overhead)


def _read_status(model: type[_M], raw: Raw) -> _M:
    """Our own status. One that another version of this operator left in another shape is built anew: nothing else is lost."""
    try:
        return model.model_validate(raw.get("status") or {})
    except ValidationError as error:
        metadata = raw["metadata"]
        _log.warning(
            "status of another version, starting from an empty one",
            extra={"object": f"{metadata.get('namespace', '')}/{metadata['name']}", "status_model": model.__name__, "error": _words(error)},
        )
        return model()
