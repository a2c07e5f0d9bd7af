"""The operator's settings, all of them, from METAINFER_* environment variables. The chart sets them; nothing else reads the environment.

Units stand in the names. Images come from here and never from a custom resource.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.latency.order import LatencyRules
from metainfer.decide.learned import NEW_SAMPLES
from metainfer.store.retention import Retention

PREFIX = "METAINFER_"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_\w+)?$")
"""Variables that Kubernetes itself puts into every pod for a Service whose name starts with ``metainfer``."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class SettingsError(Exception):
    """A setting is missing or wrong; the message names the environment variable and what it may be."""


class Settings(BaseModel):
    """Each field ``x_y`` is the variable ``METAINFER_X_Y``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator_namespace: str = Field(
        default="meta-infer-system", min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Where the operator runs and creates node probes.",
    )  # fmt: skip
    probe_image: str = Field(min_length=1, max_length=512, description="Image of all measuring Jobs.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(default="IfNotPresent", description="Pull policy of measuring Jobs.")
    image_bytes: int = Field(default=2 << 30, ge=0, description="Free image space a node needs before the probe image is pulled: unpacked size, rounded up.")
    priority_class: str = Field(
        default="meta-infer-probe", max_length=253, description="PriorityClass of measuring Jobs (below every workload, never preempting); empty = none."
    )
    job_user_id: int = Field(
        default=65_532, ge=0, le=2_147_483_647,
        description="User and group id of measuring containers; 0 = none is named, as policies that give each namespace its own range demand.",
    )  # fmt: skip
    store_url: str = Field(
        default="sqlite:////var/lib/meta-infer/store.db", min_length=1, repr=False, description="SQLAlchemy URL of the sample store; may hold a password."
    )
    store_keep_samples: int = Field(
        default=1000, ge=10, le=1_000_000,
        description="Benchmarks kept per model and family, profiles per model, probes per node, served windows per adaptation: the newest.",
    )  # fmt: skip
    store_keep_decisions: int = Field(default=50, ge=1, le=100_000, description="Decisions kept per adaptation: the newest.")
    store_keep_days: int = Field(
        default=400, ge=1, le=36_500, description="Age at which samples and decisions are dropped, but never the last decision in force."
    )
    store_keep_detail_days: int = Field(default=30, ge=1, le=36_500, description="Age at which the large detail of a report is dropped; the report stays.")
    store_compact_seconds: Seconds = Field(default=21_600.0, description="Time between two compactions of the sample store.")
    learn_after_samples: int = Field(default=NEW_SAMPLES, ge=1, le=1_000_000, description="New benchmarks after which a new predictor is trained.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least severe log line that is written.")
    health_port: int = Field(default=8080, ge=1, le=65_535, description="Port of /healthz, /readyz and /metrics.")

    prometheus_url: str = Field(
        default="", max_length=2048, repr=False, pattern=r"^(https?://\S+)?$",
        description="Prometheus that knows what targets serve, up to what stands before /api; may hold user and password. Empty = none.",
    )  # fmt: skip
    prometheus_authorization: str = Field(
        default="", max_length=8192, repr=False, pattern=r"^[^\r\n]*$", description="Authorization header for it, such as Bearer TOKEN; empty = none."
    )
    prometheus_namespace_label: str = Field(
        default="namespace", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Label in which that Prometheus has the namespace of a pod."
    )
    prometheus_pod_label: str = Field(default="pod", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Label in which it has the pod's name.")
    prometheus_allowed_urls: str = Field(
        default="", max_length=16_384, description="Further Prometheus servers that adaptations may name, separated by commas. Others are never asked."
    )
    prometheus_allow_queries: bool = Field(
        default=False, description="Let adaptations bring PromQL of their own: whoever may create one can then ask about everything that these servers know."
    )

    bench_window_seconds: Seconds = Field(default=1.5, description="One window of a benchmark; shorter ones are noise, longer ones see the card's clock drift.")
    bench_rounds: int = Field(default=7, ge=1, le=1000, description="Rounds in which candidate and reference alternate; an odd number has a middle.")
    profile_budget_seconds: Seconds = Field(default=120.0, description="Longest model portrait.")
    job_start_seconds: Seconds = Field(default=300.0, description="Allowance for scheduling, image pull and start, on top of a Job's measured time.")
    driver_settle_seconds: Seconds = Field(
        default=180.0, description="For how long a driver version must stand in a node's labels before it counts: at least two minutes outside of tests."
    )
    threads_per_card: int = Field(default=1, ge=1, le=1024, description="Threads a measuring Job uses on a CPU that stands in for a card.")

    workers: int = Field(default=16, ge=1, le=256, description="Passes that run at the same time. They wait for the API server most of the time.")
    resync_seconds: Seconds = Field(default=300.0, description="Time between two complete lists of a kind, plus or minus a fifth: the bound on missed events.")
    requests_per_second: float = Field(default=50.0, gt=0, le=10_000, description="Average rate of API requests; controllers in Go use 20 to 50.")
    request_burst: int = Field(default=100, ge=1, le=10_000, description="API requests that may be sent at once after a quiet time.")

    def retention(self) -> Retention:
        """What the sample store keeps."""
        return Retention(
            samples=self.store_keep_samples,
            decisions=self.store_keep_decisions,
            age=timedelta(days=self.store_keep_days),
            detail_age=timedelta(days=self.store_keep_detail_days),
        )

    def latency_rules(self) -> LatencyRules:
        """What adaptations may have read."""
        listed = (url.strip().rstrip("/") for url in self.prometheus_allowed_urls.split(","))
        return LatencyRules(bool(self.prometheus_url), frozenset(url for url in listed if url), self.prometheus_allow_queries)

    def limits(self) -> MeasuringLimits:
        """The part that decisions need."""
        return MeasuringLimits(
            operator_namespace=self.operator_namespace,
            probe_image=self.probe_image,
            image_pull_policy=self.image_pull_policy,
            image_bytes=self.image_bytes,
            priority_class=self.priority_class,
            job_user_id=self.job_user_id,
            bench_window_seconds=self.bench_window_seconds,
            bench_rounds=self.bench_rounds,
            profile_budget_seconds=self.profile_budget_seconds,
            job_start_seconds=self.job_start_seconds,
            threads_per_card=self.threads_per_card,
            driver_settle_seconds=self.driver_settle_seconds,
        )


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment; unknown METAINFER_ names are errors too, because a typo must not pass silently.

    Raises SettingsError listing every wrong variable.
    """
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)}
    given = {name: value for name, value in given.items() if name in Settings.model_fields or not _SERVICE_LINK.search(f"_{name.upper()}")}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        lines = [f"{PREFIX}{'_'.join(map(str, item['loc'])).upper()} {_words(item['type'], item['msg'])}" for item in error.errors()]
        if any(item["type"] == "extra_forbidden" for item in error.errors()):
            lines.append(f"settings are {', '.join(PREFIX + name.upper() for name in sorted(Settings.model_fields))}")
        raise SettingsError("; ".join(lines)) from error


def read_store_url(environ: Mapping[str, str] = os.environ) -> str:
    """The store's URL alone, for commands that need nothing else of a running operator."""
    default: str = Settings.model_fields["store_url"].default
    return environ.get(f"{PREFIX}STORE_URL", default)


def _words(kind: str, message: str) -> str:
    match kind:
        case "missing":
            return "must be set"
        case "extra_forbidden":
            return "is not a setting"
        case _:
            return f"is wrong: {message[:1].lower()}{message[1:]}"
