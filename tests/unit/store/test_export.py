from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.unit.store.make_old import make_first_store
from tests.unit.store.make_results import ADAPTATION, DIGEST, NOON, at, make_bench_report, make_candidate, make_run

from metainfer.app.exporting import parse_since
from metainfer.decide.facts import Candidate
from metainfer.store.engine import build_engine, transaction
from metainfer.store.errors import StoreUnavailable
from metainfer.store.export import COLUMNS, Selection, export_samples
from metainfer.store.samples import SampleStore
from metainfer_probe.contract import Failure

ROOT = Path(__file__).resolve().parents[3]
HEADER = (
    "job_uid,job,finished_at,adaptation_uid,run_id,digest,pool,family,node,execution_provider,precision,batch_size,concurrency,dynamic_batching,"
    "max_batch_delay_us,load_clients,p50_us,p99_us,throughput_per_second,latency_ratio_permille,difference_ppm,micro_gflops,partial,failure_reason"
)
"""An interface: other people's programs read these names."""


async def fill(store: SampleStore) -> None:
    await store.record_run(ADAPTATION, make_run("b", finished_at=at(2)))
    await store.record_run(ADAPTATION, make_run("a", finished_at=at(1), candidate=Candidate("lab", "other", make_candidate(batch_size=8).config)))
    await store.record_run(ADAPTATION, make_run("c", finished_at=at(3), report=None, failure=Failure(reason="NodeLost", message="gone")))


def export(url: str, style: str, **selection: object) -> str:
    out = io.StringIO()
    export_samples(url, out, style=style, selection=Selection(**selection))  # type: ignore[arg-type]  # test helper
    return out.getvalue()


async def test_csv_has_one_line_per_benchmark_oldest_first(store: SampleStore, url: str) -> None:
    """Failed ones too; what is not known is empty."""
    await fill(store)
    lines = export(url, "csv").splitlines()
    assert lines[0] == HEADER
    rows = list(csv.DictReader(lines))
    assert [row["job"] for row in rows] == ["a", "b", "c"]
    assert (rows[1]["finished_at"], rows[1]["digest"], rows[1]["p50_us"], rows[1]["dynamic_batching"]) == ("2026-03-01T12:02:00Z", DIGEST, "4000.0", "false")
    assert (rows[2]["p50_us"], rows[2]["partial"], rows[2]["failure_reason"]) == ("", "", "NodeLost")


async def test_json_lines_hold_the_same_and_the_whole_report(store: SampleStore, url: str) -> None:
    """For who wants more than columns."""
    await fill(store)
    rows = [json.loads(line) for line in export(url, "jsonl").splitlines()]
    assert [list(row) for row in rows] == [[*COLUMNS, "report"]] * 3
    assert rows[1]["report"] == json.loads(make_bench_report().model_dump_json(exclude={"detail"}))
    assert (rows[0]["batch_size"], rows[0]["dynamic_batching"], rows[2]["report"]) == (8, False, None)


async def test_only_what_was_asked_for_is_exported(store: SampleStore, url: str) -> None:
    """By family and by time, the moment itself included."""
    await fill(store)
    assert [row["job"] for row in csv.DictReader(export(url, "csv", since=at(2)).splitlines())] == ["b", "c"]
    assert [row["job"] for row in csv.DictReader(export(url, "csv", family="other").splitlines())] == ["a"]


async def test_exporting_changes_nothing(store: SampleStore, url: str) -> None:
    """It runs beside an operator; a statement that would write is refused by the connection."""
    await fill(store)
    reader = build_engine(url, read_only=True)
    with pytest.raises(StoreUnavailable, match=r"readonly|read-only"), transaction(reader) as connection:
        connection.execute(text("delete from runs"))
    reader.dispose()
    assert export(url, "csv").count("\n") == 4


async def test_names_that_a_spreadsheet_would_run_are_text(store: SampleStore, url: str) -> None:
    """Figures come from Jobs, and Jobs from anybody."""
    await store.record_run(ADAPTATION, make_run(node="=HYPERLINK(1)"))
    (row,) = csv.DictReader(export(url, "csv").splitlines())
    assert row["node"] == "'=HYPERLINK(1)"


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A typing error must not look like a store without samples."""
    with pytest.raises(StoreUnavailable, match="no such file"):
        export(f"sqlite:///{tmp_path}/none.db", "csv")
    assert not list(tmp_path.iterdir())


def test_a_store_of_an_older_version_is_left_to_the_operator(tmp_path: Path) -> None:
    """Exporting never migrates."""
    with pytest.raises(StoreUnavailable, match="older version"):
        export(make_first_store(tmp_path / "store.db"), "csv")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("2026-02-28", datetime(2026, 2, 28, tzinfo=UTC), id="a date"),
        pytest.param("2026-02-28T10:00:00+02:00", datetime(2026, 2, 28, 8, tzinfo=UTC), id="a time with its zone"),
        pytest.param("24h", datetime(2026, 2, 28, 12, tzinfo=UTC), id="so long ago"),
    ],
)
def test_since_is_a_date_a_time_or_how_long_ago(text: str, want: datetime) -> None:
    """Without a zone it is UTC."""
    assert parse_since(text, NOON) == want


@pytest.mark.parametrize("text", ["yesterday", "", "99999999999999h", "7d"])
def test_another_since_is_refused_with_an_example(text: str) -> None:
    """The message says what may be given."""
    with pytest.raises(ValueError, match=r"--since .*168h"):
        parse_since(text, NOON)


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metainfer.cli", "samples", "export", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": f"{ROOT}/operator:{ROOT}/probes"} | environment)


async def test_the_command_writes_samples_and_says_how_many(store: SampleStore, url: str) -> None:
    """The store is the operator's own, by its variable; nothing else of the operator has to be set."""
    await fill(store)
    done = run_command("--format", "jsonl", "--family", "ort-cpu", METAINFER_STORE_URL=url)
    assert (done.returncode, done.stderr) == (0, "metainfer: 2 samples\n")
    assert [json.loads(line)["job"] for line in done.stdout.splitlines()] == ["b", "c"]


@pytest.mark.parametrize(
    ("arguments", "want_status", "want_words"),
    [
        pytest.param(("--store", "nosuchdb://x"), 2, "not a usable store URL", id="no store URL"),
        pytest.param(("--store", "sqlite:////nowhere/store.db"), 1, "no such file", id="no file"),
        pytest.param(("--store", "postgresql://x:s3cret@127.0.0.1:1/x"), 1, "Connection refused.*start the database server", id="no server"),
        pytest.param(("--since", "yesterday"), 2, "--since", id="no time"),
    ],
)
def test_a_wrong_command_ends_in_a_sentence(arguments: tuple[str, ...], want_status: int, want_words: str) -> None:
    """No traceback, no password."""
    done = run_command(*arguments)
    assert done.returncode == want_status
    assert re.fullmatch(rf"metainfer: .*{want_words}.*\n", done.stderr)
    assert "s3cret" not in done.stderr


def run_with_closed_output(url: str) -> subprocess.CompletedProcess[str]:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "metainfer.cli", "samples", "export"]
    environment = {"PYTHONPATH": f"{ROOT}/operator:{ROOT}/probes", "METAINFER_STORE_URL": url}
    try:
        return subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    finally:
        os.close(writing)


async def test_a_reader_that_leaves_early_is_no_error(store: SampleStore, url: str) -> None:
    """As in ``| head -1``."""
    await fill(store)
    done = run_with_closed_output(url)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
