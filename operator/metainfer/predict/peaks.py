"""What one card can do, by what the probe measured on that instance; constants only where it measured nothing. Knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus, PortraitFigures
from metainfer.decide.facts import Portrait
from metainfer.predict.workload import Floats
from metainfer_probe.contract import MatmulShape, Precision

SHAPES: tuple[MatmulShape, ...] = ("gemv", "m32", "m256", "big")
ANCHOR_ROWS = np.array([1.0, 32.0, 256.0, 1024.0])
"""Rows M of the products M x K x N behind ``SHAPES``; ``tiny`` is left out, because it measures the launch."""
LEVELS = ("l2", "l3", "main")

FALLBACK_FLOP_PER_US = 20_000.0
"""20 GFLOP/s: one core of an old server. A card that was never probed must not look good by guesswork."""
FALLBACK_BYTES_PER_US = np.array([20_000.0, 10_000.0, 5_000.0])
FALLBACK_LAUNCH_US = 50.0

MEASURED_LOG_SIGMA = 0.35
"""Roofline on measured peaks against real latencies of CNNs and transformers: efficiencies lie within about a factor of two."""
OTHER_PRECISION_LOG_SIGMA = 0.5
MICRO_LOG_SIGMA = 0.7
FALLBACK_LOG_SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one provider at one precision on one card."""

    flop_per_us: Floats
    """At ``ANCHOR_ROWS``."""
    float_flop_per_us: Floats
    """The same of fp32, for the operators that a quantised model leaves in floats."""
    bytes_per_us: Floats
    """By ``LEVELS``, never rising outwards."""
    launch_us: float
    launch_tail_us: float
    """P99 above P50 of the one-node graph."""
    load_share: float
    """Part of the processors that others used while it was probed."""
    log_sigma: float
    basis: str


def find_peaks(card: Portrait | None, provider: str, precision: Precision) -> Peaks:
    """The best figures there are: of this precision, of fp32, of the micro-probe, constants; ``basis`` and ``log_sigma`` say which."""
    if card is None:
        return _without_figures(NodePortraitStatus(), None)
    mine = {item.precision: item for item in card.status.figures if item.execution_provider == provider}
    exact, fp32 = mine.get(precision), mine.get("fp32")
    own_rates, fp32_rates = _rates(exact), _rates(fp32)
    peaks = _without_figures(card.status, exact or fp32)
    if own_rates is not None:
        floats = own_rates if fp32_rates is None else fp32_rates
        return replace(peaks, flop_per_us=own_rates, float_flop_per_us=floats, log_sigma=MEASURED_LOG_SIGMA, basis="roofline on measured peaks")
    if fp32_rates is not None:
        basis = f"roofline on measured fp32 peaks ({precision} was not probed)"
        return replace(peaks, flop_per_us=fp32_rates, float_flop_per_us=fp32_rates, log_sigma=OTHER_PRECISION_LOG_SIGMA, basis=basis)
    return peaks


def _without_figures(status: NodePortraitStatus, figures: PortraitFigures | None) -> Peaks:
    """Bandwidth, launch and load of the portrait, and arithmetic from its micro-probe or from constants."""
    known = status.micro_megaflops > 0
    rates = np.full(len(SHAPES), float(status.micro_megaflops)) if known else np.full(len(SHAPES), FALLBACK_FLOP_PER_US)
    launch_us, tail_us = _launch(figures)
    return Peaks(
        flop_per_us=rates,
        float_flop_per_us=rates,
        bytes_per_us=_bandwidths(status),
        launch_us=launch_us,
        launch_tail_us=tail_us,
        load_share=min(1.0, max(0, status.load_permille) / 1000),
        log_sigma=MICRO_LOG_SIGMA if known else FALLBACK_LOG_SIGMA,
        basis="roofline on the micro-probe" if known else "constants, the card was never probed",
    )


def _rates(figures: PortraitFigures | None) -> Floats | None:
    """Rates at the anchors (millions per second = per microsecond); gaps take the nearest smaller shape's, else the nearest larger one's.

    With the rows a rate never falls, and grows at most in proportion: noise must make neither less traffic nor more work look faster.
    """
    if figures is None:
        return None
    values = [float(figures.matmul_megaflops.get(shape, 0)) for shape in SHAPES]
    known = [index for index, value in enumerate(values) if value > 0]
    if not known:
        return None
    filled = [values[max((k for k in known if k <= index), default=known[0])] for index in range(len(values))]
    for index in range(1, len(filled)):
        growth = float(ANCHOR_ROWS[index] / ANCHOR_ROWS[index - 1])
        filled[index] = min(max(filled[index], filled[index - 1]), filled[index - 1] * growth)
    return np.array(filled)


def _bandwidths(status: NodePortraitStatus) -> Floats:
    """Millions of bytes per second = bytes per microsecond; a missing level takes the next outer one, then the next inner one, then the micro-probe."""
    values = [float(status.bandwidth_megabytes_per_second.get(level, 0)) for level in LEVELS]
    known = [index for index, value in enumerate(values) if value > 0]
    if not known:
        micro = float(status.micro_megabytes_per_second)
        return np.full(len(LEVELS), micro) if micro > 0 else FALLBACK_BYTES_PER_US
    filled = [values[min((k for k in known if k >= index), default=known[-1])] for index in range(len(values))]
    return np.minimum.accumulate(np.array(filled))


def _launch(figures: PortraitFigures | None) -> tuple[float, float]:
    if figures is None or figures.launch_p50_nanoseconds <= 0:
        return FALLBACK_LAUNCH_US, FALLBACK_LAUNCH_US
    p50_us = figures.launch_p50_nanoseconds / 1000
    try:
        return p50_us, max(0.0, parse_duration_us(figures.launch_p99) - p50_us)
    except ValueError:
        return p50_us, p50_us
