"""``metainfer evaluate``: the pools that ship with the operator, and their figures as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from metainfer.predict.learned.errors import TableUnreadable
from metainfer.predict.onnx_runs.evaluation import evaluate_onnx_runs
from metainfer.predict.onnx_runs.measured import OnnxRuns, read_onnx_runs
from metainfer.predict.public.columns import Columns, read_columns
from metainfer.predict.public.evaluation import (
    Say,
    Split,
    Verdict,
    collapse_repeats,
    evaluate_pool,
    known_card_splits,
    leave_one_model_out,
    unseen_card_splits,
)
from metainfer.predict.public.metrics import CLOSE, Interval, bootstrap
from metainfer.predict.public.tasks import HARDWARE_COLUMNS, PROBE_COLUMNS, Task
from metainfer.predict.tables import FOLDER
from metainfer.predict.training_lines import read_file

KNOWN, UNSEEN, SERVING = "kernel sums, known cards", "kernel sums, unseen cards", "serving, unseen model"
OWN_RUNS = "own ONNX runs, unseen model"
POOLS = {"known": KNOWN, "unseen": UNSEEN, "serving": SERVING, "onnx": OWN_RUNS}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report: a method on a pool. Percent, except tau, NDCG and runs."""

    pool: str
    method: str
    way: str
    groups: int
    models: int
    top4_regret: Interval
    top1_regret: Interval
    within_5_percent: Interval
    kendall_tau: float
    ndcg4: float
    runs: float
    """Mean number of different candidates that are measured."""


def evaluate_shipped(pools: Sequence[str], folder: Path | None, say: Say) -> list[Figure]:
    """Figures of the named pools (keys of ``POOLS``) on the tables in ``folder`` (those that ship). Raises TableUnreadable."""
    return [figure for pool in pools for figure in summarise(list(_verdicts(pool, folder or FOLDER, say)))]


def read_own_runs(folder: Path) -> OnnxRuns:
    """All tables of ``hack/bench/collect`` in a folder. Raises TableUnreadable."""
    paths = sorted([*folder.glob("*.jsonl.gz"), *folder.glob("*.jsonl")])
    if not paths:
        raise TableUnreadable(f"{folder} has no table of benchmarks (*.jsonl or *.jsonl.gz)")
    return read_onnx_runs([line for path in paths for line in read_file(path)], ", ".join(path.name for path in paths))


def _verdicts(pool: str, folder: Path, say: Say) -> Iterator[Verdict]:
    if pool == "onnx":
        yield from evaluate_onnx_runs(OWN_RUNS, read_own_runs(folder), say)
        return
    serves = pool == "serving"
    draft = Task(serves, {}, {}, None)
    task = Task(
        serves=serves,
        models=read_columns(_find(folder, "serve_models" if serves else "models"), draft.model_columns),
        hardware=read_columns(_find(folder, "hw"), HARDWARE_COLUMNS),
        probes=read_columns(_find(folder, "probes"), PROBE_COLUMNS),
    )
    table = read_columns(_find(folder, "serve" if serves else "llm_ops"), (*task.table_columns, *task.latency_columns))
    table = collapse_repeats(table, task) if serves else table
    yield from evaluate_pool(POOLS[pool], task, table, _splits(pool, table), say)


def _splits(pool: str, table: Columns) -> list[Split]:
    return {"known": known_card_splits, "unseen": unseen_card_splits, "serving": leave_one_model_out}[pool](table)


def _find(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.csv.gz"
    return packed if packed.is_file() else folder / f"{name}.csv"


def summarise(verdicts: Sequence[Verdict]) -> list[Figure]:
    """One figure per pool, method and way, in the order of first appearance."""
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        found.setdefault((verdict.pool, verdict.method, verdict.way), []).append(verdict)
    return [_figure(pool, method, way, mine) for (pool, method, way), mine in found.items()]


def _figure(pool: str, method: str, way: str, verdicts: Sequence[Verdict]) -> Figure:
    qualities = [verdict.quality for verdict in verdicts]
    models = np.array([item.model for item in qualities])
    return Figure(
        pool=pool,
        method=method,
        way=way,
        groups=len(qualities),
        models=len(set(models.tolist())),
        top4_regret=bootstrap(np.array([100 * item.top4_regret for item in qualities]), models),
        top1_regret=bootstrap(np.array([100 * item.top1_regret for item in qualities]), models),
        within_5_percent=bootstrap(np.array([100.0 * (item.top4_regret < CLOSE) for item in qualities]), models),
        kendall_tau=float(np.mean([item.kendall_tau for item in qualities])),
        ndcg4=float(np.mean([item.ndcg4 for item in qualities])),
        runs=float(np.mean([item.picks for item in qualities])),
    )


def as_table(figures: Sequence[Figure]) -> str:
    """Aligned text: regrets as mean [95 % interval over models]."""
    lines = [("pool", "method", "way", "groups", "top-4 regret %", "top-1 regret %", "within 5 % of best", "tau", "NDCG@4", "runs")]
    for item in figures:
        numbers = (_text(item.top4_regret), _text(item.top1_regret), _text(item.within_5_percent))
        lines.append((item.pool, item.method, item.way, str(item.groups), *numbers, f"{item.kendall_tau:.3f}", f"{item.ndcg4:.3f}", f"{item.runs:.1f}"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def as_json(figures: Sequence[Figure]) -> str:
    """The same figures for programs."""
    return json.dumps([asdict(item) for item in figures], indent=2)


def _text(interval: Interval) -> str:
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
