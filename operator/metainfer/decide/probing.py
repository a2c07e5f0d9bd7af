"""Which nodes of a pool are measured next. Pure; the pool pass turns the answers into Jobs and conditions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec
from metainfer.api.v1alpha1.node_portrait import ProbeFailure
from metainfer.decide.calibration import LEAST_PROBE, PROBE_SHARE
from metainfer.decide.cards import read_partitioning
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.drivers import UPGRADE_QUEUED, VersionCase, is_same_version, is_upgrading, read_upgrade
from metainfer.decide.facts import JobFacts, MeasuringLimits, NodeFacts, PoolFacts, Portrait, Toleration
from metainfer.decide.families import Membership
from metainfer.decide.health import next_look
from metainfer.decide.image_room import why_no_image_room
from metainfer.decide.names import CARD_ANNOTATION, NODE_ANNOTATION, NODE_LABEL, POOL_ANNOTATION, POOL_LABEL, PURPOSE_LABEL, job_name, label_value
from metainfer.decide.plan import CreateJob
from metainfer.decide.portraits import build_identity
from metainfer.decide.probe_failures import retry_at
from metainfer.decide.waiting import find_waiting
from metainfer_probe.contract import NodeRequest

PRESSURES = ("DiskPressure", "MemoryPressure", "PIDPressure")
"""Conditions of a node that a measurement would make worse."""


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """One node in question."""

    node: NodeFacts
    membership: Membership
    portrait: Portrait | None
    free_cards: int
    jobs: tuple[JobFacts, ...]
    """Probe Jobs for this node, running and finished."""
    circumstances: str = ""
    """See ``probe_failures.circumstances_of``."""
    calibrates: bool = False
    """It is this node's turn to tell what its family does now."""

    @property
    def failure(self) -> ProbeFailure | None:
        """What became of the last probe, if it gave no portrait."""
        return self.portrait.status.probe_failure if self.portrait is not None else None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a node that needs a probe does not get one now."""

    reason: str
    message: str
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProbeNeed:
    """Why a node must be measured (again), and from when on."""

    why: str
    due_at: datetime
    calibrates: bool = False


def find_need(case: ProbeCase, spec: AcceleratorPoolSpec, limits: MeasuringLimits, now: datetime) -> ProbeNeed | None:
    """The first need that is due, else the one that is due next; None = nothing will make it necessary by the passing of time alone."""
    needs = [need for rule in NEEDS if (need := rule(case, spec, limits, now)) is not None]
    return next((need for need in needs if need.due_at <= now), None) or min(needs, key=lambda need: need.due_at, default=None)


def _unmeasured(case: ProbeCase, _spec: AcceleratorPoolSpec, _limits: MeasuringLimits, now: datetime) -> ProbeNeed | None:
    if case.portrait is None or case.portrait.status.measured_at is None:
        return ProbeNeed("never measured", now)
    changed = case.portrait.status.identity != build_identity(case.node, case.membership)
    return ProbeNeed("the node's cards or labels changed", now) if changed else None


def _other_driver(case: ProbeCase, _spec: AcceleratorPoolSpec, limits: MeasuringLimits, now: datetime) -> ProbeNeed | None:
    status = case.portrait.status if case.portrait is not None else None
    if status is None or not status.driver_version:
        return None
    seen = VersionCase(status, case.membership.family, case.node, limits.driver_settle_seconds, now).driver()
    if seen.version is None or seen.seconds_left is None or is_same_version(seen.version, status.driver_version):
        return None
    return ProbeNeed(f"driver changed from {status.driver_version} to {seen.version}", now + timedelta(seconds=seen.seconds_left))


def _doubtful(case: ProbeCase, _spec: AcceleratorPoolSpec, _limits: MeasuringLimits, _now: datetime) -> ProbeNeed | None:
    found = next_look(case.portrait.status) if case.portrait is not None else None
    return ProbeNeed(*found) if found is not None else None


def _wanted(case: ProbeCase, _spec: AcceleratorPoolSpec, _limits: MeasuringLimits, now: datetime) -> ProbeNeed | None:
    """Somebody who saw its pods asked for it; whatever was measured since has answered that."""
    wanted = case.portrait.status.probe_wanted if case.portrait is not None else None
    measured_at = case.portrait.status.measured_at if case.portrait is not None else None
    if wanted is None or measured_at is None or parse_time(measured_at) > parse_time(wanted.since):
        return None
    return ProbeNeed(wanted.value, now)


def _too_old(case: ProbeCase, spec: AcceleratorPoolSpec, _limits: MeasuringLimits, _now: datetime) -> ProbeNeed | None:
    measured_at = case.portrait.status.measured_at if case.portrait is not None else None
    if measured_at is None:
        return None
    return ProbeNeed(f"portrait is older than {spec.probe.max_age}", parse_time(measured_at) + parse_duration(spec.probe.max_age))


def _calibrates(case: ProbeCase, _spec: AcceleratorPoolSpec, _limits: MeasuringLimits, now: datetime) -> ProbeNeed | None:
    return ProbeNeed("calibration of its family", now, calibrates=True) if case.calibrates else None


NEEDS = (_unmeasured, _other_driver, _doubtful, _wanted, _too_old, _calibrates)


def find_obstacle(case: ProbeCase, limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    """First reason that keeps the node from being probed now."""
    for rule in (_under_way, _not_ready, _upgrading, _being_partitioned, _under_pressure, _no_disk_room, _failed_before, _busy):
        obstacle = rule(case, limits, now)
        if obstacle is not None:
            return obstacle
    return None


def _under_way(case: ProbeCase, _limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    # First of all: the probe itself holds the card, and may put the node under pressure.
    running = next((job for job in case.jobs if not job.finished), None)
    if running is None:
        return None
    waiting = find_waiting(running, now)
    if waiting is not None and waiting.reason:
        return Obstacle(waiting.reason, f"the probe of node {case.node.name}: {waiting.words}")
    return Obstacle("ProbesPending", f"node {case.node.name} is being measured")


def _not_ready(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    if not case.node.ready:
        return Obstacle("NodeNotReady", f"node {case.node.name} is not Ready")
    if case.node.unschedulable:
        return Obstacle("NodeUnschedulable", f"node {case.node.name} is cordoned")
    return None


def _upgrading(case: ProbeCase, _limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    """A probe would hold the upgrade up, and measure a driver that is about to go."""
    state = read_upgrade(case.membership.family, case.node)
    unknown = case.portrait is None or case.portrait.status.measured_at is None
    if state is None or case.portrait is None or (unknown and state == UPGRADE_QUEUED):
        return None  # a node that waits for its upgrade for weeks is better known than not
    if not is_upgrading(case.portrait.status, case.membership.family, case.node, now):
        return None
    return Obstacle("DriverUpgrading", f"node {case.node.name}: its driver is being upgraded ({state})")


def _being_partitioned(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    state = read_partitioning(case.node)
    return Obstacle("CardsBeingPartitioned", f"node {case.node.name}: its cards are being cut into slices ({state})") if state else None


def _under_pressure(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    pressures = [kind for kind in PRESSURES if case.node.conditions.get(kind) == "True"]
    return Obstacle(pressures[0], f"node {case.node.name} reports {pressures[0]}") if pressures else None


def _no_disk_room(case: ProbeCase, limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    words = why_no_image_room(case.node, limits)
    return Obstacle("NoImageSpace", words) if words else None


def _failed_before(case: ProbeCase, _limits: MeasuringLimits, now: datetime) -> Obstacle | None:
    failure = case.failure
    if failure is None:
        return None
    due = retry_at(failure, case.circumstances)
    return None if due is not None and now >= due else Obstacle(failure.reason, failure_words(case.node.name, failure), due)


def failure_words(node: str, failure: ProbeFailure) -> str:
    """Node, reason, and what comes next; the same until the next try has failed too."""
    due = retry_at(failure, failure.circumstances)
    when = f"tried again at {format_time(due)}" if due is not None else "not tried again by itself: delete its NodePortrait for another try"
    return f"{node}: {failure.reason}: {failure.message} ({failure.attempts} failed, {when})"


def _busy(case: ProbeCase, _limits: MeasuringLimits, _now: datetime) -> Obstacle | None:
    return None if case.free_cards > 0 else Obstacle("NodeBusy", f"node {case.node.name} has no free card")


def is_of_this_card(job: JobFacts, node: NodeFacts, membership: Membership) -> bool:
    """Whether a probe Job was started for the card that is there now: another family, selector or card count makes it another one."""
    return job.annotations.get(CARD_ANNOTATION, "") in ("", build_identity(node, membership))


def build_probe_job(case: ProbeCase, pool: PoolFacts, limits: MeasuringLimits, *, calibrates: bool = False) -> CreateJob:
    """The probe of one node. Its name holds node, identity, last portrait and the Job that failed before it: a restart finds it again."""
    whole = parse_duration(pool.spec.probe.duration)
    seconds = (max(LEAST_PROBE, whole * PROBE_SHARE) if calibrates else whole).total_seconds()
    measured_at = case.portrait.status.measured_at if case.portrait else None
    failed = case.failure.job if case.failure is not None else ""
    inputs = (pool.uid, case.node.uid, build_identity(case.node, case.membership), measured_at or "", failed, case.circumstances)
    return CreateJob(
        namespace=limits.operator_namespace,
        name=job_name("probe", *inputs),
        purpose="probe",
        request=NodeRequest(
            providers=case.membership.family.execution_providers,
            duration_seconds=seconds,
            threads=limits.threads_per_card,
            purpose="calibration" if calibrates else "portrait",
        ),
        owner={"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "name": pool.name, "uid": pool.uid},
        node=case.node.name,
        resource=case.membership.family.resource,
        # Model loading, micro probe and report come on top of the measured time: half of it again, at least 30 s.
        deadline_seconds=round(limits.job_start_seconds + seconds + max(30.0, seconds / 2)),
        labels={PURPOSE_LABEL: "probe", POOL_LABEL: label_value(pool.name), NODE_LABEL: label_value(case.node.name)},
        annotations={POOL_ANNOTATION: pool.name, NODE_ANNOTATION: case.node.name, CARD_ANNOTATION: build_identity(case.node, case.membership)},
        tolerations=tolerations_for(case.node),
    )


def tolerations_for(node: NodeFacts) -> tuple[Toleration, ...]:
    """The node's own hard taints (the vendor's 'only for accelerators'), but never cordon, not-ready or pressure taints."""
    return tuple(
        Toleration(taint.key, "Equal" if taint.value else "Exists", taint.value, taint.effect)
        for taint in node.taints
        if taint.effect in ("NoSchedule", "NoExecute") and not taint.key.startswith("node.kubernetes.io/")
    )
