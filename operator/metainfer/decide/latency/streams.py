"""From series to streams: one histogram of one process each, once. Pure.

Two things are put right on the way. Buckets that are spelled in two ways (an upgraded scraper writes ``1.0`` where it wrote ``1``) are one
bucket. A process that is told twice (a replicated Prometheus, two scrape jobs for one port) is one process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metainfer.decide.latency.series import POD_LABEL, Labels, Point, Series
from metainfer.decide.latency.sources import LatencyMetric

Points = tuple[Point, ...]

REPLICA_LABELS: Final = frozenset({"prometheus_replica", "prometheus", "replica", "__replica__", "receive_replica"})
"""What the copies of a replicated Prometheus differ in: names that the Prometheus operator and Thanos give it."""
TARGET_LABELS: Final = frozenset({"job", "service", "endpoint", "container", "node"})
"""What two scrapes of one ``instance`` (address and port) can differ in."""
_INNER: Final = frozenset({"le", "quantile"})


@dataclass(frozen=True, slots=True)
class Stream:
    """One histogram, summary or pair of counters of one process: the series that differ in nothing but ``le`` or ``quantile``."""

    labels: Labels
    buckets: Mapping[float, Points] = field(default_factory=dict)
    """Upper edge, in the metric's own unit -> samples."""
    count: Points = ()
    sum: Points = ()
    quantiles: tuple[Points, ...] = ()
    spelled_twice: tuple[float, ...] = ()
    """Edges that came under more than one spelling."""
    not_numbers: frozenset[str] = frozenset()
    """Of ``bucket``, ``count``, ``sum``, ``quantile``: those that had samples which are no numbers; these are left out."""

    @property
    def pod(self) -> str:
        """The process, as far as the labels tell."""
        return self.labels.get(POD_LABEL) or self.labels.get("instance", "")

    @property
    def counters(self) -> tuple[Points, ...]:
        """Everything that only ever grows."""
        return (*self.buckets.values(), self.count, self.sum)


def build_streams(series: Iterable[Series], metric: LatencyMetric) -> tuple[Stream, ...]:
    """The streams of a metric, in order of their labels."""
    grouped: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for one in series:
        if one.name in metric.names:
            grouped.setdefault(tuple(sorted(item for item in one.labels.items() if item[0] not in _INNER)), []).append(one)
    return tuple(_build_stream(dict(labels), members, metric) for labels, members in sorted(grouped.items()))


def _build_stream(labels: Labels, members: Sequence[Series], metric: LatencyMetric) -> Stream:
    buckets: dict[float, list[Series]] = {}
    for one in members:
        if one.name == metric.bucket and (edge := _edge(one.labels.get("le", ""))) is not None:
            buckets.setdefault(edge, []).append(one)
    named = {"count": metric.count, "sum": metric.sum, "bucket": metric.bucket, "quantile": metric.quantile}
    broken = frozenset(part for part, name in named.items() for one in members if one.name == name and not all(_is_number(point) for point in one.points))
    return Stream(
        labels,
        buckets={edge: _merge(found) for edge, found in sorted(buckets.items())},
        count=_merge(one for one in members if one.name == metric.count),
        sum=_merge(one for one in members if one.name == metric.sum),
        quantiles=tuple(_merge([one]) for one in members if one.name == metric.quantile and "quantile" in one.labels),
        spelled_twice=tuple(edge for edge, found in sorted(buckets.items()) if len({one.labels["le"] for one in found}) > 1),
        not_numbers=broken,
    )


def _edge(text: str) -> float | None:
    """A bucket's edge as a number, whatever its spelling; None = no edge at all."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _is_number(point: Point) -> bool:
    return math.isfinite(point.value)


def _merge(series: Iterable[Series]) -> Points:
    """All samples in order of time; of several at one moment the largest, because a counter only grows."""
    merged: dict[float, float] = {}
    for one in series:
        for point in one.points:
            if _is_number(point):
                merged[point.at_unix_seconds] = max(point.value, merged.get(point.at_unix_seconds, point.value))
    return tuple(Point(at, value) for at, value in sorted(merged.items()))


def drop_doubled(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Each process once: of its copies the one with most samples. Copies are never mixed, their clocks differ and every mix falls and rises."""
    best: dict[tuple[tuple[str, str], ...], Stream] = {}
    for stream in streams:
        key = _process(stream.labels)
        if key not in best or _sample_count(stream) > _sample_count(best[key]):
            best[key] = stream
    return tuple(best.values())


def _process(labels: Labels) -> tuple[tuple[str, str], ...]:
    extra = TARGET_LABELS if labels.get("instance") else frozenset()
    return tuple(sorted(item for item in labels.items() if item[0] not in REPLICA_LABELS | extra))


def _sample_count(stream: Stream) -> int:
    return sum(len(points) for points in (*stream.counters, *stream.quantiles))
