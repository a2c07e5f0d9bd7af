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
from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.decide.caps import free_probes, measured_nodes, running_jobs
from metainfer.decide.conditions import find_condition, parse_time
from metainfer.decide.facts import JobFacts, NodeFacts, PoolSnapshot, Portrait
from metainfer.decide.families import Membership, NoMembership, assign_nodes, cards_used
from metainfer.decide.names import NODE_ANNOTATION, PURPOSE_LABEL
from metainfer.decide.plan import Action, CreateJob, DeletePortrait, EmitEvent, PoolPlan, WriteNodeLabels, WritePortrait
from metainfer.decide.pool_status import PoolFindings, build_pool_status
from metainfer.decide.portraits import assess_family, build_portrait, health_labels, report_problem
from metainfer.decide.probing import Obstacle, ProbeCase, build_probe_job, find_obstacle, need_for_probe

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
    portraits, problems = _merge_results(work)
    portraits = _assess(work, portraits)
    # 4. Labels, 5. next probes.
    starts, obstacles = _next_probes(work, portraits)
    actions = (*_portrait_writes(work, portraits), *_label_writes(work, portraits), *starts, *_events(work, problems))
    # 6. Status.
    findings = PoolFindings(places=places, portraits=portraits, obstacles=obstacles, starting=len(starts), problems=problems)
    waiting = bool(starts or obstacles or running_jobs(snapshot.jobs, snapshot.pool.name))
    return PoolPlan(build_pool_status(snapshot, findings, now), actions, RECHECK_SECONDS if waiting else None)


def _merge_results(work: _Pass) -> tuple[dict[str, Portrait], dict[str, tuple[str, str]]]:
    """Portraits of members after the finished probes, and why other probes gave none."""
    members = {node.name: (node, place) for node, place in work.members()}
    portraits = {name: item for name, item in work.snapshot.portraits.items() if name in members and item.spec.node_uid == members[name][0].uid}
    problems: dict[str, tuple[str, str]] = {}
    for result in sorted(work.snapshot.results, key=lambda item: item.finished_at):
        if result.node not in members or _is_stale(portraits.get(result.node), result.finished_at):
            continue
        problem = (result.failure.reason, result.failure.message) if result.failure else report_problem(result.report)
        if problem is not None:
            problems[result.node] = problem
            continue
        node, place = members[result.node]
        spec, status = build_portrait(node, place, result)
        before = portraits.get(result.node)
        health = before.status.health if before else "Unknown"
        portraits[result.node] = Portrait(result.node, spec, status.model_copy(update={"health": health}))
        problems.pop(result.node, None)
    return portraits, problems


def _is_stale(portrait: Portrait | None, finished_at: datetime) -> bool:
    # The portrait's time has whole seconds, so equality means 'this very result'.
    return portrait is not None and portrait.status.measured_at is not None and finished_at.replace(microsecond=0) <= parse_time(portrait.status.measured_at)


def _assess(work: _Pass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    by_family: dict[str, list[Portrait]] = {}
    for node, place in work.members():
        if node.name in portraits:
            by_family.setdefault(place.family.name, []).append(portraits[node.name])
    assessed: dict[str, Portrait] = {}
    for family in by_family.values():
        for name, assessment in assess_family(family).items():
            status = portraits[name].status.model_copy(
                update={"correction_factor_permille": assessment.correction_factor_permille, "health": assessment.health}
            )
            assessed[name] = replace(portraits[name], status=status)
    return assessed


def _portrait_writes(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[Action, ...]:
    writes: list[Action] = []
    for name, portrait in portraits.items():
        before = work.snapshot.portraits.get(name)
        if before is None or (before.spec, before.status) != (portrait.spec, portrait.status):
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
        have = {key: value for key, value in node.labels.items() if key in (FAMILY_LABEL, HEALTH_LABEL)}
        want = _wanted_labels(work, node, portraits)
        if want is not None and want != have:
            writes.append(WriteNodeLabels(node.name, want))
    return tuple(writes)


def _wanted_labels(work: _Pass, node: NodeFacts, portraits: Mapping[str, Portrait]) -> Mapping[str, str] | None:
    """None = leave what is there: not ours to say, or the vendor's label is only missing."""
    place = work.places.get(node.name)
    if isinstance(place, Membership):
        health = portraits[node.name].status.health if node.name in portraits else "Unknown"
        return {FAMILY_LABEL: place.family.name, **health_labels(health)}
    mine = node.name in work.snapshot.portraits and work.snapshot.portraits[node.name].spec.pool == work.snapshot.pool.name
    if not mine or _keeps_place(work, node.name):
        return None
    return {}


def _next_probes(work: _Pass, portraits: Mapping[str, Portrait]) -> tuple[tuple[CreateJob, ...], tuple[Obstacle, ...]]:
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
    return tuple(starts), tuple(obstacles)


def _cases(work: _Pass, portraits: Mapping[str, Portrait]) -> Sequence[ProbeCase]:
    used: dict[str, Counter[str]] = {}
    cases = []
    for node, place in work.members():
        resource = place.family.resource
        if resource not in used:
            used[resource] = cards_used(work.snapshot.card_pods, resource)
        free = node.allocatable.get(resource, 0) - used[resource][node.name]
        cases.append(ProbeCase(node, place, portraits.get(node.name), free, work.jobs_of_node.get(node.name, ())))
    # Never measured first, then the oldest portrait: a new family is usable soonest.
    return sorted(cases, key=lambda case: (case.portrait.status.measured_at or "" if case.portrait else "", case.node.name))


def _events(work: _Pass, problems: Mapping[str, tuple[str, str]]) -> tuple[EmitEvent, ...]:
    before = find_condition(work.snapshot.pool.status.conditions, reasons.PROBES_COMPLETED)
    if before is not None and before.reason == reasons.PROBE_FAILED:
        return ()  # said already
    return tuple(EmitEvent("Warning", reason, f"probe of node {name} failed: {message}"[:1024]) for name, (reason, message) in sorted(problems.items())[:4])
