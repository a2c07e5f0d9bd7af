"""What of a ModelAdaptation is about served latency: where it is read and what counts as drift (spec), and what was seen (status)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from metainfer.api.v1alpha1.common import ApiModel, Duration, Timestamp, duration_between, rules

LatencyPreset = Literal["MetaInfer", "MLServer", "Triton", "vLLM", "SGLang", "OpenVINOModelServer", "TFServing", "KServe"]
LatencyUnit = Literal["s", "ms", "us"]
MetricName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*$")]
MetricLabel = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PromQL = Annotated[str, Field(min_length=1, max_length=2048)]


class OwnHistogram(ApiModel):
    """A histogram that no preset knows, of a server, mesh or proxy."""

    name: MetricName = Field(description="name of the histogram, without _bucket, for example http_request_duration_seconds.")
    unit: LatencyUnit = Field(default="s", description="unit of its values: s, ms or us.")
    model_label: MetricLabel | None = Field(default=None, description="modelLabel is the label that names the model, where several share the server.")


class LatencyQuery(ApiModel):
    """PromQL of your own. Needs the operator's leave (prometheus.allowQueries in the chart), because it can ask about anything."""

    buckets: PromQL = Field(description="buckets answers one value per le: the requests of the window that took at most that long; $window is its length.")
    total: PromQL | None = Field(default=None, description="total answers one value: the time spent in these requests, for the mean.")
    unit: LatencyUnit = Field(default="s", description="unit of le and total: s, ms or us.")


class PrometheusSource(ApiModel):
    """Prometheus, or anything with its HTTP API."""

    url: str | None = Field(
        default=None,
        min_length=10,
        max_length=2048,
        pattern=r"^https?://[^\s@?#]+$",
        description="url up to what stands before /api, one of those that the operator allows (prometheus.allowedUrls in the chart); default: the operator's.",
    )
    query: LatencyQuery | None = Field(default=None, description="query of your own, where no preset and no histogram fits.")


class ScrapeSource(ApiModel):
    """The metrics pages of the target's own pods, where there is no Prometheus."""

    port: int | None = Field(default=None, ge=1, le=65_535, description="port of the page; default: the annotation prometheus.io/port, else the preset's.")
    path: str | None = Field(
        default=None,
        max_length=256,
        pattern=r"^/[A-Za-z0-9/_.:-]*$",
        description="path of the page; default: the annotation prometheus.io/path, else the preset's.",
    )


class LatencySourceRef(ApiModel):
    """Where the latency that the target serves is read."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!(has(self.prometheus) && has(self.scrape))", "set prometheus or scrape, not both"),
            ("!(has(self.preset) && has(self.histogram))", "set preset (a known server) or histogram (its metric), not both"),
            (
                "!has(self.prometheus) || !has(self.prometheus.query) || !(has(self.preset) || has(self.histogram))",
                "a query of your own needs neither preset nor histogram: remove them",
            ),
        )
    )

    preset: LatencyPreset | None = Field(default=None, description="preset names the server by the metrics that it has; default: settings.preset.")
    histogram: OwnHistogram | None = Field(default=None, description="histogram of a server that no preset knows.")
    model: str | None = Field(
        default=None, min_length=1, max_length=253, description="model by the server's own name; needed only where several share the server."
    )
    prometheus: PrometheusSource | None = Field(default=None, description="prometheus is asked; default where the operator has one.")
    scrape: ScrapeSource | None = Field(default=None, description="scrape reads the pods' own pages.")


class Drift(ApiModel):
    """When the target counts as slower than it was after the decision."""

    p99_increase_percent: int = Field(
        default=20,
        ge=5,
        le=1000,
        description="p99IncreasePercent by which each of the last windows has to be slower than the baseline; or by 3/4 of it four times as many on average.",
    )
    windows: int = Field(default=3, ge=2, le=12, description="windows that have to agree; a baseline begins with as many and grows to four times as many.")
    window: Duration = Field(
        default="15m", json_schema_extra=duration_between("10s", "24h"), description="window over which latency is read, with at least minRequests."
    )
    min_requests: int = Field(
        default=1000,
        ge=50,
        le=1_000_000,
        description="minRequests that a window needs: the 99th percentile of 1000 is known to 6 %, of 100 to 19 %.",
    )
    source: LatencySourceRef | None = Field(
        default=None, description="source of the latency; default: the operator's Prometheus, by settings.preset. Without either it is not watched."
    )

    @property
    def increase(self) -> float:
        """p99IncreasePercent as a share."""
        return self.p99_increase_percent / 100


class ServedFigures(ApiModel):
    """What one window told."""

    at: Timestamp = Field(description="at is when the window ended.")
    p99: str | None = Field(default=None, max_length=32, description="p99 latency; absent where it cannot be compared: see condition LatencyObserved.")
    mean: str | None = Field(default=None, max_length=32, description="mean latency; absent where it cannot be compared.")
    requests: int = Field(description="requests that were served in the window.")
    requests_per_minute: int = Field(description="requestsPerMinute over all replicas.")
    in_flight_permille: int | None = Field(default=None, description="inFlightPermille is the mean number of requests in the servers; 1000 = one request.")
    replicas_permille: int | None = Field(
        default=None,
        description="replicasPermille is the mean number of pods seen; 1000 = one pod. Absent where the source does not tell pods apart.",
    )


class ServedBaseline(ApiModel):
    """What the first good windows after the placement settled told. Load is per replica where the source tells pods apart."""

    metric: str = Field(max_length=256, description="metric that was read; another one is not compared with it.")
    at: Timestamp = Field(description="at is when the last of the windows that it began with ended; later ones are compared with it.")
    windows: int = Field(description="windows that it is made of, with those that it grew by.")
    p99: str | None = Field(default=None, max_length=32, description="p99 latency: the median over the first windows, moved by each later one by its share.")
    mean: str | None = Field(default=None, max_length=32, description="mean latency, likewise.")
    per_replica: bool = Field(default=False, description="perReplica says whether the load is per replica.")
    requests_per_minute_low: int = Field(default=0, description="requestsPerMinuteLow is the lowest load that was served like this.")
    requests_per_minute_high: int = Field(default=0, description="requestsPerMinuteHigh is the highest load that was served like this.")
    in_flight_permille_high: int | None = Field(
        default=None, description="inFlightPermilleHigh is the highest number of requests in the server meanwhile; 1000 = one request."
    )


class ServedStatus(ApiModel):
    """How the target serves since the decision in force."""

    decision_id: str = Field(max_length=32, description="decisionId of the decision under which this was served.")
    settled_at: Timestamp = Field(description="settledAt is when that decision was in place; windows count from then on.")
    last: ServedFigures | None = Field(default=None, description="last window.")
    baseline: ServedBaseline | None = Field(default=None, description="baseline that windows are compared with.")
    p99_ratio_permille: int | None = Field(
        default=None, description="p99RatioPermille is the last window's p99 over the baseline's; 1000 = the same, 1200 = 20 % slower."
    )
