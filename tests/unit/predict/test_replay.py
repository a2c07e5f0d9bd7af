from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.load_script import load_script
from tests.unit.predict.make_samples import ORT, Fleet

from metainfer.decide.facts import Candidate
from metainfer.predict.training_lines import write_lines


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    return load_script("replay")


def odd_factor(candidate: Candidate) -> float:
    """On this family ONNX Runtime is what is slow."""
    return 5.0 if candidate.config.execution_provider == ORT else 1.0


def test_a_family_that_nobody_knows_is_learned_within_hours(replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cold it is picked for as the others are, warm as it is; the stream goes from the one to the other."""
    known, odd = Fleet(models=10), Fleet(models=10, families=("other",), factor=odd_factor)
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(write_lines(known.build() + odd.build())))
    assert replay.main([str(table), "--folds", "2"]) == 0
    results = {item["family"]: item for item in json.loads(capsys.readouterr().out)}
    assert set(results) == {"lab/fast", "lab/slow", "lab/other"}
    for item in results.values():
        assert item["curve"][0] == [0, 0.0, item["cold_regret"]]
        assert item["warm_regret"] <= item["cold_regret"] + 0.02
        assert item["samples"] is not None
        assert item["hours"] < 2


def test_a_table_that_is_none_is_named(replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Like every other reader of tables."""
    (tmp_path / "table.jsonl").write_text("{")
    assert replay.main([str(tmp_path / "table.jsonl")]) == 1
    assert "table.jsonl, line 1" in capsys.readouterr().err
