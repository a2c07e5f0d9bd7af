"""The model portrait as a fixed-length vector: the input of learned predictors.

Position and meaning never change within a version; a change of either is a new ``VECTOR_VERSION``, because stored
vectors outlive the code. Counts, sizes and times enter as log1p, shares as parts of one. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from metainfer_probe.backends.base import KernelTime
from metainfer_probe.contract import CurvePoint, OpClass
from metainfer_probe.model_file import ModelFile

VECTOR_VERSION = 1
CLASSES: tuple[OpClass, ...] = ("matmul", "convolution", "attention", "elementwise", "recurrent", "layout", "other")
_ARCHITECTURES = ("cnn", "transformer", "recurrent", "mixed", "other")
_PRECISIONS = ("fp32", "bf16", "fp16", "int8")

VECTOR_NAMES: tuple[str, ...] = (
    "log_parameters", "log_weight_bytes", "log_nodes", "log_depth", "log_macs", "log_bytes_moved", "log_kernels", "log_activation_bytes",
    "log_macs_per_byte", "log_macs_per_kernel", "log_p50_us", "batch_growth", "parallel_growth", "hot_share", "free_dimensions",
    *(f"time_share_{name}" for name in CLASSES),
    *(f"macs_share_{name}" for name in CLASSES),
    *(f"count_share_{name}" for name in CLASSES),
    *(f"architecture_{name}" for name in _ARCHITECTURES),
    *(f"stored_{name}" for name in _PRECISIONS),
)  # fmt: skip


def build_vector(model: ModelFile, kernels: Sequence[KernelTime], curve: Sequence[CurvePoint], activation_bytes: int) -> tuple[float, ...]:
    """Values in the order of ``VECTOR_NAMES``; what was not measured is 0."""
    macs = sum(kernel.macs for kernel in kernels)
    moved = sum(kernel.bytes_moved for kernel in kernels)
    total_us = sum(kernel.duration_us for kernel in kernels)
    hottest = sorted((kernel.duration_us for kernel in kernels), reverse=True)[:5]
    values = [
        *(math.log1p(value) for value in (model.parameters, model.weight_bytes, model.nodes, model.depth, macs, moved, len(kernels), activation_bytes)),
        math.log1p(macs / moved if moved else 0.0),
        math.log1p(macs / len(kernels) if kernels else 0.0),
        math.log1p(curve[0].p50_us) if curve else 0.0,
        _growth([(point.batch_size, point.p50_us) for point in curve if point.concurrency == 1]),
        _growth([(point.concurrency, point.p50_us) for point in curve if point.batch_size == 1]),
        sum(hottest) / total_us if total_us else 0.0,
        float(sum(size == -1 for spec in model.inputs for size in spec.shape or ())),
        *_shares({kernel_class: sum(k.duration_us for k in kernels if k.op_class == kernel_class) for kernel_class in CLASSES}),
        *_shares({kernel_class: float(sum(k.macs for k in kernels if k.op_class == kernel_class)) for kernel_class in CLASSES}),
        *_shares({kernel_class: float(sum(k.op_class == kernel_class for k in kernels)) for kernel_class in CLASSES}),
        *(float(model.architecture == name) for name in _ARCHITECTURES),
        *(float(model.stored_precision == name) for name in _PRECISIONS),
    ]
    return tuple(round(value, 6) for value in values)


def _growth(points: Sequence[tuple[int, float]]) -> float:
    """Exponent of time over size between the first and the last point: 0 = flat (batching is free), 1 = proportional."""
    if len(points) < 2 or points[0][1] <= 0 or points[-1][1] <= 0:
        return 0.0
    return math.log(points[-1][1] / points[0][1]) / math.log(points[-1][0] / points[0][0])


def _shares(sums: Mapping[OpClass, float]) -> list[float]:
    total = sum(sums.values())
    return [sums[name] / total if total else 0.0 for name in CLASSES]
