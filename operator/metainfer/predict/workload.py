"""A model portrait as arrays: how much of what a forward pass does, per operator class. Knows nothing of cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from metainfer.decide.footprint import BYTES_PER_WEIGHT
from metainfer_probe.contract import OpClass, Precision, ProfileReport

Floats = npt.NDArray[np.float64]

CLASSES: tuple[OpClass, ...] = get_args(OpClass)
_WEIGHTED = np.array([name in ("matmul", "convolution", "recurrent", "attention") for name in CLASSES])
"""Classes that read weights."""
STATICALLY_QUANTISED = np.array([name == "convolution" for name in CLASSES])
"""int8 copies quantise convolutions ahead of time, so that activations between them stay int8 ..."""
QUANTISED = np.array([name in ("matmul", "convolution", "recurrent") for name in CLASSES])
"""... and products and recurrent layers on the fly: their activations come and go as floats. Everything else stays as it was."""
INT8_REALISED = np.array([{"matmul": 0.5, "recurrent": 0.5, "convolution": 0.25}.get(name, 0.0) for name in CLASSES])
"""Which part of the logarithm of int8's gain in bare products a class keeps: the rest goes into quantising and scaling around it.
From minima over runs on a CPU with VNNI and AMX, where bare products gain 5-8: MatMul nets gained 1.3-2.7 (ONNX Runtime) and 4-5
(OpenVINO), convolutional ones 0.5-1.5 on both; bf16, which needs nothing around it, kept its whole gain of 2-3."""
RECURRENT = np.array([name == "recurrent" for name in CLASSES])


@dataclass(frozen=True, slots=True)
class Workload:
    """Per operator class, for one sample in the file's own precision."""

    macs: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    """Read once per pass, whatever the batch."""
    nodes_per_class: Floats
    time_share: Floats
    """Measured on the provider that the work was counted on; zeros when it was not."""
    nodes: float


def build_workload(profile: ProfileReport) -> Workload:
    """Work of the profile, the file's weights shared out over the weight-reading classes by the bytes that they move."""
    columns = np.zeros((4, len(CLASSES)))
    for item in profile.work:
        columns[:, CLASSES.index(item.op_class)] += (max(0, item.macs), max(0, item.bytes_moved), max(0, item.count), max(0, item.time_permille))
    macs, moved, count, share = columns
    weighted = np.where(_WEIGHTED, moved, 0.0)
    parameters = weighted * min(1.0, profile.weight_bytes / weighted.sum()) if weighted.sum() > 0 else np.zeros_like(moved)
    nodes = count.sum() or float(profile.nodes)
    return Workload(macs, moved - parameters, parameters, np.maximum(count, 1.0), share / max(share.sum(), 1.0), max(1.0, nodes))


def byte_scales(precision: Precision, stored: Precision) -> tuple[Floats, Floats]:
    """Factors on parameter and activation bytes per class when a file of precision ``stored`` is served in ``precision``."""
    width = BYTES_PER_WEIGHT[stored]
    ratio = 1.0 if precision == "fp32" else min(1.0, BYTES_PER_WEIGHT[precision] / width)
    if precision != "int8":
        return np.full(len(CLASSES), ratio), np.full(len(CLASSES), ratio)
    return np.where(QUANTISED, ratio, 1.0), np.where(STATICALLY_QUANTISED, ratio, 1.0)
