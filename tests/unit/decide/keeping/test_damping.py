"""What holds a suspicion or a write back: each gate with its reason and its time, counted from what is on the API server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.keeping.play_drift import check_of, drifting, settled, work_off
from tests.unit.decide.make_facts import make_adaptation, make_pool
from tests.unit.decide.make_world import OPENVINO, START, World, kinds, make_world

from metainfer.api.v1alpha1.checks import CheckStatus
from metainfer.api.v1alpha1.model_adaptation import UpdatePolicy
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import AdaptationFacts
from metainfer.decide.keeping.damping import FAILURE_HOLDS, find_gate, find_write_gate, rests_until
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.keeping.turns import AUTOMATIC
from metainfer.decide.plan import CreateJob

DRIVER = Suspicion("DriverVersionChanged", "the driver is another one", "Run", family=OPENVINO)
CONFIG = {"pool": "cards", "family": OPENVINO, "executionProvider": "OpenVINOExecutionProvider"}
NOW = "2026-03-01T12:00:00Z"


def make_other(
    name: str, *, step: str = "Validating", trigger: str = "DriverVersionChanged: it is 2", ready: str = "Validating", **fields: Any
) -> AdaptationFacts:
    """Another adaptation, whose run is so far; ``outcome`` is that of its newest decision."""
    decided = {"id": f"d-{name}", "decidedAt": fields.pop("decided_at", NOW), "trigger": trigger, "config": CONFIG, "outcome": fields.pop("outcome", "Applied")}
    condition = {"type": "Ready", "status": "False", "reason": ready, "lastTransitionTime": NOW}
    stalled = [{"type": "Stalled", "status": "True", "reason": ready, "lastTransitionTime": NOW}] if fields.pop("stalled", False) else []
    run = {"id": f"r-{name}", "inputsHash": "h", "startedAt": NOW, "step": step, "trigger": trigger}
    recommendation = {"decisionId": f"d-{name}", "config": CONFIG, "expected": {}, "decidedAt": NOW}
    status = {"run": run, "recommendation": recommendation, "decisions": [decided], "conditions": [condition, *stalled], "check": fields.pop("check", None)}
    return make_adaptation(name, namespace=fields.pop("namespace", "elsewhere"), status=status, **fields)


def draft_of(world: World, *others: AdaptationFacts) -> Draft:
    """A pass over the world's adaptation, beside others."""
    return Draft(replace(world.snapshot, others=others), world.now, world.status)


def test_nothing_follows_before_it_has_stood_for_its_time() -> None:
    """Two minutes and up to half as much again, by the adaptation's UID: a fleet that notices at once does not act at once."""
    world = settled()
    found = replace(DRIVER, settle_seconds=120)
    gates = []
    for uid in "abcdefgh":
        adaptation = replace(world.snapshot.adaptation, uid=uid)
        gate = find_gate(Draft(replace(world.snapshot, adaptation=adaptation), world.now + timedelta(hours=1), world.status), found)
        assert gate is not None
        assert gate.reason == "Settling"
        assert gate.until is not None
        gates.append((gate.until - world.now - timedelta(hours=1)).total_seconds())
    assert all(120 <= seconds <= 180 for seconds in gates)
    assert max(gates) - min(gates) > 20


def test_a_suspicion_that_goes_and_comes_back_begins_anew() -> None:
    """Labels that flap for ten minutes start nothing."""
    world = drifting()
    world.turn()
    noticed = check_of(world).suspicion
    assert noticed is not None
    served, world.snapshot = world.snapshot.served, replace(world.snapshot, served=None)
    work_off(world)
    assert check_of(world).suspicion is None
    world.snapshot = replace(world.snapshot, served=served)
    world.turn()
    again = check_of(world).suspicion
    assert again is None or parse_time(again.noticed_at) > parse_time(noticed.noticed_at)


def test_after_a_change_nothing_automatic_follows_for_the_cooldown() -> None:
    """The condition says until when; a lost place does not wait."""
    world = settled()
    world.change_spec(update_policy=UpdatePolicy(cooldown="24h"))
    placement = world.status.placement
    assert placement is not None
    gate = find_gate(draft_of(world), DRIVER)
    assert gate is not None
    assert (gate.reason, gate.until) == ("CoolingDown", parse_time(placement.applied_at) + timedelta(hours=24))
    assert format_time(parse_time(placement.applied_at) + timedelta(hours=24)) in gate.message
    assert find_gate(draft_of(world), replace(DRIVER, is_urgent=True)) is None
    world.now += timedelta(hours=24)
    assert find_gate(draft_of(world), DRIVER) is None


@pytest.mark.parametrize(("in_vain", "want_hours"), [(1, 1), (2, 2), (3, 4), (4, 6), (5, 6), (50, 6)])
def test_the_rest_after_what_changed_nothing_doubles_up_to_six_hours(in_vain: int, want_hours: int) -> None:
    """Only for the same trigger: another one is news."""
    world = settled()
    check = CheckStatus(in_vain=in_vain, acted_at=NOW, acted_on="P99Drift")
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=world.status.model_copy(update={"check": check})))
    assert rests_until(world.status) == START + timedelta(hours=want_hours)
    gate = find_gate(draft_of(world), Suspicion("P99Drift", "slower", "Check"))
    assert gate is not None
    assert (gate.reason, gate.until) == ("Resting", START + timedelta(hours=want_hours))
    assert find_gate(draft_of(world), DRIVER) is None


@pytest.mark.parametrize(
    ("others", "want"),
    [
        pytest.param([make_other(f"a{n}") for n in range(8)], "WaitingForTurn", id="as many as there are places"),
        pytest.param([make_other(f"a{n}") for n in range(7)], None, id="one place is left"),
        pytest.param([make_other(f"a{n}", check={"due": "FreshnessExpired: old"}, step="Done") for n in range(8)], "WaitingForTurn", id="claimed, not begun"),
        pytest.param([make_other(f"a{n}", stalled=True) for n in range(9)], None, id="stalled ones wait for somebody"),
        pytest.param([make_other(f"a{n}", step="RollingOut") for n in range(9)], None, id="decided ones need no Jobs any more"),
        pytest.param([make_other(f"a{n}", trigger="SpecChanged: by hand") for n in range(9)], None, id="asked for by somebody"),
        pytest.param([make_other(f"a{n}", spec={"pool_selector": {"matchLabels": {"x": "y"}}}) for n in range(9)], None, id="on other pools"),
    ],
)
def test_no_more_runs_start_by_themselves_than_the_pool_has_places_for(others: list[AdaptationFacts], want: str | None) -> None:
    """Counted over all namespaces, from their statuses; a check needs no turn of its own, its Job is counted as one."""
    world = settled()
    gate = find_gate(draft_of(world, *others), DRIVER)
    assert (gate.reason if gate is not None else None) == want
    assert find_gate(draft_of(world, *others), replace(DRIVER, wants="Check")) is None


FAILED = [
    pytest.param({"outcome": "RolledBack"}, id="taken back"),
    pytest.param({"ready": "RolloutStuck", "step": "RollingOut", "stalled": True}, id="its rollout is stuck"),
    pytest.param({"ready": "SettingsNotEffective", "step": "RollingOut"}, id="it does not run as decided"),
]


@pytest.mark.parametrize("failed", FAILED)
def test_the_first_failure_after_a_change_of_the_family_stops_the_others(failed: dict[str, Any]) -> None:
    """For a day, or until that one is settled; other families and other causes go on."""
    world = settled()
    other = make_other("first", decided_at=format_time(world.now), **failed)
    gate = find_gate(draft_of(world, other), DRIVER)
    assert gate is not None
    assert (gate.reason, gate.until) == ("StoppedByFailure", world.now + FAILURE_HOLDS)
    assert "elsewhere/first" in gate.message
    assert find_gate(draft_of(world, other), replace(DRIVER, family="another")) is None
    assert find_gate(draft_of(world, other), Suspicion("P99Drift", "slower", "Check")) is None
    assert find_gate(draft_of(world, make_other("first", outcome="Applied", ready="Applied", step="Done")), DRIVER) is None
    world.now += FAILURE_HOLDS
    assert find_gate(draft_of(world, other), DRIVER) is None


@pytest.mark.parametrize("failed", FAILED)
def test_what_was_already_decided_is_not_written_after_the_first_failure(failed: dict[str, Any]) -> None:
    """Runs of the same cause that were under way meanwhile."""
    world = settled()
    run = world.status.run
    assert run is not None
    driven = world.status.model_copy(update={"run": run.model_copy(update={"trigger": "DriverVersionChanged: it is 2"})})
    draft = draft_of(world, make_other("first", decided_at=format_time(world.now), **failed))
    assert find_write_gate(draft, "cards", OPENVINO) is None
    draft.status = driven
    gate = find_write_gate(draft, "cards", OPENVINO)
    assert gate is not None
    assert gate.reason == "StoppedByFailure"


def test_only_so_many_deployments_are_rolled_out_at_the_same_time() -> None:
    """The decision waits, says so, and is written when a place is free; nothing is measured again meanwhile."""
    world = make_world()
    world.snapshot = replace(
        world.snapshot,
        pools=tuple(make_pool("cards", *pool.spec.families, spec={"limits": {"max_concurrent_rollouts": 2}}) for pool in world.snapshot.pools),
        others=tuple(make_other(f"a{n}", step=step, trigger="SpecChanged: x") for n, step in enumerate(("Applying", "RollingOut", "Validating", "Done"))),
    )
    world.play(40)
    assert (world.applies, world.condition("Ready"), world.condition("Applied")) == (0, ("False", "WaitingForTurn"), ("False", "WaitingForTurn"))
    assert "2 Deployments are being rolled out onto pool cards, 2 may be" in world.message("Ready")
    benches = world.started("bench")
    world.snapshot = replace(world.snapshot, others=world.snapshot.others[1:])
    world.play()
    assert (world.applies, world.condition("Ready"), world.started("bench")) == (1, ("True", "Applied"), benches)


def test_a_rollout_that_is_stuck_holds_no_place_for_ever() -> None:
    """Somebody has to look at it; meanwhile the others go on."""
    world = settled()
    stuck = [make_other(f"a{n}", step="RollingOut", ready="RolloutStuck", stalled=True) for n in range(9)]
    assert find_write_gate(draft_of(world, *stuck), "cards", OPENVINO) is None


def test_a_suspended_adaptation_neither_checks_nor_runs() -> None:
    """What is applied stays; when it goes on, what is suspected then is looked at."""
    world = drifting()
    world.change_spec(suspend=True)
    for _ in range(5):
        world.now += timedelta(days=3)
        plan = world.turn()
        assert kinds(plan.actions, CreateJob) == []
    assert world.condition("Ready") == ("False", "Suspended")


def test_a_run_that_is_due_claims_its_turn_in_the_status() -> None:
    """The plan says so: no two passes may count the same free place."""
    world = settled()
    world.now += timedelta(days=8)
    plan = world.turn()
    assert plan.takes_turn
    assert check_of(world).due.startswith("FreshnessExpired: ")
    assert world.condition("AnswerTrue") == ("False", "FreshnessExpired")
    plan = world.turn()
    assert not plan.takes_turn
    run = world.status.run
    assert run is not None
    assert run.trigger.startswith("FreshnessExpired: ")
    assert run.trigger.partition(":")[0] in AUTOMATIC
