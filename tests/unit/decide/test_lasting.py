"""What becomes of a decision whose fields somebody takes off, or that the API server does not take."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.decide.make_facts import make_managed
from tests.unit.decide.make_world import ORT, World, faster_on, make_world

from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.applying import report_refusal
from metainfer.decide.conditions import find_condition, format_time
from metainfer.decide.facts import ManagedFields, TargetFacts
from metainfer.decide.plan import ApplyTarget, EmitEvent
from metainfer.predict.physics import PhysicsPredictor

CHART = ("f:spec", "f:template", "f:spec", "f:terminationGracePeriodSeconds")


def make_applied(**fields: Any) -> World:
    """Decided, written and read back."""
    world = make_world(**fields)
    world.play()
    assert world.condition("Ready") == ("True", "Applied")
    return world


def target_of(world: World) -> TargetFacts:
    """The Deployment, which is there."""
    assert world.snapshot.target is not None
    return world.snapshot.target


def wipe(world: World, *, manager: str | None = None, operation: str = "Update", recreated: bool = False) -> None:
    """All of ours is taken off; with a manager, somebody leaves a record of having written."""
    target = target_of(world)
    server = replace(target.template.containers[0], env=())
    template = replace(target.template, containers=(server,), annotations={}, required_terms=None, preferred_present=False)
    managed: tuple[ManagedFields, ...] = ()
    if manager is not None:
        managed = (replace(make_managed(*CHART, manager=manager, operation=operation), time=format_time(world.now)),)
    fields: dict[str, Any] = {"uid": f"uid-{world.now}", "created_at": world.now, "generation": 1} if recreated else {"generation": target.generation + 1}
    world.snapshot = replace(world.snapshot, target=replace(target, template=template, managed=managed, annotations={}, **fields))


def drop_affinity(world: World, manager: str = "helm") -> None:
    """A client-side owner drops its affinity block, and ours goes with it."""
    target = target_of(world)
    template = replace(target.template, required_terms=None, preferred_present=False)
    kept = tuple(item for item in target.managed if "f:affinity" not in str(item.fields))
    record = replace(make_managed(*CHART, manager=manager, operation="Update"), time=format_time(world.now))
    world.snapshot = replace(world.snapshot, target=replace(target, template=template, managed=(*kept, record), generation=target.generation + 1))


def message_of(world: World) -> str:
    """Of FieldContested."""
    found = find_condition(world.snapshot.adaptation.status.conditions, "FieldContested")
    assert found is not None
    return found.message


@pytest.mark.parametrize("manager", ["helm", "kubectl-client-side-apply", "argocd-controller"])
def test_fields_that_vanish_without_an_error_are_applied_again_until_it_repeats(manager: str) -> None:
    """Twice; the third time it is a custom of somebody's, and told with the name."""
    world = make_applied()
    for want_applies in (2, 3):
        wipe(world, manager=manager)
        world.play()
        assert (world.applies, world.condition("Ready")) == (want_applies, ("True", "Applied"))
    wipe(world, manager=manager)
    for _ in range(5):
        world.turn()
    assert (world.applies, world.condition("FieldContested")) == (3, ("True", "PlacementRemoved"))
    assert f"manager {manager}, 3 times" in message_of(world)
    assert world.condition("Ready") == ("True", "Recommended")


def test_a_manager_that_replaces_whole_objects_is_answered_once() -> None:
    """Argo CD with Replace=true: every sync would cost two rollouts."""
    world = make_applied()
    wipe(world, manager="argocd")
    world.play()
    wipe(world, manager="argocd")
    world.play()
    assert (world.applies, world.condition("FieldContested")) == (2, ("True", "PlacementRemoved"))
    assert "Replace=true" in message_of(world)


def test_a_deployment_that_is_made_anew_at_every_sync_is_given_up_too() -> None:
    """Force=true,Replace=true: another UID each time, hence another run; the removals are counted across them."""
    world = make_applied()
    for _ in range(3):
        wipe(world, manager="argocd", recreated=True)
        for _ in range(30):
            world.turn()
    assert world.applies == 2
    assert world.condition("FieldContested") == ("True", "PlacementRemoved")


def test_a_part_that_vanishes_is_put_back() -> None:
    """The decision's mark is still there; its affinity is not."""
    world = make_applied()
    drop_affinity(world)
    world.play()
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))
    assert target_of(world).template.required_terms is not None


@pytest.mark.parametrize(
    ("manager", "want_words"), [pytest.param("kubectl", "manager kubectl", id="recorded"), pytest.param(None, "as kubectl does", id="not recorded")]
)
def test_a_rollout_undo_is_respected_for_the_cooldown(manager: str | None, want_words: str) -> None:
    """A human's hand: not written again before updatePolicy.cooldown is over, and the condition says who and until when."""
    world = make_applied(spec={"update_policy": {"cooldown": "2h"}})
    wipe(world, manager=manager)
    plan = world.turn()
    assert (world.applies, world.condition("FieldContested")) == (1, ("True", "RolledBack"))
    assert want_words in message_of(world)
    assert plan.requeue_after_seconds is not None
    assert 7000 < plan.requeue_after_seconds <= 7200
    world.now += timedelta(hours=1, minutes=50)
    assert world.turn().actions == ()
    world.now += timedelta(minutes=10)
    world.play()
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))


def test_a_deploy_of_yesterday_does_not_hide_a_rollback_of_today() -> None:
    """Its record is still the newest one, because the rollback left none."""
    world = make_applied()
    record = replace(make_managed(*CHART, manager="helm", operation="Update"), time=format_time(world.now))
    world.now += timedelta(days=1)
    wipe(world)
    world.snapshot = replace(world.snapshot, target=replace(target_of(world), managed=(record,)))
    world.turn()
    assert (world.applies, world.condition("FieldContested")) == (1, ("True", "RolledBack"))


def test_the_same_removal_counts_once_however_often_it_is_looked_at() -> None:
    """Killed between claim and write, or overtaken by somebody's write, the next pass finds the same removal, not a second one."""
    world = make_applied()
    wipe(world, manager="helm")
    for _ in range(4):
        plan = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
        assert [type(action) for action in plan.actions] == [ApplyTarget]
        world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=plan.status))
    placement = world.snapshot.adaptation.status.placement
    assert placement is not None
    assert placement.removal is not None
    assert (placement.removal.count, placement.removal.written_again) == (1, False)


def test_removals_a_week_apart_are_no_fight() -> None:
    """A chart that drops its affinity once a week is put right each time."""
    world = make_applied()
    world.change_spec(freshness="8760h")
    for _ in range(5):
        drop_affinity(world)
        world.play()
        world.now += timedelta(days=7)
    assert (world.applies, world.condition("Ready")) == (6, ("True", "Applied"))


def test_another_choice_is_written_whatever_became_of_the_last_one() -> None:
    """The user changed the adaptation after a rollback: that is an answer."""
    world = make_applied()
    wipe(world)
    world.turn()
    adaptation = world.snapshot.adaptation
    spec = adaptation.spec.model_copy(update={"load": adaptation.spec.load.model_copy(update={"clients": 8})})
    world.snapshot = replace(world.snapshot, adaptation=replace(adaptation, spec=spec, generation=2), target_pods=world.snapshot.target_pods[:0])
    for _ in range(30):
        world.turn()
    decided = world.snapshot.adaptation.status.recommendation
    assert decided is not None
    assert world.condition("FieldContested")[1] != "RolledBack"


# --- refused ---


def play_until_refused(world: World, message: str = "denied by policy no-gpu") -> datetime | None:
    """Passes, each when the one before asks for it, until the API server refuses a write; when that was. None = nothing is tried any more."""
    while True:
        before, at, target = world.applies, world.now, world.snapshot.target
        plan = world.turn()
        if world.applies > before:
            world.snapshot = replace(world.snapshot, target=target)
            status = report_refusal(world.snapshot, plan.status, message, at)
            world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status))
            return at
        if plan.requeue_after_seconds is None:
            return None
        world.now = at + timedelta(seconds=plan.requeue_after_seconds)


def test_a_refused_write_is_tried_again_later_and_later_and_not_for_ever() -> None:
    """Nothing that is watched tells when a policy is mended: 1, 2, 4 ... 60 minutes apart, 24 times."""
    world = make_world()
    tries: list[datetime] = []
    while (tried_at := play_until_refused(world)) is not None:
        tries.append(tried_at)
        world.now = tried_at
    gaps = [round((later - earlier).total_seconds() / 60) for earlier, later in pairwise(tries)]
    assert gaps == [1, 2, 4, 8, 16, 32, *[60] * 17]
    assert world.condition("Applied") == ("False", "ApplyRefused")
    stalled = find_condition(world.snapshot.adaptation.status.conditions, "Stalled")
    assert stalled is not None
    assert "denied by policy no-gpu; once that is mended, change the adaptation" in stalled.message
    told = {action.message for action in world.actions if isinstance(action, EmitEvent) and action.reason == "ApplyRefused"}
    assert len(told) == 2, "one Event with a count, and one for the end"


def test_a_write_that_is_taken_at_last_ends_the_counting() -> None:
    """The policy was mended."""
    world = make_world()
    play_until_refused(world)
    world.turn()
    assert world.condition("Applied") == ("False", "ApplyRefused")
    world.now += timedelta(minutes=2)
    world.play()
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))
    assert world.snapshot.adaptation.status.apply_refusal is None


def test_what_we_chose_last_is_no_restriction_of_what_may_be_chosen_next() -> None:
    """Our own affinity is on the Deployment: another run may still choose the other family, and does when it is better now."""
    world = make_applied()
    world.p50_us = faster_on(ORT)
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 8}))
    world.play()
    assert "NodeAffinityMismatch" not in {line.reason for line in world.status.rejections}
    decided = world.status.recommendation
    assert decided is not None
    assert decided.config.family == ORT
