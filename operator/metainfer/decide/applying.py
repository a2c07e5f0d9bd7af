"""From a decision to what runs: write it, then follow its rollout. Or say why it stays a recommendation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, ModelAdaptationStatus
from metainfer.decide.canary.trying import try_canary
from metainfer.decide.conditions import Finding, find_condition, merge_conditions
from metainfer.decide.configs import candidate_of
from metainfer.decide.deciding import is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.facts import AdaptationSnapshot
from metainfer.decide.families import Exclusion
from metainfer.decide.giving_back import give_back
from metainfer.decide.keeping.damping import find_write_gate
from metainfer.decide.keeping.taking_back import taken_back_words, tell_taken_back
from metainfer.decide.lasting import APPLY_REFUSED, count_refusal, find_missing, find_refusal, find_veto
from metainfer.decide.placement import PlacementPlan, PlacementRequest, Withheld, build_placement
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.rivals import find_rivals
from metainfer.decide.rollout import ROLLOUT_POLL_SECONDS, follow_rollout, interruption
from metainfer.decide.scene import Scene
from metainfer.decide.standing import earlier_words, is_in_place, is_removed
from metainfer.decide.target import TargetProblem
from metainfer.decide.wanted import Wanted, find_wanted

PATCH_LIMIT = 8192
"""Of status.recommendation.patch."""
APPLY_CONFLICT = "ApplyConflict"
RECOMMENDED = "Recommended"


def apply_decision(draft: Draft, scene: Scene, problem: TargetProblem | None) -> AdaptationPlan:
    """The last steps of a pass: what is wanted stands; what is missing until it runs."""
    wanted = find_wanted(draft.status)
    if wanted is None:
        msg = "nothing was decided"
        raise ValueError(msg)
    if is_kept(draft) and not is_removed(draft):
        words = "the present configuration is the best measured, or as good within the noise: nothing is written"
        draft.find(reasons.APPLIED, "True", "CurrentKept", words)
        draft.find(reasons.SETTINGS_EFFECTIVE, "True", "CurrentKept", words)
        return draft.done("CurrentKept", words)
    if wanted.config is None:
        return give_back(draft, scene, problem)
    plan = _placement(draft, scene, wanted)
    if plan is None:
        return _without_family(draft, wanted)
    _note_plan(draft, scene, wanted, plan)
    if is_in_place(draft, scene, plan, wanted.decision_id) and not find_missing(scene, plan):
        # A rollout that failed leaves something else wanted; only the newest decision can fail, so this ends.
        return follow_rollout(draft, scene, plan, problem) or apply_decision(draft, scene, problem)
    return (
        _held_back(draft, scene, plan, problem) or _no_place(draft, scene, wanted) or _no_turn(draft, wanted) or _bring_in(draft, scene, plan, wanted, problem)
    )


def _bring_in(draft: Draft, scene: Scene, plan: PlacementPlan, wanted: Wanted, problem: TargetProblem | None) -> AdaptationPlan:
    """After a trial where one is wanted, else in place."""
    waiting = try_canary(draft, scene, plan, wanted)
    if waiting is not None:
        return waiting
    return _write(draft, scene, plan) if find_wanted(draft.status) == wanted else apply_decision(draft, scene, problem)


def _without_family(draft: Draft, wanted: Wanted) -> AdaptationPlan:
    config = wanted.config or ConfigStatus()
    return draft.stall("FamilyGone", f"family {config.family} of pool {config.pool} is no longer open to the target", seconds=60.0)


def _note_plan(draft: Draft, scene: Scene, wanted: Wanted, plan: PlacementPlan) -> None:
    """The ready patch, and whose fields were left out."""
    recommendation = draft.status.recommendation
    if wanted.is_newest and recommendation is not None:
        patch = plan.patch_json if len(plan.patch_json) <= PATCH_LIMIT else ""  # a cut patch would be no patch
        draft.put(recommendation=recommendation.model_copy(update={"patch": patch}))
    if any(item.manager for item in plan.withheld):
        note_declared(draft, scene, plan.withheld)


def _no_place(draft: Draft, scene: Scene, wanted: Wanted) -> AdaptationPlan | None:
    """The cluster moved on since the decision: a family that cannot take the pods now would leave them Pending.

    What is gone back to ran there a moment ago: waiting would leave what is worse in place.
    """
    option = scene.option(wanted.config)
    if not wanted.is_newest or option is None or (option.nodes and option.no_room is None):
        return None
    why = option.no_room or Exclusion("NoEligibleNode", f"no node of family {option.family.name} can take the target's pods now")
    draft.find(reasons.APPLIED, "False", why.reason, why.message)
    return draft.wait(why.reason, f"decided, but not written yet: {why.message}", seconds=60.0)


def _no_turn(draft: Draft, wanted: Wanted) -> AdaptationPlan | None:
    """Others are being rolled out, or it is not the time. What is taken back waits for nobody."""
    placement = draft.status.placement
    known = placement is not None and placement.decision_id == wanted.decision_id  # written before: it is only put right
    if not wanted.is_newest or wanted.config is None or known:
        return None
    gate = find_write_gate(draft, wanted.config.pool, wanted.config.family)
    if gate is None:
        return None
    words = f"decided, but not written yet: {gate.message}"
    draft.find(reasons.APPLIED, "False", gate.reason, f"{words}{earlier_words(draft)}")
    return draft.wait(gate.reason, words, seconds=gate.seconds(draft.now))


def note_declared(draft: Draft, scene: Scene, withheld: Sequence[Withheld] = ()) -> None:
    """Say which fields are the owner's, with path and manager: they are read, fixed before ranking, and never written."""
    names = scene.mapping.names if scene.mapping is not None else {}
    fixed = [f"{names.get(setting, setting)} is declared by {item}: its value is kept" for setting, item in scene.baseline.fixed.items()]
    words = "; ".join(dict.fromkeys((*fixed, *([_words(withheld)] if withheld else []), *scene.baseline.notes)))
    declared = bool(fixed or withheld)
    draft.find(reasons.FIELD_CONTESTED, "True" if declared else "False", "DeclaredByOwner" if declared else "NothingContested", words)


def _placement(draft: Draft, scene: Scene, wanted: Wanted) -> PlacementPlan | None:
    """None where nothing of ours is wanted, or its family is not open to the target."""
    if wanted.config is None:
        return None
    candidate = candidate_of(wanted.config)
    option = scene.option(candidate)
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
        decision_id=wanted.decision_id,
        adaptation_uid=draft.snapshot.adaptation.uid,
        deletion_policy=draft.snapshot.adaptation.spec.deletion_policy,
        pool_selector=pool.spec.node_selector,
        rivals=find_rivals(pool, option.family, draft.snapshot.pools),
        other_nodes=tuple(node for owner, family, node in scene.reachable if (owner, family) != (candidate.pool, candidate.family)),
    )
    return build_placement(request)


def _held_back(draft: Draft, scene: Scene, plan: PlacementPlan, problem: TargetProblem | None) -> AdaptationPlan | None:
    """Reasons for which a decision is only recommended, the user's own wish first."""
    baseline, wanted = draft.status.baseline, find_wanted(draft.status)
    if baseline is not None and baseline.measured is None and wanted is not None and wanted.is_newest:
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
    return draft.done(RECOMMENDED, message, seconds=seconds)


def _write(draft: Draft, scene: Scene, plan: PlacementPlan) -> AdaptationPlan:
    if plan.apply is None:
        msg = "a plan without an apply was not held back"
        raise ValueError(msg)
    draft.find(reasons.APPLIED, "False", "Applying", f"decision {plan.apply.decision_id} is being written to the Deployment")
    back = taken_back_words(draft.status)
    words = f"writing decision {plan.apply.decision_id}{interruption(scene.target)}{f': {back}' if back else ''}"
    draft.step("Applying", words[:256])
    tell_taken_back(draft)
    draft.act(plan.apply)
    return draft.wait("GoingBack" if back else "Applying", words, seconds=ROLLOUT_POLL_SECONDS)


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
