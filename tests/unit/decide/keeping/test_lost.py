"""The place of a placement: what counts as lost, what only looks so, and decisions that grow old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.keeping.play_drift import add_cards, check_of, settled
from tests.unit.decide.make_facts import FAMILY_LABEL_OF_VENDOR, make_adaptation
from tests.unit.decide.make_world import OPENVINO, World, kinds

from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.facts import NodeFacts
from metainfer.decide.keeping.freshness import FRESHNESS_SPREAD
from metainfer.decide.plan import ApplyTarget, CreateJob

Change = Callable[[World], None]


def relabel(world: World, *, value: str | None, names: tuple[str, ...] = (f"{OPENVINO}-1", f"{OPENVINO}-2")) -> None:
    """The vendor's labeller writes another value, or none at all; our own label stays, as the pool's pass leaves it."""

    def labelled(node: NodeFacts) -> NodeFacts:
        kept = {key: item for key, item in node.labels.items() if key != FAMILY_LABEL_OF_VENDOR} | {FAMILY_LABEL: OPENVINO}
        return replace(node, labels=kept if value is None else kept | {FAMILY_LABEL_OF_VENDOR: value})

    world.snapshot = replace(world.snapshot, nodes=tuple(labelled(node) if node.name in names else node for node in world.snapshot.nodes))


def drop_nodes(world: World) -> None:
    """The family's nodes are gone, and the pods with them: their successors wait."""
    world.snapshot = replace(world.snapshot, nodes=tuple(node for node in world.snapshot.nodes if OPENVINO not in node.name))
    strand(world)


def strand(world: World) -> None:
    """The pods of the decision find no node."""
    waiting = tuple(
        replace(pod, node=None, ready=False, phase="Pending", unschedulable="0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector")
        for pod in world.snapshot.target_pods
    )
    target = world.snapshot.target
    assert target is not None
    world.snapshot = replace(world.snapshot, target_pods=waiting, card_pods=(), target=replace(target, available_replicas=0))


def run_id(world: World) -> str:
    """Of the last run."""
    assert world.status.run is not None
    return world.status.run.id


def pass_by(world: World, seconds: int, step: int = 30) -> None:
    """Time, with a pass every half minute."""
    ends = world.now + timedelta(seconds=seconds)
    while world.now < ends:
        world.turn()
        world.now += timedelta(seconds=step - 30)


LOST = [
    pytest.param(drop_nodes, "family openvino-cpu of pool cards has no nodes any more", id="the family has no nodes"),
    pytest.param(lambda world: relabel(world, value="sliced"), "is no longer of family openvino-cpu", id="the labels changed under the pods"),
    pytest.param(strand, "pods find no node of family openvino-cpu", id="the pods find no room"),
]


@pytest.mark.parametrize(("change", "want"), LOST)
def test_a_lost_place_is_decided_anew_without_waiting_for_the_cooldown(change: Change, want: str) -> None:
    """After two minutes, and not before; the condition names what is lost."""
    world = settled()
    add_cards(world, "ort-cpu-1")
    world.now += timedelta(minutes=15)
    before = run_id(world)
    change(world)
    pass_by(world, 90)
    assert run_id(world) == before
    assert world.condition("AnswerTrue") == ("Unknown", "PlacementLost")
    assert want in world.message("AnswerTrue")
    assert "Settling: it has to stand until" in world.message("AnswerTrue")
    pass_by(world, 180)
    assert world.status.run is not None
    assert world.status.run.trigger.startswith(f"PlacementLost: {'' if want.startswith(('family', 'pods')) else 'node'}")


def test_labels_that_are_only_missing_are_no_loss() -> None:
    """A labeller restarts: for a minute, for ten, or for some nodes for good. No run, no write, no check."""
    world = settled()
    add_cards(world, "ort-cpu-1")
    before, applies = run_id(world), world.applies
    relabel(world, value=None)
    pass_by(world, 1800)
    relabel(world, value=OPENVINO)
    pass_by(world, 300)
    assert (run_id(world), world.applies, world.started("check")) == (before, applies, 0)


def test_labels_that_flap_start_nothing() -> None:
    """Ten minutes of other values that come and go within less than the settle time."""
    world = settled()
    add_cards(world, "ort-cpu-1")
    before, applies = run_id(world), world.applies
    for _ in range(6):
        relabel(world, value="sliced")
        pass_by(world, 60)
        relabel(world, value=OPENVINO)
        pass_by(world, 60)
    assert (run_id(world), world.applies) == (before, applies)
    assert world.condition("AnswerTrue") == ("True", "NothingSuspected")


def test_pods_that_wait_while_they_are_rolled_out_are_the_rollouts_matter() -> None:
    """Until Kubernetes' own time for a rollout is over."""
    world = settled()
    add_cards(world, "ort-cpu-1")
    before = run_id(world)
    strand(world)
    pass_by(world, 240)
    assert run_id(world) == before
    assert world.status.check is None


def test_where_nothing_else_can_take_the_target_it_is_said_and_nothing_is_started() -> None:
    """A run would end with the same."""
    world = settled()
    world.snapshot = replace(world.snapshot, nodes=tuple(node for node in world.snapshot.nodes if OPENVINO in node.name))
    world.now += timedelta(minutes=15)
    before = run_id(world)
    strand(world)
    pass_by(world, 900)
    assert run_id(world) == before
    assert "NothingToDo: no family of the pools can take the target now" in world.message("AnswerTrue")


def test_a_decision_that_grew_old_is_worked_out_anew_once() -> None:
    """What runs is still the best: nothing is written, the clock begins again, and it does not count as being in vain."""
    world = settled()
    before, applies = run_id(world), world.applies
    world.now += timedelta(days=7 * (1 + FRESHNESS_SPREAD))
    world.play()
    run, recommendation = world.status.run, world.status.recommendation
    assert run is not None
    assert recommendation is not None
    assert (run.id != before, run.trigger.partition(":")[0]) == (True, "FreshnessExpired")
    assert (world.applies, world.condition("Ready")) == (applies, ("True", "CurrentKept"))
    assert check_of(world).in_vain == 0 if world.status.check is not None else True
    world.now += timedelta(days=6)
    plan = world.turn()
    assert world.status.run == run
    assert kinds(plan.actions, CreateJob) == kinds(plan.actions, ApplyTarget) == []


def test_adaptations_of_the_same_day_do_not_grow_old_at_the_same_time() -> None:
    """Up to a tenth later, by their UIDs."""
    world = settled()
    stale_after = []
    for number in range(8):
        again = replace(world, snapshot=replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, uid=make_adaptation(f"a{number}").uid)))
        hours = 0
        while run_id(again) == run_id(world) and hours < 200:
            hours += 2
            again.now = world.now + timedelta(hours=hours)
            again.turn()
            again.turn()
        stale_after.append(hours)
    assert all(168 <= hours <= 186 for hours in stale_after)
    assert len(set(stale_after)) > 3


def test_a_short_freshness_wakes_itself() -> None:
    """Nothing else would: what is hours away comes with the regular lists."""
    world = settled()
    world.change_spec(freshness="10m")
    plan = world.turn()
    assert plan.requeue_after_seconds is not None
    assert 0 < plan.requeue_after_seconds <= 660
