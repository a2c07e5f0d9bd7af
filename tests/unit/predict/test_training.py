from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from tests.unit.predict.make_samples import NOON, ORT, Fleet, make_measured

from metainfer.decide.facts import Candidate
from metainfer.decide.learned import ModelRecord
from metainfer.decide.learning import Sample
from metainfer.decide.predictor import Question
from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.learned.rows import make_rows
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.physics import PhysicsPredictor
from metainfer.predict.registry import Registry
from metainfer.predict.training import Curriculum, measure_loss, train_challenger

LATER = NOON + timedelta(days=1)


@pytest.fixture(scope="module")
def samples() -> tuple[Sample, ...]:
    """Two families whose int8 on ONNX Runtime is four times slower than physics thinks."""
    return Fleet().build().join()


@pytest.fixture(scope="module")
def champion(samples: tuple[Sample, ...]) -> ModelRecord:
    return train_challenger(Curriculum(samples), LATER)


def moves(record: ModelRecord, questions: Sequence[Question]) -> list[float]:
    """Predicted over base, by question."""
    predictor = LearnedPredictor(Registry(replace(record, version=1)))
    return [moved.p50_us / base.p50_us for moved, base in zip(predictor.predict(questions), PhysicsPredictor().predict(questions), strict=True)]


def unseen(family: str = "slow", **fields: object) -> tuple[Question, ...]:
    """Questions about models that were in no training."""
    fleet = Fleet(models=3, families=(family,), first_model=100)
    return tuple(sample.question for sample in replace(fleet, **fields).build().join())  # type: ignore[arg-type]


def odd_factor(candidate: Candidate) -> float:
    """A family on which every int8 is slow."""
    return 8.0 if candidate.config.precision == "int8" else 1.0


def of_int8_on_ort(questions: Sequence[Question]) -> list[Question]:
    return [item for item in questions if (item.candidate.config.execution_provider, item.candidate.config.precision) == (ORT, "int8")]


def test_a_first_model_serves_when_it_beats_the_base_on_models_it_has_not_seen(champion: ModelRecord) -> None:
    """The base picks int8 on ONNX Runtime, the measurements say otherwise."""
    assert champion.serves
    assert champion.metrics["regret_permille"] < champion.metrics["base_regret_permille"]
    assert champion.metrics["models"] == 8
    assert set(champion.metrics["families"]) == {"lab/fast", "lab/slow"}
    json.loads(champion.document)


def test_what_it_learned_holds_for_models_it_has_never_seen(champion: ModelRecord) -> None:
    """Four times slower, within what noise and shrinkage leave."""
    for move in moves(champion, of_int8_on_ort(unseen())):
        assert 2.5 < move < 5.5


def test_the_same_samples_make_the_same_model(samples: tuple[Sample, ...], champion: ModelRecord) -> None:
    """Hash, figures and document: whoever has the samples can check the model."""
    assert train_challenger(Curriculum(tuple(reversed(samples))), LATER) == champion


def test_without_anything_new_a_challenger_does_not_replace_the_champion(samples: tuple[Sample, ...]) -> None:
    """As good as is not better."""
    again = train_challenger(Curriculum(samples, known_until=NOON + timedelta(days=30)), LATER)
    assert not again.serves
    assert again.document == ""
    assert again.metrics["old_regret_permille"] == again.metrics["regret_permille"]


def test_a_fleet_that_follows_physics_keeps_the_base() -> None:
    """There is nothing to win, so nothing serves."""
    record = train_challenger(Curriculum(Fleet(factor=lambda _: 1.0, noise=0.05).build().join()), LATER)
    assert not record.serves


def test_an_order_is_judged_on_every_set_of_cards_that_may_be_there() -> None:
    """One family that is always the best hides nothing: who confuses the configurations of another loses where that one stands alone."""
    rows = make_rows(8)
    rows["model"], rows["clients"] = "m", 4.0
    rows["family"] = ["new"] * 4 + ["old"] * 4
    rows["latency_us"] = [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]
    right = np.log(rows["latency_us"])
    confused = right.copy()
    confused[[4, 5]] = right[[5, 4]]
    assert measure_loss(rows, right).regret == 0
    loss = measure_loss(rows, confused)
    assert loss.groups == 1
    assert loss.regret == pytest.approx(0.5 / 3)  # of the new one, the old one, both
    assert measure_loss(rows, right).beats(loss)


def test_more_families_replace_a_model_that_knew_one() -> None:
    """The predecessor is judged by what it could know, on the same held-out models."""
    first = Fleet(models=10, families=("fast",)).build()
    second = Fleet(models=8, families=("slow",), first_model=20, start=NOON + timedelta(days=10), factor=odd_factor).build()
    record = train_challenger(Curriculum((first + second).join(), known_until=NOON + timedelta(days=1)), NOON + timedelta(days=20))
    assert record.serves
    assert 0 <= record.metrics["regret_permille"] < record.metrics["old_regret_permille"]


@pytest.mark.parametrize("factor", [1000.0, 0.001], ids=["a thousand times slower", "a thousand times faster"])
def test_one_poisoned_sample_does_not_move_its_family(samples: tuple[Sample, ...], champion: ModelRecord, factor: float) -> None:
    """Whoever can write one false figure gets one row, not a family."""
    poisoned = replace(samples[0], measured=make_measured(samples[0].measured.mean_us * factor))
    record = train_challenger(Curriculum([poisoned, *samples[1:]]), LATER)
    assert record.serves
    asked = unseen("fast")
    ratio = np.array(moves(record, asked)) / np.array(moves(champion, asked))
    assert np.median(np.abs(np.log(ratio))) < 0.05
    assert np.max(np.abs(np.log(ratio))) < 0.25


def test_one_bad_node_does_not_move_its_family() -> None:
    """Nine of ten nodes agree; the tenth is broken, whatever its own probe says."""
    fleet = Fleet(models=4, families=("slow",), nodes=5)
    samples = fleet.build().join()
    broken = [replace(item, measured=make_measured(item.measured.mean_us * (2.0 if item.node == "slow-4" else 1.0))) for item in samples]
    asked = unseen()
    sound, moved = (train_challenger(Curriculum(given), LATER) for given in (samples, broken))
    assert sound.serves
    assert moved.serves
    ratio = np.array(moves(moved, asked)) / np.array(moves(sound, asked))
    assert np.median(np.abs(np.log(ratio))) < 0.1


@pytest.mark.parametrize(
    ("fleet", "want"), [(Fleet(models=0), "TooFewModels"), (Fleet(models=3), "TooFewModels"), (Fleet(models=4, families=("slow",)), "TooFewRows")], ids=str
)
def test_too_little_is_refused_with_a_reason(fleet: Fleet, want: str) -> None:
    """Nothing is trained on what cannot be judged."""
    with pytest.raises(Untrainable) as refused:
        train_challenger(Curriculum(fleet.build().join()), LATER)
    assert refused.value.reason == want
