"""What the status says of a Deployment that is paused, scaled, renamed, replaced or given up while our fields are on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.make_facts import make_adaptation, make_pod
from tests.unit.decide.make_world import OPENVINO, ORT, World, kinds, make_world

from metainfer.api.v1alpha1.model_adaptation import Load, UpdatePolicy
from metainfer.decide.applying import report_refusal
from metainfer.decide.facts import AdaptationFacts, KubeletProbe, TargetFacts
from metainfer.decide.plan import AdaptationPlan, ApplyTarget

PAUSED = ("False", "TargetPaused")


def make_applied(**fields: object) -> World:
    """Decided, written and read back."""
    world = make_world(**fields)  # type: ignore[arg-type]
    world.play()
    assert world.condition("Ready") == ("True", "Applied")
    return world


def target_of(world: World) -> TargetFacts:
    """The Deployment, which is there."""
    assert world.snapshot.target is not None
    return world.snapshot.target


def play_until_decided(world: World) -> AdaptationPlan:
    """Turns until the decision stands, written or not."""
    plan = world.turn()
    for _ in range(25):
        if world.status.recommendation is not None:
            break
        plan = world.turn()
    return plan


# --- paused ---


def make_slow(**spec: object) -> World:
    """The Deployment of somebody whose model loads for half an hour, who stops the old pod first and has paused it."""
    world = make_world(spec=spec)
    world.change_target(
        paused=True,
        strategy="Recreate",
        min_ready_seconds=120,
        startup_probe=KubeletProbe(period_seconds=10, failure_threshold=180),
    )
    template = replace(target_of(world).template, termination_grace_seconds=600)
    world.change_target(template=template)
    world.owners = replace(target_of(world), paused=False)
    return world


def test_a_paused_target_is_decided_for_and_not_written() -> None:
    """TargetPaused, not Applied, and no timer runs: the Deployment's next event wakes the pass."""
    world = make_slow()
    play_until_decided(world)
    plan = world.turn()
    assert (world.condition("Ready"), world.condition("Applied")) == (PAUSED, PAUSED)
    assert "kubectl rollout resume deployment ocr" in world.message("Ready")
    assert (world.applies, plan.requeue_after_seconds) == (0, None)
    assert world.turn().status == plan.status, "nothing ticks in the status either"


def resume_and_write(world: World) -> AdaptationPlan:
    """Un-paused: the decision is written; the old pod is gone, the new one loads."""
    world.change_target(paused=False)
    plan = world.turn()
    loading = replace(world.snapshot.target_pods[0], ready=False, phase="Running", created_at=world.now)
    world.change_target(updated_replicas=1, available_replicas=0, status_replicas=1, progressing_reason="ProgressDeadlineExceeded", progressing_message="slow")
    world.snapshot = replace(world.snapshot, target_pods=(loading,))
    return plan


def test_after_resuming_the_check_waits_for_the_real_start_up_time() -> None:
    """10 s x 180 tries + 120 s minReadySeconds, and the old pod's 600 s: only then a passed deadline means stuck."""
    world = make_slow(rollout={"autoRollback": False})
    play_until_decided(world)
    world.turn()
    resume_and_write(world)
    began = world.now
    while world.now < began + timedelta(seconds=1800 + 120 + 600 - 60):
        world.turn()
        assert world.condition("Ready") == ("False", "RollingOut")
        world.now += timedelta(seconds=60)
    world.now = began + timedelta(seconds=1800 + 120 + 600 + 60)
    world.turn()
    assert world.condition("Ready") == ("False", "RolloutStuck")


def test_with_recreate_the_condition_says_that_the_service_is_down() -> None:
    """From the write until the new pod is ready."""
    world = make_slow()
    play_until_decided(world)
    resume_and_write(world)
    assert "the service is down until a new pod is ready" in world.message("Ready")
    world.turn()
    assert "strategy Recreate: the service is down" in world.message("SettingsEffective")
    pods = tuple(replace(pod, ready=True) for pod in world.snapshot.target_pods)
    world.snapshot = replace(world.snapshot, target_pods=pods)
    world.change_target(available_replicas=1)
    world.turn()
    assert world.condition("Ready") == ("True", "Applied")


def test_the_progress_deadline_of_the_owner_is_respected() -> None:
    """As long as the Deployment controller does not give up, neither do we, however long it takes."""
    world = make_slow()
    play_until_decided(world)
    world.turn()
    resume_and_write(world)
    world.change_target(progressing_reason="ReplicaSetUpdated")
    world.now += timedelta(hours=5)
    world.turn()
    assert world.condition("Ready") == ("False", "RollingOut")


def test_a_pause_in_the_middle_of_the_rollout_stops_the_clock() -> None:
    """Written and not rolled out: on the Deployment, but nobody judges; the time counts anew from the resumption."""
    world = make_slow()
    play_until_decided(world)
    resume_and_write(world)
    world.turn()
    world.change_target(paused=True)
    plan = world.turn()
    assert (world.condition("Ready"), world.condition("SettingsEffective")) == (PAUSED, ("Unknown", "TargetPaused"))
    assert (world.condition("Applied"), plan.requeue_after_seconds) == (("True", "Applied"), None)
    world.now += timedelta(days=3)
    assert world.turn().status == plan.status
    pods = tuple(replace(pod, created_at=world.now) for pod in world.snapshot.target_pods)
    world.snapshot = replace(world.snapshot, target_pods=pods)
    world.change_target(paused=False)
    world.turn()
    assert world.condition("Ready") == ("False", "RollingOut")


# --- scaled, by hand or by an autoscaler ---


def test_a_target_that_is_scaled_to_zero_keeps_what_is_applied() -> None:
    """True is what is true: our fields are there, and no pod to read them back from."""
    world = make_applied()
    world.change_target(replicas=0, updated_replicas=0, available_replicas=0, status_replicas=0)
    world.snapshot = replace(world.snapshot, target_pods=())
    plan = world.turn()
    assert world.condition("Applied") == ("True", "Applied")
    assert world.condition("SettingsEffective") == ("Unknown", "TargetScaledToZero")
    assert world.condition("Ready") == ("True", "TargetScaledToZero")
    assert (plan.actions, plan.requeue_after_seconds) == ((), None)


def test_an_autoscaler_moves_no_condition() -> None:
    """A replica that is still starting is no rollout; one that finds no node is told, and the decision stands."""
    world = make_applied()
    before = world.status
    starting = replace(world.snapshot.target_pods[0], name="ocr-3", uid="uid-3", ready=False)
    world.change_target(replicas=2, updated_replicas=2, status_replicas=2, available_replicas=1)
    world.snapshot = replace(world.snapshot, target_pods=(*world.snapshot.target_pods, starting))
    plan = world.turn()
    assert (plan.status, plan.actions) == (before, ())
    lost = replace(starting, node=None, unschedulable="0/4 nodes are available")
    world.snapshot = replace(world.snapshot, target_pods=(world.snapshot.target_pods[0], lost))
    world.turn()
    assert world.condition("Ready") == ("True", "Applied")
    assert "pod ocr-3 has no node: 0/4 nodes" in world.message("Ready")


# --- deleted, created anew, renamed ---


def test_a_target_that_is_deleted_is_not_called_applied() -> None:
    """Nothing of ours is anywhere; what was measured stays for the next one."""
    world = make_applied()
    world.snapshot = replace(world.snapshot, target=None, target_pods=())
    world.turn()
    assert world.condition("Stalled") == ("True", "TargetNotFound")
    assert world.condition("Applied") == ("False", "TargetNotFound")
    assert world.condition("SettingsEffective") == ("Unknown", "NotApplied")


@pytest.mark.parametrize("seen_gone", [True, False], ids=["seen to be gone", "between two looks"])
def test_a_target_that_is_created_anew_gets_the_same_decision_without_a_measurement(seen_gone: bool) -> None:
    """Another UID, the same server: nobody took anything off this Deployment, so it is written."""
    world = make_applied()
    jobs, decision = len(world.jobs_started), world.status.recommendation
    fresh = make_world().snapshot.target
    assert fresh is not None
    if seen_gone:
        world.snapshot = replace(world.snapshot, target=None, target_pods=())
        world.turn()
    world.snapshot = replace(world.snapshot, target=replace(fresh, uid="uid-anew"), target_pods=(), card_pods=())
    world.play()
    assert world.condition("Ready") == ("True", "Applied")
    assert (world.applies, len(world.jobs_started), world.status.recommendation) == (2, jobs, decision)
    assert world.status.placement is not None
    assert world.status.placement.target_uid == "uid-anew"


def test_what_was_written_to_a_former_deployment_is_not_called_applied_meanwhile() -> None:
    """Suspended: the new Deployment stays as its owner made it, and the condition says why."""
    world = make_applied(spec={})
    fresh = make_world().snapshot.target
    assert fresh is not None
    world.snapshot = replace(world.snapshot, target=replace(fresh, uid="uid-anew"))
    world.change_spec(suspend=True)
    world.turn()
    assert world.condition("Applied") == ("False", "TargetRecreated")


def test_a_renamed_container_gets_its_settings_again() -> None:
    """A client-side owner's rename takes our entries away with the old container; the mark on the template stays."""
    world = make_applied()
    world.change_target(env=())
    template = target_of(world).template
    world.change_target(template=replace(template, containers=(replace(template.containers[0], name="main"),)))
    world.turn()
    assert world.applies == 2
    (apply,) = [action for action in world.actions[-1:] if isinstance(action, ApplyTarget)]
    (container,) = apply.body["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "main"
    pods = tuple(replace(pod, containers=(replace(pod.containers[0], name="main"),)) for pod in world.snapshot.target_pods)
    world.snapshot = replace(world.snapshot, target_pods=pods)
    for _ in range(5):
        world.turn()
    assert world.condition("Ready") == ("True", "Applied")
    assert world.applies == 2
    assert world.status.placement is not None
    assert world.status.placement.container == "main"


def test_a_named_container_that_is_gone_is_asked_for_and_found_again() -> None:
    """ContainerNotFound names what there is; correcting the name writes to the new one and measures nothing."""
    world = make_applied(spec={"target_ref": {"name": "ocr", "container": "server"}})
    jobs = len(world.jobs_started)
    world.change_target(env=())
    template = target_of(world).template
    world.change_target(template=replace(template, containers=(replace(template.containers[0], name="main"),)))
    world.turn()
    assert world.condition("Stalled") == ("True", "ContainerNotFound")
    assert "it has main" in world.message("Stalled")
    world.change_spec(target_ref=world.snapshot.adaptation.spec.target_ref.model_copy(update={"container": "main"}))
    world.turn()
    assert (world.applies, len(world.jobs_started)) == (2, jobs)


# --- given up ---


def test_mode_off_after_an_apply_says_that_it_still_stands() -> None:
    """The fields are on the Deployment: applied, and not managed any more; what runs is still read back."""
    world = make_applied()
    world.change_spec(update_policy=UpdatePolicy(mode="Off"))
    plan = world.turn()
    assert (world.condition("Applied"), world.condition("Ready")) == (("True", "NotManaged"), ("True", "NotManaged"))
    assert world.condition("SettingsEffective") == ("True", "ReadBack")
    assert plan.actions == ()
    world.change_spec(update_policy=UpdatePolicy(mode="Apply"))
    world.turn()
    assert world.condition("Applied") == ("True", "Applied")
    assert world.applies == 1


def test_mode_off_and_another_decision_says_what_the_former_one_left() -> None:
    """The new decision is only recommended, the former one's fields are still there: both are said."""
    world = make_applied()
    first = world.status.recommendation
    assert first is not None
    world.change_spec(update_policy=UpdatePolicy(mode="Off"), load=Load(clients=8))
    world.p50_us = lambda candidate: 2_000 if candidate.family == ORT else 20_000
    world.play()
    assert world.condition("Applied") == ("False", "RecommendOnly")
    assert f"decision {first.decision_id}, written at" in world.message("Applied")


def test_while_a_new_run_works_the_earlier_decision_is_still_called_applied() -> None:
    """It is what runs."""
    world = make_applied()
    world.change_spec(load=Load(clients=8))
    world.turn()
    assert world.condition("Applied") == ("True", "EarlierDecision")


def test_suspend_says_what_is_on_the_deployment() -> None:
    """Also when somebody took it off meanwhile."""
    world = make_applied()
    world.change_spec(suspend=True)
    world.turn()
    assert (world.condition("Applied"), world.condition("Ready")) == (("True", "Applied"), ("False", "Suspended"))
    world.change_target(template=replace(target_of(world).template, annotations={}))
    world.turn()
    assert world.condition("Applied") == ("False", "PlacementRemoved")


def test_a_kept_configuration_that_somebody_takes_off_is_not_called_kept() -> None:
    """The former decision was the best again; its fields are removed by hand: nothing is written against that, and it is said."""
    world = make_applied()
    world.change_spec(load=Load(clients=8))
    world.play()
    assert world.condition("Ready") == ("True", "CurrentKept")
    world.change_target(template=replace(target_of(world).template, annotations={}))
    world.turn()
    assert world.condition("FieldContested")[0] == "True"
    assert world.condition("Ready") == ("True", "Recommended")
    assert world.applies == 1


def test_a_refused_write_stays_refused_beside_an_earlier_decision() -> None:
    """Until it is time for another try, the next pass must not call it applied and must not write."""
    world = make_applied()
    world.change_spec(load=Load(clients=8))
    world.p50_us = lambda candidate: 2_000 if candidate.family == ORT else 20_000
    world.turn()
    play_until_decided(world)
    status = report_refusal(world.snapshot, world.status, "denied by policy", world.now)
    before = world.applies
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status), target=target_before(world))
    world.turn()
    assert world.condition("Applied") == ("False", "ApplyRefused")
    assert world.applies == before


def target_before(world: World) -> TargetFacts:
    """As if the last write had not been taken."""
    placement = world.status.placement
    assert placement is not None
    target = target_of(world)
    return replace(target, template=replace(target.template, annotations={"metainfer.dev/decision": placement.decision_id}))


# --- whose target it is ---


def test_a_target_that_a_controller_owns_is_only_recommended_for() -> None:
    """It would be overwritten; the recommendation belongs into that controller's own object."""
    world = make_world()
    world.change_target(controller="Seldon/ocr")
    world.play()
    assert (world.condition("Ready"), world.condition("Applied")) == (("True", "Recommended"), ("False", "UnsupportedTarget"))
    assert "Seldon/ocr" in world.message("Applied")
    assert world.applies == 0


def make_elder(change: Callable[[AdaptationFacts], AdaptationFacts] = lambda peer: peer) -> AdaptationFacts:
    """An adaptation of the same Deployment, a day older."""
    elder = make_adaptation("elder", target="ocr")
    return change(replace(elder, created_at=elder.created_at - timedelta(days=1)))


def test_the_older_of_two_adaptations_wins_and_the_younger_takes_over_when_it_goes() -> None:
    """TargetTaken while it is there, also when it is suspended; no Job, no write. Then the younger one begins."""
    world = make_world()
    world.snapshot = replace(world.snapshot, peers=(make_elder(),))
    world.play()
    assert (world.condition("TargetConflict"), world.condition("Stalled")) == (("True", "TargetTaken"), ("True", "TargetTaken"))
    assert (kinds(world.actions, ApplyTarget), world.jobs_started) == ([], [])
    world.snapshot = replace(world.snapshot, peers=(make_elder(lambda peer: replace(peer, deleting=True)),))
    world.play()
    assert (world.condition("TargetConflict"), world.condition("Ready")) == (("False", "OnlyAdaptation"), ("True", "Applied"))


def test_a_target_that_may_not_be_read_is_not_called_missing() -> None:
    """A missing right, or an object of a newer API: the words say which, and whether it is applied is not known."""
    world = make_applied()
    world.snapshot = replace(world.snapshot, target=None, unread={"Deployment ocr": "deployments is forbidden"})
    world.turn()
    assert world.condition("Stalled") == ("True", "TargetUnreadable")
    assert "forbidden" in world.message("Stalled")
    assert world.condition("Applied") == ("Unknown", "TargetUnreadable")


# --- pools ---


def test_a_pool_that_is_deleted_leaves_what_is_applied() -> None:
    """Nothing can be decided any more; the Deployment runs on, by the vendor's labels."""
    world = make_applied()
    world.snapshot = replace(world.snapshot, pools=())
    world.turn()
    assert (world.condition("Stalled"), world.condition("Applied")) == (("True", "NoPool"), ("True", "Applied"))
    pools = make_world().snapshot.pools
    world.snapshot = replace(world.snapshot, pools=pools)
    world.turn()
    assert world.condition("Ready") == ("True", "Applied")


def test_results_for_a_family_that_is_gone_decide_nothing() -> None:
    """Its benchmarks were of the former run; the new one measures the families there are."""
    world = make_world()
    while len(world.snapshot.runs) < 2:
        world.turn()
    pool = world.snapshot.pools[0]
    kept = tuple(family for family in pool.spec.families if family.name == ORT)
    world.snapshot = replace(world.snapshot, pools=(replace(pool, spec=pool.spec.model_copy(update={"families": kept})),))
    world.play()
    assert {run.candidate.family for run in world.snapshot.runs} == {ORT}
    assert world.status.recommendation is not None
    assert world.status.recommendation.config.family == ORT


def test_nodes_that_come_and_go_start_nothing() -> None:
    """Pods stay where they are, or go where the affinity lets them."""
    world = make_applied()
    before = world.status.run
    gone = tuple(node for node in world.snapshot.nodes if node.name != f"{OPENVINO}-2")
    world.snapshot = replace(world.snapshot, nodes=gone)
    for _ in range(5):
        assert world.turn().actions == ()
    assert (world.status.run, world.condition("Ready")) == (before, ("True", "Applied"))


def test_when_every_node_of_the_family_is_gone_the_pods_say_so() -> None:
    """No new decision behind anybody's back: the scheduler's words are in the condition."""
    world = make_applied()
    pending = make_pod(
        "ocr-9", node=None, ready=False, phase="Pending", unschedulable="0/2 nodes are available", annotations=world.snapshot.target_pods[0].annotations
    )
    world.snapshot = replace(world.snapshot, nodes=tuple(node for node in world.snapshot.nodes if node.name.startswith(ORT)), target_pods=(pending,))
    world.change_target(available_replicas=0)
    world.turn()
    assert world.condition("Ready")[0] == "False"
    assert "0/2 nodes are available" in world.message("Ready")
