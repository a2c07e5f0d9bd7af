"""Windows of served latency beside a baseline: ratios of latency, and the load that may explain them. Pure values; ``served`` judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Final

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.served import ServedBaseline
from metainfer.decide.conditions import parse_time
from metainfer.decide.latency.reading import ServedLoad
from metainfer.decide.latency.served import ServedWindow

MEAN_SHARE: Final = 0.5
"""Of the increase, which the mean has to confirm: half, as a slow tail moves it less than the 99th percentile."""
RATE_ALLOWANCE: Final = 1.1
"""Rates up to a tenth above the baseline's highest count as the same load: near saturation a few percent more already queue."""
VALIDATED_ALLOWANCE: Final = 1.25
"""Requests in flight above what was validated, before the load counts as another one: it is a mean, and moves."""
LEAST_RATIO: Final = 1e-3
"""Of two latencies: a logarithm needs more than nothing."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One window beside the baseline."""

    p99_ratio: float
    mean_ratio: float
    node_ratios: Mapping[str, float]
    """The mean of each node over the baseline's of all: one slow card among ten moves the mean of all by a tenth of it."""
    rate: float
    """Requests per minute, per replica where both sides know it."""
    highest_rate: float
    in_flight_permille: float | None
    highest_in_flight_permille: float | None

    def is_slower(self, increase: float) -> bool:
        """Whether the percentile is higher by that share, and the mean confirms it."""
        confirmed = self.mean_ratio >= 1 + MEAN_SHARE * increase or max(self.node_ratios.values(), default=self.mean_ratio) >= 1 + increase
        return self.p99_ratio >= 1 + increase and confirmed

    @property
    def slowest_node(self) -> str:
        """The first by name of those alike; empty where nodes are not told apart."""
        return max(sorted(self.node_ratios), key=lambda node: self.node_ratios[node], default="")

    @property
    def is_busier(self) -> bool:
        """Whether the rate is above any that was served as fast as the baseline."""
        return self.rate > RATE_ALLOWANCE * self.highest_rate

    def is_beyond(self, clients: int) -> bool:
        """Whether more requests are in flight than were validated, or seen in the baseline."""
        if self.in_flight_permille is None:
            return False
        return self.in_flight_permille > VALIDATED_ALLOWANCE * max(1000.0 * clients, self.highest_in_flight_permille or 0.0)


def compare_last(windows: Sequence[ServedWindow], baseline: ServedBaseline, count: int) -> tuple[Compared, ...]:
    """The last ``count`` windows beside the baseline; empty unless every one of them can be compared and came after it."""
    last = [window for window in windows if window.ended_at > parse_time(baseline.at)][-count:]
    compared = [found for window in last if (found := compare_window(window, baseline)) is not None]
    return tuple(compared) if len(compared) == count else ()


def average(compared: Sequence[Compared]) -> Compared:
    """Geometric means of the ratios, as latencies vary by factors; the load of the last one.

    Of nodes that are in all of them, each for itself: which one is slowest in a window is chance, and always one is.
    """
    nodes = set.intersection(*(set(item.node_ratios) for item in compared))
    return replace(
        compared[-1],
        p99_ratio=_mean(item.p99_ratio for item in compared),
        mean_ratio=_mean(item.mean_ratio for item in compared),
        node_ratios={node: _mean(item.node_ratios[node] for item in compared) for node in nodes},
    )


def _mean(ratios: Iterable[float]) -> float:
    return geometric_mean([max(LEAST_RATIO, ratio) for ratio in ratios])


def compare_window(window: ServedWindow, baseline: ServedBaseline) -> Compared | None:
    """None where the window tells nothing that may be compared."""
    reading = window.reading
    if reading.p99 is None or reading.mean_us is None or baseline.p99 is None or baseline.mean is None or reading.metric[:256] != baseline.metric:
        return None
    if not (reading.supports("p99") and reading.supports("mean")) or (baseline.per_replica and not reading.load.replicas):
        return None
    mean_us = parse_duration_us(baseline.mean)
    return Compared(
        p99_ratio=reading.p99.value_us / parse_duration_us(baseline.p99),
        mean_ratio=reading.mean_us / mean_us,
        node_ratios={node: latency.mean_us / mean_us for node, latency in window.nodes.items() if latency.mean_us is not None},
        rate=rate_per_minute(reading.load, per_replica=baseline.per_replica),
        highest_rate=baseline.requests_per_minute_high,
        in_flight_permille=in_flight_permille(reading.load, per_replica=baseline.per_replica),
        highest_in_flight_permille=baseline.in_flight_permille_high,
    )


def rate_per_minute(load: ServedLoad, *, per_replica: bool) -> float:
    """Requests per minute; 0 where it is not known."""
    found = load.requests_per_second_per_replica if per_replica else load.requests_per_second
    return 60.0 * (found or 0.0)


def in_flight_permille(load: ServedLoad, *, per_replica: bool) -> float | None:
    """Mean number of requests in the servers, in thousandths of one; None = not known."""
    found = load.in_flight_per_replica if per_replica else load.in_flight
    return None if found is None else 1000.0 * found
