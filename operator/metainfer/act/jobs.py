"""The manifest of a measuring Job. Pure; ``execute`` creates it.

A measurement must not disturb anybody, gain anything, or be falsified: lowest priority and no preemption, Pod Security ``restricted``
and no service-account token, no sidecar, pinned by node affinity (``nodeName`` would bypass the scheduler and fail where the card is
taken). Only labels and annotations of our own group travel: a copied tracking label would make Argo CD prune the Job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metainfer.api.v1alpha1.common import GROUP
from metainfer.decide.facts import MeasuringLimits, NodeTerm, Quantities, Requirement, Toleration
from metainfer.decide.names import RESOURCES_ANNOTATION, canonical_json
from metainfer.decide.plan import CreateJob
from metainfer_probe.contract import NodeRequest, Request

PROBE_CONTAINER = "probe"
MODEL_MOUNT = "/models"
SCRATCH_MOUNT = "/tmp"  # noqa: S108  an emptyDir of its own, mounted where every library writes
TIME_TO_LIVE_SECONDS = 3600
"""Long after the result was read; failed attempts are counted from Jobs that are still there."""
NODE_SCRATCH_BYTES = 256 << 20
"""A node probe writes its own small graphs only."""
COPIES = 2
"""Copies of a model that a Job may make beside the downloaded file: a variant, and its calibration or preprocessing step."""
EXIT_SECONDS = 10
"""Between SIGTERM and SIGKILL: enough to write a partial report."""

NO_SIDECAR_LABELS = {"sidecar.istio.io/inject": "false", "kuma.io/sidecar-injection": "disabled", "admission.datadoghq.com/enabled": "false"}
NO_SIDECAR_ANNOTATIONS = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "kuma.io/sidecar-injection": "disabled",
    "consul.hashicorp.com/connect-inject": "false",
    "openservicemesh.io/sidecar-injection": "disabled",
    "appmesh.k8s.aws/sidecarInjectorWebhook": "disabled",
    "dapr.io/enabled": "false",
    "vault.hashicorp.com/agent-inject": "false",
    "sidecar.opentelemetry.io/inject": "false",
    # Not a sidecar: an agent in the very process that is timed.
    "instrumentation.opentelemetry.io/inject-python": "false",
    # Not a sidecar: Karpenter would move the pod in the middle of its 30 s to save a node.
    "karpenter.sh/do-not-disrupt": "true",
}
# HAMi's opt-out is not among them: its webhook touches only pods that ask for its own resources, and those need it.


def build_job(action: CreateJob, limits: MeasuringLimits) -> dict[str, Any]:
    """The Job, ready to be created. Pure."""
    labels = _ours(action.labels) | {f"{GROUP}/purpose": action.purpose}
    annotations = _ours(action.annotations) | {RESOURCES_ANNOTATION: canonical_json(_resources(action))}
    metadata: dict[str, Any] = {"name": action.name, "namespace": action.namespace, "labels": labels, "annotations": annotations}
    owner = build_owner_reference(action)
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": action.deadline_seconds,
            "ttlSecondsAfterFinished": TIME_TO_LIVE_SECONDS,
            "template": {
                "metadata": {"labels": labels | NO_SIDECAR_LABELS, "annotations": _ours(action.annotations) | NO_SIDECAR_ANNOTATIONS},
                "spec": _pod_spec(action, limits),
            },
        },
    }


def build_owner_reference(action: CreateJob) -> dict[str, Any] | None:
    """The owner, where Kubernetes allows it: a cluster-scoped one, or one of the Job's own namespace (``owner["namespace"]``, if given).

    A reference into another namespace would make the garbage collector delete the Job at once.
    """
    owner = action.owner
    if owner.get("namespace", action.namespace) != action.namespace:
        return None
    names = {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
    return names | {"controller": True, "blockOwnerDeletion": False}


def _ours(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if key.startswith(f"{GROUP}/")}


def _pod_spec(action: CreateJob, limits: MeasuringLimits) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": EXIT_SECONDS,
        # No fsGroup: it would change the group of every file on the user's model volume.
        "securityContext": {"runAsNonRoot": True, **_user(limits), "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(action, limits)],
        "volumes": _volumes(action),
    }
    if action.tolerations:
        spec["tolerations"] = [_toleration(item) for item in action.tolerations]
    terms = _node_terms(action)
    if terms:
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    if limits.priority_class:
        # With the class goes the promise: a class of that name which preempts is refused by the API server.
        spec |= {"priorityClassName": limits.priority_class, "preemptionPolicy": "Never"}
    if action.runtime_class:
        spec["runtimeClassName"] = action.runtime_class
    return spec


def _user(limits: MeasuringLimits) -> dict[str, int]:
    """Who the container runs as; nobody named = whom the image or the cluster's policy names (OpenShift allows only the namespace's own range)."""
    return {"runAsUser": limits.job_user_id, "runAsGroup": limits.job_user_id} if limits.job_user_id else {}


def _resources(action: CreateJob) -> dict[str, dict[str, str]]:
    card = {action.resource: 1} if action.resource else {}
    return {"requests": build_quantities({**action.requests, **card}), "limits": build_quantities({**action.limits, **card})}


def _container(action: CreateJob, limits: MeasuringLimits) -> dict[str, Any]:
    threads = str(action.request.threads)
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": SCRATCH_MOUNT}]
    if action.volume is not None:
        mounts.append({"name": "models", "mountPath": MODEL_MOUNT, "readOnly": True})
    return {
        "name": PROBE_CONTAINER,
        "image": limits.probe_image,
        "imagePullPolicy": limits.image_pull_policy,
        "args": build_arguments(action),
        "env": [{"name": name, "value": value} for name, value in _environment(threads).items()],
        "resources": _resources(action),
        "volumeMounts": mounts,
        # The probe writes its report to the file. Where it could not (a crash, another architecture), the end of the log says why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def build_arguments(action: CreateJob) -> list[str]:
    """The probe's command line. Every ``$`` is doubled: the kubelet expands ``$(NAME)`` in arguments and turns ``$$`` into ``$``."""
    arguments = [action.request.kind, "--request", action.request.model_dump_json().replace("$", "$$")]
    return [*arguments, "--volume", MODEL_MOUNT] if action.volume is not None else arguments


def _environment(threads: str) -> dict[str, str]:
    """One card, ``threads`` threads: numerical libraries would otherwise take every processor of the node."""
    libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(libraries, threads), "HOME": SCRATCH_MOUNT, "TMPDIR": SCRATCH_MOUNT}


def build_quantities(quantities: Quantities) -> dict[str, str]:
    """Quantities as the API writes them: cpu in millicores, everything else whole."""
    return {name: f"{value}m" if name == "cpu" else str(value) for name, value in quantities.items()}


def _volumes(action: CreateJob) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {"sizeLimit": str(scratch_bytes(action.request))}}]
    if action.volume is not None:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": action.volume.claim, "readOnly": True}})
    return volumes


def scratch_bytes(request: Request) -> int:
    """Disk that the Job may fill before it is evicted: the model and its copies, at the size that the request allows."""
    if isinstance(request, NodeRequest):
        return NODE_SCRATCH_BYTES
    return NODE_SCRATCH_BYTES + (1 + COPIES) * request.model.max_bytes


def _node_terms(action: CreateJob) -> list[dict[str, Any]]:
    """The action's terms, each narrowed to the pinned node. ``metadata.name``, because the hostname label may differ from the name."""
    if action.node is None:
        return [_term(term) for term in action.terms]
    pin = Requirement("metadata.name", "In", (action.node,))
    terms = action.terms or (NodeTerm(),)
    return [_term(NodeTerm(term.expressions, (*term.fields, pin))) for term in terms]


def _term(term: NodeTerm) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if term.expressions:
        wire["matchExpressions"] = [_requirement(item) for item in term.expressions]
    if term.fields:
        wire["matchFields"] = [_requirement(item) for item in term.fields]
    return wire


def _requirement(item: Requirement) -> dict[str, Any]:
    return {"key": item.key, "operator": item.operator, **({"values": list(item.values)} if item.values else {})}


def _toleration(item: Toleration) -> dict[str, str]:
    wire = {"key": item.key, "operator": item.operator, "value": item.value, "effect": item.effect}
    return {name: value for name, value in wire.items() if value}
