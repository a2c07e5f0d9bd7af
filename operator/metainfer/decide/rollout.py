"""From a decision on the Deployment to pods that run it: followed, read back, and taken back when it turns out worse. Pure."""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, Placement
from metainfer.decide.conditions import find_condition, format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import TargetFacts
from metainfer.decide.keeping.taking_back import take_back, taken_back_words
from metainfer.decide.keeping.watching import find_failing
from metainfer.decide.lasting import carried_removal
from metainfer.decide.placement import PlacementPlan
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.readback import Expected, Moment, ReadBack, read_back
from metainfer.decide.scene import Scene
from metainfer.decide.standing import known_placement
from metainfer.decide.target import TargetProblem
from metainfer.decide.wanted import Wanted, find_wanted

ROLLOUT_POLL_SECONDS = 5.0
ROLLOUT_POLL_LIMIT_SECONDS = 60.0


def follow_rollout(draft: Draft, scene: Scene, plan: PlacementPlan, problem: TargetProblem | None) -> AdaptationPlan | None:
    """What is wanted is on the Deployment: does it run? None = it turned out worse and was taken back, something else is wanted now."""
    wanted = find_wanted(draft.status)
    if wanted is None or wanted.config is None:
        msg = "a placement that nobody wants was not held back"
        raise ValueError(msg)
    seen = _look(draft, scene, plan, wanted)
    _note_placement(draft, scene, wanted, seen)
    managed = _note_applied(draft, wanted, problem)
    if problem is not None and problem.reason in (reasons.TARGET_PAUSED, reasons.TARGET_SCALED_TO_ZERO) and not seen.effective:
        return _stands_still(draft, problem)
    failing = find_failing(draft, seen) if managed == "Applied" else None
    if failing is not None:
        take_back(draft, failing.reason, failing.message)
        return None
    if seen.rolled_out and seen.effective:
        return _runs(draft, seen, managed)
    return _not_yet(draft, scene, seen)


def _look(draft: Draft, scene: Scene, plan: PlacementPlan, wanted: Wanted) -> ReadBack:
    option = scene.option(wanted.config)
    if option is None:
        msg = "a placement without a family was not held back"
        raise ValueError(msg)
    expected = Expected(wanted.decision_id, plan.env, scene.container.name, option.members)
    return read_back(scene.target, draft.snapshot.target_pods, expected, _moment(draft, wanted.decision_id))


def _runs(draft: Draft, seen: ReadBack, managed: str) -> AdaptationPlan:
    where, back = ", ".join(seen.nodes), taken_back_words(draft.status)
    draft.find(reasons.SETTINGS_EFFECTIVE, "True", "ReadBack", f"the pods run as decided on {where}")
    return draft.done(managed, f"runs as decided on {where}{f'; but {seen.waiting}' if seen.waiting else ''}{f'; {back}' if back else ''}")


def _moment(draft: Draft, decision_id: str) -> Moment:
    """A rollout counts from the write, or from the first look after a pause: a paused Deployment rolls nothing out."""
    before = find_condition(draft.snapshot.adaptation.status.conditions, reasons.SETTINGS_EFFECTIVE)
    placement, target = known_placement(draft, decision_id), draft.snapshot.target
    resumed = before is not None and before.reason == reasons.TARGET_PAUSED and target is not None and not target.paused
    since = placement.rollout_since or placement.applied_at if placement is not None and not resumed else None
    settled = placement is not None and before is not None and (before.status, before.reason) == ("True", "ReadBack")
    return Moment(draft.now, parse_time(since) if since is not None else draft.now, settled)


def _note_applied(draft: Draft, wanted: Wanted, problem: TargetProblem | None) -> str:
    """Say that the decision is on the Deployment, and whether anybody looks after it; returns the reason."""
    words = f"decision {wanted.decision_id} is on the Deployment"
    unmanaged = "updatePolicy.mode is Off" if draft.snapshot.adaptation.spec.update_policy.mode == "Off" else ""
    if problem is not None and problem.reason == reasons.UNSUPPORTED_TARGET:
        unmanaged = problem.message
    if unmanaged:
        draft.find(reasons.APPLIED, "True", "NotManaged", f"{words} and stays as it is, neither renewed nor taken back: {unmanaged}")
        return "NotManaged"
    draft.find(reasons.APPLIED, "True", "Applied", words)
    return "Applied"


def _stands_still(draft: Draft, problem: TargetProblem) -> AdaptationPlan:
    """Written, and nothing to read it back from until somebody resumes the Deployment or scales it up: no timer runs."""
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", problem.reason, problem.message)
    if problem.reason == reasons.TARGET_SCALED_TO_ZERO:
        return draft.done(problem.reason, f"decided and written; {problem.message}")
    draft.step("RollingOut", problem.message[:256])
    return draft.wait(problem.reason, problem.message, seconds=None)


def _not_yet(draft: Draft, scene: Scene, seen: ReadBack) -> AdaptationPlan:
    if seen.stuck:
        draft.find(reasons.SETTINGS_EFFECTIVE, "False", "RolloutStuck", seen.stuck)
        draft.step("RollingOut", f"the rollout is stuck: {seen.stuck}"[:256])
        return draft.stall("RolloutStuck", seen.stuck, seconds=60.0)
    if seen.rolled_out and seen.differs:
        draft.find(reasons.SETTINGS_EFFECTIVE, "False", "Differs", "; ".join(seen.differs[:4]))
        return draft.wait("SettingsNotEffective", "; ".join(seen.differs[:4]), seconds=60.0)
    down = interruption(scene.target) if scene.target.available_replicas == 0 else ""
    words = f"waiting for the rollout{': ' + seen.waiting if seen.waiting else ''}{down}"
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "RollingOut", words)
    draft.step("RollingOut", words[:256])
    return draft.wait("RollingOut", words, seconds=_poll_seconds(draft))


def _poll_seconds(draft: Draft) -> float:
    """Events of the Deployment and its pods wake the pass; a model that loads for half an hour needs no look every five seconds."""
    placement = draft.status.placement
    waited = (draft.now - parse_time(placement.rollout_since or placement.applied_at)).total_seconds() if placement is not None else 0.0
    return max(ROLLOUT_POLL_SECONDS, min(ROLLOUT_POLL_LIMIT_SECONDS, waited / 10))


def _note_placement(draft: Draft, scene: Scene, wanted: Wanted, seen: ReadBack) -> None:
    known, now = known_placement(draft, wanted.decision_id), format_time(draft.now)
    applied_at = known.applied_at if known is not None else now
    since = _moment(draft, wanted.decision_id).since
    settled_at = known.settled_at if known is not None else None
    draft.put(
        placement=Placement(
            decision_id=wanted.decision_id,
            config=wanted.config or ConfigStatus(),
            applied_at=applied_at,
            nodes=seen.nodes[:16],
            target_uid=scene.target.uid,
            container=scene.container.name,
            rollout_since=format_time(since) if since is not None else applied_at,
            settled_at=settled_at or (now if seen.rolled_out and seen.effective else None),
            removal=carried_removal(draft, scene),
        ),
        apply_refusal=None,
    )


def interruption(target: TargetFacts) -> str:
    """What a rollout costs whoever calls the service."""
    return "" if target.strategy != "Recreate" else "; strategy Recreate: the service is down until a new pod is ready"
