"""Where an adaptation's latency is read, and what its spec may not bring about."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec
from metainfer.api.v1alpha1.served import LatencyPreset
from metainfer.decide.latency.order import LatencyOrder, LatencyRules, choose_order
from metainfer.decide.latency.served import LatencyProblem
from metainfer.decide.latency.sources import LATENCY_PRESETS, OwnQuery

WITH_PROMETHEUS = LatencyRules(has_prometheus=True)
MESH = {"buckets": "sum by (le) (increase(mesh_bucket[$window]))", "total": "sum(increase(mesh_sum[$window]))", "unit": "ms"}


def make_spec(source: dict[str, Any] | None = None, *, settings: dict[str, Any] | None = None, **drift: Any) -> ModelAdaptationSpec:
    given = {"targetRef": {"name": "ocr"}, "model": {"uri": "pvc://models/ocr.onnx"}, "drift": drift | ({"source": source} if source is not None else {})}
    return ModelAdaptationSpec.model_validate(given | {"settings": settings or {"preset": "MLServer"}})


def order(spec: ModelAdaptationSpec, rules: LatencyRules = WITH_PROMETHEUS) -> LatencyOrder:
    found = choose_order(spec, rules)
    assert isinstance(found, LatencyOrder), found
    return found


def refusal(spec: ModelAdaptationSpec, rules: LatencyRules = WITH_PROMETHEUS) -> str:
    found = choose_order(spec, rules)
    assert isinstance(found, LatencyProblem)
    assert found.message
    return found.reason


def test_nothing_has_to_be_said_where_the_operator_has_a_prometheus() -> None:
    """The preset of the settings names the metrics; the defaults of a drift are the design's."""
    found = order(make_spec())
    assert (found.source, found.url, found.scrapes) == (LATENCY_PRESETS["MLServer"], "", False)
    assert (found.window_seconds, found.windows, found.min_requests, found.increase_percent) == (900, 3, 1000, 20)


def test_without_any_source_it_is_not_watched() -> None:
    """Said, and no error."""
    assert refusal(make_spec(), LatencyRules()) == "NotWatched"


def test_a_server_that_nobody_names_is_not_watched() -> None:
    """Names of environment variables tell nothing about metrics."""
    assert refusal(make_spec(settings={"env": {"precision": "P"}})) == "NotWatched"
    assert order(make_spec({"preset": "vLLM"}, settings={"env": {"precision": "P"}})).source == LATENCY_PRESETS["vLLM"]


def test_every_preset_can_be_named() -> None:
    """The schema's names are the table's."""
    assert set(LatencyPreset.__args__) == set(LATENCY_PRESETS)  # type: ignore[attr-defined] # of a Literal
    for name, source in LATENCY_PRESETS.items():
        assert order(make_spec({"preset": name})).source == source


def test_pods_are_scraped_where_that_is_asked_for() -> None:
    """It needs no Prometheus; port and path are the preset's unless they are given."""
    found = order(make_spec({"scrape": {}}), LatencyRules())
    assert (found.scrapes, found.port, found.path) == (True, 0, "")
    found = order(make_spec({"scrape": {"port": 9000, "path": "/m"}}), LatencyRules())
    assert (found.port, found.path) == (9000, "/m")


def test_only_listed_addresses_are_asked() -> None:
    """The operator reaches more than whoever writes an adaptation."""
    rules = LatencyRules(has_prometheus=True, allowed_urls=frozenset({"http://thanos:10902"}))
    assert order(make_spec({"prometheus": {"url": "http://thanos:10902/"}}), rules).url == "http://thanos:10902"
    for url in ("http://169.254.169.254/latest", "http://thanos:10902/x", "http://thanos:10903", "https://thanos:10902"):
        assert refusal(make_spec({"prometheus": {"url": url}}), rules) == "AddressNotAllowed"


def test_a_query_of_ones_own_needs_the_operators_leave() -> None:
    """PromQL can ask about every namespace."""
    spec = make_spec({"prometheus": {"query": MESH}})
    assert refusal(spec) == "QueryNotAllowed"
    found = order(spec, LatencyRules(has_prometheus=True, allow_queries=True))
    assert found.source == OwnQuery(MESH["buckets"], MESH["total"], 1000.0)
    assert found.question().source.metrics[0].unit_us == 1000.0


def test_a_histogram_of_ones_own_is_read_like_a_presets() -> None:
    """Bound to the target's own pods, so nobody has to allow it."""
    source = order(make_spec({"histogram": {"name": "http_seconds", "modelLabel": "m"}, "model": "ocr"})).question().source
    assert (source.names[0], source.model_label) == ("http_seconds_bucket", "m")


@pytest.mark.parametrize(
    "source",
    [
        {"preset": "TorchServe"},
        {"histogram": {"name": 'x"} or {a="b'}},
        {"scrape": {"path": "/metrics?next=http://other"}},
        {"scrape": {"path": "//other/metrics@x"}},
        {"scrape": {"port": 0}},
        {"prometheus": {"url": "http://user:secret@prometheus"}},
        {"prometheus": {"url": "file:///etc/passwd"}},
    ],
)
def test_what_no_source_can_be_is_refused_by_the_schema(source: dict[str, Any]) -> None:
    """Names and paths travel into queries and addresses."""
    with pytest.raises(ValidationError):
        make_spec(source)
