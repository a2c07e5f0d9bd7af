"""From a decision to what runs: write it, wait for the rollout, read it back. Or say why it stays a recommendation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus, Placement
from metainfer.decide.conditions import Finding, find_condition, format_time, merge_conditions
from metainfer.decide.deciding import decided_candidate, is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.facts import AdaptationSnapshot, Candidate
from metainfer.decide.families import Exclusion
from metainfer.decide.placement import PlacementPlan, PlacementRequest, Withheld, build_placement
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.readback import ReadBack, read_back
from metainfer.decide.scene import Scene
from metainfer.decide.target import TargetProblem

ROLLOUT_POLL_SECONDS = 5.0
PATCH_LIMIT = 8192
"""Of status.recommendation.patch."""
APPLY_CONFLICT = "ApplyConflict"
APPLY_REFUSED = "ApplyRefused"
PLACEMENT_REMOVED = "PlacementRemoved"
RECOMMENDED = "Recommended"


def apply_decision(draft: Draft, scene: Scene, problem: TargetProblem | None) -> AdaptationPlan:
    """The last steps of a pass: the decision stands; what is missing until it runs."""
    candidate, recommendation = decided_candidate(draft), draft.status.recommendation
    if candidate is None or recommendation is None:
        msg = "nothing was decided"
        raise ValueError(msg)
    if is_kept(draft):
        words = "the present configuration is the best measured, or as good within the noise: nothing is written"
        draft.find(reasons.APPLIED, "True", "CurrentKept", words)
        draft.find(reasons.SETTINGS_EFFECTIVE, "True", "CurrentKept", words)
        return _done(draft, "CurrentKept", words)
    plan = _placement(draft, scene, candidate, recommendation.decision_id)
    if plan is None:
        return draft.stall("FamilyGone", f"family {candidate.family} of pool {candidate.pool} is no longer open to the target", seconds=60.0)
    patch = plan.patch_json if len(plan.patch_json) <= PATCH_LIMIT else ""  # a cut patch would be no patch
    draft.put(recommendation=recommendation.model_copy(update={"patch": patch}))
    held_back = _held_back(draft, scene, plan, problem)
    if held_back is not None:
        return held_back
    if scene.target.template.annotations.get(DECISION_ANNOTATION) == recommendation.decision_id:
        return _read_back(draft, scene, plan, candidate)
    return _no_place(draft, scene, candidate) or _write(draft, plan)


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
        pool_selector=pool.spec.node_selector,
        other_nodes=tuple(node for owner, family, node in scene.reachable if (owner, family) != (candidate.pool, candidate.family)),
    )
    return build_placement(request)


def _held_back(draft: Draft, scene: Scene, plan: PlacementPlan, problem: TargetProblem | None) -> AdaptationPlan | None:
    """Reasons for which a decision is only recommended, the user's own wish first."""
    if any(item.manager for item in plan.withheld):
        note_declared(draft, scene, plan.withheld)
    baseline = draft.status.baseline
    if baseline is not None and baseline.measured is None:
        words = "the present configuration could not be measured, so nothing shows that the choice is better: the ready patch is in status"
        return _recommend_only(draft, "BaselineUnmeasured", words)
    if draft.snapshot.adaptation.spec.update_policy.mode == "Off":
        return _recommend_only(draft, "RecommendOnly", "updatePolicy.mode is Off: the ready patch is in status.recommendation.patch")
    if plan.apply is None:
        return _recommend_only(draft, plan.reason, f"{_words(plan.withheld)}; the ready patch is in status.recommendation.patch")
    if problem is not None:
        draft.find(reasons.APPLIED, "False", problem.reason, problem.message)
        if problem.reason == reasons.UNSUPPORTED_TARGET:
            return _recommend_only(draft, problem.reason, problem.message)
        return draft.wait(problem.reason, problem.message, seconds=60.0)
    return _gave_way(draft)


def _gave_way(draft: Draft) -> AdaptationPlan | None:
    """After a conflict, or after somebody removed what we wrote, nothing is written again before the inputs change."""
    before = find_condition(draft.snapshot.adaptation.status.conditions, reasons.FIELD_CONTESTED)
    recommendation, placement = draft.status.recommendation, draft.status.placement
    conflict = before is not None and before.status == "True" and before.reason == APPLY_CONFLICT
    applied = placement is not None and recommendation is not None and placement.decision_id == recommendation.decision_id
    target = draft.snapshot.target
    gone = applied and target is not None and recommendation is not None and target.template.annotations.get(DECISION_ANNOTATION) != recommendation.decision_id
    if conflict and before is not None:
        draft.find(reasons.FIELD_CONTESTED, "True", APPLY_CONFLICT, before.message)
        return _recommend_only(draft, reasons.FIELD_CONTESTED, before.message)
    refused = find_condition(draft.snapshot.adaptation.status.conditions, reasons.APPLIED)
    if refused is not None and refused.reason == APPLY_REFUSED:
        draft.find(reasons.APPLIED, "False", APPLY_REFUSED, refused.message)
        return draft.stall(APPLY_REFUSED, f"{refused.message}; once that is mended, change the adaptation to try again")
    if gone:
        words = "what was applied is no longer on the Deployment: somebody replaced or rolled it back; change the adaptation to apply again"
        draft.find(reasons.FIELD_CONTESTED, "True", PLACEMENT_REMOVED, words)
        return _recommend_only(draft, PLACEMENT_REMOVED, words)
    return None


def _recommend_only(draft: Draft, reason: str, message: str) -> AdaptationPlan:
    draft.find(reasons.APPLIED, "False", reason, message)
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "NotApplied", "")
    return _done(draft, RECOMMENDED, message)


def _done(draft: Draft, reason: str, message: str) -> AdaptationPlan:
    draft.step("Done", "")
    decided = find_condition(draft.snapshot.adaptation.status.conditions, reasons.PLACEMENT_DECIDED)
    if decided is not None and decided.reason == "SloInfeasible":
        message = f"{message}; but {decided.message}"
    draft.find(reasons.READY, "True", reason, message)
    return draft.finish(None)


def _write(draft: Draft, plan: PlacementPlan) -> AdaptationPlan:
    if plan.apply is None:
        msg = "a plan without an apply was not held back"
        raise ValueError(msg)
    draft.find(reasons.APPLIED, "False", "Applying", f"decision {plan.apply.decision_id} is being written to the Deployment")
    draft.step("Applying", f"writing decision {plan.apply.decision_id}")
    draft.act(plan.apply)
    return draft.wait("Applying", f"writing decision {plan.apply.decision_id}", seconds=ROLLOUT_POLL_SECONDS)


def _read_back(draft: Draft, scene: Scene, plan: PlacementPlan, candidate: Candidate) -> AdaptationPlan:
    option, recommendation = scene.option(candidate.pool, candidate.family), draft.status.recommendation
    if option is None or recommendation is None:
        msg = "a placement without a family was not held back"
        raise ValueError(msg)
    seen = read_back(
        scene.target,
        draft.snapshot.target_pods,
        decision_id=recommendation.decision_id,
        want_env=plan.env,
        container=scene.container.name,
        family_nodes=frozenset(node.name for node in option.nodes) | frozenset(option.excluded),
    )
    _note_placement(draft, seen)
    draft.find(reasons.APPLIED, "True", "Applied", f"decision {recommendation.decision_id} is on the Deployment")
    if seen.rolled_out and seen.effective:
        where = ", ".join(seen.nodes)
        draft.find(reasons.SETTINGS_EFFECTIVE, "True", "ReadBack", f"the pods run as decided on {where}")
        return _done(draft, "Applied", f"runs as decided on {where}")
    return _not_yet(draft, seen)


def _not_yet(draft: Draft, seen: ReadBack) -> AdaptationPlan:
    if seen.stuck:
        draft.find(reasons.SETTINGS_EFFECTIVE, "False", "RolloutStuck", seen.stuck)
        draft.step("RollingOut", f"the rollout is stuck: {seen.stuck}"[:256])
        return draft.stall("RolloutStuck", seen.stuck, seconds=60.0)
    if seen.rolled_out and seen.differs:
        draft.find(reasons.SETTINGS_EFFECTIVE, "False", "Differs", "; ".join(seen.differs[:4]))
        return draft.wait("SettingsNotEffective", "; ".join(seen.differs[:4]), seconds=60.0)
    words = f"waiting for the rollout{': ' + seen.waiting if seen.waiting else ''}"
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "RollingOut", words)
    draft.step("RollingOut", words[:256])
    return draft.wait("RollingOut", words, seconds=ROLLOUT_POLL_SECONDS)


def _note_placement(draft: Draft, seen: ReadBack) -> None:
    recommendation, placement = draft.status.recommendation, draft.status.placement
    if recommendation is None:
        return
    known = placement is not None and placement.decision_id == recommendation.decision_id
    applied_at = placement.applied_at if known and placement is not None else format_time(draft.now)
    draft.put(placement=Placement(decision_id=recommendation.decision_id, config=recommendation.config, applied_at=applied_at, nodes=seen.nodes[:16]))


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
    news = {reasons.APPLIED: Finding(reasons.APPLIED, "False", APPLY_REFUSED, f"nothing was written: {message}")}
    return _with_news(snapshot, status, news, now)


def _with_news(snapshot: AdaptationSnapshot, status: ModelAdaptationStatus, news: Mapping[str, Finding], now: datetime) -> ModelAdaptationStatus:
    findings = [news.get(item.type, Finding(item.type, item.status, item.reason, item.message)) for item in status.conditions]
    conditions = merge_conditions(status.conditions, findings, now=now, generation=snapshot.adaptation.generation)
    return status.model_copy(update={"conditions": conditions})
