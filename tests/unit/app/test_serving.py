"""What is served as metrics, and what the settings let adaptations have read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.unit.decide.make_facts import make_adaptation

from metainfer.app.serving import build_served_watch, count_served
from metainfer.decide.facts import AdaptationFacts
from metainfer.decide.latency.order import LatencyRules
from metainfer.settings import SettingsError, read_settings
from metainfer.watch.queue import WorkQueue

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
IMAGE = {"METAINFER_PROBE_IMAGE": "registry/probe:1"}


@dataclass
class Cached:
    """The cache."""

    all: tuple[AdaptationFacts, ...] = ()

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        return self.all


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    count_served(Cached(), NOON)


def make_served(name: str, last: dict[str, Any] | None, **served: Any) -> AdaptationFacts:
    status = {"decisionId": "d-1", "settledAt": "2026-03-01T10:00:00Z"} | ({"last": last} if last is not None else {}) | served
    return make_adaptation(name, status={"served": status})


def figure(metric: str, name: str) -> float | None:
    return REGISTRY.get_sample_value(f"metainfer_served_{metric}", {"namespace": "default", "name": name})


LAST = {"at": "2026-03-01T11:45:00Z", "p99": "52ms", "mean": "14ms", "requests": 9000, "requestsPerMinute": 600}
BASELINE = {"metric": "m", "at": "2026-03-01T10:45:00Z", "windows": 3, "p99": "40ms", "mean": "11ms"}


def test_the_last_window_is_told_per_adaptation() -> None:
    """Seconds, a ratio, and how old it is; what is not known is left out."""
    known, without = make_served("ocr", LAST, baseline=BASELINE, p99RatioPermille=1300), make_served("idle", LAST | {"p99": None})
    count_served(Cached((known, without, make_served("new", None), make_adaptation("unwatched"))), NOON)
    assert (figure("p99_seconds", "ocr"), figure("baseline_p99_seconds", "ocr"), figure("p99_ratio", "ocr")) == (0.052, 0.04, 1.3)
    assert figure("reading_age_seconds", "ocr") == 900
    assert (figure("p99_seconds", "idle"), figure("reading_age_seconds", "idle")) == (None, 900)
    assert figure("reading_age_seconds", "new") is None
    assert figure("reading_age_seconds", "unwatched") is None


def test_what_is_gone_is_not_told_any_more() -> None:
    """A deleted adaptation does not stay slow for ever."""
    count_served(Cached((make_served("ocr", LAST),)), NOON)
    count_served(Cached(), NOON)
    assert figure("p99_seconds", "ocr") is None


def test_the_settings_say_what_adaptations_may_have_read() -> None:
    """Nothing, unless it is said."""
    assert read_settings(IMAGE).latency_rules() == LatencyRules()
    given = {"PROMETHEUS_URL": "http://prometheus:9090", "PROMETHEUS_ALLOWED_URLS": "http://a:9090/, https://b/prom ,", "PROMETHEUS_ALLOW_QUERIES": "true"}
    rules = read_settings(IMAGE | {f"METAINFER_{name}": value for name, value in given.items()}).latency_rules()
    assert rules == LatencyRules(has_prometheus=True, allowed_urls=frozenset({"http://a:9090", "https://b/prom"}), allow_queries=True)


@pytest.mark.parametrize("value", ["prometheus:9090", "file:///etc/passwd", "http://a b"])
def test_an_address_that_is_none_is_refused_at_the_start(value: str) -> None:
    """Not at the first reading."""
    with pytest.raises(SettingsError, match="METAINFER_PROMETHEUS_URL"):
        read_settings(IMAGE | {"METAINFER_PROMETHEUS_URL": value})


def test_credentials_are_not_in_what_is_printed() -> None:
    """Settings end up in traces."""
    settings = read_settings(IMAGE | {"METAINFER_PROMETHEUS_URL": "http://me:hunter2@prometheus", "METAINFER_PROMETHEUS_AUTHORIZATION": "Bearer hunter2"})
    assert "hunter2" not in repr(settings)


async def test_the_parts_can_be_built_and_closed_without_any_source() -> None:
    """Most operators have none."""
    watch = build_served_watch(read_settings(IMAGE), WorkQueue())
    facts = watch.reader.look(make_adaptation(), ())
    assert facts.problem is not None
    assert facts.problem.reason == "NotWatched"
    await watch.close()
