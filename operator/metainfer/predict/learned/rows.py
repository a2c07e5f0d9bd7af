"""One table for every source: what was executed, on which card, what physics expects of it, and what was measured.

A row is one kind of execution on one card: an ONNX model served in one configuration, the prefill or the decode step of an LLM, a
serving run's time per token. The source that builds a row knows its work and its queueing, so it also fills in the *base*, the
physical latency at the peaks that the probe measured; the learner sees only this table, and learns log(latency / base).

Units: microseconds, bytes, multiply-accumulates (one MAC = two floating point operations). Per-class columns follow ``CLASSES``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.workload import CLASSES, Floats

Rows = npt.NDArray[np.void]
"""Of dtype ``ROW``."""

_CLASSES = (len(CLASSES),)
ANCHORS = ("gemv", "m32", "m256", "big")
"""Shapes whose rates describe a card: products of 1, 32, 256 and thousands of rows with a large square matrix."""

ROW = np.dtype(
    [
        # Who: effects and groups. Empty = not known.
        ("model", "U64"),
        ("family", "U64"),
        ("card", "U64"),  # kind of card within the family
        ("instance", "U64"),  # the very card or node; empty = one of many, unknown which
        ("runtime", "U64"),  # backend or execution provider
        ("precision", "U16"),
        ("sharding", "U16"),  # how work is spread over devices: "" = not, or by layers alike ("ep" = experts, "dp" = sequences too)
        ("regime", "U16"),  # what one latency means: "execution", "prefill", "decode", "token", "request"
        # How it is served.
        ("batch", "f8"),  # samples (sequences) per execution
        ("concurrency", "f8"),  # executions that share the card
        ("clients", "f8"),  # requests in flight
        ("dynamic_batching", "f8"),  # 0 or 1
        ("devices", "f8"),  # cards that one execution is spread over
        # The work of one execution, whole batch, all devices together.
        ("macs", "f8", _CLASSES),
        ("weight_bytes", "f8", _CLASSES),
        ("activation_bytes", "f8", _CLASSES),
        ("launches", "f8"),  # kernels or nodes
        # The card at this runtime and precision.
        ("flop_per_us", "f8", (len(ANCHORS),)),
        ("bytes_per_us", "f8"),
        ("launch_floor_us", "f8"),
        ("is_probed", "f8"),  # 1 = measured peaks, 0 = spec sheet or constants (low confidence)
        # What physics expects.
        ("compute_us", "f8", _CLASSES),
        ("traffic_us", "f8", _CLASSES),
        ("launch_us", "f8"),
        ("wait_us", "f8"),  # queueing, communication between devices
        ("base_us", "f8"),  # the whole latency; > 0
        # What was measured; NaN where nothing was.
        ("latency_us", "f8"),
        ("weight", "f8"),  # of the row in training; 1 = an ordinary one
    ]
)

LATENCY_LIMIT_US = 3.6e9
"""An hour: nothing that is served takes longer, and a larger figure is a unit mistaken for another."""


def make_rows(count: int) -> Rows:
    """Empty rows: one client, one device, weight 1, latency unknown, everything else zero."""
    rows = np.zeros(count, dtype=ROW)
    rows["batch"] = rows["concurrency"] = rows["clients"] = rows["devices"] = rows["weight"] = 1.0
    rows["latency_us"] = np.nan
    return rows


def select_teaching(rows: Rows) -> Rows:
    """Rows that can be learned from: base and latency are figures, the weight is positive. Doubles of one measurement become one.

    Raises Untrainable: ``BadColumns`` for another dtype, ``NoRows`` when nothing is left.
    """
    if rows.dtype != ROW or rows.ndim != 1:
        raise Untrainable("BadColumns", f"rows have dtype {rows.dtype} and {rows.ndim} dimensions, expected one dimension of rows.ROW")
    keep = is_measured(rows) & np.isfinite(rows["weight"]) & (rows["weight"] > 0)
    kept = rows[keep]
    if not len(kept):
        raise Untrainable("NoRows", f"none of {len(rows)} rows has a base, a latency (both above 0 us, at most an hour) and a weight")
    # By bytes: NaN equals itself there, and the order of the result does not depend on the order of the input.
    return np.ascontiguousarray(np.unique(kept.view(f"V{ROW.itemsize}")).view(ROW))


def is_measured(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows have both a base and a latency."""
    return _is_figure(rows["base_us"]) & _is_figure(rows["latency_us"])


def log_residual(rows: Rows) -> Floats:
    """log(measured / base)."""
    return np.asarray(np.log(rows["latency_us"]) - np.log(rows["base_us"]), dtype=np.float64)


def _is_figure(values: Floats) -> npt.NDArray[np.bool_]:
    return np.isfinite(values) & (values > 0) & (values <= LATENCY_LIMIT_US)
