"""A card that no training row came from: the global model, moved by what the card's first measured rows say.

Appending three rows to forty thousand changes no tree; a shift per card and regime does what those rows can justify. It is the mean
residual, shrunken by n / (n + 2.5): the posterior mean of a normal effect whose prior variance is 1 / 2.5 of a row's own variance
(best linear unbiased predictor of a random effect; Robinson, That BLUP is a Good Thing, Statistical Science, 1991).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows, is_measured
from metainfer.predict.workload import Floats

PRIOR_ROWS = 2.5
"""Rows that the belief "this card is like the others" is worth."""
LIMIT = 3.0
"""Bound of one row's residual: a row that is off by more than twenty times was measured or filled in wrongly."""

Key = tuple[str, str]
"""Card and regime."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """Added to log latency, by (card, regime); nothing for the others."""

    by_card: Mapping[Key, float] = field(default_factory=dict)

    def of(self, rows: Rows) -> Floats:
        """One shift per row."""
        found = np.zeros(len(rows))
        for (card, regime), value in self.by_card.items():
            found[(rows["card"] == card) & (rows["regime"] == regime)] = value
        return found

    def move(self, rows: Rows, forecast: Forecast) -> Forecast:
        """The forecast, shifted."""
        return Forecast(forecast.log_latency_us + self.of(rows), forecast.sigma)


def learn_shifts(rows: Rows, forecast: Forecast) -> Shifts:
    """From the measured ones of ``rows`` and an unshifted forecast of all of them."""
    known = is_measured(rows)
    rows, predicted = rows[known], forecast.log_latency_us[known]
    residuals = np.clip(np.log(rows["latency_us"]) - predicted, -LIMIT, LIMIT)
    keys = {(str(card), str(regime)) for card, regime in zip(rows["card"], rows["regime"], strict=True)}
    shifts: dict[Key, float] = {}
    for card, regime in sorted(keys):
        mine = residuals[(rows["card"] == card) & (rows["regime"] == regime)]
        # The mean of few rows is at the mercy of one; from three rows on the median says the same and is not.
        middle = float(np.median(mine)) if len(mine) >= 3 else float(mine.mean())
        shifts[card, regime] = middle * len(mine) / (len(mine) + PRIOR_ROWS)
    return Shifts(shifts)
