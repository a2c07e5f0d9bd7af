"""Weights past what one protobuf message holds: the memory rule counts them, and says how much is needed before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.data import models
from tests.unit.probe.test_strangers import profile

from metainfer_probe.adapt import _check_memory
from metainfer_probe.adapt.half import HALF_RECIPE
from metainfer_probe.backends.base import ProbeError
from metainfer_probe.model_file import PROTOBUF_LIMIT_BYTES, find_memory_shortage, memory_needed_bytes, read_model

WIDTH = 24_576
WEIGHT_BYTES = 4 * WIDTH * WIDTH
"""2.25 GiB; the data file is sparse and takes no room on the disk."""


def test_a_limit_below_the_weights_ends_in_how_much_is_needed(tmp_path: Path) -> None:
    """Not in a kill that somebody would try again: the file itself has a few hundred bytes, and nothing of the rest was loaded."""
    path = models.external(tmp_path, "weights.bin", data_bytes=WEIGHT_BYTES, width=WIDTH)
    outcome = profile(path, memory_limit_bytes=2 << 30, budget_seconds=60)
    assert WEIGHT_BYTES > PROTOBUF_LIMIT_BYTES
    assert (outcome.failure.reason, outcome.failure.retryable) == ("OutOfMemory", False)
    assert "needs about 2.40 GiB" in outcome.failure.message
    assert "2.00 GiB are allowed" in outcome.failure.message
    assert (outcome.report.weight_bytes, outcome.report.parameters) == (WEIGHT_BYTES, WIDTH * WIDTH)
    assert outcome.report.file_bytes < 1000
    assert outcome.peak_bytes < 1 << 30


def test_the_rule_of_portrait_and_benchmark_knows_the_limit(tmp_path: Path) -> None:
    """A benchmark's is the target container's own."""
    model = replace(read_model(models.external(tmp_path, "w.bin", data_bytes=1024)), weight_bytes=WEIGHT_BYTES)
    shortage = find_memory_shortage(model, 2 << 30)
    assert shortage is not None
    assert (shortage.reason, shortage.retryable) == ("OutOfMemory", False)
    assert "needs about 2.40 GiB" in shortage.message
    assert find_memory_shortage(model, memory_needed_bytes(model)) is None


def test_a_copy_that_does_not_fit_into_memory_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is begun; ``test_adapt`` has the copies that keep their weights beside the file."""
    monkeypatch.setattr("metainfer_probe.adapt.memory_limit_bytes", lambda: 4 << 30)
    with pytest.raises(ProbeError) as caught:
        _check_memory(WEIGHT_BYTES, HALF_RECIPE, Path("model.onnx"))
    assert (caught.value.reason, caught.value.retryable) == ("OutOfMemory", False)
    assert "fp16 copy of model.onnx (2.25 GiB of weights) needs about 7.0 GiB" in caught.value.message
