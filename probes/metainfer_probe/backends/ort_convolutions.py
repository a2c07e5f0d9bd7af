"""The true weight of a convolution that ONNX Runtime runs in its blocked layout.

On CPUs the NCHWc layout pads channels to the vector width (8 or 16): a convolution with 24 channels reports 32, and work
counted from such shapes is too high by a third. ONNX Runtime names the blocked node after the tensor it produces, which
leads back through what was fused into it to the convolution of the file. Knows graphs only, not the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from metainfer_probe.graph import read_constants
from metainfer_probe.work import Shape

SUFFIX = "_nchwc"
_FUSED = frozenset("Relu BatchNormalization Clip Sigmoid Tanh LeakyRelu HardSigmoid HardSwish Swish Mul Add Sum Identity Dropout Cast Gelu Div".split())
_STEP_LIMIT = 12


@dataclass(frozen=True, slots=True)
class ConvolutionWeights:
    """Weight shapes of a file's convolutions, found from the tensors behind them."""

    producers: Mapping[str, NodeProto]
    shapes: Mapping[str, Shape]

    def behind(self, node_name: str) -> Shape | None:
        """[Cout, Cin/g, k…] of the convolution that a blocked node computes; None when the way back is lost."""
        if not node_name.endswith(SUFFIX):
            return None
        tensor = node_name.removesuffix(SUFFIX)
        for _ in range(_STEP_LIMIT):
            node = self.producers.get(tensor)
            if node is None:
                return None
            if node.op_type == "Conv":
                return self.shapes.get(node.input[1])
            if node.op_type not in _FUSED:
                return None
            computed = [name for name in node.input if name in self.producers and name not in self.shapes]
            if not computed:
                return None
            tensor = computed[0]
        return None


def find_convolution_weights(model: ModelProto) -> ConvolutionWeights:
    """Index the main graph of a model."""
    return ConvolutionWeights({name: node for node in model.graph.node for name in node.output}, read_constants(model.graph).shapes)


def unpadded_macs(weight: Shape, output: Shape) -> int:
    """Outputs x (channels per group x kernel) with the true number of output channels; ``output`` is [N, padded C, size…]."""
    return output[0] * math.prod(weight) * math.prod(output[2:])
