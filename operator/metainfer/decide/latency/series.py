"""What a source of metrics answered, as it answered it: samples of counters over a window. ``observe`` fills these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Labels = Mapping[str, str]

POD_LABEL = "pod"
"""Label that names the pod in every series, whatever the source calls it."""


class Point(NamedTuple):
    """One sample."""

    at_unix_seconds: float
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series: a metric's name, its other labels, its samples in order of time."""

    name: str
    labels: Labels
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ServedSeries:
    """All series about one target in one window. Samples from before the start are the counters' state at the start."""

    start_unix_seconds: float
    end_unix_seconds: float
    series: tuple[Series, ...] = ()
    warnings: tuple[str, ...] = ()
    """What the source itself says is missing from its answer."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end_unix_seconds - self.start_unix_seconds


@dataclass(frozen=True, slots=True)
class Scrape:
    """What the pods' own pages said, each series with the one sample of that moment."""

    at_unix_seconds: float
    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()
    """Pods that did not answer, each with the reason."""


def join_scrapes(scrapes: Sequence[Scrape]) -> ServedSeries:
    """Two or more scrapes of the same pods make a window. Pure; without one it is empty. Raises ValueError where there is none at all."""
    if not scrapes:
        raise ValueError("no scrape, no window")
    ordered = sorted(scrapes, key=lambda scrape: scrape.at_unix_seconds)
    points: dict[tuple[str, frozenset[tuple[str, str]]], list[Point]] = {}
    for scrape in ordered:
        for series in scrape.series:
            points.setdefault((series.name, frozenset(series.labels.items())), []).extend(series.points)
    joined = tuple(Series(name, dict(labels), tuple(sorted(found))) for (name, labels), found in points.items())
    warnings = tuple(dict.fromkeys(warning for scrape in ordered for warning in scrape.warnings))
    return ServedSeries(ordered[0].at_unix_seconds, ordered[-1].at_unix_seconds, joined, warnings)
