"""Which nodes of a pool are measured next. Pure; the pool pass turns the answers into Jobs and conditions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from metainfer.api.durations import parse_duration, parse_duration_us
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import JobFacts, MeasuringLimits, NodeFacts, PoolFacts, Portrait, Toleration
from metainfer.decide.families import Membership, driver_version
from metainfer.decide.names import NODE_ANNOTATION, NODE_LABEL, POOL_ANNOTATION, POOL_LABEL, PURPOSE_LABEL, job_name, label_value
from metainfer.decide.plan import CreateJob
from metainfer.decide.portraits import build_identity
from metainfer_probe.contract import NodeRequest

RETRY_BASE = timedelta(minutes=5)
RETRY_LIMIT = timedelta(hours=1)
"""A failed probe is tried again after 5, 10, 20, 40, 60 minutes; finished Jobs are kept for an hour, so the count survives restarts."""
EVICTION_MARGIN_BYTES = 2 << 30
"""Kept free beside the image when it must be pulled: the kubelet starts to evict below 10-15 % of the disk."""


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """One node in question."""

    node: NodeFacts
    membership: Membership
    portrait: Portrait | None
    free_cards: int
    jobs: tuple[JobFacts, ...]
    """Probe Jobs for this node, running and finished."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a node that needs a probe does not get one now."""

    reason: str
    message: str
    retry_at: datetime | None = None


def need_for_probe(case: ProbeCase, spec: AcceleratorPoolSpec, now: datetime) -> str | None:
    """Why the node must be measured (again), or None: its portrait is of this card, this driver, and young enough."""
    if case.portrait is None or case.portrait.status.measured_at is None:
        return "never measured"
    status = case.portrait.status
    if status.identity != build_identity(case.node, case.membership):
        return "the node's cards or labels changed"
    driver, measured_at = driver_version(case.membership.family, case.node), case.portrait.status.measured_at
    if driver is not None and status.driver_version and driver != status.driver_version:
        return f"driver changed from {status.driver_version} to {driver}"
    age = now - parse_time(measured_at)
    return f"portrait is older than {spec.probe.max_age}" if age > parse_duration(spec.probe.max_age) else None


def find_obstacle(case: ProbeCase, limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    """First reason that keeps the node from being probed now."""
    for rule in (_under_way, _not_ready, _under_pressure, _no_disk_room, _backing_off, _busy):
        obstacle = rule(case, limits, now)
        if obstacle is not None:
            return obstacle
    return None


def _under_way(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    # First of all: the probe itself holds the card, and may put the node under pressure.
    running = any(not job.finished for job in case.jobs)
    return Obstacle("ProbesPending", f"node {case.node.name} is being measured") if running else None


def _not_ready(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    if not case.node.ready:
        return Obstacle("NodeNotReady", f"node {case.node.name} is not Ready")
    if case.node.unschedulable:
        return Obstacle("NodeUnschedulable", f"node {case.node.name} is cordoned")
    return None


def _under_pressure(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    pressures = [kind for kind in ("DiskPressure", "MemoryPressure", "PIDPressure") if case.node.conditions.get(kind) == "True"]
    return Obstacle(pressures[0], f"node {case.node.name} reports {pressures[0]}") if pressures else None


def _no_disk_room(case: ProbeCase, limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    disk = case.node.allocatable.get("ephemeral-storage")
    if disk is None or limits.probe_image in case.node.image_bytes:
        return None
    used = sum(set(case.node.image_bytes.values()))
    if disk - used >= limits.image_bytes + EVICTION_MARGIN_BYTES:
        return None
    words = f"{(disk - used) >> 20} MiB left beside its images, the probe image needs {limits.image_bytes >> 20} MiB"
    return Obstacle("NoImageSpace", f"node {case.node.name}: {words}")


def _backing_off(case: ProbeCase, _limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    failed = failed_attempts(case)
    if not failed:
        return None
    last = max((job.created_at for job in failed if job.created_at is not None), default=now)
    retry_at = last + min(RETRY_BASE * 2 ** (len(failed) - 1), RETRY_LIMIT)
    if now >= retry_at:
        return None
    return Obstacle("ProbeFailed", f"node {case.node.name}: {len(failed)} failed probe(s), next try in {round((retry_at - now).total_seconds())} s", retry_at)


def _busy(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    return None if case.free_cards > 0 else Obstacle("NodeBusy", f"node {case.node.name} has no free card")


def failed_attempts(case: ProbeCase) -> tuple[JobFacts, ...]:
    """Finished probe Jobs since the portrait that did not become one."""
    since = parse_time(case.portrait.status.measured_at) if case.portrait and case.portrait.status.measured_at else None
    return tuple(job for job in case.jobs if job.finished and (since is None or (job.created_at is not None and job.created_at > since)))


def build_probe_job(case: ProbeCase, pool: PoolFacts, limits: MeasuringLimits) -> CreateJob:
    """The probe of one node. Its name holds node, identity, last portrait and attempt: a restart finds it again."""
    seconds = parse_duration_us(pool.spec.probe.duration) / 1e6
    measured_at = case.portrait.status.measured_at if case.portrait else None
    inputs = (pool.uid, case.node.uid, build_identity(case.node, case.membership), measured_at or "", str(len(failed_attempts(case))))
    return CreateJob(
        namespace=limits.operator_namespace,
        name=job_name("probe", *inputs),
        purpose="probe",
        request=NodeRequest(providers=case.membership.family.execution_providers, duration_seconds=seconds, threads=limits.threads_per_card),
        owner={"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "name": pool.name, "uid": pool.uid},
        node=case.node.name,
        resource=case.membership.family.resource,
        # Model loading, micro probe and report come on top of the measured time: half of it again, at least 30 s.
        deadline_seconds=round(limits.job_start_seconds + seconds + max(30.0, seconds / 2)),
        labels={PURPOSE_LABEL: "probe", POOL_LABEL: label_value(pool.name), NODE_LABEL: label_value(case.node.name)},
        annotations={POOL_ANNOTATION: pool.name, NODE_ANNOTATION: case.node.name},
        tolerations=tolerations_for(case.node),
    )


def tolerations_for(node: NodeFacts) -> tuple[Toleration, ...]:
    """The node's own hard taints (the vendor's 'only for accelerators'), but never cordon, not-ready or pressure taints."""
    return tuple(
        Toleration(taint.key, "Equal" if taint.value else "Exists", taint.value, taint.effect)
        for taint in node.taints
        if taint.effect in ("NoSchedule", "NoExecute") and not taint.key.startswith("node.kubernetes.io/")
    )
