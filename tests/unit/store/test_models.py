from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.make_results import ADAPTATION, DIGEST, at, make_probe, make_profile, make_run

from metainfer.decide.learned import ModelRecord
from metainfer.store.samples import SampleStore, open_store
from metainfer_probe.contract import Failure


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SampleStore]:
    opened = open_store(f"sqlite:///{tmp_path}/samples.db")
    yield opened
    await opened.close()


def make_record(**fields: object) -> ModelRecord:
    """A model that won."""
    known = {
        "version": 0, "made_at": at(0), "feature_version": 1, "training_hash": "ab" * 32, "rows": 128, "serves": True,
        "metrics": {"regret_permille": 12, "families": {"lab/fast": {"rows": 64}}}, "checksum": "cd" * 32, "document": '{"trees":[1]}',
    }  # fmt: skip
    return ModelRecord(**(known | fields))  # type: ignore[arg-type]


async def test_a_model_gets_the_next_version_and_comes_back_as_it_was(store: SampleStore) -> None:
    """Versions count from one: zero is what ships with the operator."""
    first = await store.record_model(make_record())
    assert first == make_record(version=1)
    second = await store.record_model(make_record(made_at=at(5)))
    assert second.version == 2
    assert await store.find_champion() == second


async def test_an_empty_store_has_no_model(store: SampleStore) -> None:
    """Day one."""
    assert await store.find_champion() is None
    assert await store.find_last_model() is None


async def test_a_model_that_lost_is_the_last_but_not_the_champion(store: SampleStore) -> None:
    """It is remembered, so that it is not made again from the same samples."""
    won = await store.record_model(make_record())
    lost = await store.record_model(make_record(serves=False, document="", made_at=at(5)))
    assert await store.find_champion() == won
    assert await store.find_last_model() == lost


async def test_only_the_documents_of_the_last_champions_are_kept(store: SampleStore) -> None:
    """Figures of every model stay, megabytes do not."""
    for minutes in range(5):
        await store.record_model(make_record(made_at=at(minutes)))
        await store.record_model(make_record(serves=False, document="", made_at=at(minutes)))
    with closing(sqlite3.connect(store._reading.url.database or "")) as file:
        kept = file.execute("select version from models where document != '' order by version").fetchall()
        (count,) = file.execute("select count(*) from models").fetchone()
    assert kept == [(5,), (7,), (9,)]
    assert count == 10


async def test_damaged_figures_are_no_reason_to_lose_the_model(store: SampleStore) -> None:
    """They are for people; the document has a checksum of its own."""
    await store.record_model(make_record())
    with closing(sqlite3.connect(store._reading.url.database or "")) as file, file:
        file.execute("update models set metrics = '{\"regret'")
    assert await store.find_champion() == make_record(version=1, metrics={})


async def test_material_is_everything_that_left_a_report(store: SampleStore) -> None:
    """What samples are joined from: runs with their digests, profiles, probes, oldest first."""
    for minutes, job in ((5, "b"), (1, "a")):
        await store.record_run(ADAPTATION, make_run(job, finished_at=at(minutes)))
    await store.record_run(ADAPTATION, make_run("lost", report=None, failure=Failure(reason="NodeLost", message="gone")))
    await store.record_profile(ADAPTATION, make_profile())
    await store.record_probe("lab", make_probe())
    runs, profiles, probes = await store.training_material()
    assert [(digest, run.job) for digest, run in runs] == [(DIGEST, "a"), (DIGEST, "b")]
    assert (profiles, probes) == ((make_profile(),), (make_probe(),))
    assert await store.count_runs() == 2
    assert await store.count_runs(since=at(1)) == 1


async def test_only_the_newest_results_are_learned_from(store: SampleStore) -> None:
    """The operator and its training process have a memory limit, and old cards and models matter least."""
    for minutes in (2, 0, 3, 1):
        await store.record_run(ADAPTATION, make_run(f"run-{minutes}", finished_at=at(minutes)))
        await store.record_probe("lab", make_probe(f"probe-{minutes}", finished_at=at(minutes)))
    runs, _, probes = await store.training_material(newest=2)
    assert [run.job for _, run in runs] == ["run-2", "run-3"]
    assert [probe.job for probe in probes] == ["probe-2", "probe-3"]


async def test_a_record_is_frozen_with_what_was_given(store: SampleStore) -> None:
    """Recording returns another record and changes none."""
    given = make_record()
    await store.record_model(given)
    assert given == replace(make_record(), version=0)
