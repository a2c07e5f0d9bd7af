from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.decide.latency.make_served import (
    BASE,
    COARSE,
    FINE,
    PER_STEP,
    SOURCE,
    STEP,
    STEPS,
    format_edge,
    make_counter,
    make_histogram,
    make_points,
    make_question,
    make_served,
    respell,
    with_values,
)

from metainfer.decide.latency.findings import LatencyFinding
from metainfer.decide.latency.growth import sum_growth
from metainfer.decide.latency.reading import LatencyReading, read_latency
from metainfer.decide.latency.selection import LatencyQuestion
from metainfer.decide.latency.series import Scrape, Series, ServedSeries, join_scrapes
from metainfer.decide.latency.sources import LATENCY_PRESETS, LatencySource, counters, histogram, summary
from metainfer.decide.latency.streams import build_streams

REQUESTS = len(PER_STEP) * STEPS
MEAN_US = sum(PER_STEP) / len(PER_STEP) * 1e6


def read(*series: Series, **changes: object) -> LatencyReading:
    return read_latency(make_question(**changes), make_served(*series))


def finding(reading: LatencyReading, reason: str) -> LatencyFinding:
    return next(found for found in reading.findings if found.reason == reason)


def usable(reading: LatencyReading) -> tuple[bool, bool]:
    """Whether p99 and mean may be compared."""
    return reading.supports("p99"), reading.supports("mean")


def is_slow_request_of(reading: LatencyReading) -> bool:
    """Whether the percentile's bucket holds the 40 ms that the builder's slow requests take."""
    return reading.p99 is not None and reading.p99.lower_us < 40_000 <= reading.p99.upper_us and reading.p99.lower_us <= reading.p99.value_us


def test_a_healthy_window_gives_every_figure_and_no_finding() -> None:
    """Requests are counted from the counter's state at the start, without extrapolation."""
    reading = read(*make_histogram())
    assert reading.findings == ()
    assert usable(reading) == (True, True)
    assert is_slow_request_of(reading)
    assert reading.requests == REQUESTS
    assert reading.mean_us == pytest.approx(MEAN_US)


def test_the_load_of_the_window_stands_beside_its_latency() -> None:
    """Rate and requests in flight per replica: a busier service is not a slower card."""
    reading = read(*make_histogram(), *make_histogram(labels={"pod": "p-1"}))
    assert reading.load.replicas == pytest.approx(2)
    assert reading.load.requests_per_second_per_replica == pytest.approx(len(PER_STEP) / STEP)
    assert reading.load.in_flight_per_replica == pytest.approx(sum(PER_STEP) / STEP)


def test_a_replica_that_came_half_way_counts_as_half_a_replica() -> None:
    """Replicas are pod seconds over the window's seconds."""
    late = tuple(replace(one, points=one.points[1 + STEPS // 2 :]) for one in make_histogram(labels={"pod": "p-1"}))
    assert read(*make_histogram(), *late).load.replicas == pytest.approx(1.5)


@pytest.mark.parametrize("unit", [pytest.param(1e3, id="milliseconds"), pytest.param(1.0, id="microseconds")])
def test_units_are_the_metric_s_own(unit: float) -> None:
    """The same counters in another unit are a thousandth of the latency."""
    seconds = read(*make_histogram())
    other = read(*make_histogram(), source=LatencySource((histogram(BASE, unit),)))
    assert seconds.p99 is not None
    assert other.p99 is not None
    assert other.p99.value_us == pytest.approx(seconds.p99.value_us * unit / 1e6)
    assert other.mean_us == pytest.approx(MEAN_US * unit / 1e6)


def test_no_series_is_unknown_and_names_what_was_looked_for() -> None:
    """Wrong metric, or a server without the switch: nothing is known, and nothing is bad."""
    reading = read(source=LATENCY_PRESETS["SGLang"])
    assert reading.reasons == ("NoLatencyData",)
    assert usable(reading) == (False, False)
    assert "--enable-metrics" in reading.findings[0].message
    assert "sglang:time_to_first_token_seconds_bucket" in reading.findings[0].message


def test_an_idle_server_is_unknown() -> None:
    """No request: no percentile, no mean, no alarm."""
    reading = read(*make_histogram(()))
    assert reading.reasons == ("NoRequests",)
    assert (reading.p99, reading.mean_us, reading.requests) == (None, None, 0)


def test_a_summary_has_a_mean_and_no_percentile_of_several_processes() -> None:
    """Quantiles of processes cannot be joined."""
    parts = [make_counter(BASE, 0, labels={"pod": "p-0", "quantile": "0.99"}, initial=0.021)]
    totals = [make_counter(f"{BASE}_count", 30), make_counter(f"{BASE}_sum", 0.6)]
    for source in (LatencySource((summary(BASE),)), SOURCE):
        reading = read(*parts, *totals, source=source)
        assert reading.reasons == ("SummaryNotHistogram",)
        assert usable(reading) == (False, True)
        assert reading.mean_us == pytest.approx(20_000)


def test_a_summary_that_reports_no_number_is_idle() -> None:
    """A server's own window ran empty."""
    quantile = with_values(make_counter("nv_inference_request_summary_us", 0, labels={"pod": "p-0", "model": "m", "quantile": "0.99"}), math.nan)
    reading = read(quantile, source=LATENCY_PRESETS["Triton"])
    assert "NoRequests" in reading.reasons
    assert usable(reading) == (False, False)


def test_counters_alone_have_a_mean() -> None:
    """Triton by default."""
    source = LATENCY_PRESETS["Triton"]
    labels = {"pod": "p-0", "model": "m", "version": "1"}
    pair = [make_counter("nv_inference_request_success", 30, labels=labels), make_counter("nv_inference_request_duration_us", 600_000, labels=labels)]
    reading = read(*pair, source=source)
    assert reading.reasons == ("NoHistogram",)
    assert usable(reading) == (False, True)
    assert reading.mean_us == pytest.approx(20_000)
    assert "histogram_latencies" in reading.findings[0].message


def test_a_histogram_is_read_before_the_counters_beside_it() -> None:
    """The order of the source's metrics, as far as they have requests."""
    source = LatencySource((histogram("idle"), histogram(BASE), counters(count="n", total="t")))
    series = (*make_histogram(()), *make_histogram(base="idle", per_step=()), make_counter("n", 30), make_counter("t", 1))
    assert read(*series, source=source).metric == "t"
    assert read(*series[:-2], *make_histogram(labels={"pod": "p-1"}), source=source).metric == BASE


def test_without_its_infinite_bucket_a_histogram_has_a_mean_only() -> None:
    """Dropped while scraping: where the slowest requests are is not known."""
    reading = read(*(one for one in make_histogram() if one.labels.get("le") != "+Inf"))
    assert reading.reasons == ("InfBucketMissing",)
    assert usable(reading) == (False, True)
    assert reading.mean_us == pytest.approx(MEAN_US)


def test_one_of_two_pods_without_the_infinite_bucket_spoils_the_percentile_of_both() -> None:
    """The sum over pods would lack that pod's slowest requests."""
    lacking = (one for one in make_histogram(labels={"pod": "p-1"}) if one.labels.get("le") != "+Inf")
    assert read(*make_histogram(), *lacking).reasons == ("InfBucketMissing",)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(make_counter(f"{BASE}_bucket", 0, labels={"pod": "p-0", "le": "+Inf"}, initial=0), id="an infinite bucket that stays empty"),
        pytest.param(make_counter(f"{BASE}_count", 15), id="a count that stays behind"),
        pytest.param(make_counter(f"{BASE}_bucket", 5, labels={"pod": "p-0", "le": format_edge(FINE[40])}), id="a bucket that is emptier than a narrower one"),
    ],
)
def test_a_histogram_that_contradicts_itself_gives_nothing(wrong: Series) -> None:
    """One of two numbers is wrong, and nobody can say which."""
    reading = read(*(wrong if (one.name, one.labels) == (wrong.name, wrong.labels) else one for one in make_histogram()))
    assert "BucketsMalformed" in reading.reasons
    assert usable(reading) == (False, False)
    assert (reading.p99, reading.mean_us) == (None, None)


def test_a_bucket_spelled_in_two_ways_is_one_bucket() -> None:
    """An upgraded scraper writes 1.0 where it wrote 1; half of the requests would be missing from each."""
    spelled = make_histogram(edges=COARSE)
    series = [part for one in spelled for part in (respell(one, after_step=40) if one.labels.get("le") in ("1", "5", "10") else (one,))]
    reading, want = read(*series), read(*spelled)
    assert (reading.p99, reading.requests, reading.edges_us) == (want.p99, want.requests, want.edges_us)
    assert finding(reading, "BucketSpelledTwice").spoils == ()
    assert "1 and 1.0" in finding(reading, "BucketSpelledTwice").message
    assert len(reading.edges_us) == len(COARSE) + 1


def test_samples_that_are_no_numbers_are_left_out_and_named() -> None:
    """An observation of NaN stays in the sum for ever; the buckets are as good as before."""
    reading = read(*(with_values(one, math.nan, from_step=30) if one.name.endswith("_sum") else one for one in make_histogram()))
    assert reading.reasons == ("NotANumber",)
    assert usable(reading) == (True, False)
    assert is_slow_request_of(reading)
    buckets = read(*(with_values(one, math.nan, from_step=30) if one.name.endswith("_bucket") else one for one in make_histogram()))
    assert usable(buckets) == (False, False)


def test_of_several_versions_the_serving_one_is_read() -> None:
    """Never an average or maximum with the one that is loaded and idle."""
    idle = make_histogram((), labels={"pod": "p-0", "version": "1"})
    reading = read(*idle, *make_histogram(labels={"pod": "p-0", "version": "2"}))
    assert is_slow_request_of(reading)
    assert reading.requests == REQUESTS
    assert finding(reading, "OtherVersions").spoils == ()
    assert "version 2 serves; left out: 1 with 0 requests" in finding(reading, "OtherVersions").message


def test_requests_of_several_models_are_not_mixed() -> None:
    """A server with two models: whose latency is meant has to be said; then only that one is read."""
    slow = make_histogram((2.0,) * 10, labels={"pod": "p-0", "model": "slow"})
    both = (*make_histogram(labels={"pod": "p-0", "model": "ocr"}), *slow)
    mixed = read(*both)
    assert mixed.reasons == ("SeveralModels",)
    assert usable(mixed) == (False, False)
    named = read(*both, model="ocr")
    assert named.findings == ()
    assert is_slow_request_of(named)
    other = read(*both, model="elsewhere")
    assert other.reasons == ("ModelNotServed",)
    assert "ocr, slow" in other.findings[0].message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"prometheus_replica": "a"}, {"prometheus_replica": "b"}, id="a replicated Prometheus"),
        pytest.param(
            {"instance": "10.0.0.1:8080", "job": "ocr", "service": "ocr"},
            {"instance": "10.0.0.1:8080", "job": "pods", "endpoint": "http"},
            id="two scrape jobs",
        ),
    ],
)
def test_a_process_that_is_told_twice_counts_once(one: dict[str, str], other: dict[str, str]) -> None:
    """Doubled requests would pass for enough requests."""
    reading = read(*make_histogram(labels={"pod": "p-0", **one}), *make_histogram(labels={"pod": "p-0", **other}))
    assert reading.requests == REQUESTS
    assert reading.load.replicas == pytest.approx(1)
    assert finding(reading, "SeriesDoubled").spoils == ()


def test_two_ports_of_a_pod_are_two_processes() -> None:
    """Workers that each have a port are not copies of one another."""
    series = [part for port in (8080, 8081) for part in make_histogram(labels={"pod": "p-0", "instance": f"10.0.0.1:{port}"})]
    reading = read(*series)
    assert reading.requests == 2 * REQUESTS
    assert reading.findings == ()


def test_counters_that_begin_anew_with_a_restart_lose_nothing() -> None:
    """Requests, mean and percentile are those of a server that went on."""
    reading = read(*make_histogram(resets=(30,)), restarts={"p-0": 1})
    assert reading.reasons == ("CountersReset",)
    assert usable(reading) == (True, True)
    assert is_slow_request_of(reading)
    assert reading.requests == REQUESTS
    assert reading.mean_us == pytest.approx(MEAN_US)


def test_a_reset_counts_for_every_bucket_of_the_process() -> None:
    """A nearly empty bucket is fuller after the restart than it was before, and has gained all that it holds."""
    count = make_points(f"{BASE}_count", 110, 120, 30)
    bucket = make_points(f"{BASE}_bucket", 0, 5, 30, le="0.1")
    streams = build_streams([count, bucket], histogram(BASE))
    growth = sum_growth(streams, make_served(), unit_us=1e6)
    assert growth.requests == 10 + 30
    assert growth.buckets == {100_000.0: 5 + 30}


@pytest.mark.parametrize(
    "restarts", [pytest.param({"p-0": 0}, id="no restart"), pytest.param({"p-0": 1}, id="fewer restarts"), pytest.param(None, id="unknown")]
)
def test_counters_that_go_back_more_often_than_pods_restarted_are_refused(restarts: dict[str, int] | None) -> None:
    """Worker processes that answer scrapes in turn give a wild but plausible percentile."""
    reading = read(*make_histogram(resets=(10, 20, 30, 41)), restarts=restarts)
    assert "CountersUnshared" in reading.reasons
    assert "CountersReset" not in reading.reasons
    assert usable(reading) == (False, False)
    assert "p-0 4 times" in finding(reading, "CountersUnshared").message


def test_each_reset_needs_a_restart_of_its_own() -> None:
    """A pod that was restarted twice is believed two resets; one that was not restarted, none."""
    twice = make_histogram(resets=(10, 30))
    assert usable(read(*twice, restarts={"p-0": 2})) == (True, True)
    assert usable(read(*twice, restarts={"p-0": 1})) == (False, False)
    assert usable(read(*make_histogram(resets=(30,)), restarts={"p-0": 0})) == (False, False)


def test_too_few_requests_are_told_and_not_compared() -> None:
    """The percentile of a hundred requests is off by 20 % by chance alone."""
    reading = read(*make_histogram(), min_requests=REQUESTS + 1)
    assert reading.reasons == ("TooFewRequests",)
    assert is_slow_request_of(reading)
    assert usable(reading) == (False, False)


def test_coarse_buckets_cannot_show_the_drift() -> None:
    """Twenty percent more can stay inside of a bucket that is wider: said, never alarmed."""
    reading = read(*make_histogram(edges=COARSE))
    assert reading.reasons == ("LatencyUnresolvable",)
    assert usable(reading) == (False, True)
    assert reading.p99 is not None
    assert (reading.p99.lower_us, reading.p99.upper_us) == (pytest.approx(25_000), pytest.approx(50_000))
    assert "25 ms and 50 ms" in reading.findings[0].message
    assert read(*make_histogram(edges=COARSE), detectable_increase_percent=150).findings == ()


def test_the_bucket_above_has_to_be_fine_as_well() -> None:
    """A percentile that moves into a wide bucket is read anywhere within it: 10 % would pass for 90 %."""
    edges = (0.02, 0.03, 0.036, 0.042, 0.2, 1.0)
    reading = read(*make_histogram(edges=edges))
    assert reading.reasons == ("LatencyUnresolvable",)
    assert "42 ms and 200 ms" in reading.findings[0].message


def test_a_percentile_above_the_highest_bucket_is_not_known() -> None:
    """PromQL would answer with the highest edge."""
    reading = read(*make_histogram((0.01,) * 28 + (90.0,) * 2))
    assert "P99BeyondBuckets" in reading.reasons
    assert usable(reading) == (False, True)
    assert reading.p99 is not None
    assert (reading.p99.value_us, reading.p99.upper_us) == (pytest.approx(FINE[-1] * 1e6, rel=1e-4), math.inf)


def test_pods_with_other_buckets_are_joined_at_the_edges_they_share() -> None:
    """In the middle of a rollout."""
    reading = read(*make_histogram(edges=(0.05, 0.1, 1.0)), *make_histogram(edges=(0.1, 1.0), labels={"pod": "p-1"}))
    assert reading.edges_us == (pytest.approx(100_000), pytest.approx(1_000_000), math.inf)
    assert reading.requests == 2 * REQUESTS


def test_a_histogram_without_a_sum_has_no_mean_to_check_with() -> None:
    """The percentile stays."""
    reading = read(*(one for one in make_histogram() if not one.name.endswith("_sum")))
    assert reading.reasons == ("SumMissing",)
    assert usable(reading) == (True, False)


def test_only_requests_for_answers_count() -> None:
    """A readiness check on the same metric is fast, and would hide every drift."""
    source = LATENCY_PRESETS["MLServer"]
    base = "rest_server_request_duration_seconds"
    infer = make_histogram(base=base, labels={"pod": "p-0", "path": "/v2/models/{model_name}/infer", "status_code": "200"})
    ready = make_histogram((0.001,) * 90, base=base, labels={"pod": "p-0", "path": "/v2/models/{model_name}/ready", "status_code": "200"})
    failed = make_histogram((0.001,) * 90, base=base, labels={"pod": "p-0", "path": "/v2/models/{model_name}/infer", "status_code": "503"})
    assert read(*infer, *ready, *failed, source=source).requests == REQUESTS


def test_what_the_source_lacks_is_passed_on() -> None:
    """An answer that is not whole is no alarm, and no secret."""
    served = replace(make_served(*make_histogram()), warnings=("store-gateway-2 did not answer",))
    reading = read_latency(make_question(), served)
    assert reading.reasons == ("AnswerPartial",)
    assert usable(reading) == (True, True)


def test_two_scrapes_make_a_window() -> None:
    """Each pod's counters at two moments, whichever order they come in."""
    whole = make_histogram()
    first, last = (Scrape(whole[0].points[at].at_unix_seconds, tuple(replace(one, points=(one.points[at],)) for one in whole)) for at in (1, -1))
    served = join_scrapes([last, first])
    assert served.seconds == STEPS * STEP
    reading = read_latency(make_question(), served)
    assert (reading.requests, reading.findings) == (REQUESTS, ())


@pytest.mark.parametrize("served", [ServedSeries(5.0, 5.0), ServedSeries(5.0, 5.0, make_histogram())], ids=["nothing", "no time"])
def test_a_window_of_no_length_is_unknown(served: ServedSeries) -> None:
    """One scrape, or none: no division by zero."""
    reading = read_latency(LatencyQuestion(SOURCE), served)
    assert usable(reading) == (False, False)
    assert reading.load.requests_per_second == 0.0


@pytest.mark.parametrize("name", LATENCY_PRESETS)
def test_every_preset_reads_its_own_server(name: str) -> None:
    """Names, labels and units of each row go together: the builder's latencies come out as they went in."""
    source = LATENCY_PRESETS[name]
    metric = source.metrics[0]
    scale = 1e6 / metric.unit_us
    labels = {"pod": "p-0", **({source.model_label: "ocr"} if source.model_label else {}), **{label: values[0] for label, values in source.only.items()}}
    base = metric.bucket.removesuffix("_bucket")
    edges = tuple(edge * scale for edge in (0.02, 0.0225, 0.025, 0.028, 0.031, 0.0355, 0.0405, 0.046, 0.052))
    served = make_served(*make_histogram([latency * scale for latency in PER_STEP], base=base, labels=labels, edges=edges))
    idle = make_histogram((), base=base, labels={**labels, source.version_label: "1"}, edges=edges) if source.version_label else ()
    reading = read_latency(LatencyQuestion(source, model="ocr"), replace(served, series=(*served.series, *idle)))
    assert reading.reasons == (("OtherVersions",) if source.version_label else ())
    assert is_slow_request_of(reading)
    assert reading.mean_us == pytest.approx(MEAN_US)
