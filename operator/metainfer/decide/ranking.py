"""From predictions (or measurements) to an order. Pure.

score = log utility + log P(the SLO is met): comparable across families by construction, and a candidate that is fast but
doubtful about its limit loses smoothly instead of falling off a cliff.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec, Slo
from metainfer.decide.facts import Candidate
from metainfer.decide.predictor import Prediction

Goal = Literal["Latency", "Throughput", "Cost"]
Costs = Mapping[tuple[str, str], int]
"""Hourly cost of one card in millionths of the user's currency, by (pool, family)."""

TAIL_LOG_SIGMA = 0.2
"""P99 of one short window differs 11-35 % between runs of the same thing; added in square to a prediction's own sigma."""
IMPOSSIBLE = -1e9
"""Score of what has no utility (a figure is missing): finite, so that scores can be subtracted."""
_LEAST_PROBABILITY = 1e-12
_LEAST_LOG_SIGMA = 1e-3
_PERMILLE_LIMIT = 1_000_000


class Figures(Protocol):
    """What a prediction and a measurement have in common."""

    @property
    def p50_us(self) -> float:
        """Median latency of a request."""

    @property
    def p99_us(self) -> float:
        """Latency that one request in a hundred exceeds."""

    @property
    def throughput_per_second(self) -> float:
        """Answered requests per second."""

    @property
    def log_sigma(self) -> float:
        """Standard deviation of log(true / stated)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What better means, and the limits."""

    goal: Goal
    slo: Slo | None = None

    @property
    def p99_limit_us(self) -> float | None:
        """P99 latency that must not be exceeded."""
        return None if self.slo is None or self.slo.p99 is None else float(parse_duration_us(self.slo.p99))

    @property
    def throughput_floor_per_second(self) -> float | None:
        """Throughput that must be reached."""
        return None if self.slo is None or self.slo.min_throughput_per_second is None else float(self.slo.min_throughput_per_second)


class ObjectiveLike(Protocol):
    """Anything with a goal and an SLO."""

    @property
    def goal(self) -> Goal:
        """What is maximised."""

    @property
    def slo(self) -> Slo | None:
        """What is limited."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate in the order."""

    candidate: Candidate
    prediction: Prediction
    score: float
    score_permille: int
    """Relative to the current configuration (to the best one where there is none): 1000 = equal, higher is better."""
    slo_probability: float


def resolve_objective(spec: ModelAdaptationSpec) -> Objective:
    """The stated goal, else Throughput when there is an SLO, else Latency."""
    return Objective(spec.objective.goal or ("Latency" if spec.slo is None else "Throughput"), spec.slo)


def rank(
    candidates: Sequence[Candidate], predictions: Sequence[Prediction], objective: ObjectiveLike, costs: Costs, *, current: Candidate | None = None
) -> tuple[Ranked, ...]:
    """Best first; equal scores in the order of the candidates' keys, so that the input's order never matters."""
    wanted = Objective(objective.goal, objective.slo)
    scores = {candidate: score(candidate, figures, wanted, costs) for candidate, figures in zip(candidates, predictions, strict=True)}
    base = scores[current] if current in scores else max(scores.values(), default=0.0)
    ranked = [
        Ranked(candidate, figures, scores[candidate], relative_permille(scores[candidate] - base), slo_probability(figures, wanted))
        for candidate, figures in zip(candidates, predictions, strict=True)
    ]
    return tuple(sorted(ranked, key=lambda item: (-item.score, item.candidate.key)))


def score(candidate: Candidate, figures: Figures, objective: Objective, costs: Costs) -> float:
    """log utility + log P(SLO met); ``IMPOSSIBLE`` where there is no utility."""
    utility = log_utility(candidate, figures, objective.goal, costs)
    return IMPOSSIBLE if utility is None else utility + math.log(slo_probability(figures, objective))


def log_utility(candidate: Candidate, figures: Figures, goal: Goal, costs: Costs) -> float | None:
    """Latency and Throughput: log throughput. Cost: log(throughput / hourly cost of the card).

    Under the same requests in flight the mean latency is their number over the throughput (Little's law), so the two goals agree on
    what is faster; under Latency the tail is guarded besides (``verdicts``). Not a median: two parallel executions under a CPU quota halve
    it while every second request takes three times as long. None where a figure is missing, zero or not finite, or the cost is unknown.
    """
    if not _is_positive(figures.throughput_per_second):
        return None
    if goal in ("Latency", "Throughput"):
        return _log(figures.throughput_per_second)
    hourly_micros = costs.get((candidate.pool, candidate.family))
    # A card that costs nothing is worth as much as one that costs a millionth: the order among free cards stays that of throughput.
    return None if hourly_micros is None else _log(figures.throughput_per_second / max(1, hourly_micros))


def slo_probability(figures: Figures, objective: Objective) -> float:
    """P(every limit is kept), each log-normal around the stated figure, independent; never below 1e-12, 1 without limits."""
    probability = 1.0
    if (limit_us := objective.p99_limit_us) is not None:
        probability *= _probability_below(figures.p99_us, limit_us, math.hypot(figures.log_sigma, TAIL_LOG_SIGMA))
    if (floor := objective.throughput_floor_per_second) is not None:
        # Latency and throughput mirror each other: X > floor as -log X < -log floor.
        probability *= _probability_below(_inverse(figures.throughput_per_second), 1.0 / floor, figures.log_sigma)
    return max(probability, _LEAST_PROBABILITY)


def relative_permille(score_difference: float) -> int:
    """exp(difference) in thousandths, between 0 and 1,000,000."""
    return min(_PERMILLE_LIMIT, round(1000 * math.exp(max(-50.0, min(50.0, score_difference)))))


def _probability_below(value: float, limit: float, log_sigma: float) -> float:
    """P(X < limit) for log X normal around log value; 0 for a figure that is missing."""
    if not _is_positive(value) or not _is_positive(limit):
        return 0.0
    sigma = max(_LEAST_LOG_SIGMA, log_sigma) if math.isfinite(log_sigma) else 1.0
    return 0.5 * math.erfc((math.log(value) - math.log(limit)) / (sigma * math.sqrt(2.0)))


def _inverse(value: float) -> float:
    return 1.0 / value if _is_positive(value) else math.inf


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _log(value: float) -> float | None:
    return math.log(value) if _is_positive(value) else None
