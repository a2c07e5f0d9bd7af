from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.make_samples import NOON, Fleet

from metainfer.decide.learned import ModelRecord
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.physics import PhysicsPredictor
from metainfer.predict.registry import Registry, checksum, open_record
from metainfer.predict.registry_files import load_record, read_record, save_record, write_record
from metainfer.predict.training import Curriculum, train_challenger
from metainfer.predict.training_rows import build_training_rows

FLEET = Fleet()
QUESTIONS = tuple(sample.question for sample in FLEET.build().join())


@pytest.fixture(scope="module")
def record() -> ModelRecord:
    return replace(train_challenger(Curriculum(FLEET.build().join()), NOON + timedelta(days=1)), version=3)


def with_document(record: ModelRecord, document: str) -> ModelRecord:
    """Another document with a checksum that fits: what somebody who can write to the store would put there."""
    return replace(record, document=document, checksum=checksum(document))


def test_without_a_model_the_base_answers_and_the_state_says_so() -> None:
    """Day one without anything shipped."""
    registry = Registry()
    assert registry.champion is None
    assert registry.state.problem is not None
    assert registry.state.problem[0] == "NoModel"
    assert LearnedPredictor(registry).predict(QUESTIONS) == PhysicsPredictor().predict(QUESTIONS)


def test_a_champion_serves_and_the_state_has_its_figures(record: ModelRecord) -> None:
    """What the pool's status shows."""
    registry = Registry()
    assert registry.offer(record)
    state = registry.state
    assert (state.version, state.rows, state.problem) == (3, record.rows, None)
    assert state.held_out_regret_permille == record.metrics["regret_permille"] < state.base_regret_permille
    assert state.families["lab/slow"].rows == 64
    predictions = LearnedPredictor(registry).predict(QUESTIONS)
    assert predictions != PhysicsPredictor().predict(QUESTIONS)
    assert all(item.source.startswith("model 3 on roofline") for item in predictions)


def test_the_same_champion_again_changes_nothing(record: ModelRecord) -> None:
    """The store is looked at every minute."""
    registry = Registry(record)
    assert not registry.offer(record)


def test_a_model_that_lost_is_never_served(record: ModelRecord) -> None:
    """Challengers are kept for their figures only."""
    registry = Registry()
    assert not registry.offer(replace(record, serves=False))
    assert registry.champion is None


def test_a_family_where_it_lost_keeps_the_base(record: ModelRecord) -> None:
    """The sum may win while one family loses."""
    families = {**record.metrics["families"], "lab/slow": {**record.metrics["families"]["lab/slow"], "serves": False}}
    registry = Registry(replace(record, metrics={**record.metrics, "families": families}))
    predictions = LearnedPredictor(registry).predict(QUESTIONS)
    moved = {question.candidate.family for question, item in zip(QUESTIONS, predictions, strict=True) if item.source.startswith("model")}
    assert moved == {"fast"}


def test_all_figures_move_together(record: ModelRecord) -> None:
    """Median, tail and throughput of one candidate tell the same story."""
    moved, base = LearnedPredictor(Registry(record)).predict(QUESTIONS), PhysicsPredictor().predict(QUESTIONS)
    for left, right in zip(moved, base, strict=True):
        factor = left.p50_us / right.p50_us
        assert left.p99_us / right.p99_us == pytest.approx(factor)
        assert right.throughput_per_second / left.throughput_per_second == pytest.approx(factor)


def test_measured_rows_of_a_new_card_shift_it(record: ModelRecord) -> None:
    """Three rows teach a shift, not a tree; the shift is shrunken, and gone with the model it belongs to."""
    metrics = {**record.metrics, "serves_others": True}
    registry = Registry(replace(record, metrics=metrics))
    fleet = Fleet(models=2, families=("other",), factor=lambda _: 3.0)
    questions = [sample.question for sample in fleet.build().join()]
    before = LearnedPredictor(registry).predict(questions)
    registry.learn_cards(build_training_rows(fleet.build().join()))
    after = LearnedPredictor(registry).predict(questions)
    ratios = [left.p50_us / right.p50_us for left, right in zip(after, before, strict=True)]
    assert max(ratios) == pytest.approx(min(ratios))
    assert ratios[0] > 1.3
    registry.offer(replace(record, version=4, metrics=metrics))
    assert LearnedPredictor(registry).predict(questions) == tuple(replace(item, source=item.source.replace("model 3", "model 4")) for item in before)


# What cannot be used.


def test_another_feature_version_falls_back_to_the_base(record: ModelRecord) -> None:
    """An upgrade that changes features makes a new model from the samples; until then physics answers."""
    registry = Registry(replace(record, feature_version=record.feature_version + 1))
    assert registry.champion is None
    assert registry.state.problem is not None
    assert registry.state.problem[0] == "OtherVersion"
    assert LearnedPredictor(registry).predict(QUESTIONS) == PhysicsPredictor().predict(QUESTIONS)


@pytest.mark.parametrize("document", ["", "{", "[]", "null", '"text"', "{}", '{"members": 1}', "[" * 100_000], ids=lambda text: text[:12] or "empty")
def test_a_document_that_is_none_is_corrupted(record: ModelRecord, document: str) -> None:
    """With a checksum that fits: whatever a reader stumbles over is a reason, never a crash."""
    with pytest.raises(ModelUnreadable):
        open_record(with_document(record, document))


def test_a_document_that_was_touched_is_not_even_parsed(record: ModelRecord) -> None:
    """One flipped character."""
    with pytest.raises(ModelUnreadable, match="does not match its checksum") as refused:
        open_record(replace(record, document=record.document.replace("1", "2", 1)))
    assert refused.value.reason == "Corrupted"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_document_crashes_the_reader(data: st.DataObject) -> None:
    """Keys removed, values replaced, anywhere in the tree: it serves figures, or it is refused with a reason."""
    record = _RECORD[0] if _RECORD else _RECORD.append(replace(train_challenger(Curriculum(FLEET.build().join()), NOON), version=3)) or _RECORD[0]
    content = json.loads(record.document)
    node = content
    for _ in range(data.draw(st.integers(0, 6))):
        if isinstance(node, dict) and node:
            key = data.draw(st.sampled_from(sorted(node)))
        elif isinstance(node, list) and node:
            key = data.draw(st.integers(0, len(node) - 1))
        else:
            break
        if not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            node[key] = data.draw(st.sampled_from([None, -1, 1e308, "text", [], {}, [[]], True, "tree\n\n"]))
            break
        node = node[key]
    try:
        champion = open_record(with_document(record, json.dumps(content)))
    except ModelUnreadable:
        pass  # with a reason, by its type
    else:
        assert len(champion.model.predict(build_training_rows(FLEET.build().join())).sigma) == 128


_RECORD: list[ModelRecord] = []


# As files.


def test_a_record_survives_its_file(record: ModelRecord, tmp_path: Path) -> None:
    """Plain and gzipped; equal records make equal files."""
    for name in ("model.json", "model.json.gz"):
        save_record(record, tmp_path / name)
        assert load_record(tmp_path / name) == record
        first = (tmp_path / name).read_bytes()
        save_record(record, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 2}', "\x00"], ids=repr)
def test_a_file_that_holds_no_record_is_refused(text: str) -> None:
    """By name, with a reason."""
    with pytest.raises(ModelUnreadable, match=r"model\.json"):
        read_record(text, "model.json")


def test_a_cut_file_is_refused(record: ModelRecord, tmp_path: Path) -> None:
    """A power cut while an image was pulled."""
    path = tmp_path / "model.json.gz"
    save_record(record, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        load_record(path)
    with pytest.raises(ModelUnreadable):
        read_record(write_record(record)[:-20], "the answer")
