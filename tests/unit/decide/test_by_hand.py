"""metainfer.dev/rollback-to: somebody goes back to an earlier decision, and the operator does not fight them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.make_world import World, kinds, make_world
from tests.unit.decide.test_standing import target_of
from tests.unit.decide.test_watching import crash, make_second, write

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import UpdatePolicy
from metainfer.decide.plan import ApplyTarget, CreateJob, EmitEvent, RecordDecision, RestoreTarget

NONE_KNOWN = "0123456789ab"


def annotate(world: World, value: str) -> None:
    """As ``kubectl annotate`` does it: the generation stays."""
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, rollback_to=value))


def make_two() -> World:
    """Two decisions, the second one applied and settled."""
    world = make_second()
    world.play()
    assert [entry.outcome for entry in world.status.decisions] == ["Applied", "Superseded"]
    return world


def mark_of(world: World) -> str:
    """Of the decision on the Deployment."""
    return target_of(world).template.annotations.get(DECISION_ANNOTATION, "")


def test_an_annotation_goes_back_to_an_earlier_decision_and_stays_there() -> None:
    """Written at once, told, recorded; drift of the clock starts nothing."""
    world = make_two()
    newest, earlier = world.status.decisions
    world.actions.clear()
    annotate(world, earlier.id)
    plan = world.turn()
    assert [action.decision_id for action in kinds(plan.actions, ApplyTarget)] == [earlier.id]
    assert [(event.kind, event.reason) for event in kinds(plan.actions, EmitEvent)] == [("Normal", "ByAnnotation")]
    (record,) = kinds(plan.actions, RecordDecision)
    assert (record.rollback, record.document["rolledBack"], record.document["to"]) == ("ByAnnotation", newest.id, earlier.id)
    world.play()
    assert (mark_of(world), world.condition("Ready"), world.condition("RolledBack")) == (earlier.id, ("True", "Applied"), ("True", "ByAnnotation"))
    assert [entry.outcome for entry in world.status.decisions] == ["TakenBack", "Applied"]
    for _ in range(5):
        world.now += timedelta(days=30)
        assert world.turn().actions == ()


def test_the_owners_own_state_can_be_gone_back_to() -> None:
    """The word owner: every field is given back, and the adaptation stays."""
    world = make_two()
    annotate(world, "owner")
    plan = world.turn()
    assert len(kinds(plan.actions, RestoreTarget)) == 1
    world.play()
    assert (world.condition("Ready"), world.condition("RolledBack")) == (("True", "GivenBack"), ("True", "ByAnnotation"))
    assert mark_of(world) == ""


def test_without_the_annotation_the_operator_goes_on_where_it_was() -> None:
    """Removing it is the permission."""
    world = make_two()
    newest, earlier = world.status.decisions
    annotate(world, earlier.id)
    world.play()
    annotate(world, "")
    world.play()
    assert (mark_of(world), world.condition("RolledBack")) == (newest.id, ("False", "NothingTakenBack"))
    assert [entry.outcome for entry in world.status.decisions] == ["Applied", "Superseded"]


def test_a_change_of_the_inputs_is_a_new_question_and_uses_the_annotation_up() -> None:
    """It is not honoured a second time before it is set anew."""
    world = make_two()
    _, earlier = world.status.decisions
    annotate(world, earlier.id)
    world.play()
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 9}))
    world.snapshot = replace(world.snapshot, profile=None)
    world.play(40)
    newest = world.status.decisions[0]
    assert newest.id != earlier.id
    assert world.condition("RolledBack") == ("False", "RequestUsedUp")
    assert world.status.placement is not None
    assert mark_of(world) == world.status.placement.decision_id != earlier.id
    annotate(world, "")
    world.turn()
    annotate(world, earlier.id)
    world.play()
    assert (mark_of(world), world.condition("RolledBack")) == (earlier.id, ("True", "ByAnnotation"))


@pytest.mark.parametrize("value", [NONE_KNOWN, "Owner", "x" * 5000, "ä\n"], ids=["no such id", "another spelling", "very long", "not an id at all"])
def test_what_names_no_decision_changes_nothing_and_says_what_would(value: str) -> None:
    """The condition lists the last decisions."""
    world = make_two()
    mark = mark_of(world)
    annotate(world, value)
    plan = world.turn()
    assert (plan.actions, mark_of(world), world.condition("Ready")) == ((), mark, ("True", "Applied"))
    assert world.condition("RolledBack") == ("False", "UnknownDecision")
    assert all(entry.id in world.message("RolledBack") for entry in world.status.decisions)
    assert "'owner'" in world.message("RolledBack")


def test_before_anything_was_decided_there_is_nothing_to_go_back_to() -> None:
    """And the run goes on."""
    world = make_world()
    annotate(world, NONE_KNOWN)
    world.play()
    assert (world.condition("Ready"), world.condition("RolledBack")) == (("True", "Applied"), ("False", "UnknownDecision"))


def test_a_decision_that_only_the_store_remembers_can_be_gone_back_to() -> None:
    """The status has ten."""
    world = make_two()
    older = world.status.decisions[1].model_copy(update={"id": NONE_KNOWN})
    annotate(world, NONE_KNOWN)
    world.snapshot = replace(world.snapshot, history=(older,))
    world.turn()
    world.snapshot = replace(world.snapshot, history=())
    world.play()
    assert (mark_of(world), world.condition("RolledBack")) == (NONE_KNOWN, ("True", "ByAnnotation"))


def test_it_is_honoured_in_the_middle_of_a_run() -> None:
    """The run stands still meanwhile: no Job is started."""
    world = make_two()
    _, earlier = world.status.decisions
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 9}))
    world.snapshot = replace(world.snapshot, profile=None)
    world.turn()
    assert world.status.recommendation is None
    annotate(world, earlier.id)
    world.actions.clear()
    world.play()
    assert mark_of(world) == earlier.id
    assert kinds(world.actions, CreateJob) == []
    annotate(world, "")
    world.play(40)
    assert world.status.recommendation is not None


def test_a_decision_that_was_rolled_back_is_written_when_somebody_insists() -> None:
    """And it stays remembered as what it is; the operator does not take it back from them."""
    world = write(make_world())
    crash(world)
    world.play()
    failed = world.status.decisions[0]
    assert failed.outcome == "RolledBack"
    annotate(world, failed.id)
    world.turn()
    crash(world)
    world.turn()
    assert mark_of(world) == failed.id
    assert world.status.decisions[0].outcome == "RolledBack"
    annotate(world, "")
    world.play()
    assert (mark_of(world), world.condition("RolledBack")) == ("", ("True", "RolloutFailed"))


@pytest.mark.parametrize("goal", ["earlier", "owner"])
def test_mode_off_writes_nothing_for_anybody(goal: str) -> None:
    """It says so."""
    world = make_two()
    mark = mark_of(world)
    world.change_spec(update_policy=UpdatePolicy(mode="Off"))
    annotate(world, world.status.decisions[1].id if goal == "earlier" else goal)
    world.turn()
    assert (mark_of(world), world.condition("Applied")) == (mark, ("False", "RecommendOnly"))
