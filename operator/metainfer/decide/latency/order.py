"""How one adaptation's latency is read: from its spec, and what the operator's settings allow. Pure.

A spec is written by whoever may create an adaptation, and the operator reaches more than they do. So it asks its own Prometheus, or an
address that its settings list, and only about the target's own pods, unless its settings allow queries of the users' own.
"""

from __future__ import annotations

from dataclasses import dataclass

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec
from metainfer.api.v1alpha1.served import LatencySourceRef, PrometheusSource, ScrapeSource
from metainfer.decide.latency.selection import LatencyQuestion
from metainfer.decide.latency.served import LatencyProblem
from metainfer.decide.latency.sources import LATENCY_PRESETS, UNITS, LatencySource, OwnQuery, build_own_source, histogram


@dataclass(frozen=True, slots=True)
class LatencyRules:
    """What the operator's settings allow."""

    has_prometheus: bool = False
    """Whether the operator has one of its own."""
    allowed_urls: frozenset[str] = frozenset()
    """Addresses that an adaptation may name, without a slash at the end."""
    allow_queries: bool = False
    """Whether an adaptation may bring its own PromQL, which can ask about everything that the Prometheus knows."""


@dataclass(frozen=True, slots=True)
class LatencyOrder:
    """What to read, where, and how often."""

    source: LatencySource | OwnQuery
    window_seconds: float
    windows: int
    min_requests: int
    increase_percent: int
    model: str = ""
    url: str = ""
    """Prometheus that the spec names; empty = the operator's own, or the pods."""
    scrapes: bool = False
    """The pods themselves are read."""
    port: int = 0
    path: str = ""
    """Of the pods' pages; 0 and empty = the pod's annotations, else the source's."""

    def question(self, restarts: dict[str, int] | None = None, *, min_requests: int | None = None) -> LatencyQuestion:
        """What is asked of a window's series."""
        source = self.source.source if isinstance(self.source, OwnQuery) else self.source
        wanted = self.min_requests if min_requests is None else min_requests
        return LatencyQuestion(source, self.model, wanted, self.increase_percent, restarts)


def choose_order(spec: ModelAdaptationSpec, rules: LatencyRules) -> LatencyOrder | LatencyProblem:
    """How the adaptation's latency is read, or why it is not."""
    drift, reference = spec.drift, spec.drift.source or LatencySourceRef()
    place = _find_place(reference, rules)
    if isinstance(place, LatencyProblem):
        return place
    source = _find_source(spec, reference, rules)
    if isinstance(source, LatencyProblem):
        return source
    url, scrape = place
    return LatencyOrder(
        source=source,
        window_seconds=parse_duration_us(drift.window) / 1e6,
        windows=drift.windows,
        min_requests=drift.min_requests,
        increase_percent=drift.p99_increase_percent,
        model=reference.model or "",
        url=url,
        scrapes=scrape is not None,
        port=scrape.port or 0 if scrape is not None else 0,
        path=scrape.path or "" if scrape is not None else "",
    )


def _find_place(reference: LatencySourceRef, rules: LatencyRules) -> tuple[str, ScrapeSource | None] | LatencyProblem:
    """The address (empty = the operator's own Prometheus), or the pods' pages."""
    if reference.scrape is not None:
        return "", reference.scrape
    url = ((reference.prometheus or PrometheusSource()).url or "").rstrip("/")
    if url and url not in rules.allowed_urls:
        words = "spec.drift.source.prometheus.url is no address that the operator asks: leave it out, or have prometheus.allowedUrls in the chart list it"
        return LatencyProblem("AddressNotAllowed", words)
    if url or rules.has_prometheus:
        return url, None
    words = "nothing says where latency is read: set prometheus.url in the chart, or spec.drift.source.scrape to read the pods' own metrics pages"
    return LatencyProblem("NotWatched", words)


def _find_source(spec: ModelAdaptationSpec, reference: LatencySourceRef, rules: LatencyRules) -> LatencySource | OwnQuery | LatencyProblem:
    query = reference.prometheus.query if reference.prometheus is not None else None
    if query is not None:
        if not rules.allow_queries:
            words = "queries of your own are not allowed here: name a preset or a histogram, or have prometheus.allowQueries set in the chart"
            return LatencyProblem("QueryNotAllowed", words)
        return OwnQuery(query.buckets, query.total or "", UNITS[query.unit])
    if reference.histogram is not None:
        found = reference.histogram
        return build_own_source(histogram(found.name, UNITS[found.unit]), model_label=found.model_label or "")
    preset = reference.preset or (spec.settings.preset if spec.settings is not None else None)
    if preset is None:
        words = "nothing says which server this is: set spec.drift.source.preset, or histogram where no preset fits"
        return LatencyProblem("NotWatched", words)
    return LATENCY_PRESETS[preset]
