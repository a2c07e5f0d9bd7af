"""Older decisions are asked of the store only when somebody wants one of them; of a model's benchmarks only the newest are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.decide.make_facts import make_adaptation
from tests.unit.decide.make_world import START, World, kinds, make_world
from tests.unit.store.make_results import ADAPTATION, DIGEST, at, make_run
from tests.unit.store.postgres_fixture import one_server, postgres
from tests.unit.store.postgres_server import PostgresServer

from metainfer.app.recalling import RECALLED_RUNS, RecallingGatherer, recall_decisions
from metainfer.decide.facts import AdaptationSnapshot, MeasuringLimits, ProfileResult
from metainfer.decide.plan import RecordDecision
from metainfer.predict.registry import Registry
from metainfer.store.patient import PatientStore, open_patiently

__all__ = ["one_server", "postgres"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PatientStore]:
    opened = open_patiently(f"sqlite:///{tmp_path}/store.db")
    yield opened
    await opened.close()


async def decide(store: PatientStore) -> tuple[World, RecordDecision]:
    """A decision that was taken and recorded, and a record of an older version beside it."""
    world = make_world()
    world.play()
    (taken,) = kinds(world.actions, RecordDecision)
    await store.record_decision(world.snapshot.adaptation.uid, taken)
    await store.record_decision(world.snapshot.adaptation.uid, RecordDecision("of-old", "run", START, {"selected": "cards/x/y/fp32/b1/c1/doff"}))
    return world, taken


async def test_a_decision_that_the_status_has_forgotten_is_found_with_its_configuration(store: PatientStore) -> None:
    """Whatever was recorded without one cannot be gone back to."""
    world, taken = await decide(store)
    adaptation = replace(world.snapshot.adaptation, rollback_to=taken.decision_id, status=make_adaptation().status)
    (found,) = await recall_decisions(store, adaptation)
    assert (found.id, found.config) == (taken.decision_id, world.status.decisions[0].config)


@pytest.mark.parametrize("wanted", ["", "known"])
async def test_the_store_is_not_asked_for_what_nobody_wants_or_the_status_has(store: PatientStore, wanted: str) -> None:
    """Every pass would read it."""
    world, taken = await decide(store)
    adaptation = replace(world.snapshot.adaptation, rollback_to=taken.decision_id if wanted else "")
    assert await recall_decisions(store, adaptation) == ()


async def test_an_annotation_that_is_no_text_for_a_database_is_nobodys_id(postgres: PostgresServer) -> None:
    """Whoever may annotate an adaptation could else have the store taken for damaged."""
    opened = open_patiently(postgres.url(postgres.make_database()))
    world, _ = await decide(opened)
    assert await recall_decisions(opened, replace(world.snapshot.adaptation, rollback_to="a\0b")) == ()
    assert opened.problem == ""
    await opened.close()


async def test_while_the_store_is_away_older_decisions_are_not_known(store: PatientStore) -> None:
    """No reason to fail the pass."""
    world, taken = await decide(store)
    await store.close()
    assert await recall_decisions(store, replace(world.snapshot.adaptation, rollback_to=taken.decision_id, status=make_adaptation().status)) == ()


def make_snapshot(digest: str = DIGEST, own: int = 0) -> AdaptationSnapshot:
    """The model has been profiled, and ``own`` of the store's newest benchmarks are of the present run."""
    snapshot = make_world().snapshot
    profile = ProfileResult("profile", at(0), SimpleNamespace(digest=digest))  # type: ignore[arg-type]  # no more of it is looked at
    return replace(snapshot, profile=profile, runs=tuple(make_run(f"run-{number}") for number in range(100 - own, 100)))


async def recall(store: PatientStore, snapshot: AdaptationSnapshot) -> list[str]:
    gatherer = RecallingGatherer(None, None, store, MeasuringLimits(), Registry(None))  # type: ignore[arg-type]  # neither cluster nor models are asked
    return [run.job for run in await gatherer._earlier(snapshot)]


async def test_the_newest_benchmarks_of_other_runs_are_recalled(store: PatientStore) -> None:
    """As many as correct a ranking, whatever the store holds, newest last; those of the run itself are there already and take no place."""
    for number in range(100):
        await store.record_run(ADAPTATION, make_run(f"run-{number}", finished_at=at(number)))
    assert await recall(store, make_snapshot()) == [f"run-{number}" for number in range(100 - RECALLED_RUNS, 100)]
    assert await recall(store, make_snapshot(own=5)) == [f"run-{number}" for number in range(95 - RECALLED_RUNS, 95)]
    assert await recall(store, make_snapshot(digest="00" * 32)) == []
    await store.close()
    assert await recall(store, make_snapshot()) == [], "while it is away"
