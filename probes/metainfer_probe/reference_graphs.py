"""The networks a card is measured with: one matrix product per shape, and one node for the cost of a launch.

Built in code with fixed seeds, in the file precision a backend asks for, so that every runtime meets the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from metainfer_probe.backends.base import Array, Feeds
from metainfer_probe.contract import MatmulShape, Precision

MATMUL_SHAPES: Mapping[MatmulShape, tuple[int, int, int]] = {
    "tiny": (32, 32, 32),
    "gemv": (1, 2048, 2048),
    "m32": (32, 1024, 1024),
    "m256": (256, 1024, 1024),
    "big": (1024, 1024, 1024),
}
"""(M, N, K): launch bound; one token or sample (memory bound); a batch of tokens; a short sequence; the arithmetic peak."""

OPSET = 17
IR_VERSION = 8
"""Old enough for every runtime of the last four years; nothing here needs more."""
_SCALE = 1 / 32
_SEED = 7


def write_matmul(folder: Path, shape: MatmulShape, file_precision: Precision | None) -> tuple[Path, Feeds]:
    """A file with y = x · w for one shape, and its input."""
    rows, columns, inner = MATMUL_SHAPES[shape]
    random = np.random.default_rng(_SEED)
    weight = random.standard_normal((inner, columns), np.float32)
    feed = random.standard_normal((rows, inner), np.float32)
    precision = file_precision or "fp32"
    if precision == "int8":
        graph = _quantized_graph(weight, (rows, inner, columns))
    else:
        number = np.float16 if precision == "fp16" else np.float32
        graph = _plain_graph(weight.astype(number), (rows, inner, columns))
        feed = feed.astype(number)
    return _save(folder / f"matmul-{shape}-{precision}.onnx", graph), {"x": feed}


def write_launch(folder: Path) -> tuple[Path, Feeds]:
    """A file with one elementwise node on sixteen numbers: what remains is the cost of calling the runtime."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "launch")], "launch", values[:1], values[1:])
    return _save(folder / "launch.onnx", graph), {"x": np.ones((1, 16), np.float32)}


def _plain_graph(weight: Array, sizes: tuple[int, int, int]) -> GraphProto:
    rows, inner, columns = sizes
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    inputs = [helper.make_tensor_value_info("x", kind, [rows, inner])]
    outputs = [helper.make_tensor_value_info("y", kind, [rows, columns])]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    return helper.make_graph([node], "matmul", inputs, outputs, [numpy_helper.from_array(weight, "w")])


def _quantized_graph(weight: npt.NDArray[np.float32], sizes: tuple[int, int, int]) -> GraphProto:
    """Quantise-dequantise form with uint8 activations and int8 weights: every runtime turns it into its own int8 product."""
    rows, inner, columns = sizes
    stored = np.clip(np.round(weight / _SCALE), -127, 127).astype(np.int8)
    constants = {
        "w": stored,
        "scale": np.float32(_SCALE),
        "zero": np.uint8(128),
        "zero_w": np.int8(0),
        "scale_y": np.float32(1.0),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], "quantize"),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], "dequantize"),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero_w"], ["wd"], "dequantize_weight"),
        helper.make_node("MatMul", ["xd", "wd"], ["p"], "product"),
        helper.make_node("QuantizeLinear", ["p", "scale_y", "zero"], ["pq"], "quantize_result"),
        helper.make_node("DequantizeLinear", ["pq", "scale_y", "zero"], ["y"], "dequantize_result"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return helper.make_graph(nodes, "matmul_int8", inputs, outputs, initializers)


def _save(path: Path, graph: GraphProto) -> Path:
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.save(model, path)
    return path
