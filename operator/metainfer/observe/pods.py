"""Pods and pod templates on the wire, as facts. Pure; shared by the projections of Pods, Deployments and Jobs.

Tolerant: whatever is missing counts as Kubernetes' default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from metainfer.decide.facts import (
    ContainerFacts,
    ContainerState,
    EnvEntry,
    EnvFrom,
    KubeletProbe,
    Labels,
    NodeTerm,
    PodFacts,
    PodTemplateFacts,
    Requirement,
    Spread,
    Toleration,
)  # fmt: skip
from metainfer.observe.quantities import add_requests, parse_quantities

HOSTNAME = "kubernetes.io/hostname"
Raw = Mapping[str, Any]


def project_pod(raw: Raw) -> PodFacts:
    """One pod; raises ValueError or KeyError on an object that no API server would store."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    containers = project_containers(spec)
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    return PodFacts(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        node=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        address=status.get("podIP", ""),
        host_network=bool(spec.get("hostNetwork")),
        requests=_effective_requests(spec, containers),
        owner=controller_of(metadata) or "",
        containers=containers,
        states=tuple(_project_state(item) for key in ("initContainerStatuses", "containerStatuses") for item in status.get(key) or ()),
        unschedulable=_scheduler_words(conditions.get("PodScheduled", {})),
        disruption=_disruption(conditions.get("DisruptionTarget", {})),
        created_at=parse_time(metadata.get("creationTimestamp")),
    )


def _disruption(condition: Raw) -> str:
    """Why the pod is being taken away (EvictionByEvictionAPI, PreemptionByScheduler, DeletionByTaintManager, ...)."""
    return str(condition.get("reason", "")) if condition.get("status") == "True" else ""


def project_template(raw: Raw, namespace: str) -> PodTemplateFacts:
    """The pod template of a workload in ``namespace``."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    labels = metadata.get("labels") or {}
    containers = project_containers(spec)
    apart = _keeps_apart(affinity.get("podAntiAffinity") or {}, labels, namespace)
    return PodTemplateFacts(
        containers=containers,
        labels=labels,
        annotations=metadata.get("annotations") or {},
        node_selector=spec.get("nodeSelector") or {},
        node_name=spec.get("nodeName") or None,
        tolerations=project_tolerations(spec.get("tolerations")),
        required_terms=None if required is None else project_terms(required),
        preferred_present="preferredDuringSchedulingIgnoredDuringExecution" in node_affinity,
        one_per_host=apart or any(container.host_ports for container in containers),
        spreads=(*_spreads(spec, labels), *_apart_elsewhere(affinity.get("podAntiAffinity") or {}, labels, namespace)),
        runtime_class=spec.get("runtimeClassName"),
        claims=tuple(volume["persistentVolumeClaim"]["claimName"] for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")),
        host_network=bool(spec.get("hostNetwork")),
        termination_grace_seconds=30 if (grace := spec.get("terminationGracePeriodSeconds")) is None else int(grace),
    )


def project_containers(spec: Raw) -> tuple[ContainerFacts, ...]:
    """Containers of a pod spec, init containers first."""
    host_network = bool(spec.get("hostNetwork"))
    both = ((True, "initContainers"), (False, "containers"))
    return tuple(_project_container(item, init=init, host_network=host_network) for init, key in both for item in spec.get(key) or ())


def _project_container(raw: Raw, *, init: bool, host_network: bool) -> ContainerFacts:
    resources = raw.get("resources") or {}
    limits = parse_quantities(resources.get("limits"))
    return ContainerFacts(
        name=raw["name"],
        image=raw.get("image", ""),
        init=init,
        restartable=init and raw.get("restartPolicy") == "Always",
        env=tuple(_project_env(item) for item in raw.get("env") or ()),
        env_from=tuple(found for item in raw.get("envFrom") or () if (found := _project_env_from(item)) is not None),
        command=tuple(raw.get("command") or ()),
        args=tuple(raw.get("args") or ()),
        # A limit without a request is a request: the API server fills it in for pods, but not in templates.
        requests={**limits, **parse_quantities(resources.get("requests"))},
        limits=limits,
        host_ports=tuple(_host_ports(raw, host_network=host_network)),
        startup_probe=_project_probe(raw.get("startupProbe")),
        readiness_probe=_project_probe(raw.get("readinessProbe")),
    )


def _project_probe(raw: Raw | None) -> KubeletProbe | None:
    if raw is None:
        return None
    return KubeletProbe(
        initial_delay_seconds=int(raw.get("initialDelaySeconds") or 0),
        period_seconds=int(raw.get("periodSeconds") or 10),
        failure_threshold=int(raw.get("failureThreshold") or 3),
        success_threshold=int(raw.get("successThreshold") or 1),
    )


def _host_ports(raw: Raw, *, host_network: bool) -> Iterable[int]:
    for port in raw.get("ports") or ():
        # In the host's network each container port is a port of the host.
        found = port.get("hostPort") or (port.get("containerPort") if host_network else 0)
        if found:
            yield int(found)


def _project_env(raw: Raw) -> EnvEntry:
    source = raw.get("valueFrom")
    if source is None:
        return EnvEntry(raw["name"], raw.get("value"))
    return EnvEntry(raw["name"], source=_env_source(source))


def _env_source(source: Raw) -> str:
    for key, word in (("configMapKeyRef", "configMap"), ("secretKeyRef", "secret")):
        if key in source:
            return f"{word} {source[key].get('name', '')}/{source[key].get('key', '')}"
    if "fieldRef" in source:
        return f"field {source['fieldRef'].get('fieldPath', '')}"
    if "resourceFieldRef" in source:
        return f"resource {source['resourceFieldRef'].get('resource', '')}"
    return "unknown " + ",".join(sorted(source))


def _project_env_from(raw: Raw) -> EnvFrom | None:
    prefix = raw.get("prefix", "")
    if ref := raw.get("configMapRef"):
        return EnvFrom("ConfigMap", ref.get("name", ""), prefix, bool(ref.get("optional")))
    if ref := raw.get("secretRef"):
        return EnvFrom("Secret", ref.get("name", ""), prefix, bool(ref.get("optional")))
    return None


def project_tolerations(raw: Iterable[Raw] | None) -> tuple[Toleration, ...]:
    """Tolerations of a pod or RuntimeClass."""
    return tuple(Toleration(item.get("key", ""), item.get("operator") or "Equal", item.get("value", ""), item.get("effect", "")) for item in raw or ())


def project_terms(selector: Raw) -> tuple[NodeTerm, ...]:
    """A NodeSelector's terms."""
    return tuple(
        NodeTerm(_project_requirements(term.get("matchExpressions")), _project_requirements(term.get("matchFields")))
        for term in selector.get("nodeSelectorTerms") or ()
    )


def _project_requirements(raw: Iterable[Raw] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(item["key"], item["operator"], tuple(item.get("values") or ())) for item in raw or ())


def _spreads(spec: Raw, labels: Labels) -> Iterable[Spread]:
    """Constraints that the scheduler must keep and that count the Deployment's own pods: the others never stand in their way."""
    for item in spec.get("topologySpreadConstraints") or ():
        if item.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" and _selects(item.get("labelSelector"), labels):
            yield Spread(item["topologyKey"], int(item.get("maxSkew", 1)), int(item.get("minDomains") or 1))


def _apart_elsewhere(anti_affinity: Raw, labels: Labels, namespace: str) -> Iterable[Spread]:
    """Required anti-affinity against itself by another label than the host's: one pod for each zone, rack, ..."""
    for term in anti_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        if term.get("topologyKey") != HOSTNAME and _reaches(term, namespace) and _selects(term.get("labelSelector"), labels):
            yield Spread(term["topologyKey"], one_per_domain=True)


def _keeps_apart(anti_affinity: Raw, labels: Labels, namespace: str) -> bool:
    return any(
        term.get("topologyKey") == HOSTNAME and _reaches(term, namespace) and _selects(term.get("labelSelector"), labels)
        for term in anti_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    )


def _reaches(term: Raw, namespace: str) -> bool:
    """Whether the term looks at pods of ``namespace``. One with a namespaceSelector may: namespaces' labels are not known here."""
    names: Sequence[str] = term.get("namespaces") or ()
    return namespace in names or not names or term.get("namespaceSelector") is not None


def _selects(selector: Raw | None, labels: Labels) -> bool:
    if selector is None:
        return False
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_expression_holds(item, labels) for item in selector.get("matchExpressions") or ())


def _expression_holds(expression: Raw, labels: Labels) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _effective_requests(spec: Raw, containers: Sequence[ContainerFacts]) -> dict[str, int]:
    requests = add_requests(containers)
    whole = spec.get("resources") or {}
    # Resources of the whole pod, where given, stand for the sum of its containers.
    requests |= {**parse_quantities(whole.get("limits")), **parse_quantities(whole.get("requests"))}
    for name, value in parse_quantities(spec.get("overhead")).items():
        requests[name] = requests.get(name, 0) + value
    return requests


def _project_state(raw: Raw) -> ContainerState:
    state = raw.get("state") or {}
    waiting = state.get("waiting") or {}
    result = ContainerState(
        name=raw["name"],
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restarts=int(raw.get("restartCount", 0)),
        image_digest=raw.get("imageID", "").rpartition("@")[2] if "@sha256:" in raw.get("imageID", "") else "",
        started_at=parse_time((state.get("running") or {}).get("startedAt")),
    )
    # Between two tries (CrashLoopBackOff) the reason stands in the last state.
    ended = state.get("terminated") or ((raw.get("lastState") or {}).get("terminated") if waiting else None)
    if not ended:
        return result
    return replace(
        result,
        terminated_reason=ended.get("reason", ""),
        exit_code=ended.get("exitCode"),
        termination_message=ended.get("message", ""),
        finished_at=parse_time(ended.get("finishedAt")),
    )


def _scheduler_words(condition: Raw) -> str:
    if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
        return str(condition.get("message") or "Unschedulable")
    return ""


def controller_of(metadata: Raw) -> str | None:
    """``Kind/name`` of the owner with controller: true."""
    return next((f"{owner['kind']}/{owner['name']}" for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)


def parse_time(text: str | None) -> datetime | None:
    """A time of the API, aware; None stays None."""
    return None if text is None else datetime.fromisoformat(text)
