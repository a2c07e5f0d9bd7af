"""Served latency where there is no Prometheus: the metrics pages of the target's own pods, read twice.

Two scrapes make a window (``decide.latency.series.join_scrapes``). The pages are other people's: only the lines of the wanted series are
parsed, each by itself, and a pod that does not answer is a warning as long as another one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from metainfer.decide.latency.series import POD_LABEL, Point, Scrape, Series
from metainfer.decide.latency.sources import LatencySource, OwnQuery
from metainfer.decide.latency.target import ServedPod, ServedTarget
from metainfer.observe.latency_http import LatencySourceError, MetricsRefused, MetricsRequest, MetricsUnavailable, read_answer

AT_ONCE = 8
"""Pods asked at the same time."""
LINE_LIMIT_CHARACTERS = 8192
"""A sample is a few hundred characters long; a longer line is none of the series that a preset knows."""


@dataclass(frozen=True, slots=True)
class ScrapeLimits:
    """Bounds of one pod's answer."""

    seconds: float = 5.0
    bytes_limit: int = 8 << 20


class PodScraper:
    """Reads pods' pages. The session is shared and closed by whoever made it; ``clock`` gives Unix seconds."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float], limits: ScrapeLimits = ScrapeLimits()) -> None:
        self._session = session
        self._clock = clock
        self._limits = limits

    async def scrape(self, target: ServedTarget) -> Scrape:
        """One sample of each series of each pod. Raises LatencySourceError when no pod answered."""
        if isinstance(target.source, OwnQuery):
            raise MetricsRefused("QueryNeedsPrometheus", "an own query needs a Prometheus; pods can only be read by a preset or a metric's name")
        pods = [pod for pod in target.pods if pod.address]
        if not pods:
            raise MetricsUnavailable("NoPodToScrape", f"no pod in namespace {target.namespace} has an address yet")
        at, room = self._clock(), asyncio.Semaphore(AT_ONCE)
        answers = await asyncio.gather(*(self._read_pod(pod, target.source, room) for pod in pods))
        pages = [(pod, answer) for pod, answer in zip(pods, answers, strict=True) if isinstance(answer, str)]
        errors = [answer for answer in answers if isinstance(answer, LatencySourceError)]
        if not pages:
            raise errors[0]
        series = tuple(one for pod, page in pages for one in parse_page(page, target.source, pod=pod.name, at_unix_seconds=at))
        return Scrape(at, series, tuple(error.message for error in errors))

    async def _read_pod(self, pod: ServedPod, source: LatencySource, room: asyncio.Semaphore) -> str | LatencySourceError:
        url = URL.build(scheme="http", host=pod.address, port=pod.port or source.port, path=pod.path or source.path)
        headers = {"Accept": "text/plain;version=0.0.4"}
        request = MetricsRequest(url, headers=headers, seconds=self._limits.seconds, bytes_limit=self._limits.bytes_limit)
        try:
            async with room:
                status, body = await read_answer(self._session, request)
        except LatencySourceError as error:
            return error
        if status != 200:
            switch = f"; the server may need {source.switch}" if source.switch else ""
            return MetricsUnavailable("MetricsUnreachable", f"{request.shown} answers with HTTP {status}{switch}")
        return body.decode("utf-8", errors="replace")


def parse_page(page: str, source: LatencySource, *, pod: str, at_unix_seconds: float) -> Sequence[Series]:
    """The source's series on a page in Prometheus' text format; lines that cannot be read are left out. Pure."""
    names = frozenset(source.names)
    return tuple(
        Series(name, {**labels, POD_LABEL: pod}, (Point(at_unix_seconds, value),))
        for line in page.splitlines()
        if len(line) <= LINE_LIMIT_CHARACTERS and line.partition("{")[0].split(" ", 1)[0].strip() in names
        for name, labels, value in _parse_line(line)
    )


def _parse_line(line: str) -> Iterator[tuple[str, dict[str, str], float]]:
    try:
        families = list(text_string_to_metric_families(f"{line}\n"))
    except (ValueError, IndexError, KeyError):
        return
    for family in families:
        for sample in family.samples:
            yield sample.name, dict(sample.labels), float(sample.value)
