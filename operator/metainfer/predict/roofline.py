"""Time of one execution: roofline per operator class, plus launches. Arrays of questions in, arrays of microseconds out.

Source: Williams, Waterman, Patterson, Roofline (2009): a kernel takes the longer of its arithmetic at the peak rate and its traffic
at the peak bandwidth. Here the peak rate depends on the shape (a product of one row never reaches that of a thousand), and the
bandwidth on what fits into which cache. Never faster with more work, never slower with higher peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metainfer.predict.peaks import ANCHOR_ROWS, Peaks
from metainfer.predict.workload import INT8_REALISED, RECURRENT, Floats, Workload, byte_scales
from metainfer_probe.contract import Precision

FP32_BYTES = 4.0
NODE_SHARE = 0.05
"""Dispatching one more node inside a graph against the idle latency of a one-node graph, host side included. Measured on a CPU:
0.3 us against 4 us (ONNX Runtime), against 75 us (OpenVINO with its Python binding); on GPUs about 5 us against 50 us."""
NODE_LIMIT_US = 6.0
"""A node's dispatch is never more than a GPU's kernel launch, however slow the first one is."""
L2_BYTES = float(1 << 20)
L3_BYTES = float(16 << 20)
"""What one card's share of the caches holds, about, on processors of the last ten years."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One session call whose time is wanted."""

    work: Workload
    peaks: Peaks
    precision: Precision
    stored: Precision
    batch: float


def class_times_us(executions: Sequence[Execution]) -> Floats:
    """[executions, classes]: max(arithmetic, traffic), launches excluded."""
    return np.asarray(np.maximum(*class_limits_us(executions)), dtype=np.float64)


def class_limits_us(executions: Sequence[Execution]) -> tuple[Floats, Floats]:
    """[executions, classes] twice: time of the arithmetic at the peak rate, and of the traffic at the peak bandwidth."""
    batch = np.array([item.batch for item in executions])[:, None]
    macs = np.stack([item.work.macs for item in executions]) * batch
    parameters = np.stack([item.work.parameter_bytes for item in executions])
    activations = np.stack([item.work.activation_bytes for item in executions]) * batch
    rows = _rows(macs, parameters + activations, batch)
    arithmetic = 2.0 * macs / _rate_at(rows, _rates(executions))
    return arithmetic, _traffic_us(executions, parameters, activations)


def launch_times_us(executions: Sequence[Execution]) -> Floats:
    """[executions]: the first launch as the probe measured it, and each further node's dispatch."""
    first = np.array([item.peaks.launch_us for item in executions])
    nodes = np.array([item.work.nodes for item in executions])
    dispatch = np.minimum(NODE_SHARE * first, NODE_LIMIT_US)
    return np.asarray(first + (nodes - 1.0) * dispatch, dtype=np.float64)


def _rows(macs: Floats, fp32_bytes: Floats, batch: Floats) -> Floats:
    """Rows M of the product that a class resembles, from its arithmetic intensity.

    For M x K x N in fp32, macs / bytes = MKN / 4(MK + KN + MN), which is M / 4 where the weights dominate and less elsewhere. Recurrent
    layers go step by step: their rows are the batch, however long the sequence.
    """
    rows = np.divide(FP32_BYTES * macs, fp32_bytes, out=np.full_like(macs, ANCHOR_ROWS[0]), where=fp32_bytes > 0)
    return np.where(RECURRENT[None, :], batch, rows)


def _rates(executions: Sequence[Execution]) -> Floats:
    """[executions, classes, anchors]: the precision's own rates; of int8 the part of its gain over fp32 that each class keeps."""
    realised = np.where(np.array([item.precision == "int8" for item in executions])[:, None], INT8_REALISED[None, :], 1.0)[:, :, None]
    own = np.stack([np.log(item.peaks.flop_per_us) for item in executions])[:, None, :]
    floats = np.stack([np.log(item.peaks.float_flop_per_us) for item in executions])[:, None, :]
    return np.asarray(np.exp(floats + realised * (own - floats)), dtype=np.float64)


def _rate_at(rows: Floats, rates: Floats) -> Floats:
    """Straight lines between the anchors in log-log, level outside them."""
    position = np.interp(np.log(np.maximum(rows, 1e-9)), np.log(ANCHOR_ROWS), np.arange(len(ANCHOR_ROWS), dtype=np.float64))
    lower = np.minimum(position.astype(int), len(ANCHOR_ROWS) - 2)
    part = position - lower
    logs = np.log(rates)
    below = np.take_along_axis(logs, lower[:, :, None], axis=2)[:, :, 0]
    above = np.take_along_axis(logs, lower[:, :, None] + 1, axis=2)[:, :, 0]
    return np.asarray(np.exp(below + part * (above - below)), dtype=np.float64)


def _traffic_us(executions: Sequence[Execution], parameters: Floats, activations: Floats) -> Floats:
    """Weights at the level that holds all of them, activations at the level that holds those of one node."""
    scales = [byte_scales(item.precision, item.stored) for item in executions]
    parameters = parameters * np.stack([scale[0] for scale in scales])
    activations = activations * np.stack([scale[1] for scale in scales])
    bandwidths = np.stack([item.peaks.bytes_per_us for item in executions])
    per_node = activations / np.stack([item.work.nodes_per_class for item in executions])
    weights_us = parameters / _bandwidth_for(np.broadcast_to(parameters.sum(axis=1, keepdims=True), parameters.shape), bandwidths)
    return weights_us + activations / _bandwidth_for(per_node, bandwidths)


def _bandwidth_for(working_set: Floats, bandwidths: Floats) -> Floats:
    level = (working_set > L2_BYTES).astype(int) + (working_set > L3_BYTES)
    return np.take_along_axis(bandwidths, level, axis=1)
