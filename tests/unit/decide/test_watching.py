"""A decision that turns out worse than what was there before is taken back, remembered, and not chosen again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import make_container
from tests.unit.decide.make_world import OPENVINO, ORT, World, faster_on, kinds, make_world
from tests.unit.decide.test_standing import make_slow, play_until_decided, resume_and_write, target_of

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import UpdatePolicy
from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.facts import ContainerState, PodFacts
from metainfer.decide.plan import AdaptationPlan, ApplyTarget, EmitEvent, RecordDecision, RestoreTarget
from metainfer.predict.physics import PhysicsPredictor

Break = Callable[[World], None]


def write(world: World) -> World:
    """Turns until the decision is written, and not looked at yet."""
    applies = world.applies
    for _ in range(30):
        world.turn()
        if world.applies > applies:
            return world
    msg = "nothing was written"
    raise AssertionError(msg)


def make_second(**fields: Any) -> World:
    """One decision applied; then the load and the cards' order change, and another one is written."""
    world = make_world(**fields)
    world.play()
    world.p50_us = faster_on(ORT)
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 5}))
    world.snapshot = replace(world.snapshot, profile=None)
    return write(world)


def break_pods(world: World, **fields: Any) -> None:
    """No pod of the decision serves."""
    pods = tuple(replace(pod, ready=False, **fields) for pod in world.snapshot.target_pods)
    world.snapshot = replace(world.snapshot, target_pods=pods)
    world.change_target(available_replicas=0)


def crash(world: World, restarts: int = 3) -> None:
    """The server ends again and again."""
    state = ContainerState("server", waiting_reason="CrashLoopBackOff", waiting_message="back-off 40s restarting", exit_code=139, restarts=restarts)
    break_pods(world, states=(state,))


def find_no_node(world: World) -> None:
    """The scheduler finds no place, and the Deployment controller has given up."""
    break_pods(world, node=None, phase="Pending", unschedulable="0/4 nodes are available: 2 Insufficient metainfer.dev/card")
    world.change_target(progressing_reason="ProgressDeadlineExceeded", progressing_message="has timed out progressing")


def hang(world: World) -> None:
    """Running, never ready, long past what its probes allow."""
    break_pods(world)
    world.change_target(progressing_reason="ProgressDeadlineExceeded", progressing_message="ReplicaSet ocr-2 has timed out progressing")
    world.now += timedelta(hours=1)


def override_settings(world: World) -> None:
    """A webhook gives every pod its own values."""
    pods = tuple(replace(pod, containers=(make_container(env=dict.fromkeys(env_names(pod), "fp32")),)) for pod in world.snapshot.target_pods)
    world.snapshot = replace(world.snapshot, target_pods=pods)


def env_names(pod: PodFacts) -> list[str]:
    """Of its server."""
    return [entry.name for entry in pod.containers[0].env]


FAILURES = [
    pytest.param(crash, "RolloutFailed", "CrashLoopBackOff", id="pods end again and again"),
    pytest.param(find_no_node, "RolloutFailed", "Insufficient metainfer.dev/card", id="no node for the pods"),
    pytest.param(hang, "RolloutFailed", "has timed out progressing", id="pods do not become ready in time"),
    pytest.param(override_settings, "SettingsNotEffective", "decided", id="settings do not arrive"),
]


@pytest.mark.parametrize(("failure", "want_reason", "want_words"), FAILURES)
def test_a_decision_that_fails_gives_way_to_the_one_before_in_the_pass_that_sees_it(failure: Break, want_reason: str, want_words: str) -> None:
    """The previous decision's own fields, under its own id; the condition, the Event and the record say why."""
    world = make_world()
    world.play()
    (before,) = kinds(world.actions, ApplyTarget)
    world = make_second()
    failed = world.status.decisions[0].id
    failure(world)
    world.actions.clear()
    plan = world.turn()
    (again,) = kinds(plan.actions, ApplyTarget)
    assert (again.body["spec"], again.decision_id) == (before.body["spec"], before.decision_id)
    assert world.condition("RolledBack") == ("True", want_reason)
    assert want_words in world.message("RolledBack")
    assert [(event.kind, event.reason) for event in kinds(plan.actions, EmitEvent)] == [("Warning", want_reason)]
    (record,) = kinds(plan.actions, RecordDecision)
    assert (record.rollback, record.document["rolledBack"], record.document["to"]) == (want_reason, failed, before.decision_id)
    world.play()
    assert world.condition("Ready") == ("True", "Applied")
    assert target_of(world).template.annotations[DECISION_ANNOTATION] == before.decision_id
    assert [(entry.id, entry.outcome) for entry in world.status.decisions] == [(failed, "RolledBack"), (before.decision_id, "Applied")]


@pytest.mark.parametrize(("failure", "want_reason", "want_words"), FAILURES)
def test_a_first_decision_that_fails_is_given_back_to_the_owner(failure: Break, want_reason: str, want_words: str) -> None:
    """Nothing of ours was there before: the owner's own state, field by field, by the restore that deletion uses."""
    world = write(make_world())
    failure(world)
    plan = world.turn()
    assert len(kinds(plan.actions, RestoreTarget)) == 1
    assert kinds(plan.actions, ApplyTarget) == []
    plan = world.play()
    assert (world.restores, world.applies) == (1, 1)
    assert (world.condition("Ready"), world.condition("Applied")) == (("True", "GivenBack"), ("False", "GivenBack"))
    assert world.condition("RolledBack") == ("True", want_reason)
    assert want_words in world.message("Ready")
    assert (world.status.placement, plan.requeue_after_seconds) == (None, None)


def test_what_was_taken_back_stays_so_and_nothing_ticks() -> None:
    """Ten more passes, days apart: no action, the same status."""
    world = write(make_world())
    crash(world)
    world.play()
    status = world.status
    for _ in range(10):
        world.now += timedelta(days=1)
        plan = world.turn()
        assert (plan.actions, plan.status.placement, plan.status.decisions) == ((), None, status.decisions)


def test_a_decision_that_was_taken_back_is_not_chosen_again_for_the_same_inputs() -> None:
    """A run that is started for another cause finds it among the rejections, with the reason."""
    world = write(make_world())
    failed = world.status.decisions[0].config
    crash(world)
    world.play()
    status = world.status.model_copy(update={"run": world.status.run.model_copy(update={"id": "again"})})  # type: ignore[union-attr]
    status = status.model_copy(update={"recommendation": None, "baseline": None})
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status), runs=(), jobs=())
    world.jobs_started.clear()
    world.play(40)
    assert [item.count for item in world.status.rejections if item.reason == "RolledBackBefore"] == [1]
    assert world.status.recommendation is not None
    assert world.status.recommendation.config != failed


def test_other_inputs_are_another_question() -> None:
    """After a change of the image the same configuration may be chosen."""
    world = write(make_world())
    failed = world.status.decisions[0].config
    crash(world)
    world.play()
    world.change_target(image="server:2")
    world.snapshot = replace(world.snapshot, profile=None)
    world.now += timedelta(minutes=11)
    world.play(60)
    assert world.condition("RolledBack")[0] == "False"
    assert world.status.placement is not None
    assert world.status.placement.config == failed


def test_a_crash_or_two_is_no_failure() -> None:
    """A server that finds its database a moment later has not failed."""
    world = write(make_world())
    crash(world, restarts=2)
    world.turn()
    assert world.condition("Ready") == ("False", "RollingOut")
    assert world.condition("RolledBack") == ("False", "NothingTakenBack")


def test_pods_that_begin_to_crash_while_the_decision_is_watched_are_its_failure() -> None:
    """rollout.watch counts from when it settled."""
    world = write(make_world(spec={"rollout": {"watch": "30m"}}))
    world.play()
    world.now += timedelta(minutes=20)
    crash(world)
    world.turn()
    assert world.condition("RolledBack") == ("True", "RolloutFailed")


def test_what_happens_after_the_watch_is_not_the_decisions_fault() -> None:
    """Pods that crash after two hours have another cause."""
    world = write(make_world(spec={"rollout": {"watch": "30m"}}))
    world.play()
    world.now += timedelta(hours=2)
    crash(world)
    plan = world.turn()
    assert kinds(plan.actions, RestoreTarget) == []
    assert world.condition("RolledBack") == ("False", "NothingTakenBack")


def test_what_was_gone_back_to_is_not_judged() -> None:
    """When it fails too, the cause is elsewhere: going back further and further would not find it."""
    world = make_second()
    crash(world)
    world.turn()
    crash(world)
    for _ in range(5):
        plan = world.turn()
        assert kinds(plan.actions, RestoreTarget) == []
    assert [entry.outcome for entry in world.status.decisions] == ["RolledBack", "Applied"]


@pytest.mark.parametrize(
    "spec",
    [pytest.param({"rollout": {"autoRollback": False}}, id="autoRollback is false"), pytest.param({"update_policy": {"mode": "Off"}}, id="mode Off since")],
)
def test_nothing_is_taken_back_where_nobody_wants_it(spec: dict[str, Any]) -> None:
    """The condition tells of the failure; what is applied stays."""
    world = write(make_world(spec=spec if "rollout" in spec else {}))
    if "update_policy" in spec:
        world.change_spec(update_policy=UpdatePolicy(mode="Off"))
    crash(world)
    plan = world.turn()
    assert kinds(plan.actions, RestoreTarget) == []
    assert world.condition("RolledBack") == ("False", "NothingTakenBack")


def test_a_rollback_that_was_killed_between_claim_and_write_is_finished_by_the_next_pass() -> None:
    """The claim says what is wanted; the write, the Event and the record follow from it, and are the same ones."""
    world = make_second()
    crash(world)
    first = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=first.status))
    second = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
    assert kinds(second.actions, ApplyTarget) == kinds(first.actions, ApplyTarget)
    assert kinds(second.actions, EmitEvent) == kinds(first.actions, EmitEvent)
    assert kinds(second.actions, RecordDecision) == kinds(first.actions, RecordDecision)


def test_the_words_name_the_architecture_of_the_node_where_it_failed() -> None:
    """An image that does not exist for a node's processor ends with an exit code that says nothing."""
    world = write(make_world())
    nodes = tuple(replace(node, architecture="arm64") if node.name == f"{OPENVINO}-1" else node for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes)
    crash(world)
    world.turn()
    assert f"node {OPENVINO}-1 is arm64" in world.message("RolledBack")


# --- slow, paused, without history, old pod stopped first ---


def fail_slowly(world: World) -> AdaptationPlan:
    """Resumed, written, and not ready when all the time that its owner allows has passed."""
    play_until_decided(world)
    world.turn()
    resume_and_write(world)
    began = world.now
    while world.now < began + timedelta(seconds=1800 + 120 + 600 - 60):
        plan = world.turn()
        assert kinds(plan.actions, RestoreTarget) == []
        world.now += timedelta(seconds=60)
    world.now = began + timedelta(seconds=1800 + 120 + 600 + 60)
    return world.turn()


def test_a_slow_server_is_taken_back_only_after_all_the_time_that_its_owner_allows() -> None:
    """And from our own record: no old ReplicaSet is needed. With Recreate the condition says that the service is down meanwhile."""
    world = make_slow()
    plan = fail_slowly(world)
    assert len(kinds(plan.actions, RestoreTarget)) == 1
    assert "strategy Recreate: the service is down until a new pod is ready" in world.message("Ready")
    world.change_target(available_replicas=0, updated_replicas=0)
    world.turn()
    assert world.condition("Ready") == ("False", "GoingBack")
    assert "the service is down" in world.message("Ready")
    world.change_target(available_replicas=1, updated_replicas=1)
    world.turn()
    assert world.condition("Ready") == ("True", "GivenBack")
