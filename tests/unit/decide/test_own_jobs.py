"""What an adaptation does when its Jobs are not taken, do not start, or fail."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import GIB, make_pod
from tests.unit.decide.make_world import OPENVINO, ORT, START, World, kinds, make_world

from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.caps import measured_nodes, running_jobs
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import ContainerState, JobFacts, NodeFacts, NodeTerm, PodFacts, Requirement, Told
from metainfer.decide.plan import AdaptationPlan, CreateJob, DeleteJob, EmitEvent
from metainfer.decide.refusal import record_refusal
from metainfer.predict.physics import PhysicsPredictor
from metainfer_probe.contract import Failure

QUOTA = Failure(reason="QuotaExceeded", message="exceeded quota: c17, requested: count/jobs.batch=1, used: 4, limited: 4", retryable=True)
POLICY = Failure(reason="JobRefused", message='admission webhook "policy.example" denied the request: no team label', retryable=False)


def decide(world: World) -> AdaptationPlan:
    """One pass, without what follows from it."""
    return decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)


def show(world: World, plan: AdaptationPlan) -> World:
    """The world after a pass that only wrote its status."""
    return replace(world, snapshot=replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=plan.status)))


def refuse(world: World, plan: AdaptationPlan, failure: Failure) -> World:
    """The world after the API server did not take the plan's Job."""
    (job,) = kinds(plan.actions, CreateJob)
    run = plan.status.run
    assert run is not None
    refusal = record_refusal(run.refusal, job.name, failure, world.now)
    return show(world, replace(plan, status=plan.status.model_copy(update={"run": run.model_copy(update={"refusal": refusal})})))


def said(plan: AdaptationPlan, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    found = find_condition(plan.status.conditions, kind)
    assert found is not None, kind
    return found.status, found.reason, found.message


@pytest.mark.parametrize(("failure", "want_stalled"), [(QUOTA, False), (POLICY, True)], ids=["a quota may pass", "an admission rule stays"])
def test_a_job_that_is_not_taken_is_said_without_flapping_and_tried_ever_later(failure: Failure, *, want_stalled: bool) -> None:
    """Five hours of refusals: the same conditions throughout, one Event, tries after 1, 2, 4, ... 60 minutes."""
    world = make_world()
    world = refuse(world, decide(world), failure)
    tries, conditions, events = [], set(), []
    for minute in range(300):
        world = replace(world, now=START + timedelta(minutes=minute, seconds=1))
        plan = decide(world)
        conditions.add((said(plan, "Ready"), said(plan, "Profiled"), find_condition(plan.status.conditions, "Stalled") is not None))
        events += kinds(plan.actions, EmitEvent)
        due = bool(kinds(plan.actions, CreateJob))
        tries += [minute] if due else []
        world = refuse(world, plan, failure) if due else show(world, plan)
    assert tries == [1, 3, 7, 15, 31, 63, 123, 183, 243]
    assert [event.reason for event in events] == [failure.reason]
    (((status, reason, message), profiled, stalled),) = conditions
    assert (status, reason, stalled) == ("False", failure.reason, want_stalled)
    assert failure.message in message
    assert profiled[1] == failure.reason


def test_a_job_that_is_taken_at_last_ends_the_refusal() -> None:
    """The next pass sees the Job and says Profiling again."""
    world = make_world()
    world = refuse(world, decide(world), QUOTA)
    world.now += timedelta(minutes=2)
    world.turn()
    plan = world.play()
    assert plan.status.run is not None
    assert plan.status.run.refusal is None
    assert world.condition("Ready") == ("True", "Applied")


def test_our_own_finished_jobs_make_room_under_a_quota() -> None:
    """They count against count/jobs.batch until they are deleted; what they reported is recorded."""
    world = make_world()
    while len(world.snapshot.runs) < 1:
        world.turn()
    plan = decide(world)
    world = refuse(world, plan, QUOTA)
    plan = decide(world)
    read = {item.job for item in (world.snapshot.profile, *world.snapshot.runs) if item is not None}
    assert {action.name for action in kinds(plan.actions, DeleteJob)} == read
    assert not kinds(plan.actions, CreateJob)


# --- Jobs that do not start ------------------------------------------------------------------------------------------


def make_waiting(world: World, *pods: PodFacts, **fields: Any) -> World:
    """The world 30 s after its profile Job was made, which has not begun."""
    plan = decide(world)
    (job,) = kinds(plan.actions, CreateJob)
    facts = JobFacts(job.namespace, job.name, "uid-job", job.labels, job.annotations, created_at=world.now, active=1, pods=pods)
    world = show(world, plan)
    return replace(world, now=world.now + timedelta(seconds=30), snapshot=replace(world.snapshot, jobs=(replace(facts, **fields),)))


def pending(**fields: Any) -> PodFacts:
    """A pod that does not run."""
    return make_pod("p", phase="Pending", ready=False, **fields)


@pytest.mark.parametrize(
    ("pods", "fields", "want_reason", "want_words"),
    [
        pytest.param((pending(node=None, unschedulable="0/5 nodes: 5 Insufficient card"),), {}, "Unschedulable", "5 Insufficient card", id="no card"),
        pytest.param((pending(node=None, unschedulable='persistentvolumeclaim "m" not found'),), {}, "ClaimMissing", '"m" not found', id="no claim"),
        pytest.param((pending(states=(ContainerState("probe", "ErrImagePull", "not found"),)),), {}, "ImagePullFailed", "not found", id="no image"),
        pytest.param(
            (pending(states=(ContainerState("probe", "CreateContainerConfigError", "non-numeric user"),)),),
            {},
            "ContainerNotCreated",
            "user",
            id="no container",
        ),
        pytest.param((), {"told": Told("FailedCreate", "exceeded quota: q, used: pods=4, limited: pods=4")}, "QuotaExceeded", "limited: pods=4", id="a quota"),
        pytest.param((), {"suspended": True, "suspended_by": "queue lab of kueue.x-k8s.io"}, "JobSuspended", "suspended by queue lab", id="a queue"),
        pytest.param((pending(),), {}, "Profiling", "its container is being started", id="on its way"),
    ],
)
def test_a_job_that_does_not_start_says_why_while_it_waits(pods: tuple[PodFacts, ...], fields: dict[str, Any], want_reason: str, want_words: str) -> None:
    """Not only when its allowance is over."""
    plan = decide(make_waiting(make_world(), *pods, **fields))
    status, reason, message = said(plan, "Ready")
    assert (status, reason) == ("False", want_reason)
    assert want_words in message
    assert said(plan, "Profiled")[1] == want_reason


def test_the_first_seconds_of_a_job_are_not_worth_a_reason() -> None:
    """A pod that waits until its predecessor's card is free would make every condition flap."""
    world = make_waiting(make_world(), pending(node=None, unschedulable="0/5 nodes"))
    assert said(decide(replace(world, now=START + timedelta(seconds=5))), "Ready")[1] == "Profiling"


def test_a_suspended_job_holds_neither_a_place_nor_a_node() -> None:
    """It may wait for days; the others must go on."""
    world = make_waiting(make_world(), suspended=True)
    assert running_jobs(world.snapshot.jobs, "cards") == ()
    assert measured_nodes(world.snapshot.jobs) == set()
    going = replace(world.snapshot.jobs[0], suspended=False)
    assert (len(running_jobs([going], "cards")), len(measured_nodes([going]))) == (1, 1)


# --- Failures: whether, when and where again --------------------------------------------------------------------------


def test_tries_of_a_profile_are_counted_though_its_jobs_are_gone() -> None:
    """Two a run, whatever deletes finished Jobs; then a new run, ever later."""
    world = make_world(profile_failure=Failure(reason="NodeLost", message="gone", retryable=True))
    minutes = []
    for minute in range(24 * 60):
        world.now = START + timedelta(minutes=minute)
        before = world.started("profile")
        world.turn()
        world.snapshot = replace(world.snapshot, jobs=())
        minutes += [minute] * (world.started("profile") - before)
    firsts = minutes[::2]
    pauses = [later - earlier for earlier, later in itertools.pairwise(firsts)]
    assert all(1 <= later - earlier <= 5 for earlier, later in zip(firsts, minutes[1::2], strict=False))
    assert all(pause >= 70 for pause in pauses)
    assert pauses == sorted(pauses)
    assert len(minutes) <= 12


def test_a_profile_that_cannot_succeed_is_tried_once_until_the_probe_image_changes() -> None:
    """An image for the wrong processor stays so; another image, or another user, is another question."""
    world = make_world(profile_failure=Failure(reason="ArchitectureMismatch", message="exec format error", retryable=False))
    for minute in range(0, 24 * 60, 10):
        world.now = START + timedelta(minutes=minute)
        world.turn()
    assert world.started("profile") == 1
    assert world.condition("Stalled") == ("True", "ArchitectureMismatch")
    for number, limits in enumerate(({"probe_image": "probe:2"}, {"job_user_id": 0}), start=2):
        world.snapshot = replace(world.snapshot, limits=replace(world.snapshot.limits, **limits))
        for _ in range(5):
            world.turn()
        assert world.started("profile") == number


def test_a_benchmark_that_failed_for_a_passing_cause_waits_before_it_is_tried_on_the_same_node() -> None:
    """On another node it is tried at once."""
    refused = Failure(reason="CardRefused", message="GPU is lost", retryable=True)
    world = make_world(bench_failure=lambda candidate, attempt: refused if candidate.family == ORT and attempt == 0 else None)
    nodes = tuple(node for node in world.snapshot.nodes if node.name != f"{ORT}-1")
    world.snapshot = replace(world.snapshot, nodes=nodes, target_pods=tuple(replace(pod, node=f"{ORT}-2") for pod in world.snapshot.target_pods), card_pods=())
    while not world.snapshot.runs:
        world.turn()
    plan = decide(world)
    assert not kinds(plan.actions, CreateJob)
    assert said(plan, "Ready")[1] == "CardRefused"
    world.now += timedelta(minutes=1)
    assert kinds(decide(world).actions, CreateJob)


def test_nothing_more_is_measured_on_a_node_that_evicted_a_job() -> None:
    """Not this candidate and no other one in this run."""
    evicted = Failure(reason="Evicted", message="low on ephemeral-storage", retryable=False)
    world = make_world(bench_failure=lambda candidate, _attempt: evicted if candidate.family == OPENVINO else None)
    world.play()
    assert [run.node for run in world.snapshot.runs].count(f"{OPENVINO}-1") <= 1
    assert [run.node for run in world.snapshot.runs].count(f"{OPENVINO}-2") <= 1


# --- Where nothing can be measured at all -----------------------------------------------------------------------------


def with_nodes(world: World, change: dict[str, Any], *names: str) -> World:
    """The world with some of its nodes changed."""
    nodes = tuple(changed(node, change) if node.name in names else node for node in world.snapshot.nodes)
    return replace(world, snapshot=replace(world.snapshot, nodes=nodes))


def changed(node: NodeFacts, change: dict[str, Any]) -> NodeFacts:
    """A node with other fields; allocatable resources are added."""
    return replace(node, **(change | ({"allocatable": {**node.allocatable, **change["allocatable"]}} if "allocatable" in change else {})))


TIGHT: dict[str, Any] = {"allocatable": {"ephemeral-storage": 5 * GIB}, "image_bytes": {"vision-server:4": 3 * GIB}}
EVERYWHERE = (f"{ORT}-1", f"{ORT}-2", f"{OPENVINO}-1", f"{OPENVINO}-2")


def test_no_job_is_sent_where_pulling_the_image_would_fill_the_disk() -> None:
    """Neither profile nor benchmark; with room nowhere, the adaptation says so instead of waiting for a card."""
    world = with_nodes(make_world(), TIGHT, f"{ORT}-1", f"{OPENVINO}-1")
    world.play()
    assert {job.node for job in world.jobs_started} == {f"{ORT}-2", f"{OPENVINO}-2"}
    full = with_nodes(make_world(), TIGHT, *EVERYWHERE)
    plan = decide(full)
    assert kinds(plan.actions, CreateJob) == []
    assert said(plan, "Stalled")[1] == "NoImageSpace"
    assert "2048 MiB left" in said(plan, "Stalled")[2]


@pytest.mark.parametrize("pressure", ["DiskPressure", "MemoryPressure", "PIDPressure"])
def test_no_job_is_sent_to_a_node_under_pressure(pressure: str) -> None:
    """A measurement beside would make it worse."""
    world = with_nodes(make_world(), {"conditions": {pressure: "True"}}, f"{ORT}-2", f"{OPENVINO}-1")
    world.play()
    assert {job.node for job in world.jobs_started} <= {f"{OPENVINO}-2", f"{ORT}-1"}


def test_jobs_go_only_where_the_models_volume_can_be_mounted() -> None:
    """The target itself mounts nothing: its own claims say nothing about the model's."""
    terms = (NodeTerm((Requirement("kubernetes.io/hostname", "In", (f"{ORT}-2", f"{OPENVINO}-2")),)),)
    world = make_world(snapshot={"claim_terms": {"models": terms}})
    world.play()
    assert {job.node for job in world.jobs_started} == {f"{ORT}-2", f"{OPENVINO}-2"}
    nowhere = make_world(snapshot={"claim_terms": {"models": (NodeTerm((Requirement("zone", "In", ("other",)),)),)}})
    assert said(decide(nowhere), "Stalled")[1] == "ModelElsewhere"


def test_a_family_where_nothing_can_be_measured_is_rejected_and_the_others_go_on() -> None:
    """Its candidates would wait for ever."""
    terms = (NodeTerm((Requirement("kubernetes.io/hostname", "In", (f"{ORT}-1", f"{ORT}-2")),)),)
    world = make_world(snapshot={"claim_terms": {"models": terms}})
    world.play()
    assert {run.candidate.family for run in world.snapshot.runs} == {ORT}
    assert "ModelElsewhere" in {line.reason for line in world.status.rejections}


def test_a_claim_that_does_not_exist_is_named_before_any_job_is_made() -> None:
    """A Job would wait for it for ever."""
    plan = decide(make_world(snapshot={"absent_claims": frozenset({"models"})}))
    assert kinds(plan.actions, CreateJob) == []
    status, reason, message = said(plan, "Stalled")
    assert (status, reason) == ("True", "ClaimMissing")
    assert "PersistentVolumeClaim models" in message
    assert plan.requeue_after_seconds == 60
