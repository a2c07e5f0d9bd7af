"""Gradient-boosted trees as one member of a model: fit, ask, and a text form that holds nothing that could run.

Small trees, many of them, each on a part of rows and features, under a robust loss: an outlier moves a tree by no more than any
other row does. Source: Ke et al., LightGBM (2017); Huber, Robust Estimation of a Location Parameter (1964).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import lightgbm
import numpy as np

from metainfer.predict.learned.features import NUMERIC
from metainfer.predict.workload import Floats

RISING = ("log_concurrency", "log_clients_per_batch", "log_devices", "share_wait")
"""Features in which a latency over its base never falls: sharing a card, waiting, and talking to other cards cost what they cost."""
ROUNDS = 300
THREADS = 1
_PARAMETERS = {
    "objective": "huber",
    "alpha": 0.2,  # residuals beyond e^0.2 count linearly
    "learning_rate": 0.08,
    "num_leaves": 31,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "cat_smooth": 20.0,
    "max_bin": 127,
    "monotone_constraints_method": "basic",
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": THREADS,
    "verbosity": -1,
}


@dataclass(frozen=True, slots=True)
class Trees:
    """A fitted booster by its text; equal texts are equal models."""

    text: str
    _loaded: threading.local = field(default_factory=threading.local, compare=False, repr=False)

    def predict(self, features: Floats) -> Floats:
        """One value per row."""
        if not len(features):
            return np.zeros(0)
        # One booster per thread: LightGBM's own objects may be asked by one thread at a time.
        booster = getattr(self._loaded, "booster", None)
        if booster is None:
            booster = self._loaded.booster = lightgbm.Booster(model_str=self.text)
        return np.asarray(booster.predict(features, num_threads=THREADS), dtype=np.float64)


def fit_trees(features: Floats, target: Floats, weight: Floats, categories: Sequence[str], *, seed: int) -> Trees:
    """Trees for log residuals. ``features`` are the numeric ones, then one column of codes per category."""
    names = [*NUMERIC, *categories]
    constraints = [int(name in RISING) for name in NUMERIC] + [0] * len(categories)
    parameters = {**_PARAMETERS, "monotone_constraints": constraints, "seed": seed, "min_data_in_leaf": _leaf_rows(len(target))}
    table = lightgbm.Dataset(features, target, weight=weight, feature_name=names, categorical_feature=list(categories), free_raw_data=True)
    return Trees(lightgbm.train(parameters, table, ROUNDS).model_to_string(num_iteration=-1))


def fit_plain(features: Floats, target: Floats, asked: Floats, *, seed: int) -> Floats:
    """What the same trees say with other features and no constraints: the comparison that physics has to win."""
    table = lightgbm.Dataset(features, target, free_raw_data=True)
    booster = lightgbm.train({**_PARAMETERS, "seed": seed, "min_data_in_leaf": _leaf_rows(len(target))}, table, ROUNDS)
    return np.asarray(booster.predict(asked, num_threads=THREADS), dtype=np.float64)


def _leaf_rows(rows: int) -> int:
    """Leaves of at least 40 rows, of fewer where there are only hundreds."""
    return max(5, min(40, rows // 50))
