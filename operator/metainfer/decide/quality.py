"""How good the predictions of a run were, once it is decided: the operator's own quality series. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metainfer.decide.correction import correct
from metainfer.decide.estimation import Estimate
from metainfer.decide.facts import Candidate
from metainfer.decide.plan import PredictionQuality
from metainfer.decide.ranking import rank
from metainfer.decide.validation import Situation


def judge_predictions(situation: Situation, selected: Candidate, reason: str) -> PredictionQuality:
    """The place that the prediction gave to what measured best, and measured over predicted latency of everything that was measured.

    Each error is that of the prediction as the other measurements correct it: what it was worth when the candidate was picked last.
    """
    measured, faults = situation.measured, situation.faults
    sound = [item.candidate for item in situation.ranking if item.candidate in measured and item.candidate not in faults]
    predicted = list(situation.predictions)
    order = [item.candidate for item in rank(predicted, [situation.predictions[item] for item in predicted], situation.objective, situation.costs)]
    return PredictionQuality(
        family=selected.family,
        reason=reason,
        predicted_rank=order.index(sound[0]) + 1 if sound and sound[0] in order else None,
        error_ratios=tuple(_error_ratios(situation, measured, [item for item in sound if item in situation.predictions])),
    )


def _error_ratios(situation: Situation, measured: Mapping[Candidate, Estimate], sound: Sequence[Candidate]) -> list[tuple[str, float]]:
    ratios = []
    for candidate in sound:
        others = {item: estimate for item, estimate in measured.items() if item != candidate}
        expected = correct(situation.predictions, others)[candidate]
        # Under the same load the mean latency is the inverse of the throughput, and that is what the order goes by.
        ratios.append((candidate.family, expected.throughput_per_second / measured[candidate].throughput_per_second))
    return ratios
