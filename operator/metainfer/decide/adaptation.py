"""One pass over a ModelAdaptation: from the target as it is to the next thing to do. Pure.

Numbered as it runs: 1 stop signs, 2 the scene, 3 the run, 4 the model portrait, 5 candidates, 6 validation, 7 decision, 8 apply and
read back, 9 keep it true. Each step either goes on or returns the plan that waits for it; the next pass starts again at 1 and comes further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ModelStatus
from metainfer.decide.applying import apply_decision, note_declared
from metainfer.decide.canary.trying import tidy_canary
from metainfer.decide.choosing import Ranking, rank_choice
from metainfer.decide.configs import candidate_of
from metainfer.decide.deciding import decided_candidate, present_line, record_choice
from metainfer.decide.draft import Draft
from metainfer.decide.facts import AdaptationSnapshot
from metainfer.decide.keeping.before import note_before
from metainfer.decide.keeping.by_hand import follow_request
from metainfer.decide.keeping.chain import keep_true
from metainfer.decide.keeping.history import keep_history
from metainfer.decide.names import claim_of
from metainfer.decide.own_jobs import forget_refusal
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.predictor import Predictor
from metainfer.decide.profiling import next_profile
from metainfer.decide.recording import record_again
from metainfer.decide.scene import Scene, build_scene, why_no_node
from metainfer.decide.standing import note_standing
from metainfer.decide.starting import claim_run
from metainfer.decide.target import TargetProblem, check_target
from metainfer.decide.validating import next_benchmark
from metainfer_probe.contract import ProfileReport

CLAIM_POLL_SECONDS = 60.0
"""Claims are not watched."""
PAUSED_POLL_SECONDS = 300.0
"""Blocked passes look again by themselves now and then; normally an event of the target or pool wakes them."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A pass that got past the stop signs."""

    scene: Scene
    problem: TargetProblem | None


def decide_adaptation(snapshot: AdaptationSnapshot, predictor: Predictor, now: datetime) -> AdaptationPlan:
    """The plan of one pass. Pure: same snapshot, predictor and clock, same plan."""
    draft = Draft(snapshot, now, snapshot.adaptation.status)
    plan = _decide(draft, predictor)
    tidy_canary(draft)
    keep_history(draft)
    return replace(plan, status=draft.status, actions=tuple(draft.actions))


def _decide(draft: Draft, predictor: Predictor) -> AdaptationPlan:
    note_standing(draft)
    # 1. and 2. Is there something to decide, and for whom?
    opened = _open(draft)
    if isinstance(opened, AdaptationPlan):
        return opened
    # Whoever goes back by hand is not fought: nothing is decided before they let go, or ask something else.
    if follow_request(draft, opened.scene):
        return apply_decision(draft, opened.scene, opened.problem)
    # 3. One run per set of inputs, claimed in the status before anything is started.
    waiting = claim_run(draft, opened.scene)
    if waiting is not None:
        return waiting
    opened = replace(opened, scene=_with_baseline(draft, opened.scene))
    # 4. - 7. Unless this run has decided already.
    if decided_candidate(draft) is None:
        undecided = _work_out(draft, opened, predictor)
        if undecided is not None:
            return undecided
    else:
        record_again(draft)
    # 8. What was decided becomes what runs.
    plan = apply_decision(draft, opened.scene, opened.problem)
    # 9. What runs is kept true.
    return keep_true(draft, opened.scene, plan)


def _open(draft: Draft) -> _Open | AdaptationPlan:
    snapshot = draft.snapshot
    if snapshot.adaptation.spec.suspend:
        draft.find(reasons.READY, "False", reasons.SUSPENDED, "spec.suspend is true: nothing new is started, what is applied stays")
        return draft.finish(None)
    problem = check_target(snapshot)
    if problem is not None and problem.reason == reasons.TARGET_TAKEN:
        draft.find(reasons.TARGET_CONFLICT, "True", problem.reason, problem.message)
    else:
        draft.find(reasons.TARGET_CONFLICT, "False", "OnlyAdaptation", "no older adaptation has the same target")
    if problem is not None and problem.blocks == "everything":
        return draft.stall(problem.reason, problem.message, seconds=PAUSED_POLL_SECONDS)
    scene = build_scene(snapshot, snapshot.target) if snapshot.target is not None else None
    if scene is None:
        return draft.stall(reasons.CONTAINER_NOT_FOUND, "the target's container cannot be told", seconds=PAUSED_POLL_SECONDS)
    if not scene.pools:
        return draft.stall(reasons.NO_POOL, "spec.poolSelector matches no AcceleratorPool", seconds=PAUSED_POLL_SECONDS)
    note_declared(draft, scene)
    return _Open(scene, problem)


def _with_baseline(draft: Draft, scene: Scene) -> Scene:
    """The present configuration as the run first saw it: a pod that is being replaced meanwhile does not make it another one."""
    note_before(draft)
    known = draft.status.baseline
    if known is not None:
        return replace(scene, current=candidate_of(known.config))
    draft.put(baseline=present_line(scene))
    return scene


def _work_out(draft: Draft, opened: _Open, predictor: Predictor) -> AdaptationPlan | None:
    if opened.problem is not None and opened.problem.blocks == "benchmarks":
        return draft.stall(opened.problem.reason, opened.problem.message, seconds=PAUSED_POLL_SECONDS)
    closed = why_no_node(opened.scene)
    if closed is not None:
        return draft.stall(closed.reason, closed.message, seconds=PAUSED_POLL_SECONDS)
    absent = claim_of(draft.snapshot.adaptation.spec.model.uri)
    if absent in draft.snapshot.absent_claims:
        namespace = draft.snapshot.adaptation.namespace
        words = f"PersistentVolumeClaim {absent} of spec.model does not exist in namespace {namespace}: create it, or name another"
        return draft.stall("ClaimMissing", words, seconds=CLAIM_POLL_SECONDS)
    forget_refusal(draft)
    # 4. The model portrait.
    profile = next_profile(draft, opened.scene)
    if isinstance(profile, AdaptationPlan):
        return profile
    _describe_model(draft, profile)
    # 5. Candidates, the impossible ones dropped, the others ranked.
    ranking = rank_choice(draft, opened.scene, profile, predictor)
    if isinstance(ranking, AdaptationPlan):
        return ranking
    # 6. The best ones really measured; 7. then the decision.
    return _validate(draft, opened.scene, ranking)


def _validate(draft: Draft, scene: Scene, ranking: Ranking) -> AdaptationPlan | None:
    waiting = next_benchmark(draft, scene, ranking)
    if waiting is not None:
        return waiting
    return record_choice(draft, scene, ranking)


def _describe_model(draft: Draft, profile: ProfileReport) -> None:
    draft.put(
        model=ModelStatus(
            digest=profile.digest,
            parameters=profile.parameters,
            weight_bytes=profile.weight_bytes,
            architecture=profile.architecture,
            bound=profile.bound,
        )
    )
