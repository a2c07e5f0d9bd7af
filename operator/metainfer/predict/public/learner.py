"""A model of one public table: trained, kept beside its inputs so that rounds of a replay train once, and asked."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metainfer.predict.learned.document import model_from_document, model_to_document
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.model import Model
from metainfer.predict.learned.newcomers import train_with_newcomers
from metainfer.predict.learned.rows import Rows
from metainfer.predict.learned.shift import Shifts
from metainfer.predict.public.columns import Columns
from metainfer.predict.public.tasks import Task

BASE_SIGMA = 0.3
"""Of the bare base where nothing could be learned: its residual spread on the public tables is 0.25 to 0.4."""
CACHE = "metainfer-model.json.gz"
INPUTS = ("train.csv", "hw.csv", "models.csv", "probes.csv", "task.json")


@dataclass(frozen=True, slots=True)
class Learner:
    """A model and what it knows of cards that it was not trained on."""

    model: Model
    shifts: Shifts


def learn(task: Task, table: Columns, *, seed: int) -> Learner:
    """From a table with latencies. Raises Untrainable."""
    return Learner(*train_with_newcomers(np.concatenate(task.build_rows(table)), seed=seed))


def forecast_with(learner: Learner | None, rows: tuple[Rows, Rows]) -> tuple[Forecast, Forecast]:
    """What a learner says of both latencies; without one the bare base."""
    first, second = ((_base(item) if learner is None else learner.model.predict(item, learner.shifts)) for item in rows)
    return first, second


def learn_cached(task: Task, table: Columns, folder: Path, *, seed: int) -> Learner:
    """``learn``, or what an earlier call on the same inputs left in ``folder``. A cache that cannot be read or written costs time only."""
    key = hashlib.sha256(b"\0".join((folder / name).read_bytes() if (folder / name).is_file() else b"" for name in INPUTS)).hexdigest()
    if (cached := _read_cache(folder / CACHE, key)) is not None:
        return cached
    learner = learn(task, table, seed=seed)
    shifts = [[card, regime, value] for (card, regime), value in learner.shifts.by_card.items()]
    document = {"inputs": key, "model": model_to_document(learner.model), "shifts": shifts}
    with contextlib.suppress(OSError):
        (folder / CACHE).write_bytes(gzip.compress(json.dumps(document).encode(), compresslevel=3))
    return learner


def _read_cache(path: Path, key: str) -> Learner | None:
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["inputs"] != key:
            return None
        shifts = {(str(card), str(regime)): float(value) for card, regime, value in content["shifts"]}
        return Learner(model_from_document(content["model"]), Shifts(shifts))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, ModelUnreadable):
        return None


def _base(rows: Rows) -> Forecast:
    return Forecast(np.log(rows["base_us"]), np.full(len(rows), BASE_SIGMA))
