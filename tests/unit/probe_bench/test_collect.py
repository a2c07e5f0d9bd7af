from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.data.models import dense, small_cnn
from tests.load_script import load_script

NATIVE = {"CPUExecutionProvider": ("fp32", "int8"), "OpenVINOExecutionProvider": ("fp32", "bf16", "fp16", "int8")}


@pytest.fixture(scope="module")
def collect() -> ModuleType:
    return load_script("collect")


def test_plain_points_come_first_on_every_card(collect: ModuleType) -> None:
    """A table that was broken off is balanced."""
    points = collect.grid(collect.CARDS[0], NATIVE)
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert {(point.config.execution_provider, point.config.precision) for point in points if point.step == 0} == {
        ("CPUExecutionProvider", "fp32"), ("OpenVINOExecutionProvider", "fp32"),
    }  # fmt: skip
    assert len(points) == len({point.config for point in points}) == 24
    assert all(point.config.dynamic_batching == (point.config.batch_size > 1) for point in points)


def test_an_older_card_serves_what_is_native_on_it(collect: ModuleType) -> None:
    """No bf16 where the instructions are hidden, and no ONNX Runtime, which does not look at them."""
    points = collect.grid(collect.CARDS[1], {**NATIVE, "OpenVINOExecutionProvider": ("fp32", "int8")}, 2)
    assert {point.config.execution_provider for point in points} == {"OpenVINOExecutionProvider"}
    assert {point.config.precision for point in points} == {"fp32", "int8"}


def test_hidden_instructions_are_shown_again(collect: ModuleType) -> None:
    """The variable is for the children of one card only, and what somebody had set stays."""
    variable = "ONEDNN_MAX_CPU_ISA"
    with collect.CARDS[2].environment():
        assert os.environ[variable] == "SSE41"
        with collect.CARDS[1].environment():
            assert os.environ[variable] == "AVX2"
        assert os.environ[variable] == "SSE41"
    assert variable not in os.environ


def test_inputs_have_the_shapes_that_models_declare(collect: ModuleType) -> None:
    """Every renderer, once: finite values, batch 1, no two requests alike."""
    for model in collect.MODELS:
        requests = model.render()
        first, second = next(requests), next(requests)
        assert all(np.isfinite(value).all() for value in first.values()), model.name
        assert any(not np.array_equal(first[name], second[name]) for name in first), model.name
        assert all(first[name].shape == second[name].shape for name in first), model.name


def test_models_are_pinned_and_free(collect: ModuleType) -> None:
    """Fifteen at least, each by content, version and licence."""
    assert len({model.sha256 for model in collect.MODELS}) == len(collect.MODELS) >= 15
    assert {len(model.sha256) for model in collect.MODELS} == {64}
    assert all("==" in model.wheel for model in collect.MODELS)
    assert {model.licence for model in collect.MODELS} <= {"Apache-2.0", "MIT", "BSD-3-Clause"}


def test_a_collection_is_continued_and_teaches(collect: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny model through the real probe, profile and benchmark; what is known is not measured again, a cut line is."""
    models = [make_model(collect, tmp_path / "cache", "cnn", 3, 16, 16)]
    results = tmp_path / "table.jsonl"
    arguments = [
        "--cache", str(tmp_path / "cache"), "--results", str(results), "--rounds", "1", "--window-seconds", "0.05", "--depth", "0",
        "--probe-seconds", "0.5", "--profile-seconds", "12", "--cards", "native", "sse41",
    ]  # fmt: skip
    assert collect.main(arguments, models) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["planned"], summary["measured_now"], summary["failed"], summary["complete"]) == (3, 3, 0, True)
    assert summary["families"] == ["native", "sse41"]

    lines = results.read_text().splitlines()
    results.write_text("\n".join(lines)[:-40])
    assert collect.main(arguments, models) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["measured_now"] == 1
    from metainfer.predict.training_lines import read_lines
    from metainfer.predict.training_rows import build_training_rows

    rows = build_training_rows(read_lines(results.read_text().splitlines(), results.name).join())
    assert len(rows) == 3
    assert len(set(rows["family"])) == 2
    assert (rows["base_us"] > 0).all()
    assert (rows["is_probed"] == 1).all()


def test_a_second_repetition_is_a_line_of_its_own(collect: ModuleType, tmp_path: Path) -> None:
    """What was measured once is found again as before; the second time is another line, for the noise."""
    model = make_model(collect, tmp_path / "cache", "dense", 8)
    point = collect.grid(collect.CARDS[0], NATIVE)[0]
    table, windows = collect.Table(tmp_path / "table.jsonl"), collect.Windows(3, 0.4)
    once, twice = (collect.Collection(table, tmp_path, tmp_path, windows, repetition=number).key_of(model, point) for number in (1, 2))
    assert "repetition" not in once
    assert twice == {**once, "repetition": 2}


def make_model(collect: ModuleType, cache: Path, name: str, *shape: int) -> object:
    """A model that lies in the cache already, so that nothing is downloaded."""
    cache.mkdir(exist_ok=True)
    path = {"dense": dense, "cnn": small_cnn}[name](cache)

    def render() -> Iterator[dict[str, np.ndarray]]:
        for index in count():
            yield {"x": np.random.default_rng(index).random((1, *shape), np.float32)}

    return collect.CollectedModel(name, "none==0", "none", hashlib.sha256(path.read_bytes()).hexdigest(), "MIT", render, 4)
