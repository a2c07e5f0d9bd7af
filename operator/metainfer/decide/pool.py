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
from metainfer.decide.calibrating import calibrate_families, calibration_turns
from metainfer.decide.caps import free_probes, measured_nodes, running_jobs
from metainfer.decide.cards import count_free
from metainfer.decide.condemning import note_verdicts
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import JobFacts, NodeFacts, PoolSnapshot, Portrait
from metainfer.decide.families import Membership, NoMembership, cards_used
from metainfer.decide.names import NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL
from metainfer.decide.own_jobs import LINGER_SECONDS
from metainfer.decide.plan import Action, CreateJob, DeleteJob, DeletePortrait, PoolPlan, WriteNodeLabels, WritePortrait
from metainfer.decide.pool_events import find_events
from metainfer.decide.pool_pass import PoolPass, open_pass
from metainfer.decide.pool_status import PoolFindings, build_pool_status
from metainfer.decide.portraits import health_labels
from metainfer.decide.portraying import assess, merge_results, note_labels
from metainfer.decide.probe_failures import circumstances_of
from metainfer.decide.probing import Obstacle, ProbeCase, build_probe_job, find_need, find_obstacle, is_of_this_card
from metainfer.decide.refusal import refusal_words, retry_at
from metainfer.decide.suspects import note_suspects

LABELS_PER_PASS = 200
"""A new pool of thousands of nodes is labelled in several passes: each holds the place of all others that would start a Job."""
SOON_SECONDS = 1.0
RECHECK_SECONDS = 60.0
"""While a node waits for a probe (busy, backing off) the pool is looked at again even if no event comes."""
LOOK_AHEAD_SECONDS = 3600.0
"""A probe that becomes necessary later needs no timer of its own: each resync looks."""


def decide_pool(snapshot: PoolSnapshot, now: datetime) -> PoolPlan:
    """The plan of one pass. Pure: same snapshot and clock, same plan."""
    # 1. Which node is in which family.
    work = open_pass(snapshot, now)
    # 2. Finished probes become portraits, which note what labels say; 3. each against its family.
    portraits = assess(work, note_verdicts(work, note_suspects(work, note_labels(work, merge_results(work)))))
    calibrations = calibrate_families(work, portraits)
    # 4. Labels, 5. next probes.
    probes = _next_probes(work, portraits)
    labels = _label_writes(work, portraits)
    jobs: tuple[Action, ...] = (*_end_pointless_probes(work, portraits), *probes.starts)
    actions = (*_portrait_writes(work, portraits), *jobs, *labels[:LABELS_PER_PASS], *find_events(work, portraits, calibrations))
    # 6. Status.
    findings = PoolFindings(
        places=work.places, portraits=portraits, obstacles=probes.obstacles, starting=len(probes.starts), refusal=probes.refusal,
        calibrations=calibrations,
    )  # fmt: skip
    waiting = bool(probes.starts or probes.obstacles or running_jobs(snapshot.jobs, snapshot.pool.name))
    pauses = (SOON_SECONDS if len(labels) > LABELS_PER_PASS else None, RECHECK_SECONDS if waiting else None, probes.next_seconds)
    return PoolPlan(build_pool_status(snapshot, findings, now), actions, min((item for item in pauses if item is not None), default=None))


def _portrait_writes(work: PoolPass, portraits: Mapping[str, Portrait]) -> tuple[Action, ...]:
    writes: list[Action] = []
    for name, portrait in portraits.items():
        before = work.snapshot.portraits.get(name)
        if before is not portrait and (before is None or (before.spec, before.status) != (portrait.spec, portrait.status)):
            writes.append(WritePortrait(name, portrait.spec, portrait.status))
    mine = (name for name, item in work.snapshot.portraits.items() if item.spec.pool == work.snapshot.pool.name and name not in portraits)
    return (*writes, *(DeletePortrait(name, "the node is no longer in a family of this pool") for name in mine if not work.keeps_place(name)))


def _label_writes(work: PoolPass, portraits: Mapping[str, Portrait]) -> tuple[Action, ...]:
    writes: list[Action] = []
    for node in work.nodes.values():
        have = {key: node.labels[key] for key in (FAMILY_LABEL, HEALTH_LABEL) if key in node.labels}
        want = _wanted_labels(work, node, portraits)
        if want is not None and want != have:
            writes.append(WriteNodeLabels(node.name, want, node.uid))
    return tuple(writes)


def _wanted_labels(work: PoolPass, node: NodeFacts, portraits: Mapping[str, Portrait]) -> Mapping[str, str] | None:
    """None = leave what is there: not ours to say, or the vendor's label is only missing."""
    place = work.places.get(node.name)
    if isinstance(place, Membership):
        health = portraits[node.name].status.health if node.name in portraits else "Unknown"
        return {FAMILY_LABEL: place.family.name, **health_labels(health)}
    if isinstance(place, NoMembership) and place.reason == reasons.POOL_OVERLAP:
        return None  # the older pool labels it
    mine = node.name in work.snapshot.portraits and work.snapshot.portraits[node.name].spec.pool == work.snapshot.pool.name
    if not mine or work.keeps_place(node.name):
        return None
    return {}


@dataclass(frozen=True, slots=True)
class _Probes:
    """The next probes, and why other nodes that need one get none."""

    starts: tuple[CreateJob, ...]
    obstacles: tuple[Obstacle, ...]
    refusal: JobRefusal | None = None
    """Why the API server takes no probe Job, while that stands."""
    next_seconds: float | None = None
    """Until the next one becomes necessary."""


def _next_probes(work: PoolPass, portraits: Mapping[str, Portrait]) -> _Probes:
    snapshot = work.snapshot
    running = running_jobs(snapshot.jobs, snapshot.pool.name)
    allowance = free_probes(snapshot.pool.spec.limits, running)
    taken = measured_nodes(snapshot.jobs)
    starts: list[CreateJob] = []
    obstacles: list[Obstacle] = []
    later: list[float] = []
    for case in _cases(work, portraits):
        need = find_need(case, snapshot.pool.spec, snapshot.limits, work.now)
        if need is None or need.due_at > work.now:
            later += [(need.due_at - work.now).total_seconds()] if need is not None else []
            continue
        obstacle = find_obstacle(case, snapshot.limits, work.now)
        if obstacle is not None:
            obstacles.append(obstacle)
        elif case.node.name in taken or len(starts) >= allowance:
            obstacles.append(Obstacle("ProbesPending", f"node {case.node.name} waits for its turn"))
        else:
            starts.append(build_probe_job(case, snapshot.pool, snapshot.limits, calibrates=need.calibrates))
    return _held_back(work, _Probes(tuple(starts), tuple(obstacles), next_seconds=_soonest(later)))


def _soonest(seconds: Sequence[float]) -> float | None:
    near = min(seconds, default=LOOK_AHEAD_SECONDS)
    return max(SOON_SECONDS, near) if near < LOOK_AHEAD_SECONDS else None


def _held_back(work: PoolPass, probes: _Probes) -> _Probes:
    """While the API server takes no probe Job: only the one that it refused is tried, when that is due."""
    refusal = work.snapshot.pool.status.refusal
    refused = next((job for job in probes.starts if refusal is not None and job.name == refusal.job), None)
    if refusal is None or refused is None:
        return probes
    waiting = Obstacle(refusal.reason, refusal_words(refusal), retry_at(refusal))
    return _Probes((refused,) if work.now >= retry_at(refusal) else (), (waiting, *probes.obstacles), refusal, probes.next_seconds)


def _cases(work: PoolPass, portraits: Mapping[str, Portrait]) -> Sequence[ProbeCase]:
    used: dict[str, Counter[str]] = {}
    cases = []
    for node, place in work.members():
        resource = place.family.resource
        if resource not in used:
            used[resource] = cards_used(work.snapshot.card_pods, resource)
        free = count_free(node, resource, used[resource][node.name])
        jobs = tuple(job for job in work.jobs_of_node.get(node.name, ()) if is_of_this_card(job, node, place))
        circumstances = circumstances_of(node, place, work.snapshot.pool, work.snapshot.limits)
        cases.append(ProbeCase(node, place, portraits.get(node.name), free, jobs, circumstances))
    turns = calibration_turns(work, cases)
    cases = [replace(case, calibrates=case.node.name in turns) for case in cases]
    # Never measured first, then the oldest portrait: a new family is usable soonest.
    return sorted(cases, key=lambda case: (case.portrait.status.measured_at or "" if case.portrait else "", case.node.name))


def _end_pointless_probes(work: PoolPass, portraits: Mapping[str, Portrait]) -> tuple[DeleteJob, ...]:
    """Probe Jobs that hold a card for nothing: of a node that left the pool, of cards that are no longer there, or reported and kept alive."""
    ends: list[DeleteJob] = []
    for job in work.snapshot.jobs:
        mine = job.labels.get(PURPOSE_LABEL) == "probe" and job.annotations.get(POOL_ANNOTATION) == work.snapshot.pool.name
        if mine and not job.finished and not job.deleting and (why := _why_pointless(work, job, portraits)):
            ends.append(DeleteJob(job.namespace, job.name, why, job.uid))
    return tuple(ends)


def _why_pointless(work: PoolPass, job: JobFacts, portraits: Mapping[str, Portrait]) -> str:
    name = job.annotations.get(NODE_ANNOTATION, "")
    place, portrait = work.places.get(name), portraits.get(name)
    if not isinstance(place, Membership):
        return "" if work.keeps_place(name) else "the node is no longer in a family of this pool"
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
