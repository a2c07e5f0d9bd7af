"""Which series of which server tell the latency of a request: names, units, labels. Data; one row per server.

Where a server has several, the first that has requests is read. A histogram comes first: only of it a 99th percentile can be had over
all pods. Each row's origin is the server's own source, named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Shape = Literal["Histogram", "Summary", "Counters"]
SECOND_US, MILLISECOND_US, MICROSECOND_US = 1e6, 1e3, 1.0
"""Microseconds in one of the metric's own units."""
UNITS: Final[Mapping[str, float]] = {"s": SECOND_US, "ms": MILLISECOND_US, "us": MICROSECOND_US}

OWN_QUERY: Final = "own_query"
"""Name of the histogram that an own query's answer is turned into."""


@dataclass(frozen=True, slots=True)
class LatencyMetric:
    """One way in which a server tells latency; an empty name = it has no such series."""

    shape: Shape
    count: str
    sum: str
    unit_us: float
    bucket: str = ""
    quantile: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every series to ask for."""
        return tuple(name for name in (self.bucket, self.count, self.sum, self.quantile) if name)


def histogram(base: str, unit_us: float = SECOND_US) -> LatencyMetric:
    """By the naming that every Prometheus client keeps to."""
    return LatencyMetric("Histogram", f"{base}_count", f"{base}_sum", unit_us, bucket=f"{base}_bucket", quantile=base)


def summary(base: str, unit_us: float = SECOND_US) -> LatencyMetric:
    """Quantiles computed inside of the process."""
    return LatencyMetric("Summary", f"{base}_count", f"{base}_sum", unit_us, quantile=base)


def counters(*, count: str, total: str, unit_us: float = SECOND_US) -> LatencyMetric:
    """Requests, and the time spent in them: a mean, no percentile."""
    return LatencyMetric("Counters", count, total, unit_us)


@dataclass(frozen=True, slots=True)
class LatencySource:
    """Where one kind of server tells how long requests took."""

    metrics: tuple[LatencyMetric, ...]
    model_label: str = ""
    """Label that names the model; empty = the server does not tell models apart."""
    version_label: str = ""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> values that count; other series are no requests for answers of the model (health checks, refusals)."""
    port: int = 8080
    path: str = "/metrics"
    """Where the server's own page is, unless the pod's annotations say otherwise."""
    switch: str = ""
    """What the server needs to have these series; empty = they are there by default."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every series to ask for, once."""
        return tuple(dict.fromkeys(name for metric in self.metrics for name in metric.names))


# Grouped paths, as starlette_exporter writes them. The model's own readiness check is on the same metric, and fast.
_V2_INFER = ("/v2/models/{model_name}/infer", "/v2/models/{model_name}/versions/{model_version}/infer")

LATENCY_PRESETS: Final[Mapping[str, LatencySource]] = {
    # the demo, in hack/demo/server/runtime.py
    "MetaInfer": LatencySource((histogram("metainfer_request_duration_seconds"),), model_label="model", port=8082),
    # mlserver/rest/app.py with starlette_exporter (HTTP only, no model label); the model's own metric has no buckets (handlers/dataplane.py)
    "MLServer": LatencySource(
        (histogram("rest_server_request_duration_seconds"), summary("model_infer_request_duration")),
        only={"path": _V2_INFER, "status_code": ("200",)},
        port=8082,
    ),
    # core: metric_model_reporter.h; server: docs/user_guide/metrics.md. By default only the two counters exist.
    "Triton": LatencySource(
        (
            histogram("nv_inference_first_response_histogram_ms", MILLISECOND_US),
            summary("nv_inference_request_summary_us", MICROSECOND_US),
            counters(count="nv_inference_request_success", total="nv_inference_request_duration_us", unit_us=MICROSECOND_US),
        ),
        model_label="model",
        version_label="version",
        port=8002,
        switch="--metrics-config histogram_latencies=true, with narrower buckets in the model's model_metrics",
    ),
    # vllm/v1/metrics/loggers.py. End to end depends on the length of the answer; the first token does not.
    "vLLM": LatencySource((histogram("vllm:time_to_first_token_seconds"), histogram("vllm:e2e_request_latency_seconds")), model_label="model_name", port=8000),
    # python/sglang/srt/metrics/collector.py
    "SGLang": LatencySource(
        (histogram("sglang:time_to_first_token_seconds"), histogram("sglang:e2e_request_latency_seconds")),
        model_label="model_name",
        port=30000,
        switch="--enable-metrics",
    ),
    # src/model_metric_reporter.cpp
    "OpenVINOModelServer": LatencySource(
        (histogram("ovms_request_time_us", MICROSECOND_US),), model_label="name", version_label="version", port=8000, switch="--metrics_enable and --rest_port"
    ),
    # servables/tensorflow/util.cc; the names begin with a colon
    "TFServing": LatencySource(
        (histogram(":tensorflow:serving:request_latency", MICROSECOND_US),),
        model_label="model_name",
        port=8501,
        path="/monitoring/prometheus/metrics",
        switch="--monitoring_config_file",
    ),
    # python/kserve/kserve/metrics.py
    "KServe": LatencySource((histogram("request_predict_seconds"),), model_label="model_name"),
}


def build_own_source(metric: LatencyMetric, *, model_label: str = "", only: Mapping[str, tuple[str, ...]] | None = None) -> LatencySource:
    """A server, mesh or proxy that no preset knows, by its metric's name; everything else is as with a preset."""
    return LatencySource((metric,), model_label=model_label, only=only or {})


@dataclass(frozen=True, slots=True)
class OwnQuery:
    """PromQL of the user's own: each ``$window`` becomes the window's length, such as ``900s``.

    ``buckets`` answers one value per ``le``: requests of the window that took at most that long. ``total`` answers one value: the time
    spent in them, for the mean. Counter resets, doubled series and versions are then the query's own business.
    """

    buckets: str
    total: str = ""
    unit_us: float = SECOND_US

    @property
    def source(self) -> LatencySource:
        """How its answer is read."""
        return LatencySource((histogram(OWN_QUERY, self.unit_us),))
