"""Names of operators, sorted: the class of one operator, and the kind of a whole network.

Both ONNX operators (with ONNX Runtime's fused ones) and OpenVINO's layer types are known, so that figures of
different runtimes add up under the same seven classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from onnx import ModelProto, NodeProto

from metainfer_probe.contract import OpClass
from metainfer_probe.graph import iter_graphs, iter_nodes

Architecture = Literal["cnn", "transformer", "recurrent", "mixed", "other"]

MIN_CONVOLUTIONS_OF_A_CNN = 3
"""Vision transformers cut their image into patches with one or two convolutions and are no CNNs for that."""

_CLASSES: Mapping[OpClass, str] = {
    "matmul": "MatMul Gemm FusedMatMul FusedGemm MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul QLinearMatMul QGemm "
    "MatMulNBits MatMulBnb4 TransposeMatMul GemmFloat8 SparseToDenseMatMul Einsum LinearClassifier LinearRegressor FullyConnected "
    "Inner_Product MatMulFpQ4",
    "convolution": "Conv ConvTranspose ConvInteger QLinearConv FusedConv NhwcFusedConv NhwcMaxPool NhwcConv DepthwiseConv DeformConv "
    "Convolution GroupConvolution Deconvolution GroupDeconvolution DeformableConvolution ConvolutionBackpropData "
    "GroupConvolutionBackpropData BinaryConvolution",
    "attention": "Attention MultiHeadAttention GroupQueryAttention QAttention PackedAttention PackedMultiHeadAttention DecoderAttention "
    "DecoderMaskedSelfAttention DecoderMaskedMultiHeadAttention LongformerAttention SparseAttention PagedAttention "
    "ScaledDotProductAttention ScaledDotProductAttentionWithKVCache MHA",
    "recurrent": "LSTM GRU RNN DynamicQuantizeLSTM LSTMCell GRUCell RNNCell LSTMSequence GRUSequence RNNSequence RNNSeq AUGRUSequence AttnLSTM",
    "layout": "Reshape Transpose Concat Split Slice Squeeze Unsqueeze Flatten Expand Tile Pad Gather GatherElements GatherND ScatterElements "
    "ScatterND Scatter Identity Shape Size ConstantOfShape Constant Cast ReorderInput ReorderOutput Reorder DepthToSpace SpaceToDepth Resize "
    "Upsample QLinearConcat StridedSlice Broadcast ShapeOf Convert Memory MemoryInput MemoryOutput Interpolate Range OneHot NonZero "
    "EmbeddingBag MemcpyFromHost MemcpyToHost Compress ReverseSequence Copy Tile Split ZipMap Roll Reverse ConcatSlice",
    "elementwise": "Add Sub Mul Div Pow Sqrt Exp Log Erf Relu LeakyRelu PRelu Clip Sigmoid Tanh Gelu FastGelu QuickGelu BiasGelu HardSigmoid "
    "HardSwish Swish Mish Elu Selu Softplus Softsign Neg Abs Floor Ceil Round Sign Sin Cos Min Max Mean Sum Where Equal Greater Less "
    "GreaterOrEqual LessOrEqual Not And Or Xor Mod Softmax LogSoftmax LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization "
    "SkipSimplifiedLayerNormalization RMSNormalization InstanceNormalization GroupNorm GroupNormalization BatchNormalization "
    "LpNormalization LRN MeanVarianceNormalization Hardmax ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSumExp MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool QLinearAdd QLinearMul QLinearSigmoid "
    "QLinearLeakyRelu QLinearSoftmax QLinearAveragePool QLinearGlobalAveragePool QuantizeLinear DequantizeLinear DynamicQuantizeLinear "
    "Eltwise Subgraph FakeQuantize MVN Pooling Reduce Normalize NormalizeL2 RMSNorm Math Select EmbedLayerNormalization RotaryEmbedding RoPE "
    "CumSum TopK ArgMax ArgMin Snippet FusedOps SoftMax Power",
}

_CLASS_OF: Mapping[str, OpClass] = {name: op_class for op_class, names in _CLASSES.items() for name in names.split()}
_RECURRENT_OPERATORS = frozenset(name for name, op_class in _CLASS_OF.items() if op_class == "recurrent")
_ATTENTION_OPERATORS = frozenset(name for name, op_class in _CLASS_OF.items() if op_class == "attention")
_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv"))
_TRANSPARENT = frozenset(("Cast", "Dropout", "Identity", "Reshape", "Transpose", "Where", "Mul", "Slice", "Squeeze", "Unsqueeze", "Add"))
"""What may stand between the Softmax of an attention and the product with the values."""


def op_class(op_type: str) -> OpClass:
    """The class of an operator, ``other`` when its name is not known."""
    return _CLASS_OF.get(op_type, "other")


def operator_histogram(model: ModelProto) -> dict[str, int]:
    """Count per operator, subgraphs and local functions included; custom domains in front of the name."""
    counts: dict[str, int] = {}
    for node in iter_nodes(model):
        name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return counts


def network_kind(model: ModelProto) -> Architecture:
    """Convolutional, attention or recurrent when the network has exactly one of these kinds of layers, mixed for several."""
    counts = operator_histogram(model)
    bare = {name.rsplit(".", 1)[-1]: count for name, count in counts.items()}
    kinds: list[Architecture] = []
    if sum(bare.get(name, 0) for name in _CONVOLUTIONS) >= MIN_CONVOLUTIONS_OF_A_CNN:
        kinds.append("cnn")
    if _ATTENTION_OPERATORS & bare.keys() or _has_attention_pattern(model):
        kinds.append("transformer")
    if _RECURRENT_OPERATORS & bare.keys():
        kinds.append("recurrent")
    return kinds[0] if len(kinds) == 1 else "mixed" if kinds else "other"


def _has_attention_pattern(model: ModelProto) -> bool:
    """A Softmax whose result is multiplied, as a matrix, with something that is computed too."""
    for graph in iter_graphs(model):
        stored = {tensor.name for tensor in graph.initializer}
        consumers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                consumers.setdefault(name, []).append(node)
        if any(_reaches_product(node.output[0], consumers, stored) for node in graph.node if node.op_type == "Softmax"):
            return True
    return False


def _reaches_product(name: str, consumers: Mapping[str, list[NodeProto]], stored: set[str]) -> bool:
    frontier, steps = [name], 4
    while frontier and steps:
        nodes = [node for tensor in frontier for node in consumers.get(tensor, ())]
        if any(node.op_type in ("MatMul", "Einsum") and not stored & set(node.input) for node in nodes):
            return True
        frontier = [output for node in nodes if node.op_type in _TRANSPARENT for output in node.output]
        steps -= 1
    return False
