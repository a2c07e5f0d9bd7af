"""Multiply-accumulates and bytes of one executed node, from the shapes it really saw.

Runtimes report shapes but not attributes, so every formula here uses shapes only. One MAC is one multiplication and
one addition (2 FLOP). Elementwise work is counted as bytes, not as MACs. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metainfer_probe.classify import op_class
from metainfer_probe.contract import OpClass
from metainfer_probe.dtypes import element_bytes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSeen:
    """One tensor of an executed node: element type (``float32``, ``f32``, ``float``) and concrete shape."""

    dtype: str
    shape: Shape

    @property
    def elements(self) -> int:
        """Number of elements, 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Stored size; 0 for types without a fixed size."""
        return int(self.elements * element_bytes(self.dtype))


def count_bytes(inputs: Sequence[TensorSeen], outputs: Sequence[TensorSeen]) -> int:
    """Everything read once and written once: the least a node has to move."""
    return sum(tensor.size_bytes for tensor in (*inputs, *outputs))


def count_macs(op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Multiply-accumulates of one node, 0 for operators without products (or without the shapes to tell)."""
    if not outputs or not inputs:
        return 0
    if op_type == "Einsum":
        return _einsum_macs(inputs, outputs[0])
    if _is_transposed(op_type):
        return _transposed_convolution_macs(inputs)
    formula = _FORMULAS.get(op_class(op_type))
    return formula(op_type, inputs, outputs[0]) if formula is not None else 0


def _is_transposed(op_type: str) -> bool:
    return op_type in ("ConvTranspose", "Deconvolution", "GroupDeconvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData")


def _weight_of(inputs: Sequence[Shape]) -> Shape | None:
    """The first later input with the rank of the data, or one more where grouped weights carry the group as a dimension.

    Quantised forms put scales and zero points between.
    """
    rank = len(inputs[0])
    return next((shape for shape in inputs[1:] if len(shape) >= 3 and len(shape) in (rank, rank + 1)), None)


def _convolution_macs(inputs: Sequence[Shape], output: Shape) -> int:
    """Outputs x (channels per group x kernel): weight is [Cout, Cin/g, k...] or [g, Cout/g, Cin/g, k...]."""
    weight = _weight_of(inputs)
    if weight is None:
        return 0
    per_output = weight[1:] if len(weight) == len(inputs[0]) else weight[2:]
    return math.prod(output) * math.prod(per_output)


def _transposed_convolution_macs(inputs: Sequence[Shape]) -> int:
    """Every input element meets every weight of its channel: weight is [Cin, Cout/g, k...] (or with g in front)."""
    weight = _weight_of(inputs)
    if weight is None:
        return 0
    per_input = weight[1:] if len(weight) == len(inputs[0]) else weight[2:]
    return math.prod(inputs[0]) * math.prod(per_input)


def _matmul_macs(left: Shape, output: Shape) -> int:
    """Outputs x K, K being what is left of the left operand's matrix without the rows that appear in the output.

    Holds where that operand is read transposed, and needs no right operand, which runtimes repack and no longer report.
    """
    if not left:
        return 0
    if len(left) == 1 or len(output) < 2:
        return math.prod(output) * left[-1]
    rows = output[-2]
    matrix = left[-1] * left[-2]
    inner = matrix // rows if rows and matrix % rows == 0 and matrix // rows in (left[-1], left[-2]) else left[-1]
    return math.prod(output) * inner


def _einsum_macs(inputs: Sequence[Shape], output: Shape) -> int:
    """Geometric mean: for [M,K]x[K,N] it is (MK·KN·MN)^1/2 = MKN exactly; a shared batch dimension b counts as b^1.5."""
    if len(inputs) < 2:
        return 0
    return math.isqrt(math.prod(inputs[0]) * math.prod(inputs[1]) * math.prod(output))


def _attention_macs(op_type: str, inputs: Sequence[Shape], output: Shape) -> int:
    """Scores and weighted values, 2·B·Sq·Sk·D, plus the projections where the operator holds their weights (Attention).

    Query is [B, S, D] or [B, heads, S, d].
    """
    query = inputs[0]
    if len(query) < 3:
        return 0
    queries, width = math.prod(query[:-2]) * query[-2] if len(query) == 4 else query[0] * query[1], query[-1]
    fused = op_type in ("Attention", "QAttention", "LongformerAttention") and len(inputs) > 1 and len(inputs[1]) == 2
    keys = query[-2] if fused or len(inputs) < 2 or len(inputs[1]) < 3 else inputs[1][-2]
    projections = query[0] * query[1] * math.prod(inputs[1]) if fused else 0
    width = output[-1] if fused else width
    return projections + 2 * queries * keys * width


def _recurrent_macs(inputs: Sequence[Shape]) -> int:
    """Steps x batch x (input weights + recurrent weights), W and R being the first two inputs of rank 3 after X."""
    weights = [shape for shape in inputs[1:] if len(shape) == 3][:2]
    return math.prod(inputs[0][:2]) * sum(math.prod(shape) for shape in weights)


_FORMULAS: Mapping[OpClass, Callable[[str, Sequence[Shape], Shape], int]] = {
    "convolution": lambda _, inputs, output: _convolution_macs(inputs, output),
    "matmul": lambda _, inputs, output: _matmul_macs(inputs[0], output),
    "attention": _attention_macs,
    "recurrent": lambda _, inputs, _output: _recurrent_macs(inputs),
}
