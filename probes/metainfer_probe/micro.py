"""The short look at the card that opens every measurement, so that each number carries the card's state at that moment.

A fixed fp32 matrix product and a fixed copy on numpy's own BLAS: never through a model runtime, so that it stays
comparable when a runtime or driver is replaced. The caller pins threads through the environment before numpy is
imported (``cli`` does, from the request).
"""

from __future__ import annotations

import numpy as np

from metainfer_probe import micro_cuda
from metainfer_probe.contract import MicroProbe
from metainfer_probe.nvidia import uses_card
from metainfer_probe.timing import quantile, time_blocks

GEMM_SIZE = 384
"""2·384^3 = 0.11 GFLOP: 1-10 ms on one CPU thread, long enough for the clock and short enough for hundreds of repetitions."""
COPY_BYTES = 32 << 20
"""Larger than the last-level cache share of one core on the machines this was written on."""
GEMM_SHARE = 0.75


def micro_probe(seconds: float = 2.0, providers: tuple[str, ...] = ()) -> MicroProbe:
    """Measure for about ``seconds`` and return medians: GFLOP/s (2·N^3 / time) and copy bandwidth (read + written bytes).

    On the card that the providers compute on. Raises ProbeError ``CardLibraryMissing`` or ``CardFailed`` for an NVIDIA card.
    """
    gemm_seconds, copy_seconds = seconds * GEMM_SHARE, seconds * (1 - GEMM_SHARE)
    if uses_card(providers):
        gemm, copy = micro_cuda.with_cuda_work(lambda work: (time_blocks(work.gemm, gemm_seconds), time_blocks(work.copy, copy_seconds)))
        return _summarise(gemm, copy, micro_cuda.GEMM_SIZE, micro_cuda.COPY_BYTES)
    return _summarise(_gemm_times(gemm_seconds), _copy_times(copy_seconds), GEMM_SIZE, COPY_BYTES)


def _summarise(gemm: list[float], copy: list[float], gemm_size: int, copy_bytes: int) -> MicroProbe:
    low, middle, high = (quantile(gemm, percent) for percent in (25, 50, 75))
    return MicroProbe(
        gflops=round(2 * gemm_size**3 / (middle * 1e3), 3),
        bandwidth_gigabytes_per_second=round(2 * copy_bytes / (quantile(copy, 50) * 1e3), 3),
        spread_permille=round(1000 * (high - low) / middle),
    )


def _gemm_times(seconds: float) -> list[float]:
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((GEMM_SIZE, GEMM_SIZE), np.float32) for _ in range(2))
    out = np.empty_like(left)
    return time_blocks(lambda: np.matmul(left, right, out=out), seconds)


def _copy_times(seconds: float) -> list[float]:
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    np.copyto(target, source)  # touches every page before the clock runs
    return time_blocks(lambda: np.copyto(target, source), seconds)
