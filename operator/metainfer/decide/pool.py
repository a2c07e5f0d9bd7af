"""One pass over an AcceleratorPool: families, portraits, labels, the next probes, and what the status says. Pure.

Numbered as it runs: 1 membership, 2 portraits from finished probes, 3 factors and health, 4 node labels, 5 the next probes,
6 status. ``act`` carries the plan out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL, JobRefusal
from metainfer.decide.caps import free_probes, measured_nodes, running_jobs
from metainfer.decide.conditions import find_condition, parse_time
from metainfer.decide.facts import JobFacts, NodeFacts, PoolSnapshot, Portrait, ProbeResult
from metainfer.decide.families import Membership, NoMembership, assign_nodes, cards_used
from metainfer.decide.names import NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL
from metainfer.decide.own_jobs import LINGER_SECONDS
from metainfer.decide.plan import Action, CreateJob, DeleteJob, DeletePortrait, EmitEvent, PoolPlan, WriteNodeLabels, WritePortrait
from metainfer.decide.pool_status import PoolFindings, build_pool_status
from metainfer.decide.portraits import Assessment, assess_family, health_labels
from metainfer.decide.probe_failures import circumstances_of, mark_sick, portray_result
from metainfer.decide.probing import Obstacle, ProbeCase, build_probe_job, failure_words, find_obstacle, is_of_this_card, need_for_probe
from metainfer.decide.refusal import refusal_words, retry_at

FACTOR_STEP_PERMILLE = 10
"""1 %: a third of what two probes of the same card differ by."""
LABELS_PER_PASS = 200
"""A new pool of thousands of nodes is labelled in several passes: each holds the place of all others that would start a Job."""
SOON_SECONDS = 1.0
RECHECK_SECONDS = 60.0
"""While a node waits for a probe (busy, backing off) the pool is looked at again even if no event comes."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass works with."""

    snapshot: PoolSnapshot
    places: Mapping[str, Membership | NoMembership]
    nodes: Mapping[str, NodeFacts]
    jobs_of_node: Mapping[str, tuple[JobFacts, ...]]
    now: datetime

    def members(self) -> tuple[tuple[NodeFacts, Membership], ...]:
        """Nodes that are in one of the pool's families."""
        return tuple((self.nodes[name], place) for name, place in self.places.items() if isinstance(place, Membership))


def decide_pool(snapshot: PoolSnapshot, now: datetime) -> PoolPlan:
    """The plan of one pass. Pure: same snapshot and clock, same plan."""
    # 1. Which node is in which family.
    places = assign_nodes(snapshot.pool, snapshot.pools, snapshot.nodes)
    jobs_of_node: dict[str, tuple[JobFacts, ...]] = {}
    for job in snapshot.jobs:
        if job.labels.get(PURPOSE_LABEL) == "probe":
            name = job.annotations.get(NODE_ANNOTATION, "")
            jobs_of_node[name] = (*jobs_of_node.get(name, ()), job)
    work = _Pass(snapshot, places, {node.name: node for node in snapshot.nodes}, jobs_of_node, now)
    # 2. Finished probes become portraits; 3. each against its family.
    portraits = _assess(work, _merge_results(work))
    # 4. Labels, 5. next probes.
    probes = _next_probes(work, portraits)
    labels = _label_writes(work, portraits)
    jobs: tuple[Action, ...] = (*_end_pointless_probes(work, portraits), *probes.starts)
    actions = (*_portrait_writes(work, portraits), *jobs, *labels[:LABELS_PER_PASS], *_events(work, portraits))
    # 6. Status.
    findings = PoolFindings(places=places, portraits=portraits, obstacles=probes.obstacles, starting=len(probes.starts), refusal=probes.refusal)
    waiting = bool(probes.starts or probes.obstacles or running_jobs(snapshot.jobs, snapshot.pool.name))
    pause = SOON_SECONDS if len(labels) > LABELS_PER_PASS else RECHECK_SECONDS if waiting else None
    return PoolPlan(build_pool_status(snapshot, findings, now), actions, pause)


def _merge_results(work: _Pass) -> dict[str, Portrait]:
    """Portraits of members after the finished probes; one that failed is noted in the portrait there is, or in an empty one."""
    members = {node.name: (node, place) for node, place in work.members()}
    portraits = {name: item for name, item in work.snapshot.portraits.items() if name in members and item.spec.node_uid == members[name][0].uid}
    for result in sorted(work.snapshot.results, key=lambda item: item.finished_at):
        before = portraits.get(result.node)
        if result.node in members and not _is_stale(before, result.finished_at) and _counts(work, result, *members[result.node]):
            node, place = members[result.node]
            circumstances = circumstances_of(node, place, work.snapshot.pool, work.snapshot.limits)
            portraits[result.node] = portray_result(node, place, result, before, circumstances)
    return portraits


def _counts(work: _Pass, result: ProbeResult, node: NodeFacts, place: Membership) -> bool:
    """Whether it was measured for the family that the node is in now."""
    return all(is_of_this_card(job, node, place) for job in work.jobs_of_node.get(result.node, ()) if job.name == result.job)


def _is_stale(portrait: Portrait | None, finished_at: datetime) -> bool:
    # The portrait's times have whole seconds, so equality means 'this very result'.
    status = portrait.status if portrait is not None else None
    seen = [status.measured_at, status.probe_failure.failed_at if status.probe_failure is not None else None] if status is not None else []
    return any(finished_at.replace(microsecond=0) <= parse_time(moment) for moment in seen if moment is not None)


def _assess(work: _Pass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    by_family: dict[str, list[Portrait]] = {}
    for node, place in work.members():
        if node.name in portraits and portraits[node.name].status.measured_at is not None:
            by_family.setdefault(place.family.name, []).append(portraits[node.name])
    assessed = dict(portraits)
    for family in by_family.values():
        for name, assessment in assess_family(family).items():
            assessed[name] = _assessed(portraits[name], assessment)
    return {name: mark_sick(item) for name, item in assessed.items()}


def _assessed(portrait: Portrait, assessment: Assessment) -> Portrait:
    """The very same portrait where nothing worth a write is new: one probe moves the median, and with it all siblings by next to nothing."""
    status, factor = portrait.status, assessment.correction_factor_permille
    if status.health == assessment.health and abs(status.correction_factor_permille - factor) < FACTOR_STEP_PERMILLE:
        return portrait
    return replace(portrait, status=status.model_copy(update={"correction_factor_permille": factor, "health": assessment.health}))


def _portrait_writes(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[Action, ...]:
    writes: list[Action] = []
    for name, portrait in portraits.items():
        before = work.snapshot.portraits.get(name)
        if before is not portrait and (before is None or (before.spec, before.status) != (portrait.spec, portrait.status)):
            writes.append(WritePortrait(name, portrait.spec, portrait.status))
    mine = (name for name, item in work.snapshot.portraits.items() if item.spec.pool == work.snapshot.pool.name and name not in portraits)
    return (*writes, *(DeletePortrait(name, "the node is no longer in a family of this pool") for name in mine if not _keeps_place(work, name)))


def _keeps_place(work: _Pass, name: str) -> bool:
    """A labeller that restarts drops the vendor's labels for a minute: missing is not changed."""
    place = work.places.get(name)
    return name in work.nodes and (place is None or (isinstance(place, NoMembership) and place.reason == "LabelMissing"))


def _label_writes(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[Action, ...]:
    writes: list[Action] = []
    for node in work.nodes.values():
        have = {key: node.labels[key] for key in (FAMILY_LABEL, HEALTH_LABEL) if key in node.labels}
        want = _wanted_labels(work, node, portraits)
        if want is not None and want != have:
            writes.append(WriteNodeLabels(node.name, want, node.uid))
    return tuple(writes)


def _wanted_labels(work: _Pass, node: NodeFacts, portraits: Mapping[str, Portrait]) -> Mapping[str, str] | None:
    """None = leave what is there: not ours to say, or the vendor's label is only missing."""
    place = work.places.get(node.name)
    if isinstance(place, Membership):
        health = portraits[node.name].status.health if node.name in portraits else "Unknown"
        return {FAMILY_LABEL: place.family.name, **health_labels(health)}
    if isinstance(place, NoMembership) and place.reason == reasons.POOL_OVERLAP:
        return None  # the older pool labels it
    mine = node.name in work.snapshot.portraits and work.snapshot.portraits[node.name].spec.pool == work.snapshot.pool.name
    if not mine or _keeps_place(work, node.name):
        return None
    return {}


@dataclass(frozen=True, slots=True)
class _Probes:
    """The next probes, and why other nodes that need one get none."""

    starts: tuple[CreateJob, ...]
    obstacles: tuple[Obstacle, ...]
    refusal: JobRefusal | None = None
    """Why the API server takes no probe Job, while that stands."""


def _next_probes(work: _Pass, portraits: Mapping[str, Portrait]) -> _Probes:
    snapshot = work.snapshot
    running = running_jobs(snapshot.jobs, snapshot.pool.name)
    allowance = free_probes(snapshot.pool.spec.limits, running)
    taken = measured_nodes(snapshot.jobs)
    starts: list[CreateJob] = []
    obstacles: list[Obstacle] = []
    for case in _cases(work, portraits):
        if need_for_probe(case, snapshot.pool.spec, work.now) is None:
            continue
        obstacle = find_obstacle(case, snapshot.limits, work.now)
        if obstacle is not None:
            obstacles.append(obstacle)
        elif case.node.name in taken or len(starts) >= allowance:
            obstacles.append(Obstacle("ProbesPending", f"node {case.node.name} waits for its turn"))
        else:
            starts.append(build_probe_job(case, snapshot.pool, snapshot.limits))
    return _held_back(work, _Probes(tuple(starts), tuple(obstacles)))


def _held_back(work: _Pass, probes: _Probes) -> _Probes:
    """While the API server takes no probe Job: only the one that it refused is tried, when that is due."""
    refusal = work.snapshot.pool.status.refusal
    refused = next((job for job in probes.starts if refusal is not None and job.name == refusal.job), None)
    if refusal is None or refused is None:
        return probes
    waiting = Obstacle(refusal.reason, refusal_words(refusal), retry_at(refusal))
    return _Probes((refused,) if work.now >= retry_at(refusal) else (), (waiting, *probes.obstacles), refusal)


def _cases(work: _Pass, portraits: Mapping[str, Portrait]) -> Sequence[ProbeCase]:
    used: dict[str, Counter[str]] = {}
    cases = []
    for node, place in work.members():
        resource = place.family.resource
        if resource not in used:
            used[resource] = cards_used(work.snapshot.card_pods, resource)
        free = node.allocatable.get(resource, 0) - used[resource][node.name]
        jobs = tuple(job for job in work.jobs_of_node.get(node.name, ()) if is_of_this_card(job, node, place))
        circumstances = circumstances_of(node, place, work.snapshot.pool, work.snapshot.limits)
        cases.append(ProbeCase(node, place, portraits.get(node.name), free, jobs, circumstances))
    # Never measured first, then the oldest portrait: a new family is usable soonest.
    return sorted(cases, key=lambda case: (case.portrait.status.measured_at or "" if case.portrait else "", case.node.name))


def _end_pointless_probes(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[DeleteJob, ...]:
    """Probe Jobs that hold a card for nothing: of a node that left the pool, of cards that are no longer there, or reported and kept alive."""
    ends: list[DeleteJob] = []
    for job in work.snapshot.jobs:
        mine = job.labels.get(PURPOSE_LABEL) == "probe" and job.annotations.get(POOL_ANNOTATION) == work.snapshot.pool.name
        if mine and not job.finished and not job.deleting and (why := _why_pointless(work, job, portraits)):
            ends.append(DeleteJob(job.namespace, job.name, why, job.uid))
    return tuple(ends)


def _why_pointless(work: _Pass, job: JobFacts, portraits: Mapping[str, Portrait]) -> str:
    name = job.annotations.get(NODE_ANNOTATION, "")
    place, portrait = work.places.get(name), portraits.get(name)
    if not isinstance(place, Membership):
        return "" if _keeps_place(work, name) else "the node is no longer in a family of this pool"
    if not is_of_this_card(job, work.nodes[name], place):
        return "the node's cards or labels changed"
    reported_at = _reported_at(job, portrait)
    lingers = reported_at is not None and (work.now - parse_time(reported_at)).total_seconds() > LINGER_SECONDS
    return "it has reported" if lingers else ""


def _reported_at(job: JobFacts, portrait: Portrait | None) -> str | None:
    """When the Job's result came into the portrait. An injected sidecar keeps one alive that has reported; one that never started waits on."""
    if portrait is None:
        return None
    status, failure = portrait.status, portrait.status.probe_failure
    if failure is not None and failure.job == job.name:
        return failure.failed_at
    return status.measured_at if status.probe_job == job.name else None


def _events(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[EmitEvent, ...]:
    """One for each node whose probe fails for a reason that it did not fail for before; repeated failures are in the status only."""
    fresh: list[EmitEvent] = []
    for name, portrait in sorted(portraits.items()):
        before, failure = work.snapshot.portraits.get(name), portrait.status.probe_failure
        known = before.status.probe_failure if before is not None else None
        if failure is not None and (known is None or known.reason != failure.reason):
            fresh.append(EmitEvent("Warning", failure.reason, f"probe of node {failure_words(name, failure)}"[:1024]))
    refusal = work.snapshot.pool.status.refusal
    said = find_condition(work.snapshot.pool.status.conditions, reasons.PROBES_COMPLETED)
    if refusal is not None and (said is None or said.reason != refusal.reason):
        fresh.append(EmitEvent("Warning", refusal.reason, refusal_words(refusal)))
    return tuple(fresh[:4])
