"""Figures counted from the stored graph: weights, precision, depth, and batches that were baked in.

Pure functions over ``ModelProto``; nothing is run, external data is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto, TensorShapeProto

from metainfer_probe.contract import INTEGER_LIMIT, Precision
from metainfer_probe.dtypes import tensor_bytes
from metainfer_probe.graph import iter_graphs, iter_nodes, iter_tensors, read_constants, spelt, true_inputs

_QUANTIZED_OPERATORS = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger ConvInteger QGemm QAttention "
    "DynamicQuantizeMatMul MatMulIntegerToFloat DynamicQuantizeLSTM QLinearAdd QEmbedLayerNormalization MatMulNBits".split()
)  # fmt: skip
_FLOATS: Mapping[int, Precision] = {TensorProto.FLOAT: "fp32", TensorProto.DOUBLE: "fp32", TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
_BAKED_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Weights:
    """All constants of a model: elements and stored bytes."""

    elements: int
    total_bytes: int


def count_weights(model: ModelProto) -> Weights:
    """Everything constant in the model.

    Initialisers, tensors in attributes (some exporters keep weights in ``Constant`` nodes), and constants that the graph
    itself makes from a constant shape (``ConstantOfShape``), which a runtime folds into weights as well.
    """
    elements = total = 0
    for tensor in iter_tensors(model):
        count = math.prod(tensor.dims)
        elements += count
        total += tensor_bytes(tensor.data_type, count)
    for graph in iter_graphs(model):
        constants = read_constants(graph)
        for node in graph.node:
            if node.op_type == "ConstantOfShape" and node.output[0] in constants.shapes:
                count = max(0, math.prod(constants.shapes[node.output[0]]))
                element_type = next((attribute.t.data_type for attribute in node.attribute if attribute.name == "value"), TensorProto.FLOAT)
                elements += count
                total += tensor_bytes(element_type, count)
    return Weights(min(elements, INTEGER_LIMIT), min(total, INTEGER_LIMIT))


def weights_of_nodes(model: ModelProto) -> dict[str, int]:
    """Bytes of the initialisers that each named node of the main graph reads."""
    sizes = {tensor.name: tensor_bytes(tensor.data_type, math.prod(tensor.dims)) for tensor in model.graph.initializer}
    return {node.name: sum(sizes.get(name, 0) for name in node.input) for node in model.graph.node if node.name}


def stored_precision(model: ModelProto) -> Precision:
    """``int8`` when the graph quantises, else the floating type that holds most weight bytes (fp32 without weights)."""
    if any(node.op_type in _QUANTIZED_OPERATORS for node in iter_nodes(model)):
        return "int8"
    weight_bytes: dict[Precision, int] = {"fp32": 0, "fp16": 0, "bf16": 0}
    for tensor in iter_tensors(model):
        precision = _FLOATS.get(tensor.data_type)
        if precision is not None:
            weight_bytes[precision] += tensor_bytes(tensor.data_type, math.prod(tensor.dims))
    best = max(weight_bytes, key=lambda name: weight_bytes[name])
    if weight_bytes[best] == 0:
        kinds = {_FLOATS.get(value.type.tensor_type.elem_type) for value in true_inputs(model)}
        return "fp16" if kinds == {"fp16"} else "fp32"
    return best


def longest_path(graph: GraphProto) -> int:
    """Nodes on the longest path of the main graph (its nodes are stored in topological order)."""
    depth: dict[str, int] = {}
    for node in graph.node:
        here = 1 + max((depth.get(name, 0) for name in node.input), default=0)
        for name in node.output:
            depth[name] = here
    return max(depth.values(), default=0)


def find_baked_batch(model: ModelProto) -> tuple[str, ...]:
    """Names of Reshape and Expand nodes on the way from an input whose constant target shape fixes dimension 0.

    Only for inputs that promise a free first dimension; such a node makes any batch but the recorded one impossible or,
    on runtimes that do not check, silently wrong. Nodes that flatten everything (one dimension, or a first dimension
    of 0 or -1) keep the batch.
    """
    constants = read_constants(model.graph)
    from_input = {value.name for value in true_inputs(model) if _first_is_free(value.type.tensor_type.shape.dim)}
    found = []
    for node in model.graph.node:
        if not from_input.intersection(node.input):
            continue
        from_input.update(node.output)
        if node.op_type == "Reshape" and node.input[0] in from_input and len(node.input) > 1:
            target = constants.values.get(node.input[1], ())
            if len(target) > 1 and target[0] > 0 and -1 not in target:
                found.append(spelt(node.name or f"{node.op_type} -> {spelt(node.output[0])}"))
    return tuple(found[:_BAKED_LIMIT])


def _first_is_free(dimensions: Iterable[TensorShapeProto.Dimension]) -> bool:
    first = next(iter(dimensions), None)
    return first is not None and not (first.HasField("dim_value") and first.dim_value > 0)
