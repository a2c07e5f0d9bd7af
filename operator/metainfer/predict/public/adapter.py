"""``metainfer evaluate-adapter WORKDIR``: answers the contract of the public tables' data card, so that anybody can check the predictor.

Reads train.csv, hw.csv, models.csv, probes.csv, candidates.csv, groups.csv and, when they are there, task.json and measured.csv;
writes predictions.csv with ``group_id,row_id,score``. Without measured.csv the best four scores of a group are its shortlist; with it,
the best score is the next benchmark, or (serving) the best measured row once another run promises too little.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metainfer.predict.learned.errors import TableUnreadable, Untrainable
from metainfer.predict.learned.picking import ranked_scores
from metainfer.predict.public.columns import Columns, length, lookup, read_columns, write_columns
from metainfer.predict.public.contests import Field
from metainfer.predict.public.groups import Group
from metainfer.predict.public.learner import forecast_with, learn_cached
from metainfer.predict.public.replay import Standing, build_standings, feasible_utilities, find_next
from metainfer.predict.public.tasks import HARDWARE_COLUMNS, PROBE_COLUMNS, Task
from metainfer.predict.workload import Floats

SEED = 0
BEHIND = -1e6
"""Score of what is measured already where a new pick is wanted."""


def answer_workdir(path: Path) -> str:
    """Write predictions.csv; a line that says what was done. Raises TableUnreadable for anything in WORKDIR that does not fit."""
    task = _read_task(path)
    table = read_columns(path / "candidates.csv", ("row_id", *task.table_columns))
    train = read_columns(path / "train.csv", (*task.table_columns, *task.latency_columns))
    groups = tuple(task.read_groups(read_columns(path / "groups.csv", task.group_columns), table))
    rows = task.build_rows(table)
    is_replay = (path / "measured.csv").is_file()
    measured = read_columns(path / "measured.csv", ("group_id", "row_id", *task.latency_columns)) if is_replay else None
    try:
        learner, basis = learn_cached(task, train, path, seed=SEED), "learned"
    except Untrainable as error:
        learner, basis = None, f"bare base ({error})"
    everything = task.build_field(table, rows, forecast_with(learner, rows))
    seen = {} if measured is None else _read_seen(task, table, everything, measured)
    answers = [(standing.group, _scores(everything, standing, is_replay=is_replay)) for standing in build_standings(everything, groups, seen)]
    _write(path / "predictions.csv", table, answers)
    return f"{len(groups)} groups over {length(table)} candidates, {basis}, {sum(map(len, seen.values()))} measured before"


def _read_task(path: Path) -> Task:
    if not path.is_dir():
        raise TableUnreadable(f"{path} is not a directory")
    named = path / "task.json"
    try:
        content = json.loads(named.read_text(encoding="utf-8")) if named.is_file() else {}
    except (OSError, ValueError) as error:
        raise TableUnreadable(f"task.json: {error}") from error
    kind = content.get("task") if isinstance(content, dict) else content
    if kind not in {None, "serve", "ops", "kernel"}:
        raise TableUnreadable(f"task.json names the task {kind!r}, known are 'serve' and none")
    draft = Task(kind == "serve", {}, {}, None)
    return Task(
        serves=draft.serves,
        models=read_columns(path / "models.csv", draft.model_columns),
        hardware=read_columns(path / "hw.csv", HARDWARE_COLUMNS),
        probes=read_columns(path / "probes.csv", PROBE_COLUMNS) if (path / "probes.csv").is_file() else None,
    )


def _read_seen(task: Task, table: Columns, everything: Field, measured: Columns) -> dict[str, list[int]]:
    """Rows measured per group. Writes their latencies into the field's rows, too: corrections read them there."""
    if not length(measured):
        return {}
    places = lookup({"row_id": table["row_id"]}, "row_id", measured["row_id"], what="candidates.csv")
    known = {name: table[name][places] for name in task.table_columns} | {name: measured[name] for name in task.latency_columns}
    for rows, truth in zip(everything.rows, task.build_rows(known), strict=True):
        rows["latency_us"][places] = truth["latency_us"]
    by_group: dict[str, list[int]] = {}
    for group, place in zip(measured["group_id"].tolist(), places.tolist(), strict=True):
        if place not in by_group.setdefault(group, []):
            by_group[group].append(place)
    return by_group


def _scores(everything: Field, standing: Standing, *, is_replay: bool) -> Floats:
    if not is_replay:
        return ranked_scores(everything.contest(standing.group))
    pick, scores = find_next(everything, standing)
    places = standing.places
    utilities = feasible_utilities(everything, standing.group, standing.group.members[places])
    scores = scores.copy()
    scores[places] = BEHIND
    if everything.serves and utilities.any() and (pick is None or not pick.is_worthwhile):
        scores[places[int(np.argmax(utilities))]] = scores.max() + 1.0
    elif pick is not None:
        scores[pick.place] = scores.max() + 1.0
    return scores


def _write(path: Path, table: Columns, answers: list[tuple[Group, Floats]]) -> None:
    def lines() -> Iterator[tuple[str, str, float]]:
        for group, scores in answers:
            yield from zip([group.name] * len(scores), table["row_id"][group.members].tolist(), scores.tolist(), strict=True)

    names, rows, scores = zip(*lines(), strict=True) if answers else ((), (), ())
    write_columns(path, {"group_id": names, "row_id": rows, "score": scores})
