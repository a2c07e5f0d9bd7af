"""How unlike a row's model is from all that were learned from. Large distances are where regret sits: new kinds of architecture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metainfer.predict.learned.rows import Rows
from metainfer.predict.workload import CLASSES, Floats

PRESENCE = 3.0
"""Weight of a class's share of the parameters against one doubling of size: having experts at all is a matter of kind."""
DISTANCE_LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Portraits:
    """One point per model (and regime) that was learned from."""

    points: Floats

    def distance(self, rows: Rows) -> Floats:
        """To the nearest point, between 0 (seen) and ``DISTANCE_LIMIT``."""
        if not len(self.points):
            return np.full(len(rows), DISTANCE_LIMIT)
        # Rows of one model share a portrait: thousands of rows have a handful.
        mine, inverse = np.unique(np.round(portrait_points(rows), 6), axis=0, return_inverse=True)
        gaps = np.sqrt(((mine[:, None, :] - self.points[None, :, :]) ** 2).sum(axis=2)).min(axis=1) if len(mine) else np.zeros(0)
        return np.asarray(np.minimum(gaps, DISTANCE_LIMIT)[inverse.reshape(-1)], dtype=np.float64)


def portrait_points(rows: Rows) -> Floats:
    """[rows, dimensions]: share of each class in the arithmetic per sample and in the weights, launches and arithmetic in powers of ten."""
    macs, weights = rows["macs"], rows["weight_bytes"]
    columns = [PRESENCE * _shares(weights), PRESENCE * _shares(macs), np.log10(1 + rows["launches"])[:, None]]
    return np.asarray(np.nan_to_num(np.concatenate(columns, axis=1), nan=0.0, posinf=10.0, neginf=-10.0), dtype=np.float64)


def build_portraits(rows: Rows) -> Portraits:
    """The middle of each model's rows, by regime."""
    points = portrait_points(rows)
    keys = np.char.add(np.char.add(rows["model"], "\t"), rows["regime"])
    names, inverse = np.unique(keys, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(points[order], np.flatnonzero(np.diff(inverse[order])) + 1) if len(names) else []
    return Portraits(np.array([np.median(part, axis=0) for part in parts]).reshape(len(parts), 2 * len(CLASSES) + 1))


def _shares(values: Floats) -> Floats:
    values = np.maximum(np.nan_to_num(values), 0.0)
    total = values.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.zeros_like(values), where=total > 0), dtype=np.float64)
