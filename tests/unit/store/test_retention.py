from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select
from tests.unit.store.look import connect
from tests.unit.store.make_old import make_first_store
from tests.unit.store.make_results import ADAPTATION, OTHER_DIGEST, make_bench_report, make_candidate, make_probe, make_profile, make_run

from metainfer.decide.facts import Candidate
from metainfer.decide.plan import RecordDecision
from metainfer.store.retention import Compacted, Retention
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.tables import runs

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEEP = Retention(samples=2, decisions=2, age=timedelta(days=100), detail_age=timedelta(days=30))
ALL = Retention(samples=10**6, decisions=10**6, age=timedelta(days=10**4), detail_age=timedelta(days=10**4))


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def make_decision(name: str, days: float) -> RecordDecision:
    return RecordDecision(name, "run", ago(days), {})


async def kept(store: SampleStore, *jobs: str) -> set[str]:
    return {uid.removeprefix("uid-") for uid in await store.known_jobs([f"uid-{job}" for job in jobs])}


async def test_the_newest_benchmarks_of_each_model_and_family_stay(store: SampleStore) -> None:
    """Old ones of a rare family are worth more than the thousandth of a common one."""
    for days in (2, 3, 4):
        await store.record_run(ADAPTATION, make_run(f"a{days}", finished_at=ago(days)))
        await store.record_run("another", make_run(f"b{days}", finished_at=ago(days), report=make_bench_report(digest=OTHER_DIGEST)))
    await store.record_run(ADAPTATION, make_run("c9", finished_at=ago(9), candidate=Candidate("lab", "rare", make_candidate().config)))
    done = await store.compact(KEEP, [], NOW)
    assert done == Compacted(rows=2, details=0)
    assert await kept(store, "a2", "a3", "a4", "b2", "b3", "b4", "c9") == {"a2", "a3", "b2", "b3", "c9"}


async def test_what_is_too_old_goes_from_every_table(store: SampleStore) -> None:
    """Age counts also where there are few."""
    for days in (99, 101):
        await store.record_run(ADAPTATION, make_run(f"run-{days}", finished_at=ago(days)))
        await store.record_profile(ADAPTATION, make_profile(f"profile-{days}", finished_at=ago(days)))
        await store.record_probe("lab", make_probe(f"probe-{days}", finished_at=ago(days)))
        await store.record_decision(ADAPTATION, make_decision(f"decision-{days}", days))
    assert (await store.compact(KEEP, [], NOW)).rows == 4
    names = [f"{kind}-{days}" for kind in ("run", "profile", "probe") for days in (99, 101)]
    assert await kept(store, *names) == {"run-99", "profile-99", "probe-99"}
    assert [item.decision_id for item in await store.find_decisions(ADAPTATION)] == ["decision-99"]


async def test_nothing_of_the_last_day_is_dropped(store: SampleStore) -> None:
    """A run under way loses no figure, however many others there are."""
    jobs = [f"job-{number}" for number in range(9)]
    for number, job in enumerate(jobs):
        await store.record_run(ADAPTATION, make_run(job, finished_at=ago(number / 10)))
    await store.compact(KEEP, [], NOW)
    assert await kept(store, *jobs) == set(jobs)


async def test_the_last_decision_of_a_living_adaptation_stays_for_ever(store: SampleStore) -> None:
    """It explains what runs. Of an adaptation that is gone it goes in its time."""
    for uid in ("living", "gone"):
        for days in (500, 400, 300):
            await store.record_decision(uid, make_decision(f"decision-{days}", days))
    await store.compact(KEEP, ["living"], NOW)
    assert [item.decision_id for item in await store.find_decisions("living")] == ["decision-300"]
    assert await store.find_decisions("gone") == ()


async def test_only_the_newest_decisions_of_an_adaptation_stay(store: SampleStore) -> None:
    """Enough to roll back to and to look at."""
    for days in (5, 4, 3, 2):
        await store.record_decision("living", make_decision(f"decision-{days}", days))
    await store.compact(KEEP, ["living"], NOW)
    assert [item.decision_id for item in await store.find_decisions("living")] == ["decision-2", "decision-3"]


async def test_details_go_first_and_reports_stay(store: SampleStore, url: str) -> None:
    """The large part is for people who look at a run that is fresh."""
    report = make_bench_report(detail={"quantiles_us": [1.0]})
    for days in (10, 40):
        await store.record_run(ADAPTATION, make_run(f"run-{days}", finished_at=ago(days), report=report))
    assert await store.compact(KEEP, [], NOW) == Compacted(rows=0, details=1)
    assert await store.compact(KEEP, [], NOW) == Compacted(rows=0, details=0)
    with connect(url) as connection:
        found = connection.execute(select(runs.c.job, runs.c.detail.is_not(None), runs.c.report.is_not(None)).order_by(runs.c.job)).all()
    assert [tuple(row) for row in found] == [("run-10", True, True), ("run-40", False, True)]


async def test_more_rows_than_one_step_takes_are_dropped(store: SampleStore, url: str) -> None:
    """Steps are small so that nobody waits for them; together they do all of it."""
    rows = [
        {"job_uid": f"uid-{number}", "job": "job", "finished_at": ago(200 + number), "adaptation_uid": "uid", "run_id": "run", "digest": "", "node": "node",
         "pool": "lab", "family": "cpu", "execution_provider": "CPU", "precision": "fp32", "batch_size": 1, "concurrency": 1, "dynamic_batching": False,
         "max_batch_delay_us": 0}
        for number in range(1201)
    ]  # fmt: skip
    with connect(url, writes=True) as connection:
        connection.execute(runs.insert(), rows)
    assert (await store.compact(KEEP, [], NOW)).rows == 1201
    with connect(url) as connection:
        assert connection.execute(select(func.count()).select_from(runs)).scalar() == 0


async def test_many_living_adaptations_are_no_problem(store: SampleStore) -> None:
    """Databases bound the length of a statement."""
    await store.record_decision("uid-7", make_decision("decision", 300))
    await store.compact(KEEP, [f"uid-{number}" for number in range(100_000)], NOW)
    assert len(await store.find_decisions("uid-7")) == 1


@pytest.mark.parametrize("made_before", [False, True], ids=["a new file", "a file from before space was given back"])
async def test_sqlite_gives_the_space_back(made_before: bool, tmp_path: Path) -> None:
    """A volume that was full once must not stay so."""
    path = tmp_path / "store.db"
    store = open_store(make_first_store(path) if made_before else f"sqlite:///{path}")
    try:
        for number in range(200):
            report = make_bench_report(detail={"much": "x" * 10_000})
            await store.record_run(ADAPTATION, make_run(f"job-{number}", finished_at=ago(40 + number), report=report))
        await store.compact(ALL, [], NOW)
        full = path.stat().st_size
        await store.compact(KEEP, [], NOW)
        assert path.stat().st_size < full / 4
        assert [item.job for item in await store.find_runs(ADAPTATION, "run-1")][-2:] == ["job-1", "job-0"]
    finally:
        await store.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("PRAGMA freelist_count").fetchone() == (0,)
