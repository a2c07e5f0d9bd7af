"""From the verdicts of a run to what the status says of it: recommendation, candidates, doubts. Pure.

A decision is final for its run: it is read back from the status by its id and never worked out again, so that later noise, a lost
store or a restart cannot move what was applied.
"""

from __future__ import annotations

from datetime import datetime

from metainfer.api.durations import format_duration_us
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import CandidateStatus, ConfigStatus, Figures, Recommendation, RunStatus
from metainfer.decide.choosing import Ranking
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.configs import candidate_of, config_status
from metainfer.decide.draft import Draft
from metainfer.decide.estimation import Estimate
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.inputs import decision_id
from metainfer.decide.plan import AdaptationPlan, EmitEvent, RecordDecision
from metainfer.decide.quality import judge_predictions
from metainfer.decide.ranking import rank
from metainfer.decide.scene import Scene
from metainfer.decide.validating import build_situation
from metainfer.decide.validation import Situation
from metainfer.decide.verdicts import Decision, Judgement, judge
from metainfer.decide.wanted import find_wanted

LISTED_CANDIDATES = 16
"""The bounded top of the ranking; the store has all of it."""
RETRY_SECONDS = 600.0


def decided_candidate(draft: Draft) -> Candidate | None:
    """What this run has decided, if it has."""
    run, recommendation = draft.status.run, draft.status.recommendation
    if run is None or recommendation is None:
        return None
    candidate = candidate_of(recommendation.config)
    return candidate if recommendation.decision_id == _id(run, recommendation.config) else None


def _id(run: RunStatus, config: ConfigStatus) -> str:
    # Over the status's own (rounded) form, so that reading it back gives the same id.
    return decision_id(run.id, candidate_of(config).key)


def record_choice(draft: Draft, scene: Scene, ranking: Ranking) -> AdaptationPlan | None:
    """Judge the run and put the outcome into the status; a plan only when there is nothing to recommend."""
    situation = build_situation(draft, scene, ranking)
    decision = judge(situation, minimum_gain_percent=draft.snapshot.adaptation.spec.update_policy.minimum_gain_percent)
    lines = _candidate_lines(situation, decision)
    draft.put(candidates=tuple(lines[:LISTED_CANDIDATES]), baseline=next((line for line in lines if line.current), present_line(scene)))
    selected = decision.selected
    if selected is None or selected not in situation.measured:
        words = decision.infeasible or "no candidate has a valid measurement"
        failures = "; ".join(f"{line.config.family} {line.config.precision}: {line.message}" for line in lines if line.verdict != "NotMeasured")
        draft.find(reasons.VALIDATED, "False", "NothingMeasured", f"{words}: {failures}")
        draft.step("Done", "")
        return draft.stall("NothingMeasured", f"{words}: {failures}"[:2000], seconds=RETRY_SECONDS)
    _recommend(draft, selected, decision, situation)
    return None


def _recommend(draft: Draft, selected: Candidate, decision: Decision, situation: Situation) -> None:
    run = draft.status.run
    if run is None:
        msg = "a decision without a run"
        raise ValueError(msg)
    config = config_status(selected)
    recommendation = Recommendation(
        decision_id=_id(run, config),
        config=config,
        expected=_figures(situation.measured[selected], _difference(situation, selected)),
        gain_percent=decision.gain_percent,
        predicted_gain_percent=_predicted_gain(situation, selected),
        decided_at=format_time(draft.now),
        took=format_duration_us(_age_seconds(run, draft.now) * 1e6),
    )
    draft.put(recommendation=recommendation)
    quality = judge_predictions(situation, selected, "SloInfeasible" if decision.infeasible else "Decided")
    draft.act(RecordDecision(recommendation.decision_id, run.id, draft.now, _document(draft, situation, decision), quality))
    _explain(draft, recommendation, decision, decision.verdicts[selected].message)


def _explain(draft: Draft, recommendation: Recommendation, decision: Decision, why: str) -> None:
    """Conditions and the Event that say what was decided, and what is doubtful about it."""
    config = recommendation.config
    chosen = f"{config.family} {config.execution_provider} {config.precision} batch {config.batch_size} concurrency {config.concurrency}"
    words = decision.infeasible or f"{chosen}: {why}, gain {decision.gain_percent} %"
    draft.find(reasons.PLACEMENT_DECIDED, "True", "SloInfeasible" if decision.infeasible else "Decided", words)
    doubt = decision.low_confidence
    draft.find(reasons.LOW_CONFIDENCE, "True" if doubt else "False", "Doubtful" if doubt else "Measured", doubt or why)
    draft.act(EmitEvent("Warning" if decision.infeasible else "Normal", "SloInfeasible" if decision.infeasible else "Decided", words))


def _predicted_gain(situation: Situation, selected: Candidate) -> int | None:
    """What was promised before anything was measured; None where one of the two could not be predicted."""
    predicted, current = situation.predictions, situation.current
    if current is None or current not in predicted or selected not in predicted:
        return None
    pair = tuple(dict.fromkeys((current, selected)))
    ranked = rank(pair, [predicted[item] for item in pair], situation.objective, situation.costs, current=current)
    return next(round(item.score_permille / 10) - 100 for item in ranked if item.candidate == selected)


def _document(draft: Draft, situation: Situation, decision: Decision) -> dict[str, object]:
    """Everything the decision was based on, for the store."""
    return {
        "adaptation": f"{draft.snapshot.adaptation.namespace}/{draft.snapshot.adaptation.name}",
        "inputsHash": draft.status.run.inputs_hash if draft.status.run else "",
        "objective": {"goal": situation.objective.goal, "slo": situation.objective.slo.model_dump(mode="json") if situation.objective.slo else None},
        "selected": decision.selected.key if decision.selected else None,
        "config": config_status(decision.selected).model_dump(mode="json") if decision.selected else None,
        "gainPercent": decision.gain_percent,
        "lowConfidence": decision.low_confidence,
        "infeasible": decision.infeasible,
        "ranking": [
            {"candidate": item.candidate.key, "score": item.score, "scorePermille": item.score_permille, "sloProbability": item.slo_probability,
             "verdict": decision.verdicts[item.candidate].verdict, "message": decision.verdicts[item.candidate].message}
            for item in situation.ranking
        ],
        "rejections": [line.model_dump(mode="json") for line in draft.status.rejections],
    }  # fmt: skip


def _candidate_lines(situation: Situation, decision: Decision) -> list[CandidateStatus]:
    """Selected first, then what was measured, then the rest; each by score."""
    lines = [
        _line(item.candidate, item.score_permille, decision.verdicts[item.candidate], situation)
        for item in situation.ranking
        if item.candidate in decision.verdicts
    ]
    order = {"Selected": 0, "Tie": 1, "NotMeasured": 3}
    return sorted(lines, key=lambda line: (order.get(line.verdict, 2), -line.score_permille))


def _line(candidate: Candidate, score_permille: int, judgement: Judgement, situation: Situation) -> CandidateStatus:
    return CandidateStatus(
        config=config_status(candidate),
        score_permille=score_permille,
        measured=_figures(judgement.measured, _difference(situation, candidate)) if judgement.measured is not None else None,
        current=candidate == situation.current,
        verdict=judgement.verdict,
        message=judgement.message[:512],
    )


def present_line(scene: Scene) -> CandidateStatus | None:
    """The present configuration before (or without) being measured."""
    if scene.current is None:
        return None
    return CandidateStatus(config=config_status(scene.current), score_permille=1000, current=True, verdict="NotMeasured", message="not measured")


def _figures(estimate: Estimate, difference_ppm: int | None) -> Figures:
    return Figures(
        p50=format_duration_us(estimate.p50_us),
        p99=format_duration_us(estimate.p99_us),
        throughput_per_second=round(estimate.throughput_per_second),
        difference_ppm=difference_ppm,
    )


def _difference(situation: Situation, candidate: Candidate) -> int | None:
    """Of the candidate's last run that has an accuracy."""
    runs: list[RunResult] = [run for run in situation.runs if run.candidate == candidate and run.report is not None and run.report.accuracy is not None]
    return runs[-1].report.accuracy.difference_ppm if runs and runs[-1].report and runs[-1].report.accuracy else None


def is_kept(draft: Draft) -> bool:
    """Whether the decision was to leave the present configuration as it is, and still is."""
    baseline, wanted, run = draft.status.baseline, find_wanted(draft.status), draft.status.run
    if baseline is None or wanted is None or (run is not None and run.avoid):
        return False  # the pods are to leave a node: the same choice is written once more, for them to be placed anew
    return wanted.is_newest and baseline.current and baseline.config == wanted.config


def _age_seconds(run: RunStatus, now: datetime) -> float:
    return (now - parse_time(run.started_at)).total_seconds()
