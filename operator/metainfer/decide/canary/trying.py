"""A decision is tried on a few pods of its own before it is written: started, watched, and promoted or taken away. Pure.

Claimed in the status before anything is made; the Deployment's name is made from the decision, so a restart finds it again. What
cannot be tried is written in place, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import CanaryStatus
from metainfer.decide.canary.judging import Trial, judge_trial
from metainfer.decide.canary.reach import find_labels
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import CanaryFacts, Labels
from metainfer.decide.families import Exclusion, cards_used
from metainfer.decide.keeping.taking_back import take_back
from metainfer.decide.names import short_hash
from metainfer.decide.placement import PlacementPlan
from metainfer.decide.plan import AdaptationPlan, CreateCanary, DeleteCanary, EmitEvent
from metainfer.decide.readback import Expected, Moment, ReadBack, read_back
from metainfer.decide.room import cards_requested
from metainfer.decide.scene import Scene
from metainfer.decide.wanted import Wanted, find_wanted

POLL_SECONDS: Final = 15.0
"""Its pods are read, not watched."""
NO_ROOM_SECONDS: Final = 60.0
ABORTED: Final[Mapping[str, str]] = {"Worse": "CanaryWorse", "Failed": "CanaryFailed"}
"""Reasons with which a decision is taken back."""
Outcome = Literal["Running", "Promoted", "Worse", "Failed", "Inconclusive", "Skipped"]


def try_canary(draft: Draft, scene: Scene, plan: PlacementPlan, wanted: Wanted) -> AdaptationPlan | None:
    """None = nothing keeps the decision from being written (or ``wanted`` has changed: it was taken back)."""
    policy, facts, trial = draft.snapshot.adaptation.spec.rollout.canary, draft.snapshot.canary, _trial(draft, wanted)
    if policy is None or not wanted.is_newest or plan.apply is None or _was_applied(draft, wanted):
        return None
    if trial is not None and trial.outcome == "Inconclusive":
        draft.find(reasons.APPLIED, "False", "CanaryInconclusive", trial.message)
        return draft.done("Recommended", trial.message)
    if trial is not None and trial.outcome != "Running":
        return None
    if facts is None:
        return draft.wait("CanaryPreparing", "looking for what a trial needs", seconds=1.0)
    if trial is None:
        return _begin(draft, scene, plan, wanted, facts)
    return _follow(draft, scene, plan, wanted, facts)


def tidy_canary(draft: Draft) -> None:
    """Whatever is on trial and should not be is taken away: decided otherwise, ended, suspended, or without a target."""
    facts, wanted = draft.snapshot.canary, find_wanted(draft.status)
    trial = _trial(draft, wanted) if wanted is not None and wanted.is_newest else None
    adaptation, goes_on = draft.snapshot.adaptation, trial is not None and trial.outcome == "Running"
    known = draft.status.canary
    stopped = adaptation.spec.suspend or draft.snapshot.target is None or adaptation.spec.rollout.canary is None
    if facts is not None and facts.deployment is not None and (stopped or not goes_on):
        found = facts.deployment
        ended = known is not None and known.name == found.name and known.outcome != "Running"
        draft.act(DeleteCanary(found.namespace, found.name, found.uid, known.outcome if known is not None and ended else "Dropped"))
    if known is not None and known.outcome == "Running" and not goes_on:
        draft.put(canary=None)


def report_canary_refused(trial: CanaryStatus | None, message: str) -> CanaryStatus | None:
    """The status after the API server took no Deployment for the trial: the decision is written in place."""
    update = {"outcome": "Skipped", "reason": "CanaryRefused", "message": f"written in place, without a trial: {message}"[:512]}
    return trial.model_copy(update=update) if trial is not None else None


def _was_applied(draft: Draft, wanted: Wanted) -> bool:
    """What was on the Deployment before, and somebody took off, is not tried a second time."""
    placement = draft.status.placement
    return placement is not None and placement.decision_id == wanted.decision_id


def _trial(draft: Draft, wanted: Wanted | None) -> CanaryStatus | None:
    known = draft.status.canary
    return known if known is not None and wanted is not None and known.decision_id == wanted.decision_id else None


def _begin(draft: Draft, scene: Scene, plan: PlacementPlan, wanted: Wanted, facts: CanaryFacts) -> AdaptationPlan | None:
    labels = _find_obstacle(draft, scene, plan, facts)
    if isinstance(labels, Exclusion):
        _skip(draft, wanted, labels)
        return None
    replicas = _replicas(draft, scene)
    full = _find_no_room(draft, scene, wanted, replicas)
    if full is not None:
        return _without_room(draft, scene, wanted, full)
    name = f"mi-canary-{short_hash(draft.snapshot.adaptation.uid, wanted.decision_id, length=14)}"
    trial = CanaryStatus(decision_id=wanted.decision_id, name=name, replicas=replicas, started_at=format_time(draft.now))
    draft.put(canary=trial)
    draft.act(EmitEvent("Normal", "CanaryStarted", f"decision {wanted.decision_id} is tried on {replicas} pods of Deployment {name}"))
    return _create(draft, plan, trial, labels)


def _without_room(draft: Draft, scene: Scene, wanted: Wanted, full: Exclusion) -> AdaptationPlan | None:
    """A pool that is full: an owner who lets old pods go first has it replaced in place, everybody else waits."""
    if scene.target.strategy == "Recreate" or scene.target.max_surge == 0:
        _skip(draft, wanted, full)
        return None
    draft.find(reasons.APPLIED, "False", full.reason, full.message)
    return draft.wait(full.reason, f"decided, but not tried yet: {full.message}", seconds=NO_ROOM_SECONDS)


def _create(draft: Draft, plan: PlacementPlan, trial: CanaryStatus, labels: Labels) -> AdaptationPlan:
    adaptation = draft.snapshot.adaptation
    owner = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "name": adaptation.name, "uid": adaptation.uid}
    if plan.apply is None:
        msg = "a plan without an apply is not tried"
        raise ValueError(msg)
    draft.act(CreateCanary(trial.name, trial.replicas, labels, owner, plan.apply))
    return _wait(draft, trial, "its pods are being started")


def _follow(draft: Draft, scene: Scene, plan: PlacementPlan, wanted: Wanted, facts: CanaryFacts) -> AdaptationPlan | None:
    trial = _trial(draft, wanted)
    labels = find_labels(scene.target, facts.around, draft.snapshot.adaptation.uid)
    if trial is None:
        return None
    if isinstance(labels, Exclusion):
        _skip(draft, wanted, labels)
        return None
    if facts.deployment is None:
        return _create(draft, plan, trial, labels)
    seen = _look(draft, scene, plan, trial, facts)
    failed = seen.crashing or seen.stuck or "; ".join(seen.other_values[:4]) if not seen.effective else ""
    if failed:
        _abort(draft, trial, "Failed", f"no pod on trial serves as decided: {failed}")
        return None
    if seen.effective and trial.ready_at is None:
        trial = trial.model_copy(update={"ready_at": format_time(draft.now)})
        draft.put(canary=trial)
    return _judge(draft, trial, facts, seen)


def _judge(draft: Draft, trial: CanaryStatus, facts: CanaryFacts, seen: ReadBack) -> AdaptationPlan | None:
    drift, served = draft.snapshot.adaptation.spec.drift, draft.snapshot.served
    found = Trial("Open", seen.waiting or "its pods are starting")
    if trial.ready_at is not None and facts.served is not None and served is not None:
        found = judge_trial(facts.served.windows, served.windows, parse_time(trial.ready_at), drift)
    if found.verdict == "Worse":
        _abort(draft, trial, "Worse", found.message)
        return None
    if found.verdict == "Fine":
        _end(draft, trial, "Promoted", "CanaryPromoted", f"decision {trial.decision_id} is written: {found.message}")
        return None
    return _go_on(draft, trial, found)


def _go_on(draft: Draft, trial: CanaryStatus, found: Trial) -> AdaptationPlan:
    """Until its limit; then it is given up, and nothing is written that nobody could judge."""
    policy = draft.snapshot.adaptation.spec.rollout.canary
    if policy is not None and draft.now >= parse_time(trial.started_at) + parse_duration(policy.limit):
        words = f"not written: a trial of {policy.limit} told nothing ({found.message}); change the adaptation to try again, or leave rollout.canary out"
        _end(draft, trial, "Inconclusive", "CanaryInconclusive", words)
        draft.find(reasons.APPLIED, "False", "CanaryInconclusive", words)
        return draft.done("Recommended", words)
    return _wait(draft, trial, found.message)


def _look(draft: Draft, scene: Scene, plan: PlacementPlan, trial: CanaryStatus, facts: CanaryFacts) -> ReadBack:
    option = scene.option(draft.recommended)
    expected = Expected(trial.decision_id, plan.env, scene.container.name, option.members if option is not None else frozenset())
    if facts.deployment is None:
        msg = "nothing is on trial"
        raise ValueError(msg)
    return read_back(facts.deployment, facts.pods, expected, Moment(draft.now, parse_time(trial.started_at)))


def _abort(draft: Draft, trial: CanaryStatus, outcome: Literal["Worse", "Failed"], message: str) -> None:
    """The present pods were never touched: what was there before is there, and stays."""
    reason = ABORTED[outcome]
    _end(draft, trial, outcome, reason, message, event=False)
    take_back(draft, reason, message)


def _end(  # budget: what is told of it
    draft: Draft, trial: CanaryStatus, outcome: Outcome, reason: str, message: str, *, event: bool = True
) -> None:
    draft.put(canary=trial.model_copy(update={"outcome": outcome, "reason": reason, "message": message[:512]}))
    if event:
        draft.act(EmitEvent("Normal" if outcome in ("Promoted", "Skipped") else "Warning", reason, message[:1024]))


def _skip(draft: Draft, wanted: Wanted, why: Exclusion) -> None:
    trial = CanaryStatus(decision_id=wanted.decision_id, started_at=format_time(draft.now))
    _end(draft, trial, "Skipped", why.reason, f"written in place, without a trial: {why.message}")


def _wait(draft: Draft, trial: CanaryStatus, message: str) -> AdaptationPlan:
    words = f"decision {trial.decision_id} is on trial on {trial.replicas} pods of Deployment {trial.name}: {message}"
    draft.find(reasons.APPLIED, "False", "CanaryRunning", words)
    draft.step("Applying", words[:256])
    return draft.wait("CanaryRunning", words, seconds=POLL_SECONDS)


def _find_obstacle(draft: Draft, scene: Scene, plan: PlacementPlan, facts: CanaryFacts) -> Labels | Exclusion:
    served = draft.snapshot.served
    if served is None or served.next_at is None:
        words = served.problem.message if served is not None and served.problem is not None else "the latency that the target serves is not read"
        return Exclusion("CanaryNothingToCompare", words)
    if plan.apply is not None and plan.apply.release_env:
        return Exclusion("CanaryContested", "the owner has come to declare a variable that an earlier decision wrote")
    return find_labels(scene.target, facts.around, draft.snapshot.adaptation.uid)


def _replicas(draft: Draft, scene: Scene) -> int:
    policy = draft.snapshot.adaptation.spec.rollout.canary
    share = policy.share_percent if policy is not None else 0
    return max(1, math.ceil(scene.target.replicas * share / 100))


def _find_no_room(draft: Draft, scene: Scene, wanted: Wanted, replicas: int) -> Exclusion | None:
    """Cards that are free now, the target's own pods counted as holders: they stay meanwhile."""
    option = scene.option(wanted.config)
    if option is None:
        return None
    resource = option.family.resource
    each, used = cards_requested(scene.target.template).get(resource, 0), cards_used(draft.snapshot.card_pods, resource)
    free = sum(max(0, node.allocatable.get(resource, 0) - used[node.name]) for node in option.nodes)
    if each == 0 or free >= each * replicas:
        return None
    return Exclusion("CanaryNoRoom", f"a trial of {replicas} pods needs {each * replicas} {resource}, {free} are free in family {option.family.name}")
