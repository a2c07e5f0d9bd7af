from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.predict.make_samples import Fleet

from metainfer.predict.learned.errors import TableUnreadable
from metainfer.predict.training_lines import read_lines, write_lines
from metainfer.predict.training_rows import build_training_rows

MATERIAL = Fleet(models=2).build()
LINES = tuple(write_lines(MATERIAL))


def test_what_is_written_teaches_the_same() -> None:
    """Through the training process's standard input and back."""
    read = read_lines(LINES, "table")
    assert len(read.join()) == 32
    assert build_training_rows(read.join()).tobytes() == build_training_rows(MATERIAL.join()).tobytes()


def test_a_line_without_a_job_has_a_key_of_its_own() -> None:
    """Tables that no Job made: the same line twice is one sample, another configuration another one."""
    lines = [json.loads(line) for line in LINES]
    for line in lines:
        line["key"].pop("job")
    texts = [json.dumps(line) for line in lines]
    keys = {sample.key for sample in read_lines([*texts, *texts], "table").join()}
    assert len(keys) == 32


def test_other_kinds_and_empty_lines_are_left_alone() -> None:
    """A later version may write more."""
    assert len(read_lines(["", '{"key": {"kind": "later"}}', *LINES], "table").runs) == 32


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"report": 1}', '{"key": {"kind": "run"}}', '{"key": {"kind": "probe", "node": "n"}, "report": {"kind": "bench"}}'], ids=repr
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    """By table and number; nothing is skipped silently."""
    with pytest.raises(TableUnreadable, match="table, line 2: not a line of samples"):
        read_lines([LINES[0], line], "table")


def test_times_need_a_zone() -> None:
    """Samples of two machines are put into an order."""
    line = json.loads(LINES[0])
    line["finished_at"] = "2026-03-01T12:00:00"
    with pytest.raises(TableUnreadable, match="has no zone"):
        read_lines([json.dumps(line)], "table")


def test_results_without_a_report_are_not_written() -> None:
    """They are for the store; there is nothing to learn from them."""
    (digest, run), *_ = MATERIAL.runs
    assert list(write_lines(replace(MATERIAL, runs=[(digest, replace(run, report=None))], profiles=(), probes=()))) == []
