"""Samples flow back: benchmarks are recorded by passes, a process of its own learns from them, the winner ranks and shows in the pool's status."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.decide.make_facts import make_family, make_pool
from tests.unit.decide.make_world import make_world
from tests.unit.predict.make_samples import NOON, Fleet
from tests.unit.test_reconcile import make_cluster

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.app.learning import Learner, TrainingFailed, train_in_process
from metainfer.app.recalling import RecallingGatherer, StoredModels
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.learned import NEW_SAMPLES, LearnedState, ModelRecord, why_train
from metainfer.decide.pool import decide_pool
from metainfer.observe.gather import GatheredAdaptation
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.physics import PhysicsPredictor
from metainfer.predict.registry import Registry
from metainfer.predict.training_lines import Material
from metainfer.reconcile import Reconciler, Request
from metainfer.store.patient import PatientStore, open_patiently

LATER = NOON + timedelta(days=2)
FLEET = Fleet()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PatientStore]:
    opened = open_patiently(f"sqlite:///{tmp_path}/store.db")
    yield opened
    await opened.close()


async def record(store: PatientStore, material: Material) -> None:
    """One pass over a pool and one over an adaptation, whose Jobs have just finished."""
    cluster = make_cluster()
    assert cluster.pool is not None
    cluster.pool = replace(cluster.pool, fresh=tuple(material.probes))
    cluster.adaptation = GatheredAdaptation(make_world().snapshot, (*material.profiles, *(run for _, run in material.runs)))
    reconciler = Reconciler(cluster, store, cluster, PhysicsPredictor())
    for request in (Request("pool", "", "cards"), Request("adaptation", "default", "ocr")):
        await reconciler.reconcile(request, NOON)


async def train_alone(material: Material, known_until: datetime | None) -> ModelRecord:
    """The real process, without what ships with the operator: figures here are of the made-up fleet."""
    return await train_in_process(material, known_until, with_shipped=False)


@dataclass
class Parts:
    """A learner with its registry; ``changes`` counts how often another model began to answer."""

    store: PatientStore
    registry: Registry = field(default_factory=Registry)
    changes: list[int | None] = field(default_factory=list)

    def learner(self, **fields: object) -> Learner:
        known = {"train": train_alone} | fields
        return Learner(StoredModels(self.store), self.registry, lambda: self.changes.append(self.registry.state.version), **known)  # type: ignore[arg-type]


@pytest.fixture
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which a first model was learned, by the real process; made once."""
    return _trained(tmp_path_factory)


_MADE: list[Path] = []


def _trained(factory: pytest.TempPathFactory) -> Path:
    if not _MADE:
        path = factory.mktemp("trained") / "store.db"

        async def make() -> None:
            store = open_patiently(f"sqlite:///{path}")
            await record(store, FLEET.build())
            made = await Parts(store).learner().learn(LATER)
            assert made is not None
            await store.close()

        asyncio.run(make())
        _MADE.append(path)
    return _MADE[0]


def copy_of(path: Path, folder: Path) -> PatientStore:
    """The same store, to be changed."""
    target = folder / "copy.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return open_patiently(f"sqlite:///{target}")


async def test_recorded_benchmarks_become_a_model_that_ranks_and_shows(trained: Path, tmp_path: Path) -> None:
    """From the store to the predictor's answers and the pool's status, and further when there is more."""
    parts = Parts(copy_of(trained, tmp_path))
    await parts.learner().learn(LATER)
    questions = [sample.question for sample in FLEET.build().join()]
    assert LearnedPredictor(parts.registry).predict(questions) != PhysicsPredictor().predict(questions)
    status = await pool_status(parts)
    learned = find_condition(status.conditions, "PredictorLearned")
    assert learned is not None
    assert (learned.status, learned.reason) == ("True", "Learned")
    assert status.predictor is not None
    assert (status.predictor.version, status.predictor.rows) == (1, 128)
    assert [(item.name, item.learned_rows) for item in status.families] == [("fast", 64), ("slow", 64)]
    assert status.families[0].held_out_regret_permille is not None

    third = Fleet(models=8, families=("other",), first_model=50, factor=lambda candidate: 6.0 if candidate.config.precision == "fp32" else 1.0, start=LATER)
    await record(parts.store, third.build())
    made = await parts.learner().learn(LATER + timedelta(days=1))
    assert made is not None
    assert made.serves
    status = await pool_status(parts)
    assert status.predictor is not None
    assert (status.predictor.version, status.predictor.rows) == (2, 192)
    assert (status.predictor.newest_version, status.predictor.newest_verdict) == (2, made.metrics["verdict"])
    assert parts.changes == [1, 2]
    await parts.store.close()


async def pool_status(parts: Parts) -> AcceleratorPoolStatus:
    """Of one pass over the pool, its snapshot gathered from a cluster without nodes."""
    pool = make_pool("lab", make_family("fast"), make_family("slow"))
    nothing = {"nodes": (), "card_pods": (), "portraits": {}, "jobs": (), "adaptations": ()}
    view = SimpleNamespace(pool=lambda _: pool, pools=lambda: (pool,), **{name: lambda found=found: found for name, found in nothing.items()})
    gathered = await RecallingGatherer(view, None, parts.store, MeasuringLimits(), parts.registry).gather_pool("lab")  # type: ignore[arg-type]
    assert gathered is not None
    return decide_pool(gathered.snapshot, LATER).status


async def test_a_restart_serves_what_the_store_has_without_training(trained: Path, tmp_path: Path) -> None:
    """Nothing new since, so nothing is learned."""
    parts = Parts(copy_of(trained, tmp_path))

    async def never(material: Material, known_until: datetime | None) -> ModelRecord:
        raise AssertionError("trained without new samples")

    assert await parts.learner(train=never).learn(LATER + timedelta(days=9)) is None
    assert parts.changes == [1]
    await parts.store.close()


async def test_a_model_that_lost_shows_in_the_status_while_the_one_before_goes_on_serving(trained: Path, tmp_path: Path) -> None:
    """Samples flow back and the registry moves, also where that changes no ranking; a restart shows the same."""
    store = copy_of(trained, tmp_path)
    await record(store, Fleet(models=1, first_model=40, start=LATER).build())

    async def lose(material: Material, known_until: datetime | None) -> ModelRecord:
        return ModelRecord(0, LATER, 1, "hash", 9, serves=False, metrics={"verdict": "worse than the one before"})

    for parts in (Parts(store), Parts(store)):
        await parts.learner(train=lose, enough=1).learn(LATER)
        status = await pool_status(parts)
        assert status.predictor is not None
        assert (status.predictor.version, status.predictor.newest_version) == (1, 2)
        assert status.predictor.newest_verdict == "worse than the one before"
        assert set(parts.changes) == {1}
    await store.close()


async def test_a_damaged_model_is_made_anew_and_the_base_answers_meanwhile(trained: Path, tmp_path: Path) -> None:
    """With a reason in the status, and without waiting for new samples."""
    store = copy_of(trained, tmp_path)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as file, file:
        file.execute("update models set document = substr(document, 1, 1000)")
    parts = Parts(store)
    asked: list[datetime | None] = []

    async def train(material: Material, known_until: datetime | None) -> ModelRecord:
        asked.append(known_until)
        status = await pool_status(parts)
        learned = find_condition(status.conditions, "PredictorLearned")
        assert learned is not None
        assert (learned.status, learned.reason) == ("False", "ModelCorrupted")
        return await train_alone(material, known_until)

    made = await parts.learner(train=train).learn(LATER)
    assert made is not None
    assert (made.version, made.serves, asked) == (2, True, [None])
    assert parts.registry.state.problem is None
    await store.close()


async def test_training_that_fails_is_not_tried_again_before_there_is_more(store: PatientStore) -> None:
    """A reason in the log, the base goes on answering."""
    await record(store, Fleet(models=3).build())
    parts = Parts(store)
    tries = 0

    async def refuse(material: Material, known_until: datetime | None) -> ModelRecord:
        nonlocal tries
        tries += 1
        raise TrainingFailed("TooFewModels", "three models")

    learner = parts.learner(train=refuse)
    for _ in range(3):
        assert await learner.learn(LATER) is None
    assert tries == 1
    await record(store, Fleet(models=3, first_model=9).build())
    await learner.learn(LATER)
    assert tries == 2
    assert parts.registry.champion is None


async def test_the_process_says_why_there_is_no_model(store: PatientStore) -> None:
    """Its refusal arrives with reason and message."""
    with pytest.raises(TrainingFailed, match="at least 4 are needed") as failed:
        await train_alone(Material(), None)
    assert failed.value.reason == "TooFewModels"


async def test_a_process_that_takes_too_long_is_ended() -> None:
    """And leaves nothing behind."""
    with pytest.raises(TrainingFailed) as failed:
        await train_in_process(FLEET.build(), None, timeout_seconds=0.2)
    assert failed.value.reason == "TimedOut"


async def test_the_process_does_not_get_the_operators_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It reads numbers from a store that others may write to; it has no use for a password or a cluster."""
    spy = tmp_path / "python"
    spy.write_text(f"#!{sys.executable}\nimport json, os\nprint(json.dumps({{'reason': 'Spied', 'message': ' '.join(sorted(os.environ))}}))\n")
    spy.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(spy))
    for name in ("METAINFER_STORE_URL", "KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.setenv(name, "secret")
    with pytest.raises(TrainingFailed) as failed:
        await train_in_process(Material(), None)
    given = str(failed.value).split()
    assert "PATH" in given
    assert [name for name in given if name.startswith(("METAINFER_", "KUBE"))] == []
    assert os.environ["METAINFER_STORE_URL"] == "secret"


@pytest.mark.parametrize(
    ("samples", "age", "want"),
    [
        (0, timedelta(days=99), None),
        (1, timedelta(hours=1), None),
        (NEW_SAMPLES, timedelta(0), f"{NEW_SAMPLES} new samples"),
        (1, timedelta(days=1), "1 new samples in more than a day"),
    ],
    ids=["nothing new", "one sample, young model", "enough samples", "one sample, old model"],
)
def test_training_is_worth_it_after_enough_samples_or_time(samples: int, age: timedelta, want: str | None) -> None:
    """Both bounds; a model that is old but knows everything stays."""
    last = ModelRecord(version=4, made_at=LATER - age, feature_version=1, training_hash="", rows=1, serves=False)
    assert why_train(last, samples, LearnedState(version=3), LATER) == want


def test_how_many_samples_are_enough_is_a_setting() -> None:
    """For who makes few benchmarks."""
    assert why_train(None, 2, LearnedState(), LATER, enough=2) == "2 new samples"
    assert why_train(None, 2, LearnedState(), LATER, enough=3) is None
