"""Both runtimes behind one protocol: what they load, what they refuse and why, and what they say really ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from tests.data import models

from metainfer_probe.backends import available_providers, find_backend
from metainfer_probe.backends.base import ProbeError, SessionOptions
from metainfer_probe.inputs import generate
from metainfer_probe.model_file import read_model

ORT, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
BOTH = pytest.mark.parametrize("provider", [ORT, OPENVINO])


def refused(provider: str, path: Path, **options: object) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        find_backend(provider).open(path, SessionOptions(**options))  # type: ignore[arg-type]
    return caught.value


def test_a_provider_that_is_not_here_names_those_that_are() -> None:
    """The user sees at once what this image can do."""
    assert available_providers() == (ORT, OPENVINO)
    with pytest.raises(ProbeError) as caught:
        find_backend("CUDAExecutionProvider")
    assert caught.value.reason == "ProviderMissing"
    assert ORT in caught.value.message
    assert OPENVINO in caught.value.message


@BOTH
@pytest.mark.parametrize(
    "build",
    [models.dense, models.small_cnn, models.attention, models.weights_among_inputs, models.contributed_operators, models.unused_domain, models.recurrent],
)
def test_a_good_model_loads_and_says_what_runs_where(provider: str, build: Callable[[Path], Path], tmp_path: Path) -> None:
    """Every node is assigned to the provider; inputs are the true ones, with their types and free sizes."""
    path = build(tmp_path)
    model = read_model(path)
    session = find_backend(provider).open(path, SessionOptions())
    readback = session.readback()
    assert (readback.provider, readback.precision, readback.coverage_permille) == (provider, "fp32", 1000)
    assert readback.assigned_nodes > 0
    assert [spec.name for spec in session.inputs] == [spec.name for spec in model.inputs]
    outputs = session.run(generate(model, 0))
    assert len(outputs) == len(model.outputs)
    session.close()


@pytest.mark.parametrize(
    "build", [models.dense, models.small_cnn, models.attention, models.token_tables, models.weights_among_inputs, models.contributed_operators]
)
def test_both_runtimes_give_the_same_answer(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """fp32 is fp32: asked for explicitly, no runtime computes in less."""
    path = build(tmp_path)
    feeds = generate(read_model(path), 0)
    answers = [find_backend(provider).open(path, SessionOptions(precision="fp32")).run(feeds)[0] for provider in (ORT, OPENVINO)]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-3, atol=1e-5)  # type: ignore[arg-type]


@BOTH
def test_operators_of_an_unknown_library_are_named_with_their_domain(provider: str, tmp_path: Path) -> None:
    """All of them at once, not the first."""
    error = refused(provider, models.extension_operators(tmp_path))
    assert error.reason == "UnknownOperators"
    for name in ("ai.onnx.contrib", "StringUpper", "StringToHashBucket"):
        assert name in error.message


def test_an_operator_one_runtime_lacks_does_not_stop_the_other(tmp_path: Path) -> None:
    """A model that one runtime cannot read is not a broken model."""
    path = models.one_runtime_only(tmp_path)
    find_backend(ORT).open(path, SessionOptions()).close()
    error = refused(OPENVINO, path)
    assert error.reason == "UnknownOperators"
    assert "com.microsoft.ExpandDims" in error.message


@BOTH
@pytest.mark.parametrize(("ir", "opset"), [(14, 17), (15, 17), (30, 17), (13, 23), (13, 26)])
def test_a_newer_format_number_alone_stops_nobody(provider: str, ir: int, opset: int, tmp_path: Path) -> None:
    """Nothing in the graph needs it, so the number is lowered on a copy; the file stays as it was."""
    path = models.dense(tmp_path, ir=ir, opset=opset)
    before = path.read_bytes()
    session = find_backend(provider).open(path, SessionOptions())
    assert np.asarray(session.run({"x": np.ones((2, 32), np.float32)})[0]).shape == (2, 32)
    assert path.read_bytes() == before


def test_lowering_the_number_keeps_external_data_in_reach(tmp_path: Path) -> None:
    """The copy is loaded from memory; its weights still lie beside the file."""
    path = models.external(tmp_path, "w.bin", data_bytes=1024)
    import onnx

    model = onnx.load(path, load_external_data=False)
    model.ir_version = 30
    path.write_bytes(model.SerializeToString())
    session = find_backend(ORT).open(path, SessionOptions())
    assert np.asarray(session.run({"x": np.ones((1, 16), np.float32)})[0]).shape == (1, 16)


def test_a_format_that_is_needed_and_too_new_ends_as_too_old_a_runtime(tmp_path: Path) -> None:
    """Content that this code does not know may need the newer format: both numbers are named, nobody calls the model broken."""
    path = models.from_the_future(tmp_path)
    error = refused(ORT, path)
    assert error.reason == "RuntimeTooOld"
    assert "20" in error.message
    assert "up to" in error.message


def test_an_operator_set_from_the_future_names_runtime_and_maximum(tmp_path: Path) -> None:
    """ONNX Runtime refuses it, OpenVINO takes it."""
    path = models.dense(tmp_path, opset=99)
    error = refused(ORT, path)
    assert error.reason == "RuntimeTooOld"
    assert "99" in error.message
    assert "up to" in error.message
    find_backend(OPENVINO).open(path, SessionOptions()).close()


def test_outputs_that_are_no_tensors_run_on_the_runtime_that_has_them(tmp_path: Path) -> None:
    """Strings, lists of maps and empty arrays come back as they are; the other runtime gives a reason."""
    path = models.odd_outputs(tmp_path)
    label, probabilities, hits = find_backend(ORT).open(path, SessionOptions()).run({"x": np.zeros((2, 12), np.float32)})
    assert np.asarray(label).tolist() in (["low", "low"], ["high", "high"])
    assert isinstance(probabilities, list)
    assert set(probabilities[0]) == {"low", "high"}
    assert np.asarray(hits).shape == (0, 2)
    error = refused(OPENVINO, path)
    assert error.reason == "OutputsUnsupported"
    assert "probabilities" in error.message


@BOTH
def test_a_file_that_is_no_model_ends_in_a_reason(provider: str, tmp_path: Path) -> None:
    """Even if somebody skips the reading before."""
    path = tmp_path / "x.onnx"
    path.write_bytes(b"\x08\x08\x12\x03abc" + bytes(50))
    assert refused(provider, path).reason in {"ModelInvalid", "RuntimeCannotLoad", "NotOnnx"}


def test_a_node_that_fails_is_named(tmp_path: Path) -> None:
    """The name from the user's own model, not a source line of the runtime."""
    session = find_backend(ORT).open(models.batch_baked_in(tmp_path), SessionOptions())
    session.run({"pixels": np.ones((1, 3, 16, 16), np.float32)})
    with pytest.raises(ProbeError) as caught:
        session.run({"pixels": np.ones((4, 3, 16, 16), np.float32)})
    assert caught.value.reason == "NodeFailed"
    assert "/head/Reshape_7" in caught.value.message
    assert "onnxruntime_src" not in caught.value.message


def test_an_index_outside_its_table_has_its_own_reason(tmp_path: Path) -> None:
    """So that inputs can retreat to smaller values."""
    session = find_backend(ORT).open(models.token_tables(tmp_path), SessionOptions())
    feeds = {name: np.full((1, 4), 500) for name in "pqr"}
    with pytest.raises(ProbeError) as caught:
        session.run(feeds)
    assert caught.value.reason == "InputOutOfRange"


@BOTH
def test_a_wrong_input_shape_is_refused_with_a_reason(provider: str, tmp_path: Path) -> None:
    """Not with a traceback of the binding."""
    session = find_backend(provider).open(models.dense(tmp_path), SessionOptions())
    with pytest.raises(ProbeError) as caught:
        session.run({"x": np.ones((1, 7), np.float32)})
    assert caught.value.reason in {"InputShapeRefused", "NodeFailed"}


@BOTH
def test_fixed_shapes_are_fixed(provider: str, tmp_path: Path) -> None:
    """Some models win, or load, only with fixed shapes."""
    session = find_backend(provider).open(models.dense(tmp_path), SessionOptions(fixed_shapes={"x": (3, 32)}))
    assert session.inputs[0].shape == (3, 32)
    assert np.asarray(session.run({"x": np.ones((3, 32), np.float32)})[0]).shape == (3, 32)


@BOTH
def test_several_callers_may_run_at_once(provider: str, tmp_path: Path) -> None:
    """Each gets the answer to its own question."""
    session = find_backend(provider).open(models.dense(tmp_path), SessionOptions(parallel_runs=3))
    feeds = [{"x": np.full((1, 32), float(index), np.float32)} for index in range(3)]
    want = [np.asarray(session.run(feed)[0]) for feed in feeds]
    wrong: list[int] = []

    def loop(index: int) -> None:
        wrong.extend(index for _ in range(30) if not np.array_equal(np.asarray(session.run(feeds[index])[0]), want[index]))

    threads = [Thread(target=loop, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@BOTH
def test_kernel_times_need_profiling(provider: str, tmp_path: Path) -> None:
    """Without it nothing is recorded."""
    session = find_backend(provider).open(models.dense(tmp_path), SessionOptions())
    session.run({"x": np.ones((1, 32), np.float32)})
    assert session.kernel_times() == []
    assert session.activation_bytes() == 0


def test_a_quantised_file_reads_back_as_int8_on_both(tmp_path: Path) -> None:
    """Read from what the runtime made of the file."""
    path = models.quantized_dense(tmp_path)
    for provider in (ORT, OPENVINO):
        assert find_backend(provider).open(path, SessionOptions(precision="int8")).readback().precision == "int8"


def test_half_precision_that_is_only_stored_reads_back_as_fp32(tmp_path: Path) -> None:
    """ONNX Runtime on x86 casts to fp32 around each kernel: it runs, but not natively."""
    backend = find_backend(ORT)
    session = backend.open(models.half_dense(tmp_path), SessionOptions(precision="fp16"))
    native = "fp16" in backend.native_precisions()
    assert session.readback().precision == ("fp16" if native else "fp32")
    assert np.asarray(session.run({"x": np.ones((1, 16), np.float16)})[0]).dtype == np.float16


def test_each_precision_says_which_file_it_needs() -> None:
    """int8 is a file everywhere; bf16 is refused by ONNX Runtime on a CPU and a hint for OpenVINO where the CPU has it."""
    ort, openvino = find_backend(ORT), find_backend(OPENVINO)
    assert (ort.file_precision("fp32"), ort.file_precision("fp16"), ort.file_precision("int8")) == (None, "fp16", "int8")
    assert (openvino.file_precision("fp32"), openvino.file_precision("int8")) == (None, "int8")
    with pytest.raises(ProbeError) as caught:
        ort.file_precision("bf16")
    assert caught.value.reason == "PrecisionUnsupported"
    if "bf16" in openvino.native_precisions():
        assert openvino.file_precision("bf16") is None
    else:
        with pytest.raises(ProbeError):
            openvino.file_precision("bf16")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_made_by_a_hint_is_read_back_from_the_layers(precision: str, tmp_path: Path) -> None:
    """Not from what was asked for."""
    backend = find_backend(OPENVINO)
    if precision not in backend.native_precisions():
        pytest.skip(f"this CPU has no {precision}")
    path = models.dense(tmp_path, width=256)
    assert backend.open(path, SessionOptions(precision=precision)).readback().precision == precision  # type: ignore[arg-type]
    assert backend.open(path, SessionOptions(precision="fp32")).readback().precision == "fp32"
