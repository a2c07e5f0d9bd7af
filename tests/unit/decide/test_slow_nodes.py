"""Nodes whose pods serve slower than the target's others: named after several windows, measured soon, never labelled for it alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import make_adaptation
from tests.unit.decide.make_lab import NOW, Lab, make_lab
from tests.unit.decide.test_pool import make_pool_snapshot

from metainfer.api.v1alpha1.served import Drift
from metainfer.api.v1alpha1.slow_node import SlowNode
from metainfer.decide.conditions import format_time
from metainfer.decide.keeping.slow_nodes import find_slow_nodes
from metainfer.decide.latency.reading import LatencyReading, ServedLoad
from metainfer.decide.latency.served import NodeLatency, ServedWindow


def make_window(number: int, requests: int = 1000, **means_ms: float | None) -> ServedWindow:
    """A window in which each node's pods served with that mean."""
    reading = LatencyReading("m", 900.0, requests * len(means_ms), None, 10_000.0, ServedLoad(1.0, None, None))
    nodes = {name: NodeLatency(requests, mean * 1000 if mean is not None else None, None) for name, mean in means_ms.items()}
    return ServedWindow(NOW + timedelta(minutes=15 * number), reading, nodes)


@pytest.mark.parametrize(
    ("windows", "want"),
    [
        pytest.param([{"a": 13.0, "b": 10.0, "c": 10.0}] * 3, {"a": 1300}, id="slower in every window"),
        pytest.param([{"a": 11.0, "b": 10.0, "c": 10.0}] * 3, {}, id="by less than counts as drift"),
        pytest.param([{"a": 13.0, "b": 10.0, "c": 10.0}, {"a": 10.0, "b": 10.0, "c": 10.0}, {"a": 13.0, "b": 10.0, "c": 10.0}], {}, id="not in one of them"),
        pytest.param([{"a": 13.0, "b": 10.0, "c": 10.0}] * 2, {}, id="too few windows yet"),
        pytest.param([{"a": 13.0, "b": 10.0}] * 3, {}, id="of two nobody is typical"),
        pytest.param([{"a": 13.0, "b": 10.0, "c": None}] * 3, {}, id="a node that tells nothing is no comparison"),
        pytest.param([{"a": 13.0, "b": 10.0, "c": 10.0}] * 2 + [{"b": 10.0, "c": 10.0, "d": 10.0}], {}, id="the pods have moved on"),
    ],
)
def test_a_node_is_named_when_its_pods_are_slower_in_every_window(windows: list[dict[str, Any]], want: dict[str, int]) -> None:
    """By as much as counts as drift, against the median of the others."""
    made = [make_window(number, **means) for number, means in enumerate(windows)]
    assert find_slow_nodes(made, Drift()) == want


def test_few_requests_name_nobody() -> None:
    """The mean of fifty moves by itself."""
    assert find_slow_nodes([make_window(number, requests=50, a=20.0, b=10.0, c=10.0) for number in range(3)], Drift()) == {}


def suspect(lab: Lab, node: str) -> None:
    """An adaptation names the node now."""
    slow = SlowNode(name=node, since=format_time(lab.now), latency_permille=1300)
    lab.snapshot = replace(lab.snapshot, adaptations=(make_adaptation(status={"slow_nodes": (slow,)}),))


def test_a_node_whose_pods_are_slow_is_measured_once_and_not_labelled() -> None:
    """The probe finds the card as good as the others: nothing more follows, however long the pods stay slow."""
    lab = make_lab(nodes=3)
    lab.play(10)
    lab.probes.clear()
    suspect(lab, "n1")
    lab.play(120)
    assert ([node for _, node in lab.probes], lab.labelled(), lab.events) == (["n1"], [], [])


def test_a_node_whose_card_is_slow_too_is_labelled_after_the_repeats() -> None:
    """Long before its next regular probe."""
    lab = make_lab(lambda node, hours: 0.85 if node == "n1" and hours > 0.2 else 1.0, nodes=3)
    lab.play(15)
    suspect(lab, "n1")
    lab.play(10)
    assert lab.labelled() == ["n1"]


def test_nodes_of_other_pools_are_none_of_this_ones() -> None:
    """An adaptation may serve on nodes of several."""
    lab = make_lab(nodes=1)
    lab.play(5)
    suspect(lab, "elsewhere")
    before = lab.snapshot.portraits
    lab.play(3)
    assert lab.snapshot.portraits == before
    assert make_pool_snapshot().adaptations == ()
