"""status.decisions: the last ten, and what became of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decide.make_world import OPENVINO, ORT, World, faster_on, kinds, make_world

from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, DecisionStatus
from metainfer.decide.plan import RecordDecision


def decide_again(world: World, *, faster: str = OPENVINO) -> None:
    """The user asks for another load, and the cards have changed their order."""
    clients = world.snapshot.adaptation.spec.load.clients
    world.p50_us = faster_on(faster)
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": clients + 1}))
    world.snapshot = replace(world.snapshot, profile=None)
    world.play(40)


def outcomes(world: World) -> list[str]:
    """Newest first."""
    return [entry.outcome for entry in world.status.decisions]


def make_entry(number: int, **fields: Any) -> DecisionStatus:
    """A decision that was superseded long ago."""
    defaults: dict[str, Any] = {"id": f"d-{number}", "decided_at": f"2026-01-{number:02}T00:00:00Z", "config": ConfigStatus(), "outcome": "Superseded"}
    return DecisionStatus(**(defaults | fields))


def test_a_decision_that_was_written_and_read_back_is_listed_with_its_gain_and_its_grounds() -> None:
    """Id, moment, trigger, configuration, what was predicted and what was measured, and that it is applied."""
    world = make_world()
    world.play()
    (entry,), recommendation, run = world.status.decisions, world.status.recommendation, world.status.run
    assert recommendation is not None
    assert run is not None
    assert (entry.id, entry.decided_at, entry.config) == (recommendation.decision_id, recommendation.decided_at, recommendation.config)
    assert (entry.trigger, entry.inputs_hash, entry.replaced) == ("FirstAdaptation: nothing was decided yet", run.inputs_hash, "")
    assert (entry.outcome, entry.gain_percent, entry.predicted_gain_percent is not None) == ("Applied", recommendation.gain_percent, True)


@pytest.mark.parametrize(
    ("world", "want_outcome"),
    [
        pytest.param(make_world(lambda _: 20_000.0), "Kept", id="what runs stays"),
        pytest.param(make_world(spec={"update_policy": {"mode": "Off"}}), "Recommended", id="mode Off"),
        pytest.param(make_world(conflict=((".spec.template.spec.affinity", "helm"),)), "Recommended", id="contested"),
    ],
)
def test_a_decision_that_was_not_written_says_so(world: World, want_outcome: str) -> None:
    """Applied means: on the Deployment."""
    world.play()
    assert outcomes(world) == [want_outcome]


def test_what_a_decision_replaced_is_known_from_before_its_write_on() -> None:
    """The way back: the decision that the Deployment carried, known in the same status that claims the write."""
    world = make_world()
    world.play()
    first = world.status.decisions[0].id
    applies = world.applies
    decide_again(world, faster=ORT)
    assert world.applies == applies + 1
    assert outcomes(world) == ["Applied", "Superseded"]
    assert [entry.replaced for entry in world.status.decisions] == [first, ""]


def test_what_was_taken_off_before_a_write_was_not_replaced_by_it() -> None:
    """After a rollout undo the Deployment was its owner's: that is what a rollback leads back to."""
    world = make_world()
    world.play()
    world.change_target(env=(), template=replace(world.snapshot.target.template, annotations={}, required_terms=None))  # type: ignore[union-attr]
    decide_again(world, faster=ORT)
    assert world.status.decisions[0].replaced == ""


def test_only_ten_are_listed_and_what_has_to_be_remembered_outlives_the_others() -> None:
    """The newest, what it replaced, and what was rolled back under the same inputs."""
    world = make_world()
    world.play()
    newest, run = world.status.decisions[0], world.status.run
    assert run is not None
    old = [make_entry(number) for number in range(20, 2, -1)]
    replaced, failed = make_entry(2), make_entry(1, outcome="RolledBack", inputs_hash=run.inputs_hash)
    entries = (newest.model_copy(update={"replaced": replaced.id}), *old, replaced, failed)
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=world.status.model_copy(update={"decisions": entries})))
    world.turn()
    want = [newest.id, *(entry.id for entry in old[:7]), replaced.id, failed.id]
    assert [entry.id for entry in world.status.decisions] == want


def test_a_decision_of_a_version_that_kept_no_list_is_the_first_on_it() -> None:
    """After an upgrade the status has the decision and no list."""
    world = make_world()
    world.play()
    status = world.status.model_copy(update={"decisions": ()})
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status))
    world.turn()
    assert outcomes(world) == ["Applied"]


def test_the_store_gets_the_configuration_of_every_decision() -> None:
    """What the status forgets can be gone back to from there."""
    world = make_world()
    world.play()
    (record,) = kinds(world.actions, RecordDecision)
    assert ConfigStatus.model_validate(record.document["config"]) == world.status.decisions[0].config
