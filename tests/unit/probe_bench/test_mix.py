"""Requests of nearly as many widths as there are requests, as a reader of text lines gets them: all of them are measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data import models
from tests.unit.probe_bench.test_bench import config, measure, refused

from metainfer_probe.contract import ModelSource, ProfileRequest
from metainfer_probe.profile import profile_model

REQUESTS = 60
"""As many as a benchmark takes from a file, at most 64."""


def text_reader(folder: Path) -> Path:
    """Convolutions over an image 48 high and any width, pooled to a sequence of letters."""
    constants = {"w": models.weights(8, 3, 3, 3), "ax": np.array([2], np.int64), "fc": models.weights(8, 16)}
    nodes = [
        models.node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2], pads=[1] * 4),
        models.node("ReduceMean", ["c", "ax"], ["p"], "pool", keepdims=0),
        models.node("Transpose", ["p"], ["t"], "turn", perm=[0, 2, 1]),
        models.node("MatMul", ["t", "fc"], ["y"], "letters"),
    ]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 3, 48, "w"])], [models.value("y", models.FLOAT, ["n", "t", 16])], constants)
    return models.save(folder / "model.onnx", net, opset=18)


@pytest.fixture
def mix(tmp_path: Path) -> tuple[Path, Path]:
    """The model, and ``requests.npz`` whose arrays go by names of their own: 60 images of 40 widths."""
    random = np.random.default_rng(17)
    widths = [*range(32, 32 + 40 * 8, 8), *(64 for _ in range(REQUESTS - 40))]
    arrays = {f"r{index:02d}": random.standard_normal((1, 3, 48, width)).astype(np.float32) for index, width in enumerate(widths)}
    np.savez(tmp_path / "requests.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
    return text_reader(tmp_path), tmp_path / "requests.npz"


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "OpenVINOExecutionProvider"])
def test_the_first_pass_over_every_width_is_part_of_the_latency(provider: str, mix: tuple[Path, Path]) -> None:
    """Every request of the file was sent at least once and is in the figures, though a new width pays its set-up."""
    model, requests = mix
    report = measure(model, config(provider), calibration=requests, rounds=1)
    assert report.candidate is not None
    assert report.candidate.requests >= REQUESTS
    assert report.first_pass_us > 0
    assert report.accuracy is not None
    assert report.accuracy.inputs == "calibration"
    notes = report.detail["notes"]
    assert isinstance(notes, list)
    assert any("requests.npz" in note and "x/INDEX" in note for note in notes)


def test_batches_of_unequal_widths_are_refused_and_it_is_said_why(mix: tuple[Path, Path]) -> None:
    """Joining them needs padding, which changes answers and costs what nobody counted."""
    model, requests = mix
    error = refused(model, config(batch=4), calibration=requests)
    assert error.reason == "RaggedInputs"
    assert "padding" in error.message
    assert "'x'" in error.message


def test_the_portrait_says_it_before_any_benchmark(mix: tuple[Path, Path]) -> None:
    """So that no batch becomes a candidate."""
    model, requests = mix
    source = ModelSource(path=requests.name)
    asked = ProfileRequest(model=ModelSource(path=model.name), providers=("CPUExecutionProvider",), batch_sizes=(1, 4), calibration=source, budget_seconds=60)
    report = profile_model(asked, model.parent)
    assert report.failure is None
    assert (report.inputs_source, report.ragged_inputs) == ("calibration", True)
    failure = report.providers[0].batch_failure
    assert failure is not None
    assert failure.reason == "RaggedInputs"
    assert {point.batch_size for point in report.providers[0].curve} == {1}
