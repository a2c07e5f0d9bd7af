from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import StatementError
from tests.unit.store.look import connect
from tests.unit.store.make_results import (
    ADAPTATION,
    DIGEST,
    NOON,
    OTHER_DIGEST,
    RUN,
    at,
    make_bench_report,
    make_candidate,
    make_check,
    make_probe,
    make_profile,
    make_run,
)

from metainfer.decide.plan import RecordDecision
from metainfer.store.backlog import Entry
from metainfer.store.errors import RowRefused, StoreUnavailable, StoreUrlInvalid
from metainfer.store.rows import run_row
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.tables import runs
from metainfer_probe.contract import Failure


def run_sql(url: str, statement: str) -> list[tuple[object, ...]]:
    """As somebody else would, with a client of their own; what it returned."""
    with connect(url, writes=True) as connection:
        found = connection.execute(text(statement))
        return [tuple(row) for row in found] if found.returns_rows else []


async def test_a_run_comes_back_as_it_was_recorded(store: SampleStore) -> None:
    """Candidate, times, figures and identity survive; only the detail stays in the store."""
    config = {"precision": "bf16", "batch_size": 8, "concurrency": 2, "dynamic_batching": True, "max_batch_delay_us": 500}
    want = make_run(candidate=make_candidate(**config))
    assert want.report is not None
    given = make_run(candidate=want.candidate, report=want.report.model_copy(update={"detail": {"quantiles_us": [1.0, 2.0]}}))
    assert await store.record_run(ADAPTATION, given)
    assert await store.find_runs(ADAPTATION, RUN) == (want,)


async def test_a_check_is_kept_apart_from_the_benchmarks(store: SampleStore) -> None:
    """It comes back as it was, its Job is known, and nobody learns from it: it may have shared its card with the server."""
    assert await store.record_check(ADAPTATION, make_check())
    assert not await store.record_check(ADAPTATION, make_check())
    assert await store.find_checks(ADAPTATION, RUN) == (make_check(),)
    assert await store.known_jobs(["uid-mi-check-1"]) == {"uid-mi-check-1"}
    assert (await store.find_runs(ADAPTATION, RUN), await store.count_runs()) == ((), 0)


async def test_detail_of_a_report_is_kept(store: SampleStore, url: str) -> None:
    """Nothing of the full report is thrown away, also where nothing reads it today."""
    await store.record_run(ADAPTATION, make_run(report=make_bench_report(detail={"quantiles_us": [1.5, 2.5]})))
    assert run_sql(url, "select detail from runs") == [('{"quantiles_us":[1.5,2.5]}',)]


async def test_recording_twice_is_one_row_and_the_first_stays(store: SampleStore) -> None:
    """A pass that was killed after recording records again."""
    assert await store.record_run(ADAPTATION, make_run(report=make_bench_report(4000.0)))
    assert not await store.record_run(ADAPTATION, make_run(report=make_bench_report(9999.0)))
    (found,) = await store.find_runs(ADAPTATION, RUN)
    assert found.report == make_bench_report(4000.0)


async def test_a_job_started_again_under_its_name_is_another_result(store: SampleStore) -> None:
    """A Job taken back because its card was busy, and then run: the later result counts, both are kept."""
    busy = Failure(reason="Unschedulable", message="0/5 nodes are available", retryable=True)
    await store.record_run(ADAPTATION, make_run(report=None, failure=busy, job_uid="first", finished_at=at(0)))
    await store.record_run(ADAPTATION, make_run(job_uid="second", finished_at=at(2)))
    assert await store.known_jobs(["first", "second", "third"]) == {"first", "second"}
    await store.record_run(ADAPTATION, make_run("between", finished_at=at(1)))
    assert [item.job_uid for item in await store.find_runs(ADAPTATION, RUN)] == ["uid-between", "second"]


async def test_runs_of_a_run_come_oldest_first_and_only_its_own(store: SampleStore) -> None:
    """Validation corrects the residuals in the order of measuring."""
    for minutes, job in ((5, "c"), (1, "a"), (3, "b")):
        await store.record_run(ADAPTATION, make_run(job, finished_at=at(minutes)))
    await store.record_run(ADAPTATION, make_run("other-run", run_id="run-2"))
    await store.record_run("uid-of-another", make_run("other-adaptation"))
    assert [item.job for item in await store.find_runs(ADAPTATION, RUN)] == ["a", "b", "c"]


async def test_the_last_profile_of_a_run_counts(store: SampleStore) -> None:
    """A retry after a failure replaces the failure."""
    await store.record_profile(ADAPTATION, make_profile("p1", report=None, failure=Failure(reason="NodeLost", message="gone", retryable=True)))
    want = make_profile("p2", finished_at=at(1))
    await store.record_profile(ADAPTATION, want)
    assert await store.find_profile(ADAPTATION, RUN) == want
    assert await store.find_profile(ADAPTATION, "another") is None


async def test_probes_are_found_by_their_jobs(store: SampleStore) -> None:
    """The pool's pass asks for the Jobs that are still there."""
    failed = make_probe("p2", report=None, failure=Failure(reason="CardRefused", message="GPU is lost", retryable=True), finished_at=at(1))
    for probe in (failed, make_probe("p1")):
        await store.record_probe("lab", probe)
    assert await store.find_probes(["uid-p1", "uid-p2", "uid-p3"]) == (make_probe("p1"), failed)
    assert await store.find_probes([]) == ()
    assert await store.known_jobs([]) == frozenset()


async def test_decisions_come_newest_first_with_their_documents(store: SampleStore) -> None:
    """Rolling back looks at what was applied before."""
    for minutes, name in ((0, "d1"), (2, "d3"), (1, "d2")):
        decision = RecordDecision(name, RUN, at(minutes), {"chosen": {"batchSize": minutes}, "why": "faster"})
        assert not await store.has_decision(ADAPTATION, name)
        assert await store.record_decision(ADAPTATION, decision)
        assert not await store.record_decision(ADAPTATION, replace(decision, decided_at=at(9)))
        assert await store.has_decision(ADAPTATION, name)
    found = await store.find_decisions(ADAPTATION, limit=2)
    assert [(item.decision_id, item.decided_at) for item in found] == [("d3", at(2)), ("d2", at(1))]
    assert found[0].document == {"chosen": {"batchSize": 2}, "why": "faster"}
    assert await store.find_decisions(ADAPTATION, decision_id="d2") == (found[1],)


async def test_runs_of_a_model_are_those_with_a_report_whoever_made_them(store: SampleStore) -> None:
    """A benchmark that failed in the runtime teaches; one that left nothing does not, nor one of another model."""
    await store.record_run(ADAPTATION, make_run("good"))
    await store.record_run("uid-of-another", make_run("too-slow", finished_at=at(1), report=make_bench_report(partial=True)))
    await store.record_run(ADAPTATION, make_run("other", report=make_bench_report(digest=OTHER_DIGEST)))
    await store.record_run(ADAPTATION, make_run("lost", report=None, failure=Failure(reason="NodeLost", message="gone")))
    assert [run.job for run in await store.find_model_runs(DIGEST, 9)] == ["good", "too-slow"]


async def test_only_the_newest_runs_of_a_model_are_read(store: SampleStore) -> None:
    """However many there are, a pass reads no more than it uses; the newest stands last."""
    for minutes in (3, 0, 4, 1, 2):
        await store.record_run(ADAPTATION, make_run(f"after-{minutes}", finished_at=at(minutes)))
    assert [run.job for run in await store.find_model_runs(DIGEST, 3)] == ["after-2", "after-3", "after-4"]


@pytest.mark.parametrize("offset_hours", [-8, 0, 9])
async def test_times_come_back_in_utc_whatever_zone_they_had(store: SampleStore, offset_hours: int) -> None:
    """Two operators in different zones sort the same way."""
    local = NOON.astimezone(timezone(timedelta(hours=offset_hours)))
    await store.record_run(ADAPTATION, make_run(finished_at=local))
    (found,) = await store.find_runs(ADAPTATION, RUN)
    assert (found.finished_at, found.finished_at.tzinfo) == (NOON, UTC)


async def test_a_time_without_a_zone_is_refused(store: SampleStore) -> None:
    """Nothing is coerced silently; and it is a defect, not a store that is down."""
    with pytest.raises(StatementError, match="time without a zone"):
        await store.record_run(ADAPTATION, make_run(finished_at=datetime(2026, 3, 1)))  # noqa: DTZ001  that is the point


async def test_a_report_of_another_contract_is_a_failure_not_a_crash(store: SampleStore, url: str) -> None:
    """A store outlives contract versions."""
    await store.record_run(ADAPTATION, make_run())
    run_sql(url, """update runs set report = '{"kind":"bench","renamed_field"\\:1}'""")
    (found,) = await store.find_runs(ADAPTATION, RUN)
    assert found.report is None
    assert found.failure is not None
    assert (found.failure.reason, found.failure.retryable) == ("ReportVersion", True)


async def test_a_row_that_cannot_be_read_does_not_hide_its_neighbours(store: SampleStore, url: str) -> None:
    """Damage, or somebody's own hand in the database: the row counts as never recorded."""
    failure = Failure(reason="NodeLost", message="gone", retryable=True)
    for job in ("good", "failure", "precision"):
        await store.record_run(ADAPTATION, make_run(job, report=None, failure=failure))
    for name in ("good", "document"):
        await store.record_decision(ADAPTATION, RecordDecision(name, RUN, NOON, {}))
    run_sql(url, "update runs set failure = 'garbage' where job = 'failure'")
    run_sql(url, "update runs set precision = '???' where job = 'precision'")
    run_sql(url, "update decisions set document = '{' where decision_id = 'document'")
    assert [item.job for item in await store.find_runs(ADAPTATION, RUN)] == ["good"]
    assert [item.decision_id for item in await store.find_decisions(ADAPTATION)] == ["good"]


async def test_a_time_that_is_none_is_damage_by_name(tmp_path: Path) -> None:
    """SQLite takes any text for a time; what reads it says so, as a store that does not answer."""
    url = f"sqlite:///{tmp_path}/samples.db"
    store = open_store(url)
    await store.record_run(ADAPTATION, make_run())
    run_sql(url, "update runs set finished_at = 'garbage'")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.find_runs(ADAPTATION, RUN)
    await store.close()


async def test_many_tasks_record_at_once_without_losing_any(store: SampleStore) -> None:
    """Sixteen workers record in the same moment; writes go one at a time."""
    await asyncio.gather(*(store.record_run(ADAPTATION, make_run(f"job-{number}", finished_at=at(number))) for number in range(40)))
    assert [item.job for item in await store.find_runs(ADAPTATION, RUN)] == [f"job-{number}" for number in range(40)]


async def test_two_stores_on_one_file_write_side_by_side(store: SampleStore, url: str) -> None:
    """Old and new operator overlap for a moment during an upgrade; the same Job recorded by both is one row."""
    other = open_store(url)
    try:
        answers = await asyncio.gather(*(each.record_run(ADAPTATION, make_run(f"job-{number}")) for number in range(25) for each in (store, other)))
        assert sum(answers) == 25
        assert len(await other.find_runs(ADAPTATION, RUN)) == 25
    finally:
        await other.close()


async def test_a_writer_does_not_wait_for_a_reader(store: SampleStore, url: str) -> None:
    """Somebody who looks at the store for hours blocks no pass."""
    await store.record_run(ADAPTATION, make_run("before"))
    with connect(url) as reader:
        assert reader.execute(text("select count(*) from runs")).scalar() == 1
        assert await store.record_run(ADAPTATION, make_run("after", finished_at=at(1)))


async def test_a_reader_does_not_wait_for_a_writer(store: SampleStore, url: str) -> None:
    """A long write of another process blocks no pass that only reads."""
    await store.record_run(ADAPTATION, make_run())
    with connect(url, writes=True) as writer:
        writer.execute(text("update runs set node = 'elsewhere'"))
        assert [item.node for item in await store.find_runs(ADAPTATION, RUN)] == ["node-1"]


async def test_a_row_that_no_column_takes_is_refused_as_such(store: SampleStore, url: str) -> None:
    """It would fail however often it is tried, so it must not look like an outage. SQLite takes texts of every length."""
    long = make_run("x" * 500)
    if url.startswith("sqlite"):
        assert await store.record_run(ADAPTATION, long)
    else:
        with pytest.raises(RowRefused, match="too long"):
            await store.record_run(ADAPTATION, long)
    broken = Entry(runs, run_row(ADAPTATION, make_run()) | {"node": None})
    with pytest.raises(RowRefused, match=r"(?i)not.null"):
        await store.write(broken)


async def test_a_closed_store_says_so(store: SampleStore) -> None:
    """Shutdown is no defect."""
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.find_runs(ADAPTATION, RUN)


def test_a_file_that_became_garbage_is_unavailable_by_name(tmp_path: Path) -> None:
    """Disk damage names the file and is the layer-neutral ConnectionError, never a driver's exception."""
    url = f"sqlite:///{tmp_path}/samples.db"
    asyncio.run(open_store(url).close())
    for left in tmp_path.glob("samples.db-*"):
        left.unlink()
    (tmp_path / "samples.db").write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(ConnectionError, match=r"samples\.db") as caught:
        open_store(url)
    assert isinstance(caught.value, StoreUnavailable)


def test_a_folder_that_is_missing_is_unavailable_by_name(tmp_path: Path) -> None:
    """The usual mistake: the volume is not mounted."""
    with pytest.raises(StoreUnavailable, match=r"nowhere/samples\.db"):
        open_store(f"sqlite:///{tmp_path}/nowhere/samples.db")


@pytest.mark.parametrize(
    ("url", "want_words"),
    [
        pytest.param("samples.db", "not a usable store URL", id="a path is not a URL"),
        pytest.param("nosuchdb://host/name", "not a usable store URL", id="an unknown database"),
        pytest.param("mysql://host/name", "neither sqlite nor postgresql", id="a database that nothing was tested with"),
        pytest.param("sqlite://", "in memory", id="memory survives no restart"),
        pytest.param("sqlite:///:memory:", "in memory", id="memory by its name"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, want_words: str) -> None:
    """Found at start, with an example of what is wanted."""
    with pytest.raises(StoreUrlInvalid, match=want_words):
        open_store(url)


@pytest.mark.parametrize("url", ["nosuchdb://metainfer:s3cret@db/x", "://metainfer:s3cret@db", "metainfer:s3cret@db/samples"])
def test_a_password_in_a_wrong_url_never_shows(url: str) -> None:
    """Messages go to logs and conditions."""
    with pytest.raises(StoreUrlInvalid) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)
