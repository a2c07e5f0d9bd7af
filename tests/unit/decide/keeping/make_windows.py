"""Builders of windows as a source tells them: latency, load and, if wanted, what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from metainfer.decide.latency.findings import BOTH, LatencyFinding
from metainfer.decide.latency.quantiles import Quantile
from metainfer.decide.latency.reading import LatencyReading, ServedLoad
from metainfer.decide.latency.served import NodeLatency, ServedWindow

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WINDOW = timedelta(minutes=15)
METRIC = "metainfer_request_duration_seconds"


def make_window(
    index: int,
    *,
    p99_ms: float = 40.0,
    mean_ms: float = 11.0,
    per_second: float = 10.0,
    replicas: float | None = 2.0,
    finding: LatencyFinding | None = None,
    nodes: Mapping[str, float] | None = None,
    metric: str = METRIC,
) -> ServedWindow:
    """The window of that number after BEGIN (0 ends one window after it); ``nodes``: mean per node in milliseconds."""
    seconds = WINDOW.total_seconds()
    load = ServedLoad(per_second, replicas, per_second * mean_ms / 1000)
    p99 = Quantile(p99_ms * 1000, p99_ms * 970, p99_ms * 1030)
    findings = (finding,) if finding is not None else ()
    reading = LatencyReading(metric, seconds, round(per_second * seconds), p99, mean_ms * 1000, load, findings=findings)
    told = {node: NodeLatency(reading.requests, mean * 1000, None) for node, mean in (nodes or {}).items()}
    return ServedWindow(BEGIN + (index + 1) * WINDOW, reading, told)


def make_windows(count: int, *, first: int = 0, **fields: object) -> tuple[ServedWindow, ...]:
    """So many alike, one after the other."""
    return tuple(make_window(first + index, **fields) for index in range(count))  # type: ignore[arg-type] # names are checked by the call


def spoiled(reason: str) -> LatencyFinding:
    """A finding that forbids comparing."""
    return LatencyFinding(reason, f"{reason} was found", BOTH)
