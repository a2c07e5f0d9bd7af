"""What the predictor is compared with. Each orders the same candidates; none of them is used by the operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from metainfer.predict.learned.boosting import fit_plain
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.public.columns import Columns, lookup
from metainfer.predict.public.learner import forecast_with
from metainfer.predict.public.tasks import Task
from metainfer.predict.workload import Floats

PLAIN_SIGMA = 0.3


def strongest_card_scores(task: Task, table: Columns) -> Floats:
    """The card with the most bf16 TFLOPS on paper, and on it the biggest batch (concurrency); limits are not considered."""
    tflops = task.hardware["bf16_tflops"][lookup(task.hardware, "card", table["card"], what="hw.csv")]
    load = table["conc"] if task.serves else table["batch"]
    order = np.lexsort((load, tflops))
    scores = np.empty(len(order))
    scores[order] = np.arange(len(order))
    return scores


def spec_roofline(task: Task, table: Columns) -> tuple[Forecast, Forecast]:
    """The same physics on spec sheets."""
    return forecast_with(None, replace(task, probes=None).build_rows(table))


def probe_roofline(task: Task, table: Columns) -> tuple[Forecast, Forecast]:
    """The bare base: physics on probed peaks."""
    return forecast_with(None, task.build_rows(table))


def plain_trees(task: Task, train: Columns, table: Columns, *, seed: int) -> tuple[Forecast, Forecast]:
    """LightGBM on the table's own columns and the architecture numbers, target log latency: no physics, no probes."""
    words = {name: sorted({*train[name].tolist(), *table[name].tolist()}) for name in ("backend", "precision")}
    learned, asked = _raw(task, train, words), _raw(task, table, words)
    forecasts = []
    for mine, theirs in zip(task.build_rows(train), task.build_rows(table), strict=True):
        values = fit_plain(learned, np.log(mine["latency_us"]), asked, seed=seed)
        forecasts.append(Forecast(values, np.full(len(theirs), PLAIN_SIGMA)))
    return forecasts[0], forecasts[1]


def _raw(task: Task, table: Columns, words: Mapping[str, list[str]]) -> Floats:
    shape = lookup(task.models, "model", table["model"], what="models.csv")
    card = lookup(task.hardware, "card", table["card"], what="hw.csv")
    codes = [np.searchsorted(np.array(known), table[name]).astype(np.float64) for name, known in words.items()]
    numbers = [table[name] for name in task.table_columns if table[name].dtype.kind == "f"]
    sizes = [task.models[name][shape] for name in task.model_columns if name != "model"]
    return np.stack([card.astype(np.float64), *codes, *numbers, *sizes], axis=1)
