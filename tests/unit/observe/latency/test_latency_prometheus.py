from __future__ import annotations

from dataclasses import replace

import aiohttp
import pytest
from tests.unit.observe.latency.conftest import History
from tests.unit.observe.latency.strangers import DEFAULT, WINDOW_SECONDS

from metainfer.decide.latency.reading import LatencyReading, read_latency
from metainfer.decide.latency.selection import LatencyQuestion
from metainfer.decide.latency.sources import LATENCY_PRESETS, LatencySource, OwnQuery, histogram, summary
from metainfer.decide.latency.target import ServedPod, ServedTarget
from metainfer.observe.latency_http import LatencySourceError, MetricsRefused
from metainfer.observe.latency_prometheus import PrometheusEndpoint, PrometheusLatency, build_selector

DEMO = LatencySource((histogram("demo_latency_seconds"),), version_label="version")
RESPELLED = LatencySource((histogram("demo_request_seconds"),))


class Reader:
    """Asks the real server about one service."""

    def __init__(self, session: aiohttp.ClientSession, history: History) -> None:
        self._latency = PrometheusLatency(session, PrometheusEndpoint(history.url))
        self._end = history.end

    async def read(self, service: str, source: LatencySource | OwnQuery = DEMO, *, seconds: int = WINDOW_SECONDS, model: str = "") -> LatencyReading:
        """One window that ends where the history does."""
        target = make_target(service, source)
        served = await self._latency.read_window(target, start_unix_seconds=self._end - seconds, end_unix_seconds=self._end)
        return read_latency(LatencyQuestion(source.source if isinstance(source, OwnQuery) else source, model=model), served)


def make_target(service: str, source: LatencySource | OwnQuery = DEMO) -> ServedTarget:
    return ServedTarget(service, (ServedPod(f"{service}-7d9f-abcde"),), source)


@pytest.fixture
def reader(session: aiohttp.ClientSession, history: History) -> Reader:
    return Reader(session, history)


def p99_ms(reading: LatencyReading) -> float:
    assert reading.p99 is not None
    return reading.p99.value_us / 1e3


async def test_a_bucket_that_an_upgraded_prometheus_spells_otherwise_is_one_bucket(reader: Reader) -> None:
    """Eleven edges and not fourteen; matching one spelling would find some of the requests; resolution is judged where the percentile lies."""
    reading = await reader.read("respelled", RESPELLED)
    assert [edge / 1e6 for edge in reading.edges_us[:-1]] == pytest.approx(DEFAULT)
    assert reading.requests == 1200
    assert reading.p99 is not None
    assert (reading.p99.lower_us, reading.p99.upper_us) == (500_000, 1_000_000)
    assert p99_ms(reading) == pytest.approx(940, rel=0.03)
    assert reading.reasons == ("BucketSpelledTwice", "LatencyUnresolvable")
    assert "500 ms and 1 s" in reading.findings[-1].message
    assert reading.supports("mean")


async def test_an_idle_service_is_unknown(reader: Reader) -> None:
    """No data is not bad."""
    reading = await reader.read("idle")
    assert reading.reasons == ("NoRequests",)
    assert (reading.p99, reading.mean_us) == (None, None)


async def test_a_summary_that_says_nothing_is_unknown(reader: Reader) -> None:
    """The server itself reports NaN after twenty idle minutes."""
    reading = await reader.read("summary", LatencySource((summary("nv_inference_request_summary_us", 1.0),), model_label="model"))
    assert reading.reasons == ("NoRequests", "SummaryNotHistogram")
    assert (reading.p99, reading.supports("mean")) == (None, False)
    assert (await reader.read("summary", LATENCY_PRESETS["Triton"])).reasons == reading.reasons


async def test_a_histogram_whose_infinite_bucket_was_dropped_has_a_mean(reader: Reader) -> None:
    """21 ms, from count and sum; no percentile."""
    reading = await reader.read("no-inf")
    assert reading.reasons == ("InfBucketMissing",)
    assert reading.p99 is None
    assert reading.supports("mean")
    assert reading.mean_us == pytest.approx(21_000, rel=0.02)


async def test_a_histogram_whose_infinite_bucket_stays_empty_is_malformed(reader: Reader) -> None:
    """PromQL answers 48 ms all the same."""
    reading = await reader.read("inf-zero")
    assert "BucketsMalformed" in reading.reasons
    assert (reading.supports("p99"), reading.supports("mean")) == (False, False)


async def test_the_version_that_serves_is_read(reader: Reader) -> None:
    """1,800 requests and 48 ms, whatever is loaded beside it."""
    reading = await reader.read("versions")
    assert reading.requests == 1800
    assert p99_ms(reading) == pytest.approx(48, abs=1.5)
    assert "OtherVersions" in reading.reasons


async def test_a_restart_in_the_window_loses_nothing(reader: Reader) -> None:
    """47 ms of 1,800 requests, as if the counters had gone on."""
    reading = await reader.read("restarted")
    assert reading.requests == 1800
    assert p99_ms(reading) == pytest.approx(47, abs=2)
    assert reading.reasons == ("CountersReset", "LatencyUnresolvable")


async def test_the_copies_of_a_replicated_prometheus_count_once(reader: Reader) -> None:
    """Else 900 requests would pass for the 1,800 that are needed."""
    reading = await reader.read("replicated")
    assert reading.requests == 1800
    assert reading.load.replicas == pytest.approx(1)
    assert "SeriesDoubled" in reading.reasons


async def test_names_that_begin_with_a_colon_are_found(reader: Reader) -> None:
    """TF Serving's, in microseconds."""
    reading = await reader.read("colon", LATENCY_PRESETS["TFServing"], model="ocr")
    assert p99_ms(reading) == pytest.approx(48, abs=1.5)
    assert (await reader.read("colon", LATENCY_PRESETS["TFServing"], model="other")).reasons == ("ModelNotServed",)


async def test_pods_of_others_are_not_read(reader: Reader) -> None:
    """Another namespace, or a Deployment whose name begins alike."""
    assert (await reader.read("version")).reasons == ("NoLatencyData",)


async def test_the_percentile_is_the_one_that_prometheus_itself_computes(reader: Reader, session: aiohttp.ClientSession, history: History) -> None:
    """Same buckets, same interpolation; its rates extrapolate every bucket alike."""
    query = f'histogram_quantile(0.99, sum by (le) (rate(demo_latency_seconds_bucket{{namespace="versions"}}[{WINDOW_SECONDS}s])))'
    async with session.post(f"{history.url}/api/v1/query", data={"query": query, "time": str(history.end)}) as answer:
        (result,) = (await answer.json())["data"]["result"]
    assert p99_ms(await reader.read("versions")) == pytest.approx(float(result["value"][1]) * 1e3, rel=1e-6)


async def test_an_own_query_gives_what_the_preset_gives(reader: Reader) -> None:
    """PromQL extrapolates a little; the percentile is the same."""
    own = OwnQuery('sum by (le) (increase(demo_latency_seconds_bucket{version="2"}[$window]))', 'sum(increase(demo_latency_seconds_sum{version="2"}[$window]))')
    mine, preset = await reader.read("", own), await reader.read("versions")
    assert mine.requests == pytest.approx(1800, rel=0.02)
    assert p99_ms(mine) == pytest.approx(p99_ms(preset), rel=0.01)
    assert mine.mean_us == pytest.approx(preset.mean_us, rel=0.01)
    assert mine.load.requests_per_second_per_replica is None


async def test_an_own_query_that_finds_nothing_is_unknown(reader: Reader) -> None:
    """An empty vector is no zero."""
    reading = await reader.read("", OwnQuery("sum by (le) (increase(no_such_metric_bucket[$window]))"))
    assert reading.reasons == ("NoLatencyData",)


@pytest.mark.parametrize(
    ("query", "reason", "words"),
    [
        pytest.param("histogram_quantile(0.99, sum by (le) (rate(demo_latency_seconds_bucket[$window])))", "QueryWithoutBuckets", "le", id="a percentile"),
        pytest.param("sum by (le) (", "QueryRefused", "parse error", id="no PromQL"),
        pytest.param("demo_latency_seconds_bucket[$window]", "QueryRefused", "matrix", id="a matrix"),
    ],
)
async def test_an_own_query_that_cannot_be_used_is_refused_by_name(reader: Reader, query: str, reason: str, words: str) -> None:
    """With Prometheus' own words where it has some."""
    with pytest.raises(MetricsRefused) as caught:
        await reader.read("", OwnQuery(query))
    assert caught.value.reason == reason
    assert words in caught.value.message


async def test_an_answer_past_its_size_is_refused(session: aiohttp.ClientSession, history: History) -> None:
    """Somebody's ten thousand pods do not fill the operator's memory."""
    latency = PrometheusLatency(session, PrometheusEndpoint(history.url, bytes_limit=2048))
    with pytest.raises(MetricsRefused) as caught:
        await latency.read_window(make_target("versions"), start_unix_seconds=history.end - 900, end_unix_seconds=history.end)
    assert caught.value.reason == "AnswerTooLarge"


async def test_no_message_repeats_a_credential(session: aiohttp.ClientSession, history: History) -> None:
    """Neither of a wrong path nor of a closed port; the address without it is named."""
    somebody = history.url.replace("http://", "http://reader:hunter2@")
    for url, reason in (
        (f"{somebody}/elsewhere?token=hunter2", "NotPrometheus"),
        ("http://reader:hunter2@127.0.0.1:9", "MetricsUnreachable"),
        ("hunter2", "AddressInvalid"),
    ):
        latency = PrometheusLatency(session, PrometheusEndpoint(url))
        with pytest.raises(LatencySourceError) as caught:
            await latency.read_window(make_target("versions"), start_unix_seconds=history.end - 900, end_unix_seconds=history.end)
        assert caught.value.reason == reason
        assert "hunter2" not in caught.value.message
        assert "http" in caught.value.message


def test_a_selector_escapes_what_names_may_contain() -> None:
    """A dot in a pod's name is a dot, and a brace in a path no repetition."""
    target = ServedTarget("shop", (ServedPod("ocr.v2-1"), ServedPod("ocr.v2-2")), LATENCY_PRESETS["MLServer"])
    selector = build_selector(
        target, replace(LATENCY_PRESETS["MLServer"], only={"path": ("/{model}",)}), PrometheusEndpoint("", pod_label="kubernetes_pod_name")
    )
    assert 'namespace="shop"' in selector
    assert r'kubernetes_pod_name=~"ocr\\.v2-1|ocr\\.v2-2"' in selector
    assert r'path=~"|/\\{model\\}"' in selector
