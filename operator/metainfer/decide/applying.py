"""From a decision to what runs: write it, wait for the rollout, read it back. Or say why it stays a recommendation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus, Placement
from metainfer.decide.conditions import Finding, find_condition, format_time, merge_conditions, parse_time
from metainfer.decide.deciding import decided_candidate, is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.facts import AdaptationSnapshot, Candidate, TargetFacts
from metainfer.decide.families import Exclusion
from metainfer.decide.lasting import APPLY_REFUSED, carried_removal, count_refusal, find_missing, find_refusal, find_veto
from metainfer.decide.placement import PlacementPlan, PlacementRequest, Withheld, build_placement
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.readback import Expected, Moment, ReadBack, read_back
from metainfer.decide.rivals import find_rivals
from metainfer.decide.scene import Scene
from metainfer.decide.standing import earlier_words, is_in_place, is_removed, known_placement
from metainfer.decide.target import TargetProblem

ROLLOUT_POLL_SECONDS = 5.0
ROLLOUT_POLL_LIMIT_SECONDS = 60.0
PATCH_LIMIT = 8192
"""Of status.recommendation.patch."""
APPLY_CONFLICT = "ApplyConflict"
RECOMMENDED = "Recommended"


def apply_decision(draft: Draft, scene: Scene, problem: TargetProblem | None) -> AdaptationPlan:
    """The last steps of a pass: the decision stands; what is missing until it runs."""
    candidate, recommendation = decided_candidate(draft), draft.status.recommendation
    if candidate is None or recommendation is None:
        msg = "nothing was decided"
        raise ValueError(msg)
    if is_kept(draft) and not is_removed(draft):
        words = "the present configuration is the best measured, or as good within the noise: nothing is written"
        draft.find(reasons.APPLIED, "True", "CurrentKept", words)
        draft.find(reasons.SETTINGS_EFFECTIVE, "True", "CurrentKept", words)
        return _done(draft, "CurrentKept", words)
    plan = _placement(draft, scene, candidate, recommendation.decision_id)
    if plan is None:
        return draft.stall("FamilyGone", f"family {candidate.family} of pool {candidate.pool} is no longer open to the target", seconds=60.0)
    patch = plan.patch_json if len(plan.patch_json) <= PATCH_LIMIT else ""  # a cut patch would be no patch
    draft.put(recommendation=recommendation.model_copy(update={"patch": patch}))
    if any(item.manager for item in plan.withheld):
        note_declared(draft, scene, plan.withheld)
    if is_in_place(draft, scene, plan, recommendation.decision_id) and not find_missing(scene, plan):
        return _read_back(draft, scene, plan, problem)
    return _held_back(draft, scene, plan, problem) or _no_place(draft, scene, candidate) or _write(draft, scene, plan)


def _no_place(draft: Draft, scene: Scene, candidate: Candidate) -> AdaptationPlan | None:
    """The cluster moved on since the decision: a family that cannot take the pods now would leave them Pending."""
    option = scene.option(candidate.pool, candidate.family)
    if option is None or (option.nodes and option.no_room is None):
        return None
    why = option.no_room or Exclusion("NoEligibleNode", f"no node of family {candidate.family} can take the target's pods now")
    draft.find(reasons.APPLIED, "False", why.reason, why.message)
    return draft.wait(why.reason, f"decided, but not written yet: {why.message}", seconds=60.0)


def note_declared(draft: Draft, scene: Scene, withheld: Sequence[Withheld] = ()) -> None:
    """Say which fields are the owner's, with path and manager: they are read, fixed before ranking, and never written."""
    names = scene.mapping.names if scene.mapping is not None else {}
    fixed = [f"{names.get(setting, setting)} is declared by {item}: its value is kept" for setting, item in scene.baseline.fixed.items()]
    words = "; ".join(dict.fromkeys((*fixed, *([_words(withheld)] if withheld else []), *scene.baseline.notes)))
    declared = bool(fixed or withheld)
    draft.find(reasons.FIELD_CONTESTED, "True" if declared else "False", "DeclaredByOwner" if declared else "NothingContested", words)


def _placement(draft: Draft, scene: Scene, candidate: Candidate, decision_id: str) -> PlacementPlan | None:
    option = scene.option(candidate.pool, candidate.family)
    pool = next((item for item in scene.pools if item.name == candidate.pool), None)
    if option is None or pool is None:
        return None
    request = PlacementRequest(
        target=scene.target,
        container=scene.container,
        family=option.family,
        pool=candidate.pool,
        config=candidate.config,
        mapping=scene.mapping,
        config_maps=draft.snapshot.config_maps,
        decision_id=decision_id,
        adaptation_uid=draft.snapshot.adaptation.uid,
        deletion_policy=draft.snapshot.adaptation.spec.deletion_policy,
        pool_selector=pool.spec.node_selector,
        rivals=find_rivals(pool, option.family, draft.snapshot.pools),
        other_nodes=tuple(node for owner, family, node in scene.reachable if (owner, family) != (candidate.pool, candidate.family)),
    )
    return build_placement(request)


def _held_back(draft: Draft, scene: Scene, plan: PlacementPlan, problem: TargetProblem | None) -> AdaptationPlan | None:
    """Reasons for which a decision is only recommended, the user's own wish first."""
    baseline = draft.status.baseline
    if baseline is not None and baseline.measured is None:
        words = "the present configuration could not be measured, so nothing shows that the choice is better: the ready patch is in status"
        return _recommend_only(draft, "BaselineUnmeasured", words)
    if draft.snapshot.adaptation.spec.update_policy.mode == "Off":
        return _recommend_only(draft, "RecommendOnly", "updatePolicy.mode is Off: the ready patch is in status.recommendation.patch")
    if plan.apply is None:
        return _recommend_only(draft, plan.reason, f"{_words(plan.withheld)}; the ready patch is in status.recommendation.patch")
    if problem is not None:
        if problem.reason == reasons.UNSUPPORTED_TARGET:
            return _recommend_only(draft, problem.reason, problem.message)
        draft.find(reasons.APPLIED, "False", problem.reason, f"{problem.message}{earlier_words(draft)}")
        return draft.wait(problem.reason, problem.message, seconds=None)  # the Deployment's next event wakes the pass: no timer runs
    return _gave_way(draft, scene, plan)


def _gave_way(draft: Draft, scene: Scene, plan: PlacementPlan) -> AdaptationPlan | None:
    """After a conflict nothing is written again before the inputs change; after a refusal or a removal, only in its time."""
    before = find_condition(draft.snapshot.adaptation.status.conditions, reasons.FIELD_CONTESTED)
    if before is not None and before.status == "True" and before.reason == APPLY_CONFLICT:
        draft.find(reasons.FIELD_CONTESTED, "True", APPLY_CONFLICT, before.message)
        return _recommend_only(draft, reasons.FIELD_CONTESTED, before.message)
    refused = find_refusal(draft)
    if refused is not None:
        draft.find(reasons.APPLIED, "False", APPLY_REFUSED, refused.message)
        return draft.stall(APPLY_REFUSED, refused.message, seconds=refused.seconds)
    veto = find_veto(draft, scene, plan)
    if veto is None:
        return None
    draft.find(reasons.FIELD_CONTESTED, "True", veto.reason, veto.message)
    return _recommend_only(draft, veto.reason, veto.message, seconds=veto.seconds)


def _recommend_only(draft: Draft, reason: str, message: str, *, seconds: float | None = None) -> AdaptationPlan:
    draft.find(reasons.APPLIED, "False", reason, f"{message}{earlier_words(draft)}")
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "NotApplied", "")
    return _done(draft, RECOMMENDED, message, seconds=seconds)


def _done(draft: Draft, reason: str, message: str, *, seconds: float | None = None) -> AdaptationPlan:
    draft.step("Done", "")
    decided = find_condition(draft.snapshot.adaptation.status.conditions, reasons.PLACEMENT_DECIDED)
    if decided is not None and decided.reason == "SloInfeasible":
        message = f"{message}; but {decided.message}"
    draft.find(reasons.READY, "True", reason, message)
    return draft.finish(seconds)


def _write(draft: Draft, scene: Scene, plan: PlacementPlan) -> AdaptationPlan:
    if plan.apply is None:
        msg = "a plan without an apply was not held back"
        raise ValueError(msg)
    draft.find(reasons.APPLIED, "False", "Applying", f"decision {plan.apply.decision_id} is being written to the Deployment")
    words = f"writing decision {plan.apply.decision_id}{_interruption(scene.target)}"
    draft.step("Applying", words)
    draft.act(plan.apply)
    return draft.wait("Applying", words, seconds=ROLLOUT_POLL_SECONDS)


def _interruption(target: TargetFacts) -> str:
    """What a rollout costs whoever calls the service."""
    return "" if target.strategy != "Recreate" else "; strategy Recreate: the service is down until a new pod is ready"


def _read_back(draft: Draft, scene: Scene, plan: PlacementPlan, problem: TargetProblem | None) -> AdaptationPlan:
    candidate, recommendation = decided_candidate(draft), draft.status.recommendation
    option = scene.option(candidate.pool, candidate.family) if candidate is not None else None
    if option is None or recommendation is None:
        msg = "a placement without a family was not held back"
        raise ValueError(msg)
    family_nodes = frozenset(node.name for node in option.nodes) | frozenset(option.excluded)
    expected = Expected(recommendation.decision_id, plan.env, scene.container.name, family_nodes)
    seen = read_back(scene.target, draft.snapshot.target_pods, expected, _moment(draft, recommendation.decision_id))
    _note_placement(draft, scene, seen)
    managed = _note_applied(draft, problem)
    if problem is not None and problem.reason in (reasons.TARGET_PAUSED, reasons.TARGET_SCALED_TO_ZERO) and not seen.effective:
        return _stands_still(draft, problem)
    if seen.rolled_out and seen.effective:
        where = ", ".join(seen.nodes)
        draft.find(reasons.SETTINGS_EFFECTIVE, "True", "ReadBack", f"the pods run as decided on {where}")
        return _done(draft, managed, f"runs as decided on {where}{f'; but {seen.waiting}' if seen.waiting else ''}")
    return _not_yet(draft, scene, seen)


def _moment(draft: Draft, decision_id: str) -> Moment:
    """A rollout counts from the write, or from the first look after a pause: a paused Deployment rolls nothing out."""
    before = find_condition(draft.snapshot.adaptation.status.conditions, reasons.SETTINGS_EFFECTIVE)
    placement, target = known_placement(draft, decision_id), draft.snapshot.target
    resumed = before is not None and before.reason == reasons.TARGET_PAUSED and target is not None and not target.paused
    since = placement.rollout_since or placement.applied_at if placement is not None and not resumed else None
    settled = placement is not None and before is not None and (before.status, before.reason) == ("True", "ReadBack")
    return Moment(draft.now, parse_time(since) if since is not None else draft.now, settled)


def _note_applied(draft: Draft, problem: TargetProblem | None) -> str:
    """Say that the decision is on the Deployment, and whether anybody looks after it; returns the reason."""
    recommendation = draft.status.recommendation
    words = f"decision {recommendation.decision_id if recommendation is not None else ''} is on the Deployment"
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
        return _done(draft, problem.reason, f"decided and written; {problem.message}")
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
    down = _interruption(scene.target) if scene.target.available_replicas == 0 else ""
    words = f"waiting for the rollout{': ' + seen.waiting if seen.waiting else ''}{down}"
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "RollingOut", words)
    draft.step("RollingOut", words[:256])
    return draft.wait("RollingOut", words, seconds=_poll_seconds(draft))


def _poll_seconds(draft: Draft) -> float:
    """Events of the Deployment and its pods wake the pass; a model that loads for half an hour needs no look every five seconds."""
    placement = draft.status.placement
    waited = (draft.now - parse_time(placement.rollout_since or placement.applied_at)).total_seconds() if placement is not None else 0.0
    return max(ROLLOUT_POLL_SECONDS, min(ROLLOUT_POLL_LIMIT_SECONDS, waited / 10))


def _note_placement(draft: Draft, scene: Scene, seen: ReadBack) -> None:
    recommendation = draft.status.recommendation
    if recommendation is None:
        return
    placement = known_placement(draft, recommendation.decision_id)
    applied_at = placement.applied_at if placement is not None else format_time(draft.now)
    since = _moment(draft, recommendation.decision_id).since
    draft.put(
        placement=Placement(
            decision_id=recommendation.decision_id,
            config=recommendation.config,
            applied_at=applied_at,
            nodes=seen.nodes[:16],
            target_uid=scene.target.uid,
            container=scene.container.name,
            rollout_since=format_time(since) if since is not None else applied_at,
            removal=carried_removal(draft, scene),
        ),
        apply_refusal=None,
    )


def _words(withheld: Sequence[Withheld]) -> str:
    return "; ".join(f"{item.path}{f' (manager {item.manager})' if item.manager else ''}: {item.why}" for item in withheld[:6])


def report_conflict(snapshot: AdaptationSnapshot, status: ModelAdaptationStatus, owners: Sequence[tuple[str, str]], now: datetime) -> ModelAdaptationStatus:
    """The status after the API server refused our apply: who declares which path. Nothing of the choice was written."""
    words = "nothing was written: " + "; ".join(f"{path} (manager {manager})" for path, manager in owners[:8])
    news = {
        reasons.FIELD_CONTESTED: Finding(reasons.FIELD_CONTESTED, "True", APPLY_CONFLICT, words),
        reasons.APPLIED: Finding(reasons.APPLIED, "False", reasons.FIELD_CONTESTED, words),
    }
    return _with_news(snapshot, status, news, now)


def report_refusal(snapshot: AdaptationSnapshot, status: ModelAdaptationStatus, message: str, now: datetime) -> ModelAdaptationStatus:
    """The status after the API server refused our apply for another cause: a missing right, an admission policy, an invalid field."""
    status = status.model_copy(update={"apply_refusal": count_refusal(status, message, now)})
    news = {reasons.APPLIED: Finding(reasons.APPLIED, "False", APPLY_REFUSED, f"nothing was written: {message}")}
    return _with_news(snapshot, status, news, now)


def _with_news(snapshot: AdaptationSnapshot, status: ModelAdaptationStatus, news: Mapping[str, Finding], now: datetime) -> ModelAdaptationStatus:
    findings = [news.get(item.type, Finding(item.type, item.status, item.reason, item.message)) for item in status.conditions]
    conditions = merge_conditions(status.conditions, findings, now=now, generation=snapshot.adaptation.generation)
    return status.model_copy(update={"conditions": conditions})
