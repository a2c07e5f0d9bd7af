"""Served latency out of Prometheus, or anything with its HTTP API (Thanos, Mimir, VictoriaMetrics).

Raw samples are asked for, not rates: what went back, what is doubled or spelled twice can only be seen in them, and ``decide.latency``
puts it right the same way for every source. An own query of the user's is asked as it is.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from metainfer.decide.latency.series import POD_LABEL, Point, Series, ServedSeries
from metainfer.decide.latency.sources import OWN_QUERY, LatencySource, OwnQuery
from metainfer.decide.latency.target import ServedTarget
from metainfer.observe.latency_answers import Answer, RangedSeries, SingleValue, parse_answer
from metainfer.observe.latency_http import MetricsRefused, MetricsRequest, parse_url, read_answer

LOOKBACK_SECONDS = 300
"""Before the window, for the counters' state at its start; Prometheus itself looks back as far."""
QUERY_PATH = "api/v1/query"


@dataclass(frozen=True, slots=True)
class PrometheusEndpoint:
    """Where it is, how it calls pods, and how much it may answer."""

    url: str
    """Up to what stands before /api; may hold a user and a password."""
    authorization: str = ""
    """Header for it, such as ``Bearer TOKEN``; empty = none."""
    namespace_label: str = "namespace"
    pod_label: str = "pod"
    seconds: float = 10.0
    bytes_limit: int = 16 << 20


class PrometheusLatency:
    """Asks one Prometheus. The session is shared and closed by whoever made it."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: PrometheusEndpoint) -> None:
        self._session = session
        self._endpoint = endpoint

    async def read_window(self, target: ServedTarget, *, start_unix_seconds: float, end_unix_seconds: float) -> ServedSeries:
        """All series about the target in the window. Raises LatencySourceError, typed by whether a later try can help."""
        window = ServedSeries(start_unix_seconds, end_unix_seconds)
        if isinstance(target.source, OwnQuery):
            return await self._read_own(target.source, window)
        selector = build_selector(target, target.source, self._endpoint)
        answer = await self._ask(f"{selector}[{round(window.seconds) + LOOKBACK_SECONDS}s]", window)
        series = tuple(self._parse_series(found) for found in answer.read_series())
        return ServedSeries(start_unix_seconds, end_unix_seconds, series, answer.warnings)

    async def _read_own(self, query: OwnQuery, window: ServedSeries) -> ServedSeries:
        length = f"{max(1, round(window.seconds))}s"
        answer = await self._ask(query.buckets.replace("$window", length), window)
        found = answer.read_values()
        if any("le" not in one.metric for one in found):
            words = "the own query for buckets answers without the label le: it must give requests per bucket, not a percentile"
            raise MetricsRefused("QueryWithoutBuckets", words)
        series = [_grown(f"{OWN_QUERY}_bucket", {"le": edge}, value, window) for edge, value in _sum_by_edge(found).items()]
        warnings = answer.warnings
        if query.total:
            told = await self._ask(query.total.replace("$window", length), window)
            warnings = (*warnings, *told.warnings)
            values = [one.value[1] for one in told.read_values()]
            series += [_grown(f"{OWN_QUERY}_sum", {}, sum(values), window)] if values else []
        return ServedSeries(window.start_unix_seconds, window.end_unix_seconds, tuple(series), warnings)

    async def _ask(self, query: str, window: ServedSeries) -> Answer:
        endpoint = self._endpoint
        base = parse_url(endpoint.url)
        request = MetricsRequest(
            url=base.with_path(f"{base.path.rstrip('/')}/{QUERY_PATH}"),
            form={"query": query, "time": f"{window.end_unix_seconds:.3f}", "timeout": f"{endpoint.seconds:g}s"},
            headers={"Authorization": endpoint.authorization} if endpoint.authorization else {},
            seconds=endpoint.seconds,
            bytes_limit=endpoint.bytes_limit,
        )
        status, body = await read_answer(self._session, request)
        return await asyncio.to_thread(parse_answer, status, body, request)  # megabytes of samples: not in the event loop

    def _parse_series(self, found: RangedSeries) -> Series:
        labels = dict(found.metric)
        name = labels.pop("__name__", "")
        if self._endpoint.pod_label in labels:
            labels[POD_LABEL] = labels.pop(self._endpoint.pod_label)
        return Series(name, labels, tuple(Point(at, value) for at, value in found.values))


def build_selector(target: ServedTarget, source: LatencySource, endpoint: PrometheusEndpoint) -> str:
    """PromQL for every series of the source that is about these pods. Pure."""
    matchers = [f"__name__=~{_any_of(source.names)}"]
    if target.namespace:
        matchers.append(f"{endpoint.namespace_label}={_quote(target.namespace)}")
    if target.pods:
        matchers.append(f"{endpoint.pod_label}=~{_any_of(pod.name for pod in target.pods)}")
    # A metric without the label counts too, hence the empty alternative.
    matchers += [f"{label}=~{_any_of(('', *values))}" for label, values in source.only.items()]
    return "{" + ",".join(matchers) + "}"


def _any_of(values: Iterable[str]) -> str:
    return _quote("|".join(_escape(value) for value in values))


def _escape(value: str) -> str:
    """For RE2, which refuses a backslash before characters that mean nothing to it."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value)


def _quote(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sum_by_edge(values: Iterable[SingleValue]) -> dict[str, float]:
    edges: dict[str, float] = {}
    for one in values:
        edges[one.metric["le"]] = edges.get(one.metric["le"], 0.0) + one.value[1]
    return edges


def _grown(name: str, labels: Mapping[str, str], value: float, window: ServedSeries) -> Series:
    return Series(name, labels, (Point(window.start_unix_seconds, 0.0), Point(window.end_unix_seconds, value)))
