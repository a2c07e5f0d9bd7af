"""How likely a candidate's answers are within the budget, before anybody compared them: so that runs are not spent on what is fast and wrong. Pure.

The log of a variant's difference from fp32 is a sum of independent normal effects: the precision's mean, the model (a model that is
touchy in bf16 is so in int8), the precision on this model, and where it runs (int8 without its own instructions saturates). What was
measured of the model so far tells of the rest; the posterior is that of ``correction``, with the same source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.gaussian import LEAST_VARIANCE, cholesky, normal_share_below, solve
from metainfer_probe.contract import Precision

MEAN_LOG_PPM: Mapping[Precision, float] = {"fp16": 7.3, "bf16": 9.15, "int8": 10.8}
MODEL_VARIANCE, PRECISION_VARIANCE, PLACE_VARIANCE = 3.1, 0.4, 0.25
"""Moments (robust ones of differences) over the trained ONNX models of the shipped table (``hack/bench/collect``), by relative L2. Of other
models only the order is likely to hold; the first comparison tells more than all of them."""
BATCH_VARIANCE = 0.02
"""Between runs of one variant: the neighbours in a batch move int8's errors a little."""
WORST_LOG_PPM = math.log(1e7)
"""NaN or Inf where fp32 has none."""
LEAST_CHANCE = 1e-3


@dataclass(frozen=True, slots=True)
class AccuracyOdds:
    """What was compared so far, and the budget."""

    log_budget_ppm: float
    known: tuple[Candidate, ...]
    factor: Sequence[Sequence[float]]
    weights: Sequence[float]

    def chance(self, candidate: Candidate) -> float:
        """Of staying within the budget; 1 for fp32, never below a thousandth."""
        precision = candidate.config.precision
        if precision == "fp32":
            return 1.0
        shared = [_covariance(candidate, other) for other in self.known]
        mean = MEAN_LOG_PPM[precision] + math.fsum(k * weight for k, weight in zip(shared, self.weights, strict=True))
        variance = _covariance(candidate, candidate) - math.fsum(k * v for k, v in zip(shared, solve(self.factor, shared), strict=True))
        sigma = math.sqrt(max(LEAST_VARIANCE, variance) + BATCH_VARIANCE)
        return max(LEAST_CHANCE, normal_share_below(self.log_budget_ppm, mean, sigma))


def read_odds(runs: Sequence[RunResult], accuracy: Accuracy) -> AccuracyOdds:
    """From the runs of this model so far; those of fp32 and those that were not compared say nothing."""
    compared = {run.candidate: _log_ppm(run) for run in sorted(runs, key=lambda item: item.candidate.key) if _is_compared(run)}
    known = tuple(compared)
    noise = [[BATCH_VARIANCE if left == right else 0.0 for right in known] for left in known]
    factor = cholesky([[_covariance(left, right) + noise[row][column] for column, right in enumerate(known)] for row, left in enumerate(known)])
    weights = solve(factor, [value - MEAN_LOG_PPM[candidate.config.precision] for candidate, value in compared.items()])
    own_ppm = max((run.report.accuracy.self_difference_ppm for run in runs if run.report is not None and run.report.accuracy is not None), default=0)
    return AccuracyOdds(math.log(max(1, accuracy.budget_permille * 1000, own_ppm)), known, factor, weights)


def _is_compared(run: RunResult) -> bool:
    return run.candidate.config.precision != "fp32" and run.report is not None and run.report.accuracy is not None


def _log_ppm(run: RunResult) -> float:
    difference = run.report.accuracy if run.report is not None else None
    if difference is None or difference.invalid_values:
        return WORST_LOG_PPM
    return min(WORST_LOG_PPM, math.log(max(1, difference.difference_ppm)))


def _covariance(left: Candidate, right: Candidate) -> float:
    mine, theirs = left.config, right.config
    if mine.precision != theirs.precision:
        return MODEL_VARIANCE
    place = (left.pool, left.family, mine.execution_provider) == (right.pool, right.family, theirs.execution_provider)
    return MODEL_VARIANCE + PRECISION_VARIANCE + (PLACE_VARIANCE if place else 0.0)
