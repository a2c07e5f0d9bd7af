"""Decisions of which the sample store knows nothing: it was away, and the operator was restarted before it came back. Pure.

The status has the decision and the bounded top of what it was based on; the whole of it was in memory and is gone.
"""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.conditions import find_condition, parse_time
from metainfer.decide.configs import candidate_of
from metainfer.decide.draft import Draft
from metainfer.decide.plan import RecordDecision
from metainfer.decide.ranking import resolve_objective


def record_again(draft: Draft) -> None:
    """Have the decision in the status recorded if the store is known not to have it."""
    run, recommendation = draft.status.run, draft.status.recommendation
    if draft.snapshot.decision_recorded is not False or run is None or recommendation is None:
        return
    draft.act(RecordDecision(recommendation.decision_id, run.id, parse_time(recommendation.decided_at), _document(draft)))


def _document(draft: Draft) -> dict[str, object]:
    """As ``deciding`` makes it, as far as the status goes."""
    adaptation, status = draft.snapshot.adaptation, draft.status
    objective = resolve_objective(adaptation.spec)
    return {
        "adaptation": f"{adaptation.namespace}/{adaptation.name}",
        "inputsHash": status.run.inputs_hash if status.run else "",
        "objective": {"goal": objective.goal, "slo": objective.slo.model_dump(mode="json") if objective.slo else None},
        "selected": candidate_of(status.recommendation.config).key if status.recommendation else None,
        "config": status.recommendation.config.model_dump(mode="json") if status.recommendation else None,
        "gainPercent": status.recommendation.gain_percent if status.recommendation else None,
        "lowConfidence": _message_while_true(draft, reasons.LOW_CONFIDENCE),
        "infeasible": _infeasible(draft),
        "ranking": [
            {"candidate": candidate_of(line.config).key, "scorePermille": line.score_permille, "verdict": line.verdict, "message": line.message}
            for line in status.candidates
        ],
        "rejections": [line.model_dump(mode="json") for line in status.rejections],
        "fromStatus": True,
    }


def _message_while_true(draft: Draft, condition_type: str) -> str | None:
    found = find_condition(draft.snapshot.adaptation.status.conditions, condition_type)
    return found.message if found is not None and found.status == "True" else None


def _infeasible(draft: Draft) -> str | None:
    found = find_condition(draft.snapshot.adaptation.status.conditions, reasons.PLACEMENT_DECIDED)
    return found.message if found is not None and found.reason == "SloInfeasible" else None
