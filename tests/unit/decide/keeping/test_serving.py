"""What a pass makes of served windows: figures and baseline in the status, the condition, and the suspicion that follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from tests.unit.decide.keeping.make_windows import make_window, spoiled
from tests.unit.decide.make_world import ORT, World, faster_on, kinds, make_world

from metainfer.decide.conditions import parse_time
from metainfer.decide.configs import candidate_of
from metainfer.decide.latency.findings import LatencyFinding
from metainfer.decide.latency.served import LatencyProblem, ServedFacts, ServedWindow
from metainfer.decide.plan import RecordServed

OBSERVED, ANSWER = "LatencyObserved", "AnswerTrue"
SLOWER = {"p99_ms": 52.0, "mean_ms": 14.0}


def settled(*, keeps: bool = False) -> World:
    """A world in which the decision is in place, or in which the present configuration was kept."""
    world = make_world(faster_on(ORT) if keeps else None)
    world.play()
    world.turn()
    assert world.condition("Applied")[0] == "True"
    return world


def settled_at(world: World) -> datetime:
    assert world.status.served is not None
    return parse_time(world.status.served.settled_at)


def serve(world: World, count: int, *, first: int = 0, **fields: object) -> None:
    """So many windows after the decision settled, each with a pass of its own, as they would come."""
    for index in range(first, first + count):
        window = make_window(0, **fields)  # type: ignore[arg-type] # names are checked by the call
        ends = settled_at(world) + (index + 1) * timedelta(seconds=window.reading.seconds)
        show(world, *before(world), replace(window, ended_at=ends))


def before(world: World) -> tuple[ServedWindow, ...]:
    return world.snapshot.served.windows if world.snapshot.served is not None else ()


def show(world: World, *windows: ServedWindow, problem: LatencyProblem | None = None) -> None:
    """One pass with these facts, after the last window has ended."""
    world.now = max((window.ended_at + timedelta(seconds=20) for window in windows), default=world.now)
    world.snapshot = replace(world.snapshot, served=ServedFacts(windows, problem, world.now + timedelta(seconds=300)))
    world.turn()


@pytest.mark.parametrize("keeps", [False, True], ids=["applied", "kept"])
def test_good_windows_make_a_baseline_and_nothing_is_suspected(*, keeps: bool) -> None:
    """After three of them the target is watched; the pass asks for another one when there is more to read."""
    world = settled(keeps=keeps)
    serve(world, 4)
    served = world.status.served
    assert served is not None
    assert served.last is not None
    assert served.baseline is not None
    assert (served.last.p99, served.last.mean, served.last.requests_per_minute, served.last.in_flight_permille) == ("40ms", "11ms", 600, 110)
    assert (served.baseline.p99, served.baseline.at, served.p99_ratio_permille) == ("40ms", _ended(world, 3), 1000)
    assert world.condition(OBSERVED) == ("True", "Observed")
    assert "p99 40ms, mean 11ms (against 40ms and 11ms)" in world.message(OBSERVED)
    assert world.condition(ANSWER)[0] == "True"
    plan = world.turn()
    assert plan.requeue_after_seconds is not None
    assert plan.requeue_after_seconds <= 300


def _ended(world: World, windows: int) -> str:
    return (settled_at(world) + windows * timedelta(minutes=15)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_baseline_does_not_grow_while_something_is_suspected() -> None:
    """What was noticed may be true."""
    world = settled()
    serve(world, 3)
    serve(world, 3, first=3, **SLOWER)
    assert world.condition(ANSWER)[1] == "P99Drift"
    serve(world, 1, first=6, p99_ms=44.0, mean_ms=12.0)
    assert world.status.served is not None
    assert world.status.served.baseline is not None
    assert (world.status.served.baseline.p99, world.status.served.baseline.windows) == ("40ms", 3)


def test_a_drift_is_suspected_and_nothing_is_written() -> None:
    """What follows from it is for the gates and the check."""
    world = settled()
    serve(world, 3)
    applies = world.applies
    serve(world, 2, first=3, **SLOWER)
    assert world.condition(ANSWER)[1] != "P99Drift"
    serve(world, 1, first=5, **SLOWER)
    assert world.condition(ANSWER)[1] == "P99Drift"
    assert "+30 %" in world.message(ANSWER)
    assert world.applies == applies


def test_the_baseline_outlives_a_restart() -> None:
    """It is in the status; the windows come again from where they are remembered."""
    world = settled()
    serve(world, 3)
    known = world.status.served
    world.snapshot = replace(world.snapshot, served=None)
    world.turn()
    assert world.status.served == known
    serve(world, 3, first=3, **SLOWER)
    assert world.condition(ANSWER)[1] == "P99Drift"


def test_windows_from_before_the_decision_settled_say_nothing_about_it() -> None:
    """Half of them was another configuration."""
    world = settled()
    old = [replace(make_window(0, **SLOWER), ended_at=settled_at(world) + timedelta(minutes=minutes)) for minutes in (0, 14)]  # type: ignore[arg-type]
    show(world, *old)
    assert world.condition(OBSERVED) == ("Unknown", "WindowPending")
    assert world.status.served is not None
    assert world.status.served.last is None


@pytest.mark.parametrize(
    ("reason", "want"),
    [
        ("LatencyUnresolvable", "False"),
        ("TooFewRequests", "False"),
        ("CountersUnshared", "False"),
        ("InfBucketMissing", "False"),
        ("NoRequests", "Unknown"),
    ],
)
def test_a_window_without_a_figure_is_told_by_its_finding(reason: str, want: str) -> None:
    """Nobody asking is nobody's fault; the others are somebody's to put right. None of them doubts the decision."""
    world = settled()
    serve(world, 3)
    serve(world, 3, first=3, finding=spoiled(reason), p99_ms=4000.0, mean_ms=1000.0)
    assert world.condition(OBSERVED) == (want, reason)
    assert world.condition(ANSWER)[0] == "True"


def test_what_was_put_right_is_named_and_compared() -> None:
    """The window counts, and the condition says what was left out."""
    world = settled()
    serve(world, 1, finding=LatencyFinding("SeriesDoubled", "4 copies were left out"))
    assert world.condition(OBSERVED) == ("True", "SeriesDoubled")
    assert "4 copies were left out" in world.message(OBSERVED)


@pytest.mark.parametrize(
    ("reason", "want"), [("NotWatched", "Unknown"), ("MetricsUnreachable", "Unknown"), ("QueryRefused", "False"), ("AddressNotAllowed", "False")]
)
def test_a_source_that_gives_nothing_is_told(reason: str, want: str) -> None:
    """No source is no error; one that is given and wrong is to be put right. Earlier figures stay."""
    world = settled()
    serve(world, 1)
    show(world, *before(world), problem=LatencyProblem(reason, "what is wrong"))
    assert world.condition(OBSERVED) == (want, reason)
    assert world.status.served is not None
    assert world.status.served.last is not None
    assert world.condition("Ready")[0] == "True"


def test_nothing_is_watched_that_was_not_applied() -> None:
    """A recommendation changes nothing that is served."""
    world = make_world(spec={"update_policy": {"mode": "Off"}})
    world.play()
    world.turn()
    assert world.condition(OBSERVED) == ("Unknown", "NotApplied")
    assert world.status.served is None


def test_another_metric_begins_another_baseline() -> None:
    """The user names another source: the old figures are of another thing."""
    world = settled()
    serve(world, 3)
    serve(world, 3, first=3, metric="mesh_request_seconds", **SLOWER)
    served = world.status.served
    assert served is not None
    assert served.baseline is not None
    assert (served.baseline.metric, served.baseline.p99) == ("mesh_request_seconds", "52ms")
    assert world.condition(ANSWER)[0] == "True"


def test_each_window_that_tells_something_is_recorded_once() -> None:
    """Aggregates of what ran, with the configuration under which it ran; a pass more records nothing again."""
    world = settled()
    serve(world, 2)
    serve(world, 1, first=2, finding=spoiled("NoRequests"))
    world.turn()
    recorded = kinds(world.actions, RecordServed)
    assert [item.window.ended_at for item in recorded] == [settled_at(world) + index * timedelta(minutes=15) for index in (1, 2)]
    decided = world.status.recommendation
    assert decided is not None
    assert {(item.decision_id, item.candidate) for item in recorded} == {
        (world.status.recommendation.decision_id, candidate_of(world.status.recommendation.config))
    }
    assert recorded[0].digest == "d" * 64
