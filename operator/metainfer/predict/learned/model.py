"""A trained model: its members, how they are weighed, and what it says of rows. Training is elsewhere, so is the stored form.

log latency = log base + lambda x weighted mean of the members' log residuals (+ the shift of a new card); sigma = the residual spread on
models that were held out, widened where the members disagree and where the row's model is unlike all that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.boosting import Trees
from metainfer.predict.learned.features import Vocabulary, numeric_features
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.network import Network
from metainfer.predict.learned.portrait import Portraits
from metainfer.predict.learned.rows import Rows
from metainfer.predict.learned.shift import Shifts
from metainfer.predict.workload import Floats

NO_SHIFTS = Shifts()
SIGMA_BOUNDS = (0.01, 2.0)


@dataclass(frozen=True, slots=True)
class Member:
    """One learner and the rows that it speaks for."""

    learner: Trees | Network
    categories: tuple[str, ...]
    family: str = ""
    """Empty = every family, and cards that were never seen."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of log(true / predicted) = own + by_disagreement x (members' variance) + by_distance x (portrait distance)^2."""

    own: float
    by_disagreement: float = 0.0
    by_distance: float = 0.0


@dataclass(frozen=True, slots=True)
class Newness:
    """What holds for a card that no training row came from."""

    keep: float
    """Part of the members' mean that whole families justify when they are held out."""
    variance: float
    """Added to that of log(true / predicted)."""


UNTRIED = Newness(0.5, 0.2**2)
"""Where there was but one card: nothing is known of how residuals carry over to others."""


@dataclass(frozen=True, slots=True)
class Model:
    """Immutable; one may be asked from many threads."""

    vocabulary: Vocabulary
    members: Mapping[str, Member]
    weights: Mapping[str, float]
    """By member, relative; a row's applicable ones are normalised."""
    shrinkage: Mapping[str, float]
    """By regime: lambda in [0, 1], how much of the members' mean held-out models justify. 0 = the bare base."""
    spreads: Mapping[str, Spread]
    """By regime."""
    portraits: Portraits
    newness: Mapping[str, Newness] = field(default_factory=dict)
    """By regime."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``rows``, ``models``; ``held_out_rms`` and ``base_rms`` of log(true / predicted) over held-out models."""

    def predict(self, rows: Rows, shifts: Shifts = NO_SHIFTS) -> Forecast:
        """One answer per row. Never raises for rows of dtype ROW; what it was never taught gets the base and a wide sigma."""
        return self.predict_like(rows["base_us"], rows, np.arange(len(rows)), shifts)

    def predict_like(self, base_us: Floats, typical: Rows, like: npt.NDArray[np.intp], shifts: Shifts = NO_SHIFTS) -> Forecast:
        """Thousands of instances: the base of each, with the residual of the configuration on its family's typical card, ``typical[like]``.

        A base that is no figure gives infinity: it is ranked last, not first.
        """
        residual, sigma = self.residual(typical)
        shifted = residual + shifts.of(typical)
        base = np.log(np.where(np.isfinite(base_us) & (base_us > 0), base_us, np.inf))
        return Forecast(base + shifted[like], sigma[like])

    def residual(self, rows: Rows) -> tuple[Floats, Floats]:
        """log(predicted / base) and sigma."""
        opinions, weights = self._opinions(rows)
        total = np.maximum(weights.sum(axis=1), 1e-12)
        mean = (opinions * weights).sum(axis=1) / total
        variance = (weights * (opinions - mean[:, None]) ** 2).sum(axis=1) / total
        distance = self.portraits.distance(rows)
        is_new = ~np.isin(rows["card"], self.vocabulary.words["card"])
        keep, sigma = np.zeros(len(rows)), np.full(len(rows), SIGMA_BOUNDS[1] / 2)
        for regime, spread in self.spreads.items():
            mine, newness = rows["regime"] == regime, self.newness.get(regime, UNTRIED)
            keep[mine] = np.where(is_new[mine], newness.keep, self.shrinkage[regime])
            own = spread.own + spread.by_disagreement * variance[mine] + spread.by_distance * distance[mine] ** 2
            sigma[mine] = np.sqrt(own + np.where(is_new[mine], newness.variance, 0.0))
        return mean * keep, np.clip(sigma, *SIGMA_BOUNDS)

    def _opinions(self, rows: Rows) -> tuple[Floats, Floats]:
        """[rows, members]: what each says, and its weight; zero where it does not speak for the row."""
        numeric = numeric_features(rows)
        opinions, weights = np.zeros((len(rows), len(self.members))), np.zeros((len(rows), len(self.members)))
        for index, (name, member) in enumerate(self.members.items()):
            mine = np.flatnonzero(self._speaks_for(member, rows))
            if len(mine):
                codes = self.vocabulary.encode(rows[mine], member.categories)
                opinions[mine, index] = member.learner.predict(np.concatenate([numeric[mine], codes], axis=1))
                weights[mine, index] = self.weights[name]
        return opinions, weights

    def _speaks_for(self, member: Member, rows: Rows) -> npt.NDArray[np.bool_]:
        if not member.family:
            return np.ones(len(rows), dtype=np.bool_)
        known = np.isin(rows["card"], self.vocabulary.words["card"])
        return np.asarray(known & (rows["family"] == member.family), dtype=np.bool_)
