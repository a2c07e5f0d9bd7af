"""From the model's portrait to a ranking: candidates, the impossible ones dropped with their reasons, the others predicted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metainfer.decide.candidates import Choice, ChoiceRefused, build_candidates
from metainfer.decide.configs import candidate_of
from metainfer.decide.draft import Draft
from metainfer.decide.facts import Candidate, ContainerFacts, Portrait
from metainfer.decide.filters import Context, filter_candidates
from metainfer.decide.known_families import holds
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.predictor import Prediction, Predictor, Question
from metainfer.decide.ranking import Costs, Objective, resolve_objective
from metainfer.decide.recall import recall
from metainfer.decide.rejections import summarize_rejections
from metainfer.decide.scene import Scene
from metainfer.decide.settings_mapping import settings_that_fix
from metainfer_probe.contract import ProfileReport

RECHECK_SECONDS = 300.0
"""When nothing is feasible: nodes and cards may come back without touching the adaptation."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What may be chosen, and what is expected of it."""

    predictions: Mapping[Candidate, Prediction]
    objective: Objective
    costs: Costs
    profile: ProfileReport
    current: Candidate | None
    """The present configuration where it can be measured."""


def rank_choice(draft: Draft, scene: Scene, profile: ProfileReport, predictor: Predictor) -> Ranking | AdaptationPlan:
    """The ranking, or the plan that says why there is none."""
    spec = draft.snapshot.adaptation.spec
    try:
        candidates = build_candidates(_choice(draft, scene))
    except ChoiceRefused as refused:
        return draft.stall(refused.reason, refused.message)
    feasible = filter_candidates(candidates, _context(draft, scene, profile))
    rejections = summarize_rejections(feasible.rejections)
    draft.put(candidate_count=len(candidates), rejections=rejections)
    if not feasible.kept:
        words = "; ".join(f"{item.count} x {item.reason}: {item.message}" for item in rejections[:4])
        draft.step("Done", "")
        return draft.stall("NoFeasibleCandidate", f"none of {len(candidates)} candidates is possible: {words}", seconds=RECHECK_SECONDS)
    questions = [Question(item, profile, _typical(scene, item), spec.load.clients, _profiled_on(draft, item)) for item in feasible.kept]
    predicted = dict(zip(feasible.kept, predictor.predict(questions), strict=True))
    earlier = [run for run in draft.snapshot.earlier if holds(draft, run)]
    predictions = recall(predicted, earlier, draft.snapshot.portraits, load_clients=spec.load.clients)
    current = scene.current if scene.current in predictions else None
    return Ranking(predictions, resolve_objective(spec), _costs(scene), profile, current)


def _choice(draft: Draft, scene: Scene) -> Choice:
    space = draft.snapshot.adaptation.spec.config_space
    served = scene.mapping.providers if scene.mapping is not None else space.execution_providers
    made = scene.mapping.precisions if scene.mapping is not None else space.precisions
    wanted = space.execution_providers or served
    return Choice(
        families=scene.options,
        providers=tuple(provider for provider in wanted if not served or provider in served),
        precisions=tuple(precision for precision in made if not space.precisions or precision in space.precisions),
        batch_sizes=space.batch_sizes,
        concurrencies=space.concurrencies,
        dynamic_batching=space.dynamic_batching,
        fixed=settings_that_fix(scene.baseline),
        load_clients=draft.snapshot.adaptation.spec.load.clients,
        current=scene.current,
    )


def _context(draft: Draft, scene: Scene, profile: ProfileReport) -> Context:
    spec = draft.snapshot.adaptation.spec
    return Context(
        profile=profile,
        families={(option.pool, option.family.name): option for option in scene.options},
        accuracy=spec.accuracy,
        slo=spec.slo,
        goal=resolve_objective(spec).goal,
        load_clients=spec.load.clients,
        has_calibration=spec.accuracy.calibration is not None,
        current=scene.current,
        memory_limit_bytes=_memory_limit(scene.container),
        rolled_back=_rolled_back(draft),
    )


def _rolled_back(draft: Draft) -> Mapping[Candidate, str]:
    """The same inputs would lead to the same choice, and the choice to the same failure."""
    run = draft.status.run
    failed = [entry for entry in draft.status.decisions if entry.outcome == "RolledBack" and run is not None and entry.inputs_hash == run.inputs_hash]
    return {candidate_of(entry.config): f"decision {entry.id} of {entry.decided_at}: {entry.message}" for entry in failed}


def _memory_limit(container: ContainerFacts) -> int:
    return container.limits.get("memory", 0)


def _profiled_on(draft: Draft, candidate: Candidate) -> Portrait | None:
    """The portrait of the card that was profiled on, if it says anything of the candidate's provider."""
    node = draft.snapshot.profile.node if draft.snapshot.profile is not None else ""
    portrait = draft.snapshot.portraits.get(node)
    known = portrait is not None and any(item.execution_provider == candidate.config.execution_provider for item in portrait.status.figures)
    return portrait if known else None


def _typical(scene: Scene, candidate: Candidate) -> Portrait | None:
    option = scene.option(candidate)
    return option.typical if option is not None else None


def _costs(scene: Scene) -> Costs:
    return {(option.pool, option.family.name): option.family.hourly_cost_micros for option in scene.options if option.family.hourly_cost_micros is not None}
