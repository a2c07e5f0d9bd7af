"""Raw latencies to the figures of a benchmark report. Pure.

All quantiles are of single requests, never averages of quantiles. The ratio compares mean latencies round by round: in a closed
loop the mean is requests in flight over throughput (Little's law), so nothing is gained by serving some requests early and the
others late, which a median or a lower quantile would take for speed (a CPU quota with two parallel executions: half the
requests in half the time, the other half three times as late).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metainfer_probe.contract import Measured
from metainfer_probe.load import LoadWindow

QUANTILE_PERCENTS = (*range(0, 100, 2), 99, 99.5, 99.9, 100)
"""Kept in the report's detail: enough to draw the distribution, bounded whatever the number of requests."""


@dataclass(slots=True)
class Run:
    """What was measured of one configuration. ``first_pass``: every request once, on a fresh session."""

    first_pass: LoadWindow
    peak_memory_bytes: int
    windows: list[LoadWindow] = field(default_factory=list)


def summarise_pair(candidate: Run, reference: Run, *, ragged: bool) -> dict[str, object]:
    """The fields of ``BenchReport`` that follow from the windows so far (at least one finished round)."""
    ratios = [_mean_us(left) / _mean_us(right) for left, right in zip(candidate.windows, reference.windows, strict=True)]
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return {
        "candidate": _measured(_counted(candidate, ragged=ragged)),
        "reference": _measured(_counted(reference, ragged=ragged)),
        "rounds": len(ratios),
        "latency_ratio_permille": round(1000 * middle),
        "latency_ratio_spread_permille": round(1000 * (high - low) / middle),
        "first_pass_us": _first_pass_us(candidate),
        "detail": {
            "quantile_percents": list(QUANTILE_PERCENTS),
            "candidate": _detail(candidate, ragged=ragged),
            "reference": _detail(reference, ragged=ragged),
            "latency_ratios": [round(ratio, 4) for ratio in ratios],
        },
    }


def _counted(run: Run, *, ragged: bool) -> list[LoadWindow]:
    """Where every request has its own size the server meets new shapes all day: the first pass counts."""
    return [run.first_pass, *run.windows] if ragged else run.windows


def _measured(windows: Sequence[LoadWindow]) -> Measured:
    latencies, seconds = _latencies(windows), sum(window.seconds for window in windows)
    p50, p99 = np.percentile(latencies, (50, 99))
    executions = [done for window in windows for done in window.executions]
    return Measured(
        requests=latencies.size,
        errors=sum(window.errors for window in windows),
        seconds=round(seconds, 3),
        mean_us=round(float(np.mean(latencies)), 1),
        p50_us=round(p50, 1),
        p99_us=round(p99, 1),
        throughput_per_second=round(latencies.size / seconds, 3),
        mean_batch=round(sum(done.requests for done in executions) / len(executions), 3),
    )


def _detail(run: Run, *, ragged: bool) -> dict[str, object]:
    windows = _counted(run, ragged=ragged)
    latencies = _latencies(windows)
    service = [done.service_us for window in windows for done in window.executions]
    return {
        "quantiles_us": [round(float(value), 1) for value in np.percentile(latencies, QUANTILE_PERCENTS)],
        "window_mean_us": [round(_mean_us(window), 1) for window in run.windows],
        "window_throughput_per_second": [round(window.throughput_per_second, 2) for window in run.windows],
        "service_p50_us": round(float(np.median(service)), 1),
        "cpu_us_per_request": round(1e6 * sum(window.cpu_seconds for window in windows) / latencies.size, 1),
        "first_pass_us": _first_pass_us(run),
        "peak_memory_bytes": run.peak_memory_bytes,
    }


def _first_pass_us(run: Run) -> float:
    """Mean service time of the first execution of each input shape, partly filled batches included; 0 without any."""
    new = [done.service_us for window in (run.first_pass, *run.windows) for done in window.executions if done.new_shape]
    return round(float(np.mean(new)), 1) if new else 0.0


def _latencies(windows: Sequence[LoadWindow]) -> npt.NDArray[np.float64]:
    return np.concatenate([window.latencies_us for window in windows])


def _mean_us(window: LoadWindow) -> float:
    return float(np.mean(window.latencies_us))
