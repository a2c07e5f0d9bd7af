"""Copies in other precisions: what is made, what it answers, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.data import models

from metainfer_probe import adapt
from metainfer_probe.accuracy import Difference, compare_answers
from metainfer_probe.adapt import make_variant
from metainfer_probe.adapt.quantise import needs_short_weights, select_int8_recipe
from metainfer_probe.adapt.recipe import constant_names
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Feeds, ProbeError, SessionOptions
from metainfer_probe.contract import Precision

CPU, OPENVINO, CUDA = "CPUExecutionProvider", "OpenVINOExecutionProvider", "CUDAExecutionProvider"


def samples(name: str, *shape: int, count: int = 4) -> tuple[Feeds, ...]:
    return tuple({name: np.random.default_rng(index).standard_normal((1, *shape)).astype(np.float32)} for index in range(count))


def operators(path: Path) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for node in onnx.load(path).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def difference(path: Path, original: Path, asked: tuple[Feeds, ...], provider: str = CPU) -> Difference:
    """How far the copy's answers are from the file's, on the provider that will run the copy."""
    copy, given = find_backend(provider).open(path, SessionOptions()), find_backend(CPU).open(original, SessionOptions())
    return compare_answers([(copy.run(feeds), given.run(feeds)) for feeds in asked])


def convolutions(folder: Path, *, opset: int = models.DEFAULT_OPSET) -> Path:
    """Two convolutions and a product: convolutions prevail."""
    constants = {"w0": models.weights(8, 3, 3, 3), "w1": models.weights(8, 8, 3, 3), "fc": models.weights(8, 5), "flat": np.array([0, 8], np.int64)}
    nodes = [
        models.node("Conv", ["x", "w0"], ["a"], "stem", pads=[1] * 4),
        models.node("Relu", ["a"], ["r"]),
        models.node("Conv", ["r", "w1"], ["b"], "body", pads=[1] * 4),
        models.node("GlobalAveragePool", ["b"], ["p"]),
        models.node("Reshape", ["p", "flat"], ["f"]),
        models.node("MatMul", ["f", "fc"], ["y"], "head"),
    ]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 3, 12, 12])], [models.value("y", models.FLOAT, ["n", 5])], constants)
    return models.save(folder / f"conv{opset}.onnx", net, opset=opset)


def test_fp16_halves_the_weights_and_keeps_the_interface(tmp_path: Path) -> None:
    """Inputs and outputs stay fp32, so a client notices nothing; the copy is readable by both runtimes."""
    model, asked = convolutions(tmp_path), samples("x", 3, 12, 12)
    copy = make_variant(model, "fp16", calibration=None, workdir=tmp_path, provider=CPU)
    graph = onnx.load(copy).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {TensorProto.FLOAT}
    assert {tensor.data_type for tensor in graph.initializer if tensor.name.startswith("w")} == {TensorProto.FLOAT16}
    onnx.checker.check_model(str(copy))
    for provider in (CPU, OPENVINO):
        assert 0 < difference(copy, model, asked, provider).relative < 0.01


@pytest.mark.parametrize("provider", [CPU, OPENVINO])
@pytest.mark.parametrize("opset", [11, 17])
def test_convolutions_are_quantised_ahead_of_time(tmp_path: Path, provider: str, opset: int) -> None:
    """QDQ form on every provider; per channel also from an old opset, which is raised first."""
    model, asked = convolutions(tmp_path, opset=opset), samples("x", 3, 12, 12)
    copy = make_variant(model, "int8", calibration=asked, workdir=tmp_path, provider=provider)
    made = onnx.load(copy)
    assert operators(copy)["DequantizeLinear"] > 3
    assert "DynamicQuantizeLinear" not in operators(copy)
    assert next(entry.version for entry in made.opset_import if entry.domain == "") >= 13
    scales = [tensor for tensor in made.graph.initializer if tensor.name.startswith("w1") and "scale" in tensor.name]
    assert [list(tensor.dims) for tensor in scales] == [[8]], "one scale per output channel"
    assert 0 < difference(copy, model, asked, provider).relative < 0.05


def test_products_are_quantised_at_run_time_on_onnxruntime(tmp_path: Path) -> None:
    """No calibration is needed."""
    model, asked = models.dense(tmp_path), samples("x", 32)
    copy = make_variant(model, "int8", calibration=None, workdir=tmp_path, provider=CPU)
    assert "DynamicQuantizeLinear" in operators(copy)
    assert 0 < difference(copy, model, asked).relative < 0.05


def test_products_are_quantised_ahead_of_time_elsewhere(tmp_path: Path) -> None:
    """Only onnxruntime's CPU provider has kernels for activations quantised at run time."""
    model, asked = models.dense(tmp_path), samples("x", 32)
    copy = make_variant(model, "int8", calibration=asked, workdir=tmp_path, provider=OPENVINO)
    assert "DynamicQuantizeLinear" not in operators(copy)
    assert 0 < difference(copy, model, asked, OPENVINO).relative < 0.05


@pytest.mark.parametrize("provider", [CPU, OPENVINO])
def test_only_products_with_constant_weights_are_quantised(tmp_path: Path, provider: str) -> None:
    """Scores and mixing of an attention stay in floating point: quantising them breaks transformers."""
    model = models.attention(tmp_path)
    copy = make_variant(model, "int8", calibration=samples("x", 5, 16), workdir=tmp_path, provider=provider)
    nodes = onnx.load(copy).graph.node
    floating = {node.name: node for node in nodes if node.op_type == "MatMul"}
    dequantised = {output for node in nodes if node.op_type == "DequantizeLinear" for output in node.output}
    behind = dequantised | {output for node in nodes if node.op_type == "Transpose" and dequantised.issuperset(node.input) for output in node.output}
    assert {"scores", "mix"} <= set(floating)
    assert behind.isdisjoint([*floating["scores"].input, *floating["mix"].input])
    if provider == OPENVINO:
        assert all(behind.issuperset(floating[name].input) for name in "qkv"), "the linear layers are quantised"


def test_convolutions_stay_beside_quantised_products(tmp_path: Path) -> None:
    """Never dynamic int8 for convolutions: 3-8 times slower than fp32."""
    constants = {"w": models.weights(4, 3, 4, 4), "f": np.array([0, -1], np.int64), "m0": models.weights(36, 16), "m1": models.weights(16, 4)}
    nodes = [
        models.node("Conv", ["x", "w"], ["a"], "patches", strides=[4, 4]),
        models.node("Reshape", ["a", "f"], ["r"]),
        models.node("MatMul", ["r", "m0"], ["b"], "first"),
        models.node("MatMul", ["b", "m1"], ["y"], "second"),
    ]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 3, 12, 12])], [models.value("y", models.FLOAT, ["n", 4])], constants)
    copy = make_variant(models.save(tmp_path / "vit.onnx", net), "int8", calibration=None, workdir=tmp_path, provider=CPU)
    assert operators(copy)["Conv"] == 1
    assert "ConvInteger" not in operators(copy)
    assert operators(copy)["MatMulInteger"] == 2


def test_lstm_is_quantised_at_run_time(tmp_path: Path) -> None:
    """onnxruntime has a kernel for it."""
    copy = make_variant(models.recurrent(tmp_path), "int8", calibration=None, workdir=tmp_path, provider=CPU)
    assert "DynamicQuantizeLSTM" in operators(copy)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_weights_listed_among_the_inputs_are_weights(tmp_path: Path, precision: Precision) -> None:
    """Old files list them all: the copy has the one true input and still quantises or halves them."""
    model, asked = models.weights_among_inputs(tmp_path), samples("image", 3, 8, 8)
    copy = make_variant(model, precision, calibration=asked, workdir=tmp_path, provider=CPU)
    assert [value.name for value in onnx.load(copy).graph.input] == ["image"]
    assert 0 < difference(copy, model, asked).relative < 0.05


def test_a_copy_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds it by content, under another name too; other calibration inputs make another copy."""
    model, asked = convolutions(tmp_path), samples("x", 3, 12, 12)
    first = make_variant(model, "int8", calibration=asked, workdir=tmp_path, provider=CPU)
    other = make_variant(model, "int8", calibration=asked[:2], workdir=tmp_path, provider=CPU)
    monkeypatch.setattr(adapt, "_make", lambda *_: pytest.fail("made again"))
    renamed = tmp_path / "renamed.onnx"
    renamed.write_bytes(model.read_bytes())
    assert make_variant(renamed, "int8", calibration=asked, workdir=tmp_path, provider=CPU) == first
    assert other != first
    assert [path.name for path in (tmp_path / "variants").iterdir() if path.name.startswith("variant-")] == []


def test_external_data_is_read_and_counted_into_the_identity(tmp_path: Path) -> None:
    """Changed weights beside an unchanged file are another model."""
    model = tmp_path / "split.onnx"
    onnx.save(onnx.load(models.dense(tmp_path)), model, save_as_external_data=True, location="split.data", size_threshold=0)
    first = make_variant(model, "fp16", calibration=None, workdir=tmp_path, provider=CPU)
    assert 0 < difference(first, model, samples("x", 32)).relative < 0.01
    data = bytearray((tmp_path / "split.data").read_bytes())
    data[3] ^= 1
    (tmp_path / "split.data").write_bytes(data)
    assert make_variant(model, "fp16", calibration=None, workdir=tmp_path, provider=CPU) != first


def test_a_large_copy_keeps_its_weights_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past what one protobuf message holds; tried here with the limit turned down."""
    monkeypatch.setattr("metainfer_probe.adapt.recipe.EXTERNAL_ABOVE_BYTES", 1000)
    model, asked = models.dense(tmp_path, width=64), samples("x", 64)
    made: tuple[tuple[Precision, str], ...] = (("fp16", CPU), ("int8", CPU), ("int8", OPENVINO))
    for precision, provider in made:
        copy = make_variant(model, precision, calibration=asked, workdir=tmp_path, provider=provider)
        assert copy.stat().st_size < 4096
        assert sum(path.stat().st_size for path in copy.parent.iterdir()) > 4096
        assert 0 < difference(copy, model, asked, provider).relative < 0.05


def elementwise(folder: Path) -> Path:
    net = models.graph([models.node("Sigmoid", ["x"], ["y"])], [models.value("x", models.FLOAT, ["n", 4])], [models.value("y", models.FLOAT, ["n", 4])], {})
    return models.save(folder / "elementwise.onnx", net)


def branches(folder: Path) -> Path:
    """Both branches of an If name a constant alike, as exporters do; onnxruntime's fp16 converter takes names for unique."""

    def branch(name: str) -> onnx.GraphProto:
        return models.graph([models.node("Mul", ["x", "factor"], [name])], [], [models.value(name, models.FLOAT, None)], {"factor": np.float32(2)})

    nodes = [
        models.node("ReduceMax", ["x"], ["top"], keepdims=0),
        models.node("Greater", ["top", "limit"], ["high"]),
        models.node("If", ["high"], ["y"], then_branch=branch("then"), else_branch=branch("otherwise")),
    ]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 4])], [models.value("y", models.FLOAT, None)], {"limit": np.float32(0)})
    return models.save(folder / "branches.onnx", net)


@pytest.mark.parametrize(
    ("build", "precision", "reason"),
    [
        pytest.param(models.quantized_dense, "int8", "AlreadyQuantised", id="int8 of int8"),
        pytest.param(models.quantized_dense, "fp16", "AlreadyQuantised", id="fp16 of int8"),
        pytest.param(models.half_dense, "int8", "PrecisionUnsupported", id="int8 of fp16"),
        pytest.param(models.small_cnn, "int8", "CalibrationMissing", id="static int8 without inputs"),
        pytest.param(elementwise, "int8", "NothingToQuantise", id="no weights"),
        pytest.param(branches, "fp16", "VariantFailed", id="what the tool stumbles over"),
    ],
)
def test_what_cannot_be_made_has_a_reason(tmp_path: Path, build: object, precision: Precision, reason: str) -> None:
    """And the message names the file."""
    model = build(tmp_path)  # type: ignore[operator]
    with pytest.raises(ProbeError) as caught:
        make_variant(model, precision, calibration=None, workdir=tmp_path, provider=CPU)
    assert caught.value.reason == reason
    assert model.name in caught.value.message


def test_an_fp16_file_is_its_own_fp16_copy(tmp_path: Path) -> None:
    """Nothing to do is no failure."""
    model = models.half_dense(tmp_path)
    assert make_variant(model, "fp16", calibration=None, workdir=tmp_path, provider=CPU) == model


def test_too_little_memory_is_said_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it needs and what there is, instead of an OOM kill."""
    monkeypatch.setattr(adapt, "memory_limit_bytes", lambda: 200 << 20)
    with pytest.raises(ProbeError, match=r"needs about 0\.2 GiB of memory, the limit here is 0\.2 GiB") as caught:
        make_variant(models.dense(tmp_path), "fp16", calibration=None, workdir=tmp_path, provider=CPU)
    assert caught.value.reason == "OutOfMemory"


@pytest.mark.parametrize(
    ("flags", "machine", "provider", "want"),
    [
        pytest.param("sse4_2 avx2", "x86_64", CPU, True, id="AVX2 saturates"),
        pytest.param("avx2 avx512f avx512_vnni", "x86_64", CPU, False, id="VNNI"),
        pytest.param("avx2 avx_vnni", "x86_64", OPENVINO, False, id="AVX-VNNI"),
        pytest.param("asimd", "aarch64", CPU, False, id="ARM"),
        pytest.param("avx2", "x86_64", CUDA, False, id="the card computes, not the CPU"),
    ],
)
def test_weights_get_seven_bits_where_products_saturate(tmp_path: Path, flags: str, machine: str, provider: str, want: bool) -> None:
    """x86 without a dot-product instruction only."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: fpu {flags}\n")
    assert needs_short_weights(provider, machine=machine, cpuinfo=cpuinfo) is want


def test_cards_get_signed_activations(tmp_path: Path) -> None:
    """TensorRT and CUDA take zero as zero only."""
    model, asked = convolutions(tmp_path), samples("x", 3, 12, 12)
    assert select_int8_recipe(model, CUDA).name == "int8-static-s8"
    copy = make_variant(model, "int8", calibration=asked, workdir=tmp_path, provider=CUDA)
    zero_points = [tensor for tensor in onnx.load(copy).graph.initializer if "zero_point" in tensor.name and tensor.data_type == TensorProto.UINT8]
    assert zero_points == []


def test_what_follows_from_constants_is_constant(tmp_path: Path) -> None:
    """A transposed weight is a weight: exporters write linear layers so."""
    nodes = [models.node("Transpose", ["w"], ["wt"], perm=[1, 0]), models.node("MatMul", ["x", "wt"], ["y"], "product")]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 8])], [models.value("y", models.FLOAT, ["n", 6])], {"w": models.weights(6, 8)})
    model = models.save(tmp_path / "linear.onnx", net)
    assert constant_names(onnx.load(model)) == {"w", "wt"}
    assert "MatMulInteger" in operators(make_variant(model, "int8", calibration=None, workdir=tmp_path, provider=CPU))
