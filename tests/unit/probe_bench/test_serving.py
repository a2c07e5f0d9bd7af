"""One way to open a model for serving: what was asked for is what runs, or there is a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data import models
from tests.unit.probe_bench.sessions import FakeSession

from metainfer_probe import serving
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Feeds, ProbeError, SessionOptions
from metainfer_probe.contract import Precision, Readback, ServingConfig
from metainfer_probe.serving import open_serving_session, prepare_file

CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"


def config(provider: str, precision: Precision = "fp32", concurrency: int = 1) -> ServingConfig:
    return ServingConfig(execution_provider=provider, precision=precision, concurrency=concurrency)


def dense_requests(width: int = 32) -> tuple[Feeds, ...]:
    return tuple({"x": np.random.default_rng(index).standard_normal((1, width)).astype(np.float32)} for index in range(4))


@pytest.mark.parametrize("provider", [CPU, OPENVINO])
@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16", "fp16"])
def test_what_opens_computes_in_the_precision_asked_for(tmp_path: Path, provider: str, precision: Precision) -> None:
    """Every precision that this processor has runs and reads back; one that it lacks ends in a reason, never in another precision."""
    settings = config(provider, precision, concurrency=2)
    try:
        session = open_serving_session(models.dense(tmp_path), settings, calibration=dense_requests(), workdir=tmp_path)
    except ProbeError as error:
        assert precision not in find_backend(provider).native_precisions()
        assert error.reason in ("PrecisionUnsupported", "PrecisionNotEffective")  # noqa: PT017 - either way is right, by processor
        return
    assert session.readback().precision == precision
    assert session.readback().provider == provider
    answer = session.run(dense_requests()[0])[0]
    assert isinstance(answer, np.ndarray)
    assert answer.shape == (1, 32)
    session.close()


@pytest.mark.parametrize("provider", [CPU, OPENVINO])
@pytest.mark.parametrize("build", [models.quantized_dense, models.half_dense])
def test_fp32_stands_for_the_file_as_given(tmp_path: Path, provider: str, build: Callable[[Path], Path]) -> None:
    """A file that is int8 or fp16 already is served as it is; no copy is made."""
    model = build(tmp_path)
    assert prepare_file(model, config(provider), calibration=None, workdir=tmp_path) == model
    open_serving_session(model, config(provider), calibration=None, workdir=tmp_path).close()
    assert not (tmp_path / "variants").exists()


class _Elsewhere:
    """A backend that opens something else than what was asked."""

    provider = CPU

    def __init__(self, readback: Readback) -> None:
        self.session = FakeSession()
        self.session.readback = lambda: readback  # type: ignore[method-assign]
        self.closed = False

    def runtime_version(self) -> str:
        return "runtime 1.0"

    def file_precision(self, precision: Precision) -> Precision | None:
        return None

    def open(self, model: Path, options: SessionOptions) -> FakeSession:
        self.options = options
        self.session.close = lambda: setattr(self, "closed", True)  # type: ignore[method-assign]
        return self.session


@pytest.mark.parametrize(
    ("provider", "precision", "reason"),
    [
        pytest.param(CPU, "bf16", "PrecisionNotEffective", id="faster and different"),
        pytest.param(OPENVINO, "fp32", "ProviderNotEffective", id="another provider"),
    ],
)
def test_a_runtime_that_does_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, precision: Precision, reason: str
) -> None:
    """fp32 was asked for on the CPU provider; the session is closed and the message says what really ran."""
    backend = _Elsewhere(Readback(provider=provider, precision=precision, coverage_permille=1000, assigned_nodes=3))
    monkeypatch.setattr(serving, "find_backend", lambda _: backend)
    with pytest.raises(ProbeError) as caught:
        open_serving_session(models.dense(tmp_path), config(CPU, concurrency=3), calibration=None, workdir=tmp_path, threads=2)
    assert caught.value.reason == reason
    assert backend.closed
    assert backend.options == SessionOptions(precision="fp32", threads=2, parallel_runs=3)


def test_a_copy_that_the_runtime_refuses_is_our_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file is fine: the message says that the copy is not."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(models.extension_operators(tmp_path).read_bytes())
    monkeypatch.setattr(serving, "make_variant", lambda *_, **__: broken)
    with pytest.raises(ProbeError, match=r"cannot open the int8 copy of dense\.onnx") as caught:
        open_serving_session(models.dense(tmp_path), config(CPU, "int8"), calibration=None, workdir=tmp_path)
    assert caught.value.reason == "VariantFailed"


def test_an_unknown_provider_is_named(tmp_path: Path) -> None:
    """With what this image has."""
    with pytest.raises(ProbeError, match=r"TpuExecutionProvider.*CPUExecutionProvider") as caught:
        open_serving_session(models.dense(tmp_path), config("TpuExecutionProvider"), calibration=None, workdir=tmp_path)
    assert caught.value.reason == "ProviderMissing"
