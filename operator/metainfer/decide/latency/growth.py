"""By how much counters grew in a window: requests, time spent, requests per bucket. Pure.

A process that restarts begins at 0 again; so does, at every other scrape, a server whose worker processes each have counters of their own
and answer in turn. Both look alike in one series, and the second gives a wild but plausible percentile: resets are counted per pod.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from metainfer.decide.latency.series import ServedSeries
from metainfer.decide.latency.streams import Points, Stream


@dataclass(frozen=True, slots=True)
class Growth:
    """What the counters of some streams gained within the window, summed."""

    buckets: Mapping[float, float] = field(default_factory=dict)
    """Upper edge in microseconds -> requests at most that slow. Only edges that every stream with requests has."""
    requests: float = 0.0
    total_us: float | None = None
    """Time spent in those requests; None = not told by every stream."""
    resets: Mapping[str, int] = field(default_factory=dict)
    """Pod -> times at which its counters went back; pods without are left out."""
    pod_seconds: float = 0.0
    """For how long pods were seen in the window, summed."""


def sum_growth(streams: Sequence[Stream], served: ServedSeries, unit_us: float) -> Growth:
    """All streams together."""
    grown = [(stream, _find_growth(stream, served, unit_us)) for stream in streams]
    active = [growth for _, growth in grown if growth.requests > 0]
    edges = set.intersection(*(set(growth.buckets) for growth in active)) if active else set()
    totals = [growth.total_us for growth in active]
    return Growth(
        buckets={edge: sum(growth.buckets[edge] for growth in active) for edge in sorted(edges)},
        requests=sum(growth.requests for growth in active),
        total_us=None if not totals or None in totals else sum(total for total in totals if total is not None),
        resets=_count_resets(streams, served),
        pod_seconds=_sum_pod_seconds(streams, served),
    )


def _find_growth(stream: Stream, served: ServedSeries, unit_us: float) -> Growth:
    resets = _reset_times(stream)
    buckets = {edge * unit_us: _gain(points, resets, served) for edge, points in stream.buckets.items()}
    requests = _gain(stream.count, resets, served) if stream.count else max(buckets.values(), default=0.0)
    total = _gain(stream.sum, resets, served) * unit_us if stream.sum else None
    return Growth(buckets, requests, total)


def _reset_times(stream: Stream) -> frozenset[float]:
    """All counters of a process go back together, also those that do not show it because they grew past their old value since."""
    return frozenset(after.at_unix_seconds for points in stream.counters for before, after in itertools.pairwise(points) if after.value < before.value)


def _gain(points: Points, resets: frozenset[float], served: ServedSeries) -> float:
    gained = 0.0
    for before, after in itertools.pairwise(_within(points, served)):
        gained += after.value if after.at_unix_seconds in resets else after.value - before.value
    return gained


def _within(points: Points, served: ServedSeries) -> Points:
    """Samples of the window, and before them the last one that tells where the counter stood when it began."""
    inside = tuple(point for point in points if served.start_unix_seconds < point.at_unix_seconds <= served.end_unix_seconds)
    before = tuple(point for point in points if point.at_unix_seconds <= served.start_unix_seconds)
    return (*before[-1:], *inside)


def _count_resets(streams: Iterable[Stream], served: ServedSeries) -> dict[str, int]:
    times: dict[str, set[float]] = {}
    for stream in streams:
        within = {at for at in _reset_times(stream) if served.start_unix_seconds < at <= served.end_unix_seconds}
        times.setdefault(stream.pod, set()).update(within)
    return {pod: len(found) for pod, found in sorted(times.items()) if found}


def _sum_pod_seconds(streams: Iterable[Stream], served: ServedSeries) -> float:
    seen: dict[str, list[float]] = {}
    for stream in streams:
        for points in stream.counters if stream.pod else ():
            seen.setdefault(stream.pod, []).extend(max(point.at_unix_seconds, served.start_unix_seconds) for point in _within(points, served))
    return sum(max(times) - min(times) for times in seen.values() if times)
