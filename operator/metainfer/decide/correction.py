"""Predictions corrected by what was measured: ridge regression of the log residuals on what candidates have in common. Pure.

The residual log(measured / predicted) of a candidate is a sum of independent normal effects (one for the model as a whole, one per
family, provider, precision, ...), scaled by the prediction's own sigma; a measurement is the residual plus its own error. The
posterior mean of such effects is ridge regression, here in its dual (kernel) form: as many unknowns as measurements, at most six.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.25 and 2.26.

How far a prediction's sigma is to be believed is itself learned from the residuals: where they are larger than promised, all that is
not measured yet becomes as much more doubtful. Source: Shah, Wilson, Ghahramani, Student-t Processes (2014), eq. 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metainfer.decide.estimation import Estimate
from metainfer.decide.facts import Candidate
from metainfer.decide.gaussian import LEAST_VARIANCE, cholesky, solve
from metainfer.decide.predictor import Prediction

SHARES: tuple[tuple[float, Callable[[Candidate], object]], ...] = (
    (0.20, lambda _: "model"),
    (0.15, lambda candidate: (candidate.pool, candidate.family)),
    (0.15, lambda candidate: candidate.config.execution_provider),
    (0.05, lambda candidate: candidate.config.precision),
    (0.25, lambda candidate: (candidate.config.execution_provider, candidate.config.precision)),
    (0.10, lambda candidate: candidate.config.batch_size),
    (0.05, lambda candidate: candidate.config.concurrency),
    (0.05, lambda candidate: candidate.key),
)
"""Share of a prediction's variance that each effect explains; they add up to 1. Precision together with provider is the largest,
because that is where runtimes differ most and no peak shows it (one model's int8: 1.5 times faster on one, 8 times slower on another)."""
_SIGMA_BOUNDS = (0.02, 2.0)
SIGMA_ROWS = 4.0
"""Measurements that a stated sigma counts as much as: one surprise of three sigma more than doubles the variance, four good predictions halve it."""
_RESIDUAL_LIMIT = 10.0
"""A prediction that is off by more than e^10 is no prediction; the bound keeps its effect on the others a finite number."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One measured candidate: its effects' scale, its measurement's variance, its residuals (p50, p99, throughput)."""

    candidate: Candidate
    scale: float
    noise_variance: float
    residuals: tuple[float, float, float]


def correct(predictions: Mapping[Candidate, Prediction], measured: Mapping[Candidate, Estimate]) -> Mapping[Candidate, Prediction]:
    """All predictions: measured ones replaced by their estimate, the others moved by the effects that they share with measured ones.

    Without measurements the predictions come back as they are. A measured candidate without a prediction is added.
    """
    rows = [row for candidate in sorted(measured, key=lambda item: item.key) if (row := _row(candidate, predictions, measured)) is not None]
    answers = {candidate: _as_prediction(estimate) for candidate, estimate in measured.items()}
    if not rows:
        return {**predictions, **answers}
    factor = cholesky([[_covariance(left, right) for right in rows] for left in rows])
    weights = [solve(factor, [row.residuals[figure] for row in rows]) for figure in range(3)]
    moved = {candidate: _move(candidate, prediction, _Fit(rows, factor, weights)) for candidate, prediction in predictions.items()}
    return {**moved, **answers}


@dataclass(frozen=True, slots=True)
class _Fit:
    rows: Sequence[_Row]
    factor: Sequence[Sequence[float]]
    weights: Sequence[Sequence[float]]

    @property
    def surprise(self) -> float:
        """Variance of the residuals (of throughput, which decides) over the promised one, the promise weighing as much as ``SIGMA_ROWS`` of them."""
        size = math.fsum(row.residuals[2] * weight for row, weight in zip(self.rows, self.weights[2], strict=True))
        return (SIGMA_ROWS + size) / (SIGMA_ROWS + len(self.rows))


def _row(candidate: Candidate, predictions: Mapping[Candidate, Prediction], measured: Mapping[Candidate, Estimate]) -> _Row | None:
    prediction, estimate = predictions.get(candidate), measured[candidate]
    if prediction is None:
        return None
    residuals = [_log_ratio(*pair) for pair in zip(_figures(estimate), _figures(prediction), strict=True)]
    if any(residual is None for residual in residuals):
        return None
    first, second, third = (residual or 0.0 for residual in residuals)
    return _Row(candidate, _scale(prediction), estimate.total_log_sigma**2, (first, second, third))


def _move(candidate: Candidate, prediction: Prediction, fit: _Fit) -> Prediction:
    scale = _scale(prediction)
    shared = [scale * row.scale * _likeness(candidate, row.candidate) for row in fit.rows]
    p50, p99, throughput = (math.exp(math.fsum(k * w for k, w in zip(shared, weights, strict=True))) for weights in fit.weights)
    variance = scale**2 - math.fsum(k * v for k, v in zip(shared, solve(fit.factor, shared), strict=True))
    return Prediction(
        p50_us=prediction.p50_us * p50,
        p99_us=prediction.p99_us * p99,
        throughput_per_second=prediction.throughput_per_second * throughput,
        log_sigma=min(_SIGMA_BOUNDS[1], math.sqrt(max(LEAST_VARIANCE, variance * fit.surprise))),
        source=f"{prediction.source}, corrected by {len(fit.rows)} measured",
    )


def _likeness(left: Candidate, right: Candidate) -> float:
    """Correlation of the residuals of two candidates: the shares of what they have in common; 1 for the same one."""
    return math.fsum(share for share, trait in SHARES if trait(left) == trait(right))


def _covariance(left: _Row, right: _Row) -> float:
    noise = left.noise_variance + LEAST_VARIANCE if left.candidate == right.candidate else 0.0
    return left.scale * right.scale * _likeness(left.candidate, right.candidate) + noise


def _scale(prediction: Prediction) -> float:
    low, high = _SIGMA_BOUNDS
    return max(low, min(high, prediction.log_sigma)) if math.isfinite(prediction.log_sigma) else high


def _as_prediction(estimate: Estimate) -> Prediction:
    return Prediction(estimate.p50_us, estimate.p99_us, estimate.throughput_per_second, estimate.total_log_sigma, "measured")


def _figures(item: Prediction | Estimate) -> tuple[float, float, float]:
    return (item.p50_us, item.p99_us, item.throughput_per_second)


def _log_ratio(measured: float, predicted: float) -> float | None:
    if not (math.isfinite(measured) and math.isfinite(predicted) and measured > 0 and predicted > 0):
        return None
    return max(-_RESIDUAL_LIMIT, min(_RESIDUAL_LIMIT, math.log(measured) - math.log(predicted)))
