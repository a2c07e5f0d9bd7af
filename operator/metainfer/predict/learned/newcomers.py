"""Cards with too few rows to be learned: kept out of training, and answered by the global model and a shift of their own."""

from __future__ import annotations

import numpy as np

from metainfer.predict.learned.model import Model
from metainfer.predict.learned.rows import Rows, is_measured
from metainfer.predict.learned.shift import Shifts, learn_shifts
from metainfer.predict.learned.training import train

CARD_ROWS = 30
"""Rows per regime from which on a card is one of those that trees are fitted on."""


def train_with_newcomers(rows: Rows, *, seed: int) -> tuple[Model, Shifts]:
    """A model of the cards that are known well, and the shifts of the others. Raises Untrainable as ``train`` does."""
    known = is_measured(rows)
    keys, inverse, counts = np.unique(np.char.add(np.char.add(rows["card"], "\t"), rows["regime"]), return_inverse=True, return_counts=True)
    per_key = np.bincount(inverse[known], minlength=len(keys)) if len(rows) else counts
    is_new = np.isin(rows["card"], np.unique(rows["card"][(per_key < CARD_ROWS)[inverse]]))
    if is_new.all():
        return train(rows, seed=seed), Shifts()  # all are few: better learned together than not at all
    model = train(rows[~is_new], seed=seed)
    newcomers = rows[is_new]
    return model, learn_shifts(newcomers, model.predict(newcomers))
