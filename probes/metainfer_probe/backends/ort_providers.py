"""How each of ONNX Runtime's providers is asked for a precision, and what it falls back to.

Precision is always explicit: CUDA would use TF32 for fp32 products by itself, TensorRT takes fp16 as a permission at load. Option
names: the execution providers' pages of ONNX Runtime's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

from metainfer_probe.contract import Precision

Provider = str | tuple[str, dict[str, str]]

CONVERTS_AT_LOAD: dict[str, tuple[Precision, ...]] = {"TensorrtExecutionProvider": ("fp16",)}
"""Precisions that a provider makes from the fp32 file while it loads."""
COMPUTES_INT8 = frozenset({"CPUExecutionProvider"})
"""Where the integer products of ``adapt.quantise`` have kernels; CUDA computes most of them in fp32 between conversions."""


def build_provider_chain(provider: str, precision: Precision) -> Sequence[Provider]:
    """The provider with its options, then what takes the nodes it refuses."""
    if provider == "CPUExecutionProvider":
        return [provider]
    cuda = ("CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"})
    if provider == "CUDAExecutionProvider":
        return [cuda, "CPUExecutionProvider"]
    if provider == "TensorrtExecutionProvider":
        return [(provider, {"trt_fp16_enable": str(int(precision == "fp16"))}), cuda, "CPUExecutionProvider"]
    return [provider, "CPUExecutionProvider"]
