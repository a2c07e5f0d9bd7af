"""Joins the reading of served latency with settings, queue and metrics. The figures are those of the statuses, so a restart shows the same."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from metainfer.api.durations import parse_duration_us
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import AdaptationFacts
from metainfer.metrics import SERVED_BASELINE_SECONDS, SERVED_P99_RATIO, SERVED_P99_SECONDS, SERVED_READING_AGE_SECONDS
from metainfer.observe.latency_prometheus import PrometheusEndpoint
from metainfer.observe.served import ServedReader
from metainfer.observe.served_sources import LatencySources
from metainfer.reconcile import Request
from metainfer.settings import Settings
from metainfer.watch.queue import WorkQueue


@dataclass(frozen=True, slots=True)
class ServedWatch:
    """The reader, and what has to be closed with it."""

    reader: ServedReader
    sources: LatencySources

    async def close(self) -> None:
        """Stop reading and close the connections."""
        await self.reader.close()
        await self.sources.close()


def build_served_watch(settings: Settings, queue: WorkQueue[Request]) -> ServedWatch:
    """The parts, by the settings; connects to nothing yet."""
    endpoint = PrometheusEndpoint(
        settings.prometheus_url,
        authorization=settings.prometheus_authorization,
        namespace_label=settings.prometheus_namespace_label,
        pod_label=settings.prometheus_pod_label,
    )
    sources = LatencySources(endpoint, time.time)

    def wake(namespace: str, name: str) -> None:
        queue.add(Request("adaptation", namespace, name))

    return ServedWatch(ServedReader(sources, settings.latency_rules(), wake, time.time), sources)


class Cached(Protocol):
    """``watch.cluster.ClusterCache``."""

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        """Every adaptation."""
        ...


def count_served(cluster: Cached, now: datetime) -> None:
    """Set the gauges to the last window of every adaptation that is watched; those of others are gone, not zero."""
    for gauge in (SERVED_P99_SECONDS, SERVED_BASELINE_SECONDS, SERVED_P99_RATIO, SERVED_READING_AGE_SECONDS):
        gauge.clear()
    for adaptation in cluster.adaptations():
        served = adaptation.status.served
        if served is None or served.last is None:
            continue
        where = (adaptation.namespace, adaptation.name)
        SERVED_READING_AGE_SECONDS.labels(*where).set((now - parse_time(served.last.at)).total_seconds())
        if served.last.p99 is not None:
            SERVED_P99_SECONDS.labels(*where).set(parse_duration_us(served.last.p99) / 1e6)
        if served.baseline is not None and served.baseline.p99 is not None:
            SERVED_BASELINE_SECONDS.labels(*where).set(parse_duration_us(served.baseline.p99) / 1e6)
        if served.p99_ratio_permille is not None:
            SERVED_P99_RATIO.labels(*where).set(served.p99_ratio_permille / 1000)
