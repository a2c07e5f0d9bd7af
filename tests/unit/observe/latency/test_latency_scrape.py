from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from metainfer.decide.latency.reading import read_latency
from metainfer.decide.latency.selection import LatencyQuestion
from metainfer.decide.latency.series import join_scrapes
from metainfer.decide.latency.sources import LATENCY_PRESETS, OwnQuery
from metainfer.decide.latency.target import ServedPod, ServedTarget
from metainfer.observe.latency_http import LatencySourceError, MetricsRefused
from metainfer.observe.latency_prometheus import PrometheusEndpoint, PrometheusLatency
from metainfer.observe.latency_scrape import PodScraper, ScrapeLimits, parse_page

SOURCE = LATENCY_PRESETS["MetaInfer"]
EDGES = (0.02, 0.0225, 0.025, 0.028, 0.031, 0.0355, 0.0405, 0.046, 0.052)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Page:
    """A server's metrics page, as the Python client writes it."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    histogram: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self.histogram = Histogram("metainfer_request_duration_seconds", "From arrival to answer.", ["model"], buckets=EDGES, registry=self.registry)

    def serve(self, *latencies: float) -> None:
        for latency in latencies:
            self.histogram.labels("ocr").observe(latency)

    async def answer(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), content_type="text/plain")


class Pods:
    """Servers on loopback, each with an answer of its own."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []

    async def start(self, name: str, answer: Answer) -> ServedPod:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return ServedPod(name, "127.0.0.1", port=runner.addresses[0][1])

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    started = Pods()
    yield started
    await started.stop()


def make_target(*pods: ServedPod) -> ServedTarget:
    return ServedTarget("shop", pods, SOURCE)


async def test_two_scrapes_of_the_pods_make_a_window(pods: Pods, session: aiohttp.ClientSession) -> None:
    """The same reading as from Prometheus: what was served between the two, over all pods."""
    pages = [Page(), Page()]
    target = make_target(*[await pods.start(f"ocr-{index}", page.answer) for index, page in enumerate(pages)])
    times = iter((1000.0, 1300.0))
    scraper = PodScraper(session, lambda: next(times))
    pages[0].serve(*(5.0,) * 100)
    first = await scraper.scrape(target)
    for page in pages:
        page.serve(*(0.01,) * 1000, *(0.04,) * 50)
    reading = read_latency(LatencyQuestion(SOURCE, model="ocr"), join_scrapes([first, await scraper.scrape(target)]))
    # The second pod had no series yet at the first scrape: what it served before anybody looked is not known.
    assert reading.requests == 1050
    assert reading.findings == ()
    assert reading.p99 is not None
    assert (reading.p99.lower_us, reading.p99.upper_us) == (pytest.approx(35_500), pytest.approx(40_500))
    assert reading.seconds == 300
    assert reading.mean_us == pytest.approx((1000 * 0.01 + 50 * 0.04) / 1050 * 1e6)


async def test_a_pod_that_does_not_answer_is_named_and_the_others_count(pods: Pods, session: aiohttp.ClientSession) -> None:
    """One sick pod does not blind the operator."""
    page = Page()
    page.serve(0.01)
    target = make_target(await pods.start("ocr-0", page.answer), ServedPod("ocr-1", "127.0.0.1", port=9), ServedPod("ocr-2"))
    scrape = await PodScraper(session, lambda: 1.0).scrape(target)
    assert {series.labels["pod"] for series in scrape.series} == {"ocr-0"}
    assert len(scrape.warnings) == 1
    assert "127.0.0.1:9/metrics" in scrape.warnings[0]


async def hang(_request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def flood(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(64):
        await answer.write(b"x" * (1 << 16))
    return answer


async def refuse(_request: web.Request) -> web.Response:
    return web.Response(status=404)


async def redirect(request: web.Request) -> web.Response:
    if request.path == "/elsewhere":
        return web.Response(text="metainfer_request_duration_seconds_count 1\n")
    return web.Response(status=302, headers={"Location": "/elsewhere"})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(hang, "MetricsUnreachable", id="hangs"),
        pytest.param(flood, "AnswerTooLarge", id="never ends"),
        pytest.param(refuse, "MetricsUnreachable", id="has no such page"),
        pytest.param(redirect, "MetricsUnreachable", id="sends elsewhere"),
    ],
)
async def test_when_no_pod_answers_as_it_should_the_first_reason_is_given(pods: Pods, session: aiohttp.ClientSession, answer: Answer, reason: str) -> None:
    """Bounded in time and size; redirects are not followed."""
    target = make_target(await pods.start("ocr-0", answer))
    scraper = PodScraper(session, lambda: 1.0, ScrapeLimits(seconds=0.5, bytes_limit=1 << 20))
    with pytest.raises(LatencySourceError) as caught:
        await scraper.scrape(target)
    assert caught.value.reason == reason
    assert "/metrics" in caught.value.message


async def test_pods_that_are_only_starting_are_tried_again(session: aiohttp.ClientSession) -> None:
    """Without an address there is nothing to scrape yet."""
    with pytest.raises(LatencySourceError) as caught:
        await PodScraper(session, lambda: 1.0).scrape(make_target(ServedPod("ocr-0")))
    assert (caught.value.reason, caught.value.retryable) == ("NoPodToScrape", True)


async def test_an_own_query_cannot_be_scraped(session: aiohttp.ClientSession) -> None:
    """Pods do not speak PromQL."""
    with pytest.raises(MetricsRefused) as caught:
        await PodScraper(session, lambda: 1.0).scrape(ServedTarget("shop", (), OwnQuery("x")))
    assert caught.value.reason == "QueryNeedsPrometheus"


@pytest.mark.parametrize(
    ("status", "body", "reason", "retryable"),
    [
        pytest.param(401, "no", "MetricsForbidden", False, id="unauthorised"),
        pytest.param(503, '{"status":"error","error":"starting"}', "MetricsUnreachable", True, id="starting"),
        pytest.param(429, "slow down", "MetricsUnreachable", True, id="too many"),
        pytest.param(302, "", "NotPrometheus", False, id="a login page"),
        pytest.param(200, "<html>", "NotPrometheus", False, id="a web page"),
        pytest.param(200, "[1]", "NotPrometheus", False, id="other JSON"),
        pytest.param(200, '{"status":"success"}', "NotPrometheus", False, id="no result"),
        pytest.param(200, '{"status":"success","data":{"resultType":"matrix","result":[1]}}', "NotPrometheus", False, id="a result of another shape"),
        pytest.param(200, '{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1]]}]}}', "NotPrometheus", False, id="half a sample"),
        pytest.param(200, "[" * 100_000, "NotPrometheus", False, id="deep JSON"),
        pytest.param(422, '{"status":"error","error":"too many samples"}', "QueryRefused", False, id="refused"),
    ],
)
async def test_every_wrong_answer_of_prometheus_has_a_name(
    pods: Pods, session: aiohttp.ClientSession, status: int, body: str, reason: str, retryable: bool
) -> None:
    """And says whether a later try can help."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    pod = await pods.start("prometheus", answer)
    latency = PrometheusLatency(session, PrometheusEndpoint(f"http://127.0.0.1:{pod.port}/prom"))
    with pytest.raises(LatencySourceError) as caught:
        await latency.read_window(make_target(pod), start_unix_seconds=0.0, end_unix_seconds=900.0)
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)


async def test_the_credential_goes_with_the_query_and_warnings_come_back(pods: Pods, session: aiohttp.ClientSession) -> None:
    """A bearer token as a header; what a Thanos could not reach is told."""
    seen = {}

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        seen.update(path=request.path, authorization=request.headers["Authorization"], query=form["query"], time=form["time"])
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": []}, "warnings": ["store-2 is away"]})

    pod = await pods.start("prometheus", answer)
    latency = PrometheusLatency(session, PrometheusEndpoint(f"http://127.0.0.1:{pod.port}/prom/", authorization="Bearer abc"))
    served = await latency.read_window(make_target(pod), start_unix_seconds=100.0, end_unix_seconds=1000.0)
    assert served.warnings == ("store-2 is away",)
    assert (seen["path"], seen["authorization"], seen["time"]) == ("/prom/api/v1/query", "Bearer abc", "1000.000")
    assert seen["query"].endswith("[1200s]")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('metainfer_request_duration_seconds_bucket{model="ocr",le="0.1"', id="no end"),
        pytest.param('metainfer_request_duration_seconds_bucket{model="ocr",le="0.1"} many', id="no number"),
        pytest.param("metainfer_request_duration_seconds_count", id="no value"),
        pytest.param('metainfer_request_duration_seconds_count{model="' + "x" * 9000 + '"} 1', id="too long"),
        pytest.param("other_metric_total 5", id="another metric"),
    ],
)
def test_lines_that_cannot_be_read_are_left_out(line: str) -> None:
    """The rest of the page counts."""
    good = 'metainfer_request_duration_seconds_count{model="o}c r\\"x"} 7 1700000000000'
    (series,) = parse_page(f"# HELP x y\n{line}\n{good}\n", SOURCE, pod="ocr-0", at_unix_seconds=5.0)
    assert (series.labels, series.points) == ({"model": 'o}c r"x', "pod": "ocr-0"}, ((5.0, 7.0),))


@given(st.text(alphabet='abc{}="\\, 01.eE+-naif_#\t\u2028é', max_size=60))
def test_no_page_breaks_the_parser(tail: str) -> None:
    """Pages are other people's."""
    parse_page(f"metainfer_request_duration_seconds_bucket{tail}\nmetainfer_request_duration_seconds_sum{{{tail}", SOURCE, pod="p", at_unix_seconds=0.0)
