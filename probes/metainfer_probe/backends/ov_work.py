"""Work of OpenVINO's executed layers, from their own shapes or from the graph they were compiled from.

Plain layers show the shapes they multiplied. Fused ones (a whole attention in one ``Subgraph``) and recurrent ones do not,
but say which original operations they stand for: those are counted on the original graph, at the shapes that were run.
Names alone would not do, because folding a normalisation into a convolution renames it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metainfer_probe.backends.base import Feeds
from metainfer_probe.classify import op_class
from metainfer_probe.work import Shape, TensorSeen, count_macs

_RECURRENT_WEIGHTS = {"LSTMSequence": (4, 5), "GRUSequence": (3, 4), "RNNSequence": (3, 4)}
"""Positions of input and recurrent weights (operation specifications of OpenVINO): other inputs have rank 3 too."""
_SHOW_THEIR_SHAPES = ("matmul", "convolution", "attention")


def count_original_macs(graph: Any, feeds: Feeds) -> dict[str, int]:
    """Multiply-accumulates per original operation name at the shapes of ``feeds``; empty when shapes stay unknown."""
    import openvino as ov

    fixed = graph.clone()
    try:
        fixed.reshape({port: ov.PartialShape(list(feeds[name].shape)) for port in fixed.inputs for name in port.names if name in feeds})
    except RuntimeError:
        return {}  # e.g. a rank that depends on values: layers are then counted by their own shapes
    return {node.get_friendly_name(): macs for node in fixed.get_ops() if (macs := _macs(node)) > 0}


def layer_macs(layer_type: str, stands_for: str, tensors: tuple[Sequence[Shape], Sequence[Shape]], originals: Mapping[str, int]) -> int:
    """Multiply-accumulates of one executed layer; ``stands_for`` lists its original operations, comma-separated."""
    own = count_macs(layer_type, *tensors) if op_class(layer_type) in _SHOW_THEIR_SHAPES else 0
    return own or sum(originals.get(original, 0) for original in stands_for.split(",") if original)


def seen(port: Any) -> TensorSeen | None:
    """Type and shape of a port; None while it is dynamic."""
    partial = port.get_partial_shape()
    if partial.is_dynamic:
        return None
    return TensorSeen(port.get_element_type().get_type_name(), tuple(partial.to_shape()))


def _macs(node: Any) -> int:
    inputs = [seen(port.get_source_output()) for port in node.inputs()]
    outputs = [seen(port) for port in node.outputs()]
    kind = node.get_type_name()
    if kind in _RECURRENT_WEIGHTS and all(tensor is not None for tensor in inputs):
        return _recurrent_macs(kind, [tensor.shape for tensor in inputs if tensor is not None])
    if any(tensor is None for tensor in (*inputs[:2], *outputs[:1])):
        return 0
    return count_macs(kind, [tensor.shape for tensor in inputs if tensor is not None], [tensor.shape for tensor in outputs if tensor is not None])


def _recurrent_macs(kind: str, inputs: list[Shape]) -> int:
    """Batch x steps x (input weights + recurrent weights)."""
    return math.prod(inputs[0][:2]) * sum(math.prod(inputs[position]) for position in _RECURRENT_WEIGHTS[kind])
