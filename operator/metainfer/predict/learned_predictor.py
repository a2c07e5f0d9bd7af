"""The operator's predictor: physics, moved by the champion of the registry in the families where it won."""

from __future__ import annotations

import math
from collections.abc import Sequence

from metainfer.decide.learning import family_key
from metainfer.decide.predictor import Prediction, Question
from metainfer.predict.physics import answer, take_apart
from metainfer.predict.question_rows import build_rows
from metainfer.predict.registry import Registry

LOG_MOVE_LIMIT = math.log(100.0)
"""A model that wants to move the base by more than a hundred times has met something that it knows nothing of."""


class LearnedPredictor:
    """See ``decide.predictor.Predictor``. Without a champion: exactly the base."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def predict(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """One prediction per question; all of them are asked of the model at once."""
        parts = take_apart(questions)
        base = answer(parts)
        champion = self._registry.champion
        if champion is None or not parts:
            return base
        forecast = champion.model.predict(build_rows(parts, base), self._registry.shifts)
        moved = zip(questions, base, forecast.log_latency_us.tolist(), forecast.sigma.tolist(), strict=True)
        name = f"model {champion.record.version}"
        return tuple(
            _move(prediction, log_us, sigma, name) if champion.serves(family_key(question.candidate)) else prediction
            for question, prediction, log_us, sigma in moved
        )


def _move(base: Prediction, log_latency_us: float, sigma: float, name: str) -> Prediction:
    """All figures by the same factor: what makes the median slower makes the tail slower and the throughput smaller (Little's law)."""
    log_move = log_latency_us - math.log(base.p50_us)
    if not (math.isfinite(log_move) and math.isfinite(sigma)) or abs(log_move) > LOG_MOVE_LIMIT:
        return base
    factor = math.exp(log_move)
    return Prediction(base.p50_us * factor, base.p99_us * factor, base.throughput_per_second / factor, sigma, f"{name} on {base.source}")
