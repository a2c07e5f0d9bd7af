"""Walks over an ONNX graph as it is stored: every tensor in it, its true inputs and outputs, what is constant.

Static and runtime-free. Attributes, subgraphs and local functions are visited, because exporters put weights in all of
these. Callers own the ``ModelProto``; nothing here changes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper

from metainfer_probe.contract import TensorSpec
from metainfer_probe.dtypes import element_name

RANK_LIMIT = 64
"""Numpy's own; runtimes stop earlier."""
_CONSTANT_LIMIT_ELEMENTS = 4096
"""Shapes, axes and scalars are read as values; anything larger is a weight and is only counted."""


def iter_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph, then every subgraph of its nodes and of local functions."""
    yield model.graph
    for node in (*model.graph.node, *_function_nodes(model)):
        yield from _subgraphs(node)


def iter_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the main graph, subgraphs and local functions."""
    for graph in iter_graphs(model):
        yield from graph.node
    yield from _function_nodes(model)


def iter_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor: initialisers, both parts of sparse ones, and tensors inside attributes."""
    for graph in iter_graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in iter_nodes(model):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for sparse in (*attribute.sparse_tensors, *((attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ())):
                yield from (sparse.values, sparse.indices)


def true_inputs(model: ModelProto) -> tuple[ValueInfoProto, ...]:
    """Graph inputs that are not initialisers: older files list every weight among the inputs as well."""
    stored = {tensor.name for tensor in model.graph.initializer} | {sparse.values.name for sparse in model.graph.sparse_initializer}
    return tuple(value for value in model.graph.input if value.name not in stored)


def spec(value: ValueInfoProto) -> TensorSpec:
    """Name, element type and shape; free dimensions (symbolic, unnamed, or not positive) are -1, a rank past every runtime's is none."""
    kind = value.type.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return TensorSpec(name=value.name[:512], dtype=_container_name(value.type)[:32], shape=None)
    tensor = value.type.tensor_type if kind == "tensor_type" else value.type.sparse_tensor_type
    known = tensor.HasField("shape") and len(tensor.shape.dim) <= RANK_LIMIT
    shape = tuple(_size(dimension) for dimension in tensor.shape.dim) if known else None
    return TensorSpec(name=value.name[:512], dtype=element_name(tensor.elem_type), shape=shape)


def dimension_names(value: ValueInfoProto) -> tuple[str, ...]:
    """Symbolic names of the dimensions, empty where a dimension has none."""
    return tuple(dimension.dim_param for dimension in value.type.tensor_type.shape.dim)


@dataclass(frozen=True, slots=True)
class Constants:
    """What is known without running: small constants as values, larger ones as shapes only."""

    values: Mapping[str, tuple[int | float, ...]]
    shapes: Mapping[str, tuple[int, ...]]

    def scalar(self, name: str) -> int | float | None:
        """The value of a constant with exactly one element."""
        value = self.values.get(name)
        return value[0] if value is not None and len(value) == 1 else None


def read_constants(graph: GraphProto) -> Constants:
    """Initialisers and ``Constant`` / ``ConstantOfShape`` nodes of one graph."""
    values: dict[str, tuple[int | float, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors += [(node.output[0], tensor) for tensor in _constant_tensors(node)]
    for name, tensor in tensors:
        shapes[name] = tuple(tensor.dims)
        value = small_value(tensor)
        if value is not None:
            values[name] = value
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in values:
            shapes[node.output[0]] = tuple(int(size) for size in values[node.input[0]])
    return Constants(values, shapes)


def small_value(tensor: TensorProto) -> tuple[int | float, ...] | None:
    """Elements of a small numeric tensor stored in the file itself, else None."""
    if math.prod(tensor.dims) > _CONSTANT_LIMIT_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
        return None
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return None
    try:
        return tuple(numpy_helper.to_array(tensor).ravel().tolist())
    except (ValueError, TypeError, KeyError):
        return None  # announces more elements than it holds: the runtime will refuse the file with its own words


def spelt(name: object) -> str:
    """A name as text: protobuf hands out bytes where it is none."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def attribute_value(node: NodeProto, name: str) -> object:
    """Value of an attribute, None when absent."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return None


def _constant_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.name == "value":
            yield attribute.t
        elif attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
            value = onnx.helper.get_attribute_value(attribute)
            yield numpy_helper.from_array(np.asarray(value, np.int64 if "int" in attribute.name else np.float32))


def _function_nodes(model: ModelProto) -> Iterator[NodeProto]:
    for function in model.functions:
        yield from function.node


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        graphs = (attribute.g, *attribute.graphs) if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            yield graph
            for inner in graph.node:
                yield from _subgraphs(inner)


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int:
    return dimension.dim_value if dimension.HasField("dim_value") and dimension.dim_value > 0 else -1


def _container_name(kind: TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return f"sequence({_container_name(kind.sequence_type.elem_type)})"
    if which == "map_type":
        return f"map({element_name(kind.map_type.key_type)},{_container_name(kind.map_type.value_type)})"
    if which == "optional_type":
        return f"optional({_container_name(kind.optional_type.elem_type)})"
    return element_name(kind.tensor_type.elem_type) if which == "tensor_type" else str(which)
