"""Questions about candidates as rows of the learner's table: the same physics that answers them without a model, taken apart.

One latency is that of a request in a closed loop, so the base is the whole physical prediction, the model's measured curve and the
queue included. What is left to learn is what neither peaks nor curve say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metainfer.decide.learning import family_key
from metainfer.decide.predictor import Prediction
from metainfer.predict.learned.rows import Rows, make_rows
from metainfer.predict.peaks import FALLBACK_LOG_SIGMA
from metainfer.predict.physics import Parts
from metainfer.predict.roofline import class_limits_us, launch_times_us
from metainfer.predict.workload import byte_scales

REGIME = "request"
NAME_LENGTH = 64
"""Of the table's names; a longer one is cut, which could only merge two families of nearly the same name."""


def build_rows(parts: Sequence[Parts], base: Sequence[Prediction]) -> Rows:
    """One row per question, its latency unknown."""
    rows = make_rows(len(parts))
    if not parts:
        return rows
    executions = [part.execution for part in parts]
    factors = np.stack([part.correction.class_factors for part in parts])
    arithmetic, traffic = class_limits_us(executions)
    batch = np.array([part.loop.batch for part in parts])
    turns = np.array([part.loop.turns for part in parts])
    scales = [byte_scales(item.precision, item.stored) for item in executions]
    _fill_names(rows, parts)
    rows["batch"], rows["concurrency"] = batch, [part.loop.workers for part in parts]
    rows["clients"] = [part.loop.clients for part in parts]
    rows["dynamic_batching"] = [float(part.question.candidate.config.dynamic_batching) for part in parts]
    rows["macs"] = np.stack([item.work.macs for item in executions]) * batch[:, None]
    rows["weight_bytes"] = np.stack([item.work.parameter_bytes * scale[0] for item, scale in zip(executions, scales, strict=True)])
    rows["activation_bytes"] = np.stack([item.work.activation_bytes * scale[1] for item, scale in zip(executions, scales, strict=True)]) * batch[:, None]
    rows["launches"] = [item.work.nodes for item in executions]
    rows["flop_per_us"] = np.stack([item.peaks.flop_per_us for item in executions])
    rows["bytes_per_us"] = [item.peaks.bytes_per_us[-1] for item in executions]
    rows["launch_floor_us"] = [item.peaks.launch_us for item in executions]
    rows["is_probed"] = [float(item.peaks.log_sigma < FALLBACK_LOG_SIGMA) for item in executions]
    rows["compute_us"], rows["traffic_us"] = arithmetic * factors, traffic * factors
    rows["launch_us"] = launch_times_us(executions)
    rows["base_us"] = [item.p50_us for item in base]
    rows["wait_us"] = rows["base_us"] * (1.0 - 1.0 / np.maximum(turns, 1.0))
    return rows


def _fill_names(rows: Rows, parts: Sequence[Parts]) -> None:
    questions = [part.question for part in parts]
    rows["regime"] = REGIME
    rows["model"] = [question.profile.digest for question in questions]
    rows["family"] = rows["card"] = [family_key(question.candidate)[:NAME_LENGTH] for question in questions]
    rows["runtime"] = [question.candidate.config.execution_provider for question in questions]
    rows["precision"] = [question.candidate.config.precision for question in questions]
