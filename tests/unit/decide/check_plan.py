"""What every plan keeps, whatever an adaptation says and whatever its Jobs answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from metainfer.act.jobs import build_job
from metainfer.act.status import dump_status
from metainfer.api.v1alpha1.common import ApiModel
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.plan import Action, AdaptationPlan, ApplyTarget, CreateJob, EmitEvent
from metainfer_probe.contract import INTEGER_LIMIT, decode_request

LIMITS = MeasuringLimits(probe_image="probe:1")
STATUS_LIMIT_BYTES = 64 << 10
"""etcd takes 1.5 MB; a status is read by every watcher."""
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_VARIABLES = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HOME", "TMPDIR"}


def check_adaptation_plan(plan: AdaptationPlan, namespace: str = "default") -> None:
    """The status is one that the API server takes, it says how things are, and every action stays in its place."""
    check_written(plan.status, ModelAdaptationStatus)
    assert "Ready" in {condition.type for condition in plan.status.conditions}
    for action in plan.actions:
        check_action(action, namespace)


def check_written(status: ApiModel, model: type[ApiModel]) -> None:
    """Within the bounds of its type, and of what JSON and the API server can hold."""
    written = dump_status(status)
    assert is_storable(written)
    assert model.model_validate(written) == status
    assert len(json.dumps(written)) < STATUS_LIMIT_BYTES


def is_storable(value: Any) -> bool:
    """Whether every number and text is one that the API server, a database and another JSON reader take."""
    if isinstance(value, dict):
        return all(map(is_storable, (*value, *value.values())))
    if isinstance(value, (list, tuple)):
        return all(map(is_storable, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= INTEGER_LIMIT
    return not isinstance(value, str) or not any("\ud800" <= character <= "\udfff" for character in value)


def check_action(action: Action, namespace: str) -> None:
    """Events are short; Jobs and applies are of the adaptation's namespace."""
    if isinstance(action, EmitEvent):
        assert len(action.message) <= 1024
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,127}", action.reason)
    elif isinstance(action, CreateJob):
        check_job(action, build_job(action, LIMITS), namespace)
    elif isinstance(action, ApplyTarget):
        assert action.namespace == namespace
        check_apply(action.body)


def check_job(action: CreateJob, job: Mapping[str, Any], namespace: str) -> None:
    """Image, command, volumes, identity and place are ours; ``job`` is as it was built, or as the API server gave it back."""
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert job["metadata"]["namespace"] == namespace
    assert container["image"] == LIMITS.probe_image
    assert not {"command", "envFrom", "ports", "lifecycle", "volumeDevices"} & container.keys()
    assert not {"serviceAccountName", "nodeName", "hostNetwork", "hostPID", "hostIPC", "initContainers", "nodeSelector", "imagePullSecrets"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False
    assert [set(volume) - {"name"} for volume in spec["volumes"]] in ([{"emptyDir"}], [{"emptyDir"}, {"persistentVolumeClaim"}])
    assert {entry["name"] for entry in container["env"]} <= _VARIABLES
    kind, flag, request, *rest = container["args"]
    assert (kind, flag, rest) in ((action.purpose, "--request", []), (action.purpose, "--request", ["--volume", "/models"]))
    assert decode_request(expand_as_kubelet(request)) == action.request
    assert all(_LABEL_VALUE.fullmatch(value) for value in job["metadata"]["labels"].values())


def expand_as_kubelet(argument: str) -> str:
    """``$$`` is a dollar, and every variable there could be exists."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else "EXPANDED", argument)


_ANNOTATED: dict[str, Any] = {"annotations": {}}
_CONTAINER: dict[str, Any] = {"name": {}, "env": {"name": {}, "value": {}}}
_POD: dict[str, Any] = {"affinity": {"nodeAffinity": {}}, "containers": _CONTAINER, "initContainers": _CONTAINER}
APPLIED: dict[str, Any] = {"metadata": _ANNOTATED, "spec": {"template": {"metadata": _ANNOTATED, "spec": _POD}}}
"""The fields that an apply may name; an empty one has anything below it."""


def check_apply(body: Mapping[str, Any], allowed: Mapping[str, Any] = APPLIED) -> None:
    """Nothing but affinity, environment entries and our annotations."""
    for key, below in body.items():
        if key in ("apiVersion", "kind") or (allowed is _ANNOTATED and key in ("name", "namespace")):
            continue
        assert key in allowed, key
        for item in below if isinstance(below, list) else [below]:
            if isinstance(item, dict) and allowed[key]:
                check_apply(item, allowed[key])
