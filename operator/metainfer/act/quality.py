"""The predictor's quality as metrics, counted once per decision."""

from __future__ import annotations

from metainfer import metrics
from metainfer.decide.plan import PredictionQuality


def count_decision(quality: PredictionQuality) -> None:
    """Add one decision to the operator's own quality series."""
    metrics.DECISIONS.labels(quality.family, quality.reason).inc()
    if quality.predicted_rank is not None:
        metrics.PREDICTED_RANK.labels(quality.family).observe(quality.predicted_rank)
    for family, ratio in quality.error_ratios:
        metrics.PREDICTION_ERROR_RATIO.labels(family).observe(ratio)
