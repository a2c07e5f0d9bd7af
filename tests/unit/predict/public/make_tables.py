"""A working directory of the public contract, cut from the tables that ship."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metainfer.predict.public.columns import Columns, length, read_columns, take, write_columns
from metainfer.predict.public.evaluation import collapse_repeats
from metainfer.predict.public.groups import Group, make_kernel_groups, make_serving_groups
from metainfer.predict.public.tasks import Task
from metainfer.predict.tables import table_path

CARDS = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "gb200")
LIMIT_NAMES = ("ttft_ms", "tpot_ms", "tok_s_gpu")


def read_table(name: str) -> Columns:
    return read_columns(table_path(name))


def make_task(*, serves: bool = False, probed: bool = True) -> Task:
    return Task(serves, read_table("serve_models" if serves else "models"), read_table("hw"), read_table("probes") if probed else None)


def make_kernel_table(models: Sequence[str], workloads: Sequence[str] = ("chat",)) -> Columns:
    table = read_table("llm_ops")
    return take(table, np.isin(table["model"], models) & np.isin(table["workload"], workloads))


def make_serving_table(models: Sequence[str]) -> Columns:
    table = read_table("serve")
    return collapse_repeats(take(table, np.isin(table["model"], models)), make_task(serves=True))


def make_workdir(path: Path, train: Columns, asked: Columns, *, serves: bool = False) -> tuple[Group, ...]:
    """Everything but ``measured.csv``; the groups that were written."""
    task = make_task(serves=serves)
    write_columns(path / "train.csv", {name: train[name] for name in (*task.table_columns, *task.latency_columns)})
    write_columns(path / "models.csv", task.models)
    write_columns(path / "hw.csv", task.hardware)
    write_columns(path / "probes.csv", read_table("probes"))
    write_columns(path / "candidates.csv", {"row_id": row_ids(asked), **{name: asked[name] for name in task.table_columns}})
    groups = make_serving_groups(asked) if serves else make_kernel_groups(asked, CARDS)
    _write_groups(path / "groups.csv", asked, groups, serves=serves)
    if serves:
        (path / "task.json").write_text(json.dumps({"task": "serve"}))
    return groups


def row_ids(table: Columns) -> list[str]:
    return [f"row-{index}" for index in range(length(table))]


def read_scores(path: Path) -> dict[str, dict[str, float]]:
    """Row -> score, by group."""
    found: dict[str, dict[str, float]] = {}
    with (path / "predictions.csv").open() as stream:
        for line in csv.DictReader(stream):
            found.setdefault(line["group_id"], {})[line["row_id"]] = float(line["score"])
    return found


def _write_groups(path: Path, table: Columns, groups: Sequence[Group], *, serves: bool) -> None:
    lines: list[dict[str, Any]] = []
    for group in groups:
        first = group.members[0]
        line: dict[str, Any] = {"group_id": group.name, "model": group.model}
        if serves:
            line |= {"isl": table["isl"][first], "osl": table["osl"][first], "slo_tpot": group.limit_token_ms}
        else:
            line |= {"workload": table["workload"][first], "slo": "some", "slo_ttft": group.limit_first_ms, "slo_tpot": group.limit_token_ms}
            line |= {"min_bits": float(group.name.split("/")[3]), "cards": ";".join(sorted(set(table["card"][group.members].tolist())))}
        lines.append(line)
    write_columns(path, {name: [line[name] for line in lines] for name in lines[0]})
