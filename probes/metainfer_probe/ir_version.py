"""The file-format number (IR version) of a model, and whether it may be lowered for an older runtime.

Exporters stamp the newest number they know; a runtime a few months older then refuses a graph of which it knows every
part. Lowering is right only where nothing in the file needs the newer format. The features and their numbers are those
listed beside ``enum Version`` in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import ModelProto, TensorProto, TypeProto

from metainfer_probe.graph import iter_graphs, iter_nodes, iter_tensors

NEWEST_KNOWN_IR = 14
"""What onnx 1.23 describes; a type number or field beyond it is of unknown age."""

_TYPE_SINCE: Mapping[int, int] = {
    TensorProto.BFLOAT16: 4, TensorProto.FLOAT8E4M3FN: 9, TensorProto.FLOAT8E4M3FNUZ: 9, TensorProto.FLOAT8E5M2: 9, TensorProto.FLOAT8E5M2FNUZ: 9,
    TensorProto.UINT4: 10, TensorProto.INT4: 10, TensorProto.FLOAT4E2M1: 11, TensorProto.FLOAT8E8M0: 12, TensorProto.UINT2: 13, TensorProto.INT2: 13,
}  # fmt: skip
_OLDEST_NEW_TYPE = max(_TYPE_SINCE) + 1


def needed_ir_version(model: ModelProto) -> int:
    """The lowest IR version that can hold this file; ``model.ir_version`` where the file uses what this code does not know."""
    if any(UnknownFieldSet(message) for message in _messages(model)):
        return int(model.ir_version)
    needed = [3]
    types = {tensor.data_type for tensor in iter_tensors(model)} | {kind for value in _value_types(model) for kind in _element_types(value)}
    needed += [_TYPE_SINCE.get(kind, 0) if kind < _OLDEST_NEW_TYPE else NEWEST_KNOWN_IR for kind in types]
    stored = {tensor.name for tensor in model.graph.initializer}
    if not stored <= {value.name for value in model.graph.input}:
        needed.append(4)
    if any(graph.sparse_initializer for graph in iter_graphs(model)):
        needed.append(6)
    if model.functions:
        needed.append(
            10 if any(function.overload for function in model.functions) else 9 if any(function.attribute_proto for function in model.functions) else 8
        )
    if any(value.WhichOneof("value") in ("sparse_tensor_type", "optional_type") for value in _value_types(model)):
        needed.append(8)
    if getattr(model, "configuration", None):
        needed.append(11)
    return max(needed)


def lowered_copy(model: ModelProto, to_version: int) -> ModelProto | None:
    """The same model stamped with an older IR version, or None where something in it needs a newer one."""
    if needed_ir_version(model) > to_version:
        return None
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = to_version
    return copy


def _messages(model: ModelProto) -> Iterator[Message]:
    yield model
    yield from iter_graphs(model)
    yield from iter_tensors(model)
    yield from model.functions
    for node in iter_nodes(model):
        yield node
        yield from node.attribute


def _value_types(model: ModelProto) -> Iterator[TypeProto]:
    for graph in iter_graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.type


def _element_types(kind: TypeProto) -> Iterator[int]:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which).elem_type
    elif which in ("sequence_type", "optional_type"):
        yield from _element_types(getattr(kind, which).elem_type)
    elif which == "map_type":
        yield from _element_types(kind.map_type.value_type)
