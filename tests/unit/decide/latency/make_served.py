"""Builders of series as a source answers them: counters of a server that gets the same requests in every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from metainfer.decide.latency.selection import LatencyQuestion
from metainfer.decide.latency.series import Point, Series, ServedSeries
from metainfer.decide.latency.sources import LatencySource, histogram

STEP, STEPS, START = 15.0, 60, 1_800_000_000.0
BASE = "demo_latency_seconds"
FINE = tuple(round(0.001 * 1.1**step, 6) for step in range(80))
"""Steps of 10 %: a drift of 20 % can be seen in them."""
COARSE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PER_STEP = (0.01,) * 29 + (0.04,)
"""Thirty requests, one of them slow: the 99th percentile is 40 ms, the mean 11 ms."""
SOURCE = LatencySource((histogram(BASE),), model_label="model", version_label="version")


def make_counter(name: str, per_step: float, *, labels: Mapping[str, str] | None = None, initial: float = 4000.0, resets: Sequence[int] = ()) -> Series:
    """A counter that grows evenly over the window, and one step before; at each step in ``resets`` it begins at 0 again."""
    value, points = initial, []
    for step in range(-1, STEPS + 1):
        value = (0.0 if step in resets else value) + per_step
        points.append(Point(START + step * STEP, value))
    return Series(name, dict(labels or {"pod": "p-0"}), tuple(points))


def make_points(name: str, *values: float, **labels: str) -> Series:
    """A counter with these samples, one per step from the start of the window."""
    return Series(name, {"pod": "p-0", **labels}, tuple(Point(START + step * STEP, value) for step, value in enumerate(values)))


def make_histogram(
    per_step: Sequence[float] = PER_STEP,
    *,
    edges: Sequence[float] = FINE,
    labels: Mapping[str, str] | None = None,
    resets: Sequence[int] = (),
    base: str = BASE,
) -> tuple[Series, ...]:
    """All series of one histogram of one process that serves these latencies, in its own unit, in every step."""
    own = dict(labels or {"pod": "p-0"})
    buckets = tuple(
        make_counter(f"{base}_bucket", sum(latency <= edge for latency in per_step), labels={**own, "le": format_edge(edge)}, resets=resets)
        for edge in (*edges, math.inf)
    )
    count = make_counter(f"{base}_count", len(per_step), labels=own, resets=resets)
    return (*buckets, count, make_counter(f"{base}_sum", sum(per_step), labels=own, resets=resets))


def format_edge(edge: float) -> str:
    """As older scrapers write it."""
    return "+Inf" if math.isinf(edge) else f"{edge:g}"


def make_served(*series: Series) -> ServedSeries:
    """A window of fifteen minutes."""
    return ServedSeries(START, START + STEPS * STEP, series)


def make_question(**changes: object) -> LatencyQuestion:
    """About the only model of the source."""
    return replace(LatencyQuestion(SOURCE), **changes)  # type: ignore[arg-type] # names are checked by replace


def respell(series: Series, *, after_step: int) -> tuple[Series, Series]:
    """The bucket under two spellings, one until the step and the other from then on, as an upgraded scraper leaves it."""
    edge, at = float(series.labels["le"]), START + after_step * STEP
    earlier = tuple(point for point in series.points if point.at_unix_seconds <= at)
    later = tuple(point for point in series.points if point.at_unix_seconds > at)
    return replace(series, points=earlier), Series(series.name, {**series.labels, "le": repr(edge)}, later)


def with_values(series: Series, value: float, *, from_step: int = -1) -> Series:
    """The same series with that value from a step on."""
    at = START + from_step * STEP
    return replace(series, points=tuple(Point(point.at_unix_seconds, value if point.at_unix_seconds >= at else point.value) for point in series.points))
