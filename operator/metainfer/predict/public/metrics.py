"""How good an order is, and how sure that figure is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metainfer.predict.workload import Floats

SHORTLIST = 4
CLOSE = 0.05
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one group. Regrets are shares of the best utility: 0 = the best one was picked."""

    model: str
    top1_regret: float
    top4_regret: float
    kendall_tau: float
    ndcg4: float
    picks: float
    """Different candidates that were measured."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the 95 % interval of a bootstrap over models."""

    mean: float
    low: float
    high: float


def judge(model: str, utilities: Floats, scores: Floats, picks: Sequence[int] | None = None) -> Quality:
    """``utilities`` are true ones (0 = infeasible), ``scores`` higher = better; ``picks`` in their order, else the best scores."""
    order = np.argsort(-scores, kind="stable")
    chosen = list(order[:SHORTLIST]) if picks is None else list(picks)
    best = float(utilities.max())
    feasible = utilities > 0
    return Quality(
        model=model,
        top1_regret=1 - float(utilities[order[0]]) / best,
        top4_regret=1 - float(utilities[chosen].max()) / best,
        kendall_tau=kendall_tau(scores[feasible], utilities[feasible]),
        ndcg4=_ndcg(utilities / best, order),
        picks=len(set(map(int, chosen))),
    )


def kendall_tau(left: Floats, right: Floats) -> float:
    """tau-b over all pairs (Kendall, 1945); 0 where one side is constant."""
    a, b = np.sign(left[:, None] - left[None, :]), np.sign(right[:, None] - right[None, :])
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 0 else 0.0


def bootstrap(values: Floats, models: npt.NDArray[np.str_], *, seed: int = 0) -> Interval:
    """Mean over groups; the interval resamples whole models, because groups of one model are right or wrong together."""
    names, inverse = np.unique(models, return_inverse=True)
    sums, counts = np.bincount(inverse, weights=values), np.bincount(inverse)
    draws = np.random.default_rng(seed).integers(0, len(names), size=(RESAMPLES, len(names)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    return Interval(float(values.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975)))


def _ndcg(gains: Floats, order: npt.NDArray[np.intp]) -> float:
    """Discounted gain of the first four (Jaervelin and Kekaelaeinen, 2002), against the best order's."""
    discounts = 1 / np.log2(np.arange(2, SHORTLIST + 2))
    ideal = np.sort(gains)[::-1][:SHORTLIST]
    got = gains[order[:SHORTLIST]]
    return float((got * discounts[: len(got)]).sum() / (ideal * discounts[: len(ideal)]).sum())
