"""One window's latency of one target: the figures, and what is wrong with them. Pure; ``observe`` gathered what it is made of.

A reading is no verdict. Whoever compares it with an earlier one asks ``supports`` first, and compares the load beside the latency: a busier
service is not a slower card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metainfer.decide.latency.findings import DATA_RULES, FIGURE_RULES, Evidence, Figure, LatencyFinding, find_all
from metainfer.decide.latency.growth import Growth
from metainfer.decide.latency.quantiles import Quantile, find_quantile
from metainfer.decide.latency.selection import LatencyQuestion, select_streams
from metainfer.decide.latency.series import ServedSeries

P99: Final = 0.99


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """Under which load the latency was served."""

    requests_per_second: float
    replicas: float | None
    """Pods that were seen, on average over the window; None = the source does not tell pods apart."""
    in_flight: float | None
    """Requests in the server at a time, on average: rate × mean latency (Little's law)."""

    @property
    def requests_per_second_per_replica(self) -> float | None:
        """None where replicas are not known."""
        return self.requests_per_second / self.replicas if self.replicas else None

    @property
    def in_flight_per_replica(self) -> float | None:
        """None where replicas are not known."""
        return self.in_flight / self.replicas if self.replicas and self.in_flight is not None else None


@dataclass(frozen=True, slots=True)
class LatencyReading:
    """What a window tells."""

    metric: str
    """What was read; readings of different metrics must not be compared."""
    seconds: float
    requests: int
    p99: Quantile | None
    mean_us: float | None
    load: ServedLoad
    edges_us: tuple[float, ...] = ()
    """Upper edges of the buckets, ascending."""
    findings: tuple[LatencyFinding, ...] = ()

    def supports(self, figure: Figure) -> bool:
        """Whether the figure may be compared with another reading's."""
        there = self.p99 is not None if figure == "p99" else self.mean_us is not None
        return there and not any(figure in finding.spoils for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.reason for finding in self.findings)


def read_latency(question: LatencyQuestion, served: ServedSeries) -> LatencyReading:
    """The figures of a window, as far as they can be had, and every finding in the rules' order."""
    selection = select_streams(question, served)
    growth = selection.growth
    evidence = Evidence(question, served, selection)
    faults = find_all(DATA_RULES, evidence)
    spoiled = {figure for fault in faults for figure in fault.spoils}
    p99 = find_quantile(growth.buckets, P99) if "p99" not in spoiled else None
    mean_us = growth.total_us / growth.requests if "mean" not in spoiled and growth.total_us is not None else None
    return LatencyReading(
        metric=evidence.base,
        seconds=served.seconds,
        requests=round(growth.requests),
        p99=p99,
        mean_us=mean_us,
        load=_describe_load(growth, served.seconds, mean_us),
        edges_us=tuple(growth.buckets),
        findings=(*faults, *find_all(FIGURE_RULES, Evidence(question, served, selection, p99))),
    )


def _describe_load(growth: Growth, seconds: float, mean_us: float | None) -> ServedLoad:
    rate = growth.requests / seconds if seconds > 0 else 0.0
    replicas = growth.pod_seconds / seconds if seconds > 0 and growth.pod_seconds > 0 else None
    return ServedLoad(rate, replicas, rate * mean_us / 1e6 if mean_us is not None else None)
