from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.predict.public.make_tables import make_kernel_table, make_serving_table, make_workdir, read_scores, row_ids

from metainfer.predict.learned.errors import TableUnreadable
from metainfer.predict.public.adapter import answer_workdir
from metainfer.predict.public.columns import Columns, write_columns
from metainfer.predict.public.groups import Group, true_utilities
from metainfer.predict.public.learner import CACHE

TAUGHT = ("Qwen3-8B", "Yi-6B", "Granite-3-8B", "Qwen2.5-3B")
ASKED = ("Llama-3.1-8B",)


@pytest.fixture(scope="module")
def kernel_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Columns, tuple[Group, ...]]:
    """Four models to learn from, one to answer for, answered once."""
    path = tmp_path_factory.mktemp("kernel")
    asked = make_kernel_table(ASKED)
    groups = make_workdir(path, make_kernel_table(TAUGHT), asked)
    answer_workdir(path)
    return path, asked, groups


def top4_regret(table: Columns, groups: tuple[Group, ...], scores: dict[str, dict[str, float]]) -> float:
    """Mean over groups."""
    ids = np.array(row_ids(table))
    found = []
    for group in groups:
        utilities = true_utilities(table, group)
        mine = np.array([scores[group.name][row] for row in ids[group.members].tolist()])
        found.append(1 - utilities[np.argsort(-mine)[:4]].max() / utilities.max())
    return float(np.mean(found))


def test_every_member_of_every_group_gets_a_score(kernel_folder: tuple[Path, Columns, tuple[Group, ...]]) -> None:
    """The contract: one line per group and member, higher = better."""
    path, table, groups = kernel_folder
    ids = np.array(row_ids(table))
    scores = read_scores(path)
    assert {name: set(rows) for name, rows in scores.items()} == {group.name: set(ids[group.members].tolist()) for group in groups}


def test_the_shortlist_of_a_model_that_was_never_seen_is_good(kernel_folder: tuple[Path, Columns, tuple[Group, ...]]) -> None:
    """From four models the best four picks for a fifth lie within 2 % of the best, on average."""
    path, table, groups = kernel_folder
    assert top4_regret(table, groups, read_scores(path)) < 0.02


def test_a_replay_names_a_new_pick_each_round_and_keeps_the_model(tmp_path: Path) -> None:
    """What was measured is not picked again, and later rounds do not train anew."""
    table = make_kernel_table(ASKED)
    groups = make_workdir(tmp_path, make_kernel_table(TAUGHT), table)
    ids = row_ids(table)
    picked: dict[str, list[str]] = {group.name: [] for group in groups}
    written: set[int] = set()
    for _ in range(3):
        answer_workdir(tmp_path)
        written.add((tmp_path / CACHE).stat().st_mtime_ns)
        for name, rows in read_scores(tmp_path).items():
            picked[name].append(max(rows, key=lambda row: rows[row]))
        measured = [(name, row, ids.index(row)) for name, rows in picked.items() for row in rows]
        places = [place for _, _, place in measured]
        columns = {"group_id": [name for name, _, _ in measured], "row_id": [row for _, row, _ in measured]}
        write_columns(tmp_path / "measured.csv", columns | {name: table[name][places] for name in ("ttft_ms", "tpot_ms")})
    assert len(written) == 1
    assert all(len(set(rows)) == 3 for rows in picked.values())


def test_serving_stops_on_the_best_measured_row_when_nothing_promises_more(tmp_path: Path) -> None:
    """Once everything is measured, the best row that keeps the limit is on top."""
    table = make_serving_table(("Llama-3.1-70B",))
    groups = make_workdir(tmp_path, make_serving_table(("Llama-3.1-8B", "Qwen3-32B")), table, serves=True)
    ids = np.array(row_ids(table))
    lines = [(group, place) for group in groups for place in group.members.tolist()]
    places = [place for _, place in lines]
    columns = {"group_id": [group.name for group, _ in lines], "row_id": ids[places].tolist()}
    write_columns(tmp_path / "measured.csv", columns | {name: table[name][places] for name in ("ttft_ms", "tpot_ms", "tok_s_gpu")})
    answer_workdir(tmp_path)
    for name, rows in read_scores(tmp_path).items():
        group = next(group for group in groups if group.name == name)
        best = ids[group.members[int(np.argmax(true_utilities(table, group)))]]
        assert max(rows, key=lambda row: rows[row]) == best


def test_a_table_that_teaches_nothing_is_answered_by_the_base(tmp_path: Path) -> None:
    """Without a single row to learn from the contract is still answered."""
    nothing = {name: values[:0] for name, values in make_kernel_table(TAUGHT).items()}
    make_workdir(tmp_path, nothing, make_kernel_table(ASKED))
    assert "bare base" in answer_workdir(tmp_path)
    assert all(np.isfinite(list(rows.values())).all() for rows in read_scores(tmp_path).values())


@pytest.mark.parametrize(
    ("name", "content", "want_message"),
    [
        pytest.param("hw.csv", None, "hw.csv", id="a missing file"),
        pytest.param("candidates.csv", "", "candidates.csv is empty", id="an empty file"),
        pytest.param("groups.csv", "group_id,model\n", "groups.csv lacks the columns workload", id="missing columns"),
        pytest.param("models.csv", "model,layers\nA,1,2\n", "models.csv lacks the columns", id="a table of another kind"),
        pytest.param("probes.csv", "card\nx,y\n", "probes.csv lacks the columns", id="probes without probes"),
        pytest.param("train.csv", "model,card\n\x00", "train.csv", id="not text"),
        pytest.param("task.json", "{", "task.json", id="a broken task"),
        pytest.param("task.json", '{"task": "dance"}', "names the task 'dance'", id="an unknown task"),
        pytest.param("measured.csv", "group_id,row_id,ttft_ms,tpot_ms\ng,nowhere,1,1\n", "no row_id 'nowhere'", id="a measurement of nothing"),
        pytest.param("measured.csv", "group_id,row_id,ttft_ms,tpot_ms\ng,row-0,fast,1\n", "column ttft_ms", id="a word instead of a number"),
    ],
)
def test_a_workdir_that_does_not_fit_is_named(
    kernel_folder: tuple[Path, Columns, tuple[Group, ...]], tmp_path: Path, name: str, content: str | None, want_message: str
) -> None:
    """The message says which file and what is wrong with it."""
    for source in kernel_folder[0].iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(TableUnreadable, match=want_message):
        answer_workdir(tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """A typing mistake in the path."""
    with pytest.raises(TableUnreadable, match="not a directory"):
        answer_workdir(tmp_path / "nowhere")
