"""What the learner sees of a row: ratios of times, not sizes. A model is known by how it loads a card, not by how big it is.

Raw model sizes stay out on purpose: with tens of models a tree reads a size as a name, and a model that was never seen has another
name. Every feature but the logarithms of time and of batch is free of units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.rows import ANCHORS, Rows
from metainfer.predict.workload import CLASSES, Floats

FEATURE_VERSION = 1
"""Raised whenever a feature changes meaning: a model of another version is not used."""
TINY = 1e-9
LOG_LIMIT = 14.0
"""Bound of a logarithm of a ratio (a million to one)."""

NUMERIC = (
    *(f"share_{name}" for name in CLASSES),
    *(f"bound_{name}" for name in CLASSES),
    "share_launch",
    "share_wait",
    "log_batch",
    "log_concurrency",
    "log_clients_per_batch",
    "dynamic_batching",
    "log_devices",
    "log_rows",
    "log_us_per_launch",
    "log_weight_us_per_launch",
    "log_m32_over_gemv",
    "log_m256_over_m32",
    "log_big_over_m256",
    "log_ridge",
    "log_floor",
    "is_probed",
)
IDENTITY = ("card", "runtime", "precision", "sharding", "regime")
PORTABLE = ("runtime", "precision", "sharding", "regime")
"""Categories that an unseen card has in common with the others."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Categories as small integers; what was never seen is -1, which trees treat as missing."""

    words: Mapping[str, tuple[str, ...]]

    def encode(self, rows: Rows, names: Sequence[str]) -> Floats:
        """[rows, names]."""
        return np.stack([self._codes(rows[name], self.words[name]) for name in names], axis=1) if names else np.zeros((len(rows), 0))

    @staticmethod
    def _codes(values: npt.NDArray[np.str_], words: tuple[str, ...]) -> Floats:
        seen, inverse = np.unique(values, return_inverse=True)
        places = {word: float(index) for index, word in enumerate(words)}
        return np.array([places.get(value, -1.0) for value in seen.tolist()])[inverse]


def build_vocabulary(rows: Rows) -> Vocabulary:
    """Every word of the rows, sorted."""
    return Vocabulary({name: tuple(sorted({str(value) for value in np.unique(rows[name])})) for name in IDENTITY})


def numeric_features(rows: Rows) -> Floats:
    """[rows, NUMERIC], always finite."""
    base = np.maximum(rows["base_us"], TINY)[:, None]
    longest = np.maximum(rows["compute_us"], rows["traffic_us"])
    present = longest > 0
    launches = np.maximum(rows["launches"], 1.0)
    weights = rows["weight_bytes"].sum(axis=1)
    rates = _log(rows["flop_per_us"])
    columns = [
        np.minimum(longest / base, 10.0),
        np.where(present, _log_ratio(rows["compute_us"], rows["traffic_us"]), 0.0),
        np.stack(
            [
                np.minimum(rows["launch_us"] / base[:, 0], 10.0),
                np.minimum(rows["wait_us"] / base[:, 0], 10.0),
                _log(rows["batch"]),
                _log(rows["concurrency"]),
                _log_ratio(rows["clients"], rows["batch"]),
                rows["dynamic_batching"],
                _log(rows["devices"]),
                _log_ratio(rows["macs"].sum(axis=1), weights),
                _log(rows["base_us"] / launches),
                _log_ratio(weights / launches, rows["bytes_per_us"]),
                *(rates[:, index] - rates[:, index - 1] for index in range(1, len(ANCHORS))),
                _log_ratio(rows["flop_per_us"][:, -1], rows["bytes_per_us"]),
                _log(rows["launch_floor_us"]),
                rows["is_probed"],
            ],
            axis=1,
        ),
    ]
    return np.asarray(np.nan_to_num(np.concatenate(columns, axis=1), nan=0.0, posinf=LOG_LIMIT, neginf=-LOG_LIMIT), dtype=np.float64)


def _log(values: Floats) -> Floats:
    return np.clip(np.log(np.maximum(np.nan_to_num(values), TINY)), -2 * LOG_LIMIT, 2 * LOG_LIMIT)


def _log_ratio(left: Floats, right: Floats) -> Floats:
    return np.clip(_log(left) - _log(right), -LOG_LIMIT, LOG_LIMIT)
