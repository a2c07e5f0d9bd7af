"""What ships is readable, belongs together, and is used only where it won."""

from __future__ import annotations

from metainfer.predict.registry import Registry
from metainfer.predict.shipped import SHIPPED_SAMPLES, open_shipped_model
from metainfer.predict.training import training_hash
from metainfer.predict.training_lines import Material, read_file, read_lines
from metainfer.predict.training_rows import build_training_rows


def test_the_shipped_model_was_made_from_the_shipped_tables_and_serves() -> None:
    """Whoever changes a table, a feature or how rows are built makes the model anew (tables/README.md says how)."""
    record = open_shipped_model()
    assert record is not None
    material = Material()
    for path in SHIPPED_SAMPLES:
        material += read_lines(read_file(path), path.name)
    assert record.training_hash == training_hash(build_training_rows(material.join()))
    state = Registry(record).state
    assert (state.version, state.problem, state.rows) == (0, None, record.rows)
    assert state.held_out_regret_permille < state.base_regret_permille
    assert [name for name in state.families if state.serves(name)]


def test_the_shipped_models_families_were_measured_on_many_models() -> None:
    """Fewer than fifteen would say more about the models than about the cards."""
    assert SHIPPED_SAMPLES
    for path in SHIPPED_SAMPLES:
        samples = read_lines(read_file(path), path.name).join()
        assert len({sample.digest for sample in samples}) >= 15
        assert len({sample.question.candidate.family for sample in samples}) >= 4
