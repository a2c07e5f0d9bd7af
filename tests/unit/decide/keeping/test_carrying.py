"""What is known of a placement outlives a decision that confirmed it, and only that."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.decide.keeping.play_drift import SLOWER, check_of, show_drift, watched, work_off
from tests.unit.decide.make_world import World, kinds

from metainfer.decide.plan import ApplyTarget


def grow_old(world: World) -> str:
    """A week and more goes by, and the decision is confirmed; its id."""
    world.now += timedelta(days=8)
    world.play()
    recommendation = world.status.recommendation
    assert recommendation is not None
    assert world.condition("Ready") == ("True", "CurrentKept")
    return recommendation.decision_id


def test_baselines_outlive_a_decision_that_only_confirmed_what_runs() -> None:
    """Else a card that became slower would be the measure of itself within a week."""
    world = watched()
    served, first, checks = world.status.served, check_of(world).baseline, world.started("check")
    decision = grow_old(world)
    assert served is not None
    assert first is not None
    assert served.decision_id != decision
    assert world.status.served is not None
    assert (world.status.served.decision_id, world.status.served.baseline) == (decision, served.baseline)
    assert check_of(world).baseline == first.model_copy(update={"decision_id": decision})
    show_drift(world, 3, **SLOWER)
    work_off(world)
    assert world.condition("AnswerTrue")[1] in ("P99Drift", "Nothing")
    assert world.started("check") == checks + 1
    assert len(kinds(world.actions, ApplyTarget)) == 1


def test_another_cause_begins_anew() -> None:
    """What was changed, or found wrong, makes it another service."""
    world = watched()
    world.change_target(image="server:2")
    world.play()
    assert world.status.check is None
    assert world.status.served is not None
    assert world.status.served.baseline is None
