"""Work of OpenVINO's executed layers, from the graph they were compiled from.

Fused layers (a whole attention in one ``Subgraph``) show neither their inner shapes nor their products. Each layer says
which original operations it stands for, so products are counted on the original graph, at the shapes that were run, and
each operation is given to one layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from metainfer_probe.backends.base import Feeds
from metainfer_probe.classify import op_class
from metainfer_probe.work import Shape, TensorSeen, count_macs

_RECURRENT_WEIGHTS = {"LSTMSequence": (4, 5), "GRUSequence": (3, 4), "RNNSequence": (3, 4)}
"""Positions of input and recurrent weights (operation specifications of OpenVINO): other inputs have rank 3 too."""
_SUBGRAPH = "Subgraph"


def count_original_macs(graph: Any, feeds: Feeds) -> dict[str, int]:
    """Multiply-accumulates per original operation name at the shapes of ``feeds``; empty when shapes stay unknown."""
    import openvino as ov

    fixed = graph.clone()
    try:
        fixed.reshape({port: ov.PartialShape(list(feeds[name].shape)) for port in fixed.inputs for name in port.names if name in feeds})
    except RuntimeError:
        return {}  # e.g. a rank that depends on values: layers are then counted by their own shapes
    return {node.get_friendly_name(): macs for node in fixed.get_ops() if (macs := _macs(node)) > 0}


def give_to_layers(layers: Mapping[str, Mapping[str, str]], originals: Mapping[str, int]) -> dict[str, int]:
    """MACs per executed layer; ``layers`` are run-time properties by name. Computing layers choose before the others."""
    left = dict(originals)
    given: dict[str, int] = {}
    for name in sorted(layers, key=lambda name: _claim(layers[name])):
        stands_for = [original for original in layers[name].get("originalLayersNames", "").split(",") if original]
        given[name] = sum(left.pop(original, 0) for original in stands_for)
    return given


def seen(port: Any) -> TensorSeen | None:
    """Type and shape of a port; None while it is dynamic."""
    partial = port.get_partial_shape()
    if partial.is_dynamic:
        return None
    return TensorSeen(port.get_element_type().get_type_name(), tuple(partial.to_shape()))


def _claim(layer: Mapping[str, str]) -> int:
    kind = layer.get("layerType", "")
    return 0 if op_class(kind) in ("matmul", "convolution", "attention", "recurrent") else 1 if kind == _SUBGRAPH else 2


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
