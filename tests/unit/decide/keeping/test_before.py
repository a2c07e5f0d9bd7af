"""A decision under which the target serves slower than before is taken back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.keeping.make_windows import make_window, spoiled
from tests.unit.decide.keeping.test_serving import serve, settled, settled_at
from tests.unit.decide.make_world import ORT, START, World, faster_on, kinds, make_world

from metainfer.decide.latency.served import ServedFacts, ServedWindow
from metainfer.decide.plan import ApplyTarget, EmitEvent, RestoreTarget

SLOWER = {"p99_ms": 52.0, "mean_ms": 14.0}


def settled_after(count: int = 2, **fields: object) -> World:
    """Decided and in place; the source remembered so many windows that ended when the run began."""
    windows: list[ServedWindow] = []
    for index in range(count):
        window = make_window(0, **fields)  # type: ignore[arg-type] # names are checked by the call
        windows.insert(0, replace(window, ended_at=START - index * timedelta(seconds=window.reading.seconds)))
    world = make_world(spec={"rollout": {"watch": "31m"}})
    world.snapshot = replace(world.snapshot, served=ServedFacts(tuple(windows)))
    for _ in range(3):
        world.turn()
    world.snapshot = replace(world.snapshot, served=None)
    world.play()
    world.turn()
    return world


def make_second_served() -> World:
    """A decision with a baseline of its own, and another one after it."""
    world = settled()
    serve(world, 3)
    world.p50_us = faster_on(ORT)
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 5}))
    world.snapshot = replace(world.snapshot, profile=None, served=None)
    for _ in range(40):
        world.turn()
    assert [entry.outcome for entry in world.status.decisions] == ["Applied", "Superseded"]
    world.snapshot = replace(world.snapshot, served=None)
    return world


def test_a_first_decision_that_serves_slower_is_given_back_within_the_pass_that_sees_it() -> None:
    """Two windows of fifteen minutes are what the watch of half an hour has."""
    world = settled_after()
    serve(world, 1, **SLOWER)
    assert world.condition("RolledBack") == ("False", "NothingTakenBack"), "one window is chance"
    serve(world, 1, first=1, **SLOWER)
    assert world.restores == 1
    assert world.condition("RolledBack") == ("True", "LatencyWorse")
    assert "against 40ms" in world.message("RolledBack")
    assert [event.reason for event in kinds(world.actions, EmitEvent)][-1] == "LatencyWorse"


def test_a_later_decision_is_compared_with_the_former_ones_baseline() -> None:
    """And gives way to it."""
    world = make_second_served()
    former = world.status.decisions[1].id
    world.change_spec(rollout=world.snapshot.adaptation.spec.rollout.model_copy(update={"watch": "31m"}))
    assert world.status.run is not None
    assert world.status.run.before is not None
    applies = world.applies
    serve(world, 2, **SLOWER)
    assert world.applies == applies + 1
    assert kinds(world.actions, ApplyTarget)[-1].decision_id == former
    world.play()
    assert (world.condition("RolledBack"), world.condition("AnswerTrue")) == (("True", "LatencyWorse"), ("False", "TakenBack"))
    assert world.status.served is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"p99_ms": 44.0, "mean_ms": 11.5}, id="a tenth slower is within the threshold"),
        pytest.param({**SLOWER, "per_second": 30.0}, id="a busier service is not a slower card"),
        pytest.param({"p99_ms": 52.0, "mean_ms": 11.0}, id="the mean does not confirm it"),
        pytest.param({**SLOWER, "finding": spoiled("TooFewRequests")}, id="too few requests"),
        pytest.param({**SLOWER, "metric": "another"}, id="another metric"),
    ],
)
def test_what_is_not_clearly_worse_stays(fields: dict[str, object]) -> None:
    """No data, or another load, is not bad."""
    world = settled_after()
    world.change_spec(rollout=world.snapshot.adaptation.spec.rollout.model_copy(update={"watch": "2h"}))
    serve(world, 4, **fields)
    assert kinds(world.actions, RestoreTarget) == []
    assert world.condition("RolledBack") == ("False", "NothingTakenBack")


def test_after_the_watch_it_is_drift_and_no_failure_of_the_decision() -> None:
    """The baseline is then the decision's own."""
    world = settled_after()
    serve(world, 3)
    serve(world, 4, first=3, **SLOWER)
    assert kinds(world.actions, RestoreTarget) == []
    assert world.condition("RolledBack") == ("False", "NothingTakenBack")


def test_without_anything_before_nothing_is_compared() -> None:
    """A source that does not remember."""
    world = settled()
    world.change_spec(rollout=world.snapshot.adaptation.spec.rollout.model_copy(update={"watch": "2h"}))
    serve(world, 2, **SLOWER)
    assert kinds(world.actions, RestoreTarget) == []
    assert settled_at(world) < world.now
