"""Sequential validation: a forecast corrected by what was really measured of the same model.

The residual log(measured / forecast) is a sum of independent normal effects (of the model as a whole, of card, family, runtime,
precision, ... and of batches near each other), scaled by the forecast's own sigma. The posterior mean is ridge regression on the
indicators of those effects, in its dual form: as many unknowns as measurements.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), eq. 2.25 and 2.26.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows, is_measured
from metainfer.predict.workload import Floats


@dataclass(frozen=True, slots=True)
class Effect:
    """What rows with equal ``traits`` have in common."""

    share: float
    """Of a residual's variance."""
    traits: tuple[str, ...]
    batch_reach: float = 0.0
    """Standard deviation, in doublings of the batch, of a Gaussian likeness; 0 = every batch alike."""


EFFECTS: tuple[Effect, ...] = (
    Effect(0.20, ()),
    Effect(0.05, ("card",)),
    Effect(0.10, ("runtime",)),
    Effect(0.10, ("runtime", "precision")),
    Effect(0.05, ("devices",)),
    Effect(0.05, ("sharding",)),
    Effect(0.15, ("card", "runtime", "precision")),
    Effect(0.10, (), batch_reach=2.0),
    Effect(0.20, ("card", "runtime", "precision", "devices", "sharding"), batch_reach=2.0),
)
"""They add up to 1."""
NOISE_SIGMA = 0.02
"""A benchmark against itself."""
RESIDUAL_LIMIT = 10.0
"""A forecast that is off by more than e^10 is no forecast; the bound keeps its effect on the others a finite number."""
_SIGMA_BOUNDS = (0.01, 2.0)


def correct(rows: Rows, forecast: Forecast, seen: Rows, seen_forecast: Forecast, *, effects: tuple[Effect, ...] = EFFECTS) -> Forecast:
    """The forecast of ``rows`` after ``seen`` (rows of the same model with a measured latency) and what was forecast for those.

    Other regimes than a row's own say nothing about it. Rows of ``seen`` without a latency are ignored; without any, the forecast comes back.
    """
    known = is_measured(seen)
    if not known.any():
        return forecast
    seen, predicted, sigma = seen[known], seen_forecast.log_latency_us[known], _bounded(seen_forecast.sigma[known])
    residuals = np.clip(np.log(seen["latency_us"]) - predicted, -RESIDUAL_LIMIT, RESIDUAL_LIMIT)
    own = _bounded(forecast.sigma)
    covariance = likeness(seen, seen, effects) * sigma[:, None] * sigma[None, :] + np.diag(np.full(len(seen), NOISE_SIGMA**2))
    shared = likeness(rows, seen, effects) * own[:, None] * sigma[None, :]
    factor = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(factor, shared.T)
    moved = forecast.log_latency_us + whitened.T @ np.linalg.solve(factor, residuals)
    variance = np.maximum(own**2 - (whitened**2).sum(axis=0), _SIGMA_BOUNDS[0] ** 2)
    return Forecast(moved, np.minimum(np.sqrt(variance), own))


def likeness(left: Rows, right: Rows, effects: tuple[Effect, ...] = EFFECTS) -> Floats:
    """[left, right]: correlation of the residuals, by the shares of the effects in common; 1 for two alike."""
    equal = {name: _equal(left[name], right[name]) for name in ("regime", *{trait for effect in effects for trait in effect.traits})}
    distance = np.log2(np.maximum(left["batch"], 1e-9))[:, None] - np.log2(np.maximum(right["batch"], 1e-9))[None, :]
    total = np.zeros(distance.shape)
    for effect in effects:
        shared = np.full(distance.shape, effect.share)
        for trait in effect.traits:
            shared = np.where(equal[trait], shared, 0.0)
        total += shared * np.exp(-0.5 * (distance / effect.batch_reach) ** 2) if effect.batch_reach else shared
    return np.where(equal["regime"], total, 0.0)


def _equal(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[left, right]; by numbers, because comparing words pair by pair is what takes the time."""
    codes = np.unique(np.concatenate([left, right]), return_inverse=True)[1]
    return np.asarray(codes[: len(left), None] == codes[None, len(left) :], dtype=np.bool_)


def _bounded(sigma: Floats) -> Floats:
    return np.clip(np.nan_to_num(sigma, nan=_SIGMA_BOUNDS[1], posinf=_SIGMA_BOUNDS[1]), *_SIGMA_BOUNDS)
