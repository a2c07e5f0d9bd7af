"""The sources of served latency behind one session: the operator's Prometheus, those that its settings allow, and the pods themselves.

Credentials go to the operator's own Prometheus and nowhere else. One that does not answer is left alone for a while by everybody: with a
thousand adaptations, each waiting for its own deadline would be a queue that never ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp

from metainfer.decide.latency.series import Scrape, ServedSeries
from metainfer.decide.latency.target import ServedTarget
from metainfer.observe.latency_http import MetricsRefused, MetricsUnavailable
from metainfer.observe.latency_prometheus import PrometheusEndpoint, PrometheusLatency
from metainfer.observe.latency_scrape import PodScraper

SILENT_SECONDS = 30.0
CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class _Silence:
    until: float
    error: MetricsUnavailable


class LatencySources:
    """Asks whichever source is named. ``clock`` gives Unix seconds. An endpoint without a URL is none. Opens its session at the first question."""

    def __init__(self, endpoint: PrometheusEndpoint, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._silent: dict[str, _Silence] = {}

    async def read_window(self, url: str, target: ServedTarget, *, start_unix_seconds: float, end_unix_seconds: float) -> ServedSeries:
        """From a Prometheus; an empty URL is the operator's own. Raises LatencySourceError."""
        endpoint, silence = self._find_endpoint(url), self._silent.get(url)
        if silence is not None and self._clock() < silence.until:
            raise MetricsUnavailable(silence.error.reason, silence.error.message)
        try:
            prometheus = PrometheusLatency(self._opened(), endpoint)
            found = await prometheus.read_window(target, start_unix_seconds=start_unix_seconds, end_unix_seconds=end_unix_seconds)
        except MetricsUnavailable as error:
            self._silent[url] = _Silence(self._clock() + SILENT_SECONDS, error)
            raise
        self._silent.pop(url, None)
        return found

    async def scrape(self, target: ServedTarget) -> Scrape:
        """From the pods. Raises LatencySourceError."""
        return await PodScraper(self._opened(), self._clock).scrape(target)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _find_endpoint(self, url: str) -> PrometheusEndpoint:
        if url:
            return replace(self._endpoint, url=url, authorization="")
        if not self._endpoint.url:
            raise MetricsRefused("AddressInvalid", "the operator has no Prometheus of its own: set prometheus.url in the chart")
        return self._endpoint

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS), trust_env=False)
        return self._session
