"""What happens under a run's feet: every change has a name, waits until it stands still, and measures only what can answer otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.unit.decide.make_facts import make_container, make_env_owner, make_family, make_pool
from tests.unit.decide.make_world import OPENVINO, World, kinds, make_world

from metainfer.api.v1alpha1.model_adaptation import Load, ModelAdaptationSpec, RunStatus
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import EnvEntry, Toleration
from metainfer.decide.inputs import PARTS_OF_THEIR_OWN, POLICIES
from metainfer.decide.plan import CreateJob, DeleteJob
from metainfer.decide.triggers import CHANGES, RESTART_SECONDS, SETTLE_LIMIT_SECONDS, SETTLE_SECONDS, restart_seconds
from metainfer_probe.contract import Failure, ProfileRequest

Change = Callable[[World], object]


def rename_container(world: World) -> None:
    """A client-side owner renames the container: our entries go with the old one."""
    world.change_target(env=())
    target = world.snapshot.target
    assert target is not None
    template = replace(target.template, containers=(replace(target.template.containers[0], name="main"),))
    world.snapshot = replace(world.snapshot, target=replace(target, template=template))


def declare_batch_size(world: World) -> None:
    """The owner's chart comes to declare a setting."""
    target = world.snapshot.target
    assert target is not None
    server = target.template.containers[0]
    world.change_target(
        env=(*(entry for entry in server.env if entry.name != "METAINFER_MAX_BATCH_SIZE"), EnvEntry("METAINFER_MAX_BATCH_SIZE", "1")),
        managed=(make_env_owner(server, "METAINFER_MAX_BATCH_SIZE", manager="helm"),),
    )


def tolerate_a_taint(world: World) -> None:
    """The owner opens other nodes to the target."""
    target = world.snapshot.target
    assert target is not None
    world.change_target(template=replace(target.template, tolerations=(Toleration("team", "Exists"),)))


def rename_family(world: World) -> None:
    """The pool is edited under way."""
    pools = (make_pool("cards", make_family("renamed", selector={"matchLabels": {"cards.example/family": OPENVINO}}, execution_providers=(OPENVINO_OF,))),)
    portraits = {
        name: replace(item, spec=item.spec.model_copy(update={"family": "renamed"}))
        for name, item in world.snapshot.portraits.items()
        if item.spec.family == OPENVINO
    }
    world.snapshot = replace(world.snapshot, pools=pools, portraits=portraits)


OPENVINO_OF = "OpenVINOExecutionProvider"
BY_OTHERS = [
    pytest.param(lambda world: world.change_target(image="server:2"), "ImageChanged", id="image"),
    pytest.param(lambda world: world.change_target(args=("--threads", "2")), "ImageChanged", id="arguments"),
    pytest.param(declare_batch_size, "SettingsChanged", id="a declared setting"),
    pytest.param(lambda world: world.change_target(limits={"cpu": 500}), "ResourcesChanged", id="resources"),
    pytest.param(tolerate_a_taint, "RestrictionsChanged", id="a toleration"),
    pytest.param(rename_family, "FamiliesChanged", id="a family renamed"),
]


@pytest.mark.parametrize(
    "when", [pytest.param(1, id="while it is profiled"), pytest.param(3, id="while it is benchmarked"), pytest.param(40, id="when it is done")]
)
@pytest.mark.parametrize(("change", "want"), BY_OTHERS)
def test_a_change_by_others_is_named_and_waits_until_it_stands_still(change: Change, want: str, when: int) -> None:
    """No benchmark of the former inputs is started meanwhile; then one new run begins whose trigger says what changed."""
    world = make_world()
    for _ in range(when):
        world.turn()
    before = world.status.run
    change(world)
    plan = world.turn()
    assert before is not None
    assert world.condition("Ready") == ("False", "Settling")
    assert want in world.message("Ready")
    assert not kinds(plan.actions, CreateJob)
    assert world.status.next_run is not None
    world.play()
    assert world.status.run is not None
    assert (world.status.run.id != before.id, world.status.run.trigger.split(":")[0]) == (True, want)
    assert world.status.next_run is None


def test_a_change_that_is_taken_back_starts_nothing() -> None:
    """A deploy and its rollback within seconds: the run goes on as if nothing had been."""
    world = make_world()
    world.play()
    before, image = world.status, "server:1"
    world.change_target(image="other:9")
    world.turn()
    world.change_target(image=image)
    world.turn()
    assert world.status.run == before.run
    assert world.condition("Ready") == ("True", "Applied")


UNREAD = {"ConfigMap site": 'configmaps "site" is forbidden'}


def test_a_right_that_is_missing_for_a_moment_starts_no_run() -> None:
    """What a ConfigMap declares is an input: a run that began without it would be a wrong one, and the right one the second."""
    world = make_world()
    world.snapshot = replace(world.snapshot, unread=UNREAD)
    world.turn()
    assert world.snapshot.adaptation.status.run is None
    assert world.condition("Ready") == ("False", "Settling")
    world.snapshot = replace(world.snapshot, unread={})
    world.turn()
    status = world.snapshot.adaptation.status
    assert (status.run is not None, status.next_run) == (True, None)


def test_a_right_that_is_missing_for_good_delays_the_run_and_no_more() -> None:
    """What may not be read is a fact then."""
    world = make_world()
    world.snapshot = replace(world.snapshot, unread=UNREAD)
    world.turn()
    world.now += timedelta(seconds=SETTLE_SECONDS)
    world.turn()
    run = world.snapshot.adaptation.status.run
    assert run is not None
    assert "ConfigMap site" in run.trigger


def test_every_further_change_starts_the_wait_anew_but_not_for_ever() -> None:
    """A target that changes every 20 seconds is measured all the same, within ten minutes."""
    world = make_world()
    world.play()
    before, began = world.status.run, world.now
    for turn in range(2, 100):
        world.change_target(image=f"server:{turn}")
        world.turn()
        if world.status.run != before:
            break
        world.now += timedelta(seconds=-10)
    waited = (world.now - began).total_seconds()
    assert SETTLE_SECONDS < waited <= SETTLE_LIMIT_SECONDS + 60


def test_the_owners_rollout_is_let_finish_first() -> None:
    """Its pods start beside the benchmark: measuring waits, but no longer than the bound."""
    world = make_world()
    world.play()
    before = world.status.run
    world.change_target(image="server:2", updated_replicas=0)
    for _ in range(6):
        world.turn()
    assert world.status.run == before
    world.change_target(updated_replicas=1)
    world.turn()
    assert world.status.run != before


def test_who_changes_the_adaptation_does_not_wait() -> None:
    """The user is looking: the new run begins in the same pass."""
    world = make_world()
    world.play()
    before = world.status.run
    world.change_spec(load=Load(clients=8))
    world.turn()
    assert world.status.run is not None
    assert before is not None
    assert (world.status.run.id != before.id, world.status.run.trigger.split(":")[0]) == (True, "SpecChanged")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.change_target(replicas=3, updated_replicas=3, status_replicas=3, available_replicas=3), id="replicas"),
        pytest.param(lambda world: world.change_target(min_ready_seconds=30, generation=9, observed_generation=9), id="rollout fields"),
        pytest.param(lambda world: world.change_target(env=(*world.snapshot.target.template.containers[0].env, EnvEntry("BUILD", "7"))), id="another variable"),
        pytest.param(lambda world: world.change_spec(deletion_policy="Retain"), id="deletionPolicy"),
        pytest.param(lambda world: world.change_spec(update_policy=world.snapshot.adaptation.spec.update_policy.model_copy(update={"mode": "Off"})), id="mode"),
        pytest.param(
            lambda world: world.change_spec(target_ref=world.snapshot.adaptation.spec.target_ref.model_copy(update={"container": "server"})), id="name"
        ),
        pytest.param(lambda world: world.change_target(uid="another"), id="created anew"),
        pytest.param(rename_container, id="container renamed"),
    ],
)
def test_what_cannot_change_the_answer_measures_nothing(change: Change) -> None:
    """Neither at once nor later."""
    world = make_world()
    world.play()
    run, jobs = world.status.run, len(world.jobs_started)
    change(world)
    for _ in range(20):
        world.turn()
    assert (world.status.run.id if world.status.run else "", len(world.jobs_started)) == (run.id if run else "?", jobs)


def test_every_field_of_the_spec_is_an_input_or_a_policy() -> None:
    """A field that is forgotten here would be an input by itself; one that is no field any more has to go."""
    planned = {"drift", "freshness", "rollout"}
    assert (POLICIES | PARTS_OF_THEIR_OWN) - planned <= set(ModelAdaptationSpec.model_fields)


def test_every_part_has_a_name() -> None:
    """A changed part without one could not be told."""
    world = make_world()
    world.play()
    assert world.status.run is not None
    assert {item.name for item in world.status.run.inputs} == set(CHANGES)


def test_the_status_of_a_former_version_measures_nothing_anew() -> None:
    """An upgrade: the run knows no parts, or fewer. They are taken as they are; a change after that is seen."""
    world = make_world()
    world.play()
    run = world.status.run
    assert run is not None
    old = run.model_copy(update={"inputs": (), "inputs_hash": "of another scheme"})
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=world.status.model_copy(update={"run": old})))
    world.turn()
    assert world.status.run is not None
    assert (world.status.run.id, {item.name for item in world.status.run.inputs}) == (run.id, set(CHANGES))
    world.change_target(image="server:2")
    world.turn()
    assert world.condition("Ready") == ("False", "Settling")


def test_jobs_of_a_former_run_are_ended() -> None:
    """They hold a card for an answer that nobody asks for any more; Jobs of others stay."""
    world = make_world()
    world.turn()
    running = replace(world.snapshot.jobs[0], condition="", active=1, pods=())
    strange = replace(running, name="of-another", uid="u-2", labels={**running.labels, "metainfer.dev/adaptation-uid": "another"})
    world.snapshot = replace(world.snapshot, jobs=(running, strange), profile=None)
    world.change_spec(load=Load(clients=8))
    plan = world.turn()
    assert [(item.name, item.uid) for item in kinds(plan.actions, DeleteJob)] == [(running.name, running.uid)]


def test_a_new_run_uses_the_portrait_that_there_is() -> None:
    """Another image serves the same file: the model itself was looked at an hour ago."""
    world = make_world()
    world.play()
    profiles, first = world.started("profile"), world.status.run
    world.change_target(image="server:2")
    world.play()
    assert first is not None
    assert world.status.run is not None
    assert (world.started("profile"), world.status.run.profile_run) == (profiles, first.id)
    assert "as an earlier run measured it" in world.message("Profiled")
    world.change_target(image="server:3")
    world.play()
    assert (world.started("profile"), world.status.run.profile_run) == (profiles, first.id), "handed on from run to run"


def test_a_portrait_that_is_old_or_answers_another_question_is_made_anew() -> None:
    """After a day, and where the container's resources, the precisions or the probe image differ."""
    world = make_world()
    world.play()
    world.now += timedelta(days=2)
    world.change_target(image="server:2")
    world.play()
    assert world.started("profile") == 2
    world.change_spec(config_space=world.snapshot.adaptation.spec.config_space.model_copy(update={"precisions": ("fp32",)}))
    world.play()
    assert world.started("profile") == 3
    world.change_target(limits={"cpu": 500})
    world.play()
    assert world.started("profile") == 4
    world.snapshot = replace(world.snapshot, limits=replace(world.snapshot.limits, probe_image="probe:2"))
    world.change_spec(load=Load(clients=8))
    world.play()
    assert world.started("profile") == 5


def test_a_file_that_is_replaced_between_profile_and_benchmark_starts_the_run_anew() -> None:
    """The digests differ: nothing of the first file decides about the second; the trigger says so and the portrait is made anew."""
    world = make_world()
    while not world.snapshot.profile:
        world.turn()
    first = world.status.run
    world.profile = world.profile.model_copy(update={"digest": "e" * 64})
    world.play()
    assert first is not None
    assert world.status.run is not None
    assert world.status.run.id != first.id
    assert world.status.run.trigger.startswith("ModelChanged: pvc://models/ocr.onnx is another file")
    assert (world.started("profile"), world.status.run.profile_run) == (2, "")
    assert world.condition("Ready") == ("True", "Applied")


def test_benchmarks_are_pinned_to_the_file_that_was_profiled() -> None:
    """Another file under the name fails before it is measured, and that too starts the run anew."""
    world = make_world()
    swapped = Failure(reason="DigestMismatch", message="ocr.onnx has changed")
    world.bench_failure = lambda _candidate, _attempt: swapped if world.started("profile") == 1 else None
    world.play()
    pins = {job.request.model.sha256 for job in world.jobs_started if job.purpose == "bench"}  # type: ignore[union-attr]
    assert pins == {"d" * 64}
    assert world.status.run is not None
    assert world.status.run.trigger.startswith("ModelChanged")
    assert world.condition("Ready") == ("True", "Applied")


def test_a_file_that_changes_all_the_time_is_measured_less_and_less_often() -> None:
    """Each run ends without a decision: the wait doubles."""
    world = make_world()
    swapped = Failure(reason="DigestMismatch", message="ocr.onnx has changed")
    world.bench_failure = lambda _candidate, _attempt: swapped
    starts: list[str] = []
    for _ in range(80):
        world.turn()
        if world.status.run is not None and world.status.run.started_at not in starts:
            starts.append(world.status.run.started_at)
    times = [parse_time(start) for start in starts]
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    assert pauses[:4] == sorted(pauses[:4])
    assert min(pauses[4:]) > 5 * pauses[0]
    assert world.status.run is not None
    assert world.status.run.attempt == len(starts) - 1


BROKEN = Failure(reason="GitLfsPointer", message="a Git LFS pointer to 2,134,871,040 bytes, not a model")


def test_a_broken_file_has_one_attempt_also_over_runs() -> None:
    """A deploy of the target cannot mend the file: its verdict is taken over, without a Job."""
    world = make_world(profile_failure=BROKEN)
    world.play()
    assert world.started("profile") == 1
    world.change_target(image="server:2")
    world.play()
    for _ in range(5):
        world.turn()
    assert world.status.run is not None
    assert world.status.run.trigger.startswith("ImageChanged")
    assert world.condition("Stalled") == ("True", "GitLfsPointer")
    assert world.started("profile") == 1


def test_who_changes_the_adaptation_has_the_file_looked_at_again() -> None:
    """It may have been replaced. The Job knows which file was refused, and goes no further when it is the same."""
    world = make_world(profile_failure=BROKEN)
    world.play()
    world.change_spec(load=Load(clients=8))
    world.play()
    looks = [job.request for job in world.jobs_started if isinstance(job.request, ProfileRequest)]
    assert [look.refused.digest if look.refused else None for look in looks] == [None, "d" * 64]
    assert looks[1].refused is not None
    assert looks[1].refused.failure == BROKEN
    for _ in range(5):
        world.turn()
    assert world.condition("Stalled") == ("True", "GitLfsPointer")
    assert world.started("profile") == 2
    world.profile_failure = None
    world.change_spec(load=Load(clients=4))
    world.play()
    assert world.condition("Ready") == ("True", "Applied")


def make_undecided() -> World:
    """Every benchmark fails for good."""
    world = make_world(bench_failure=lambda _candidate, _attempt: Failure(reason="RunFailed", message="no"))
    world.play()
    assert world.condition("Ready") == ("False", "NothingMeasured")
    return world


def test_a_run_without_a_decision_is_tried_again_by_its_own_name() -> None:
    """Not SpecChanged: nobody changed anything. The portrait is used again, the pause grows."""
    world = make_undecided()
    first = world.status.run
    world.now += timedelta(seconds=600 + 1.2 * RESTART_SECONDS)
    world.turn()
    assert first is not None
    assert world.status.run is not None
    assert world.status.run.trigger.startswith("TriedAgain: the run of ")
    assert "NothingMeasured" in world.status.run.trigger
    assert (world.status.run.attempt, world.started("profile")) == (1, 1)
    world.play()
    world.now += timedelta(seconds=600 + 1.2 * RESTART_SECONDS)
    run = world.status.run
    world.turn()
    assert world.status.run == run, "the second pause is twice as long"


def test_restarts_are_spread_without_chance() -> None:
    """Adaptations that failed together do not come back together; the same one always finds the same pause."""
    world = make_undecided()
    run = RunStatus(id="r", inputs_hash="h", started_at="2026-03-01T12:00:00Z", step="Done")
    pauses = []
    for uid in ("a", "b", "c", "a"):
        adaptation = replace(world.snapshot.adaptation, uid=uid)
        pauses.append(restart_seconds(Draft(replace(world.snapshot, adaptation=adaptation), world.now, world.status), run))
    assert pauses[0] == pauses[3]
    assert len(set(pauses)) == 3
    assert all(RESTART_SECONDS <= pause <= 1.2 * RESTART_SECONDS for pause in pauses)


def test_a_server_beside_the_one_that_serves_is_no_input() -> None:
    """Sidecars come and go."""
    world = make_world(spec={"target_ref": {"name": "ocr", "container": "server"}})
    world.play()
    run, target = world.status.run, world.snapshot.target
    assert target is not None
    template = replace(target.template, containers=(*target.template.containers, make_container("proxy")))
    world.change_target(template=template)
    world.turn()
    assert world.status.run == run
