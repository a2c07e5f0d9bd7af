"""The pass over an adaptation, played to its end in a small world: Jobs finish, applies land, pods move."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import (
    CARD,
    CPU_PROVIDER,
    GIB,
    make_container,
    make_env_owner,
    make_family,
    make_pod,
    make_pool,
    make_target,
    make_template,
)  # fmt: skip
from tests.unit.decide.make_world import (
    OPENVINO,
    ORT,
    faster_on,
    kinds,
    make_profile,
    make_world,
)

from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import Candidate, EnvEntry, Taint
from metainfer.decide.plan import CreateJob, DeleteJob, EmitEvent, RecordDecision
from metainfer.predict.physics import PhysicsPredictor
from metainfer_probe.contract import (
    Failure,
)  # fmt: skip


def test_the_loop_ends_with_the_best_measured_configuration_applied_and_read_back() -> None:
    """Profile, benchmarks one after the other, one decision, one write, Ready."""
    world = make_world()
    plan = world.play()
    assert plan.requeue_after_seconds is None
    assert world.condition("Ready") == ("True", "Applied")
    assert world.condition("SettingsEffective") == ("True", "ReadBack")
    recommendation = world.snapshot.adaptation.status.recommendation
    assert recommendation is not None
    assert (recommendation.config.family, recommendation.gain_percent >= 40) == (OPENVINO, True)
    assert world.applies == 1
    assert len(kinds(world.actions, RecordDecision)) == 1
    assert [job.purpose for job in world.jobs_started].count("profile") == 1
    assert Candidate("cards", ORT, world.snapshot.runs[0].candidate.config) == world.benched()[0], "the current configuration comes first"


def test_a_finished_adaptation_does_nothing_more() -> None:
    """Ten more passes: no action, the same status, whatever the clock says."""
    world = make_world()
    world.play()
    status = world.snapshot.adaptation.status
    for _ in range(10):
        plan = world.turn()
        assert plan.actions == ()
        assert plan.status == status
    assert world.applies == 1


def test_a_pass_can_be_repeated_at_any_point_without_a_second_effect() -> None:
    """Each pass run twice on the same snapshot gives the same Jobs by name."""
    world = make_world()
    for _ in range(12):
        once = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
        twice = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
        assert once == twice
        world.turn()


def test_the_current_configuration_stays_when_nothing_is_better_beyond_the_noise() -> None:
    """A tie writes nothing: a rollout for nothing is a loss."""
    world = make_world(lambda _: 20_000.0)
    world.play()
    assert world.condition("Ready") == ("True", "CurrentKept")
    assert world.applies == 0


@pytest.mark.parametrize(
    ("spec", "want_reason"),
    [
        pytest.param({"update_policy": {"mode": "Off"}}, "RecommendOnly", id="mode Off"),
        pytest.param({"settings": None}, "NoSettingsMapping", id="no settings"),
    ],
)
def test_a_recommendation_is_ready_without_a_write(spec: dict[str, Any], want_reason: str) -> None:
    """The decision and its patch are in the status, the Deployment is not touched."""
    world = make_world(spec=spec)
    world.play()
    recommendation = world.snapshot.adaptation.status.recommendation
    assert world.condition("Ready") == ("True", "Recommended")
    assert world.condition("Applied") == ("False", want_reason)
    assert recommendation is not None
    assert recommendation.patch.startswith("{")
    assert world.applies == 0


def test_a_conflict_is_reported_once_and_not_fought() -> None:
    """The 409 of server-side apply ends in FieldContested with path and manager; no second try."""
    world = make_world(conflict=((".spec.template.spec.affinity", "argocd-controller"),))
    world.play()
    world.turn()
    assert world.condition("FieldContested") == ("True", "ApplyConflict")
    assert world.applies == 1
    contested = find_condition(world.snapshot.adaptation.status.conditions, "FieldContested")
    assert contested is not None
    assert "argocd-controller" in contested.message


def test_what_somebody_took_off_the_deployment_is_not_put_back_against_them() -> None:
    """A human's rollout undo is respected."""
    world = make_world()
    world.play()
    target = world.snapshot.target
    assert target is not None
    world.snapshot = replace(world.snapshot, target=replace(target, template=replace(target.template, annotations={})))
    world.turn()
    assert world.condition("FieldContested") == ("True", "RolledBack")
    assert world.applies == 1


def test_a_broken_model_is_refused_with_its_reason_and_one_job() -> None:
    """A retry of the same file cannot help."""
    world = make_world(profile_failure=Failure(reason="GitLfsPointer", message="a Git LFS pointer to 2,134,871,040 bytes, not a model"))
    world.play()
    for _ in range(5):
        world.turn()
    assert world.condition("Stalled") == ("True", "GitLfsPointer")
    assert world.condition("Profiled") == ("False", "GitLfsPointer")
    assert len(world.jobs_started) == 1


def test_a_profile_that_failed_for_a_passing_cause_is_tried_once_more() -> None:
    """Two Jobs with two names, then it is said."""
    world = make_world(profile_failure=Failure(reason="NodeLost", message="node gone", retryable=True))
    world.play()
    assert [job.purpose for job in world.jobs_started] == ["profile", "profile"]
    assert world.condition("Stalled") == ("True", "NodeLost")


def test_a_job_that_has_reported_and_lives_on_is_removed() -> None:
    """An injected sidecar keeps the Job alive: its result counts, the Job goes, and the loop does not wait for it."""
    world = make_world()
    world.turn()
    lingering = replace(world.snapshot.jobs[0], condition="", active=1)
    world.snapshot = replace(world.snapshot, jobs=(lingering,))
    plan = world.turn()
    (delete,) = [action for action in plan.actions if isinstance(action, DeleteJob)]
    assert (delete.name, delete.uid) == (lingering.name, lingering.uid)
    assert [action.purpose for action in plan.actions if isinstance(action, CreateJob)] == ["bench"]


def test_a_benchmark_that_was_evicted_is_tried_once_more_elsewhere() -> None:
    """The retry is another Job on the family's other node, and its result counts."""
    world = make_world(
        bench_failure=lambda candidate, attempt: (
            Failure(reason="Evicted", message="x", retryable=True) if candidate.family == OPENVINO and attempt == 0 else None
        )
    )
    world.play()
    retried = [run for run in world.snapshot.runs if run.candidate.family == OPENVINO][:2]
    assert retried[0].candidate == retried[1].candidate
    assert retried[0].node != retried[1].node
    assert world.condition("Ready") == ("True", "Applied")


def test_a_lossy_precision_over_the_budget_is_not_applied() -> None:
    """bf16 and int8 are fastest here, and 5 % off: fp32 wins."""
    world = make_world(
        lambda candidate: 5_000 if candidate.config.precision != "fp32" else 10_000 if candidate.family == OPENVINO else 20_000, difference_ppm=50_000
    )
    world.play()
    recommendation = world.snapshot.adaptation.status.recommendation
    assert recommendation is not None
    assert recommendation.config.precision == "fp32"
    assert "AccuracyExceeded" in {line.verdict for line in world.snapshot.adaptation.status.candidates}


def test_a_declared_setting_is_fixed_before_ranking() -> None:
    """The owner's batch size is the only one that is measured, and their entry is not written."""
    container = make_container(requests={CARD: 1}, env={"METAINFER_MAX_BATCH_SIZE": "1"})
    world = make_world(target=make_target("ocr", container, managed=(make_env_owner(container, "METAINFER_MAX_BATCH_SIZE", manager="helm"),)))
    world.play()
    assert {candidate.config.batch_size for candidate in world.benched()} == {1}
    assert world.condition("Ready") == ("True", "Applied")


def test_a_model_that_fits_no_card_is_refused_with_the_numbers() -> None:
    """Every candidate is dropped for memory; nothing is benchmarked beyond what runs already."""
    profile = make_profile(weight_bytes=64 * GIB, file_bytes=64 * GIB)
    world = make_world(profile=profile)
    world.snapshot = replace(world.snapshot, target_pods=(), card_pods=())
    world.play()
    assert world.condition("Stalled") == ("True", "NoFeasibleCandidate")
    assert "InsufficientMemory" in {line.reason for line in world.snapshot.adaptation.status.rejections}
    assert world.benched() == []


def test_a_change_of_the_spec_starts_a_new_run() -> None:
    """Other inputs, other run; the old recommendation is gone from the status until the new one is there."""
    world = make_world()
    world.play()
    first = world.snapshot.adaptation.status.run
    adaptation = world.snapshot.adaptation
    spec = adaptation.spec.model_copy(update={"load": adaptation.spec.load.model_copy(update={"clients": 8})})
    world.snapshot = replace(world.snapshot, adaptation=replace(adaptation, spec=spec, generation=2))
    world.turn()
    second = world.snapshot.adaptation.status.run
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert world.snapshot.adaptation.status.recommendation is None, "the former run's figures decide nothing about the new inputs"
    assert world.started("profile") == 1, "the model is the same: its portrait serves again"


def test_our_own_write_is_no_reason_to_adapt_again() -> None:
    """The inputs hash leaves out what we wrote."""
    world = make_world()
    world.play()
    before = world.snapshot.adaptation.status.run
    world.turn()
    assert world.snapshot.adaptation.status.run == before


def test_suspend_stops_new_work_and_keeps_what_is_applied() -> None:
    """No Job, no write; the reason is Suspended."""
    world = make_world(spec={"suspend": True})
    plan = world.turn()
    assert plan.actions == ()
    assert world.condition("Ready") == ("False", "Suspended")


def test_a_family_without_a_free_card_is_waited_for_within_the_budget() -> None:
    """The others are measured first; then the run says what it waits for."""
    world = make_world()
    strangers = tuple(make_pod(f"other-{index}", node=f"{OPENVINO}-{index}", requests={CARD: 1}, phase="Running", namespace="other") for index in (1, 2))
    world.snapshot = replace(
        world.snapshot, card_pods=(*world.snapshot.card_pods, *strangers), target=make_target("ocr", make_template_container(), max_surge=0)
    )
    plan = world.play(turns=8)
    assert {candidate.family for candidate in world.benched()} <= {ORT}
    assert plan.status.run is not None


def make_template_container() -> Any:
    """The target's container: one card."""
    return make_container(requests={CARD: 1})


def test_events_are_sent_once_per_news() -> None:
    """A pass that finds the same thing again says nothing."""
    world = make_world(profile_failure=Failure(reason="NotOnnx", message="not a model"))
    world.play()
    for _ in range(4):
        world.turn()
    reasons = [event.reason for event in kinds(world.actions, EmitEvent)]
    assert reasons.count("NotOnnx") == 1


def test_without_a_pool_the_reason_is_said() -> None:
    """poolSelector matches nothing."""
    world = make_world(spec={"pool_selector": {"matchLabels": {"no": "such"}}})
    world.turn()
    assert world.condition("Stalled") == ("True", "NoPool")


def test_an_unmapped_template_has_no_container_to_guess() -> None:
    """Two containers and none named."""
    two = make_target("ocr", make_container("a", requests={CARD: 1}), make_container("b"))
    world = make_world(target=replace(two, template=make_template(make_container("a"), make_container("b"))))
    world.turn()
    assert world.condition("Stalled") == ("True", "ContainerAmbiguous")


def test_a_model_that_loses_accuracy_in_every_lossy_precision_still_gets_its_best_exact_configuration() -> None:
    """Fast and wrong variants must not use up all benchmarks: the exact one on the other family is found."""

    def p50_us(candidate: Candidate) -> float:
        if candidate.config.precision != "fp32":
            return 3_000
        return 8_000 if candidate.family == OPENVINO else 24_000

    world = make_world(p50_us, difference_ppm=50_000)
    world.play()
    recommendation = world.snapshot.adaptation.status.recommendation
    assert recommendation is not None
    assert (recommendation.config.family, recommendation.config.precision) == (OPENVINO, "fp32")
    failed = [candidate for candidate in world.benched() if candidate.config.precision != "fp32"]
    assert len({(item.family, item.config.precision) for item in failed}) == len(failed), "a failed precision is not tried again with other settings"


def test_nothing_is_written_when_the_present_configuration_could_not_be_measured() -> None:
    """All cards of its family are held: the other family may look good, but nothing shows that it is better."""
    world = make_world()
    held = tuple(make_pod(f"other-{index}", node=f"{ORT}-{index}", requests={CARD: 1}, phase="Running", namespace="other") for index in (1, 2))
    world.snapshot = replace(world.snapshot, card_pods=held)
    for _ in range(40):
        world.turn()
    assert world.applies == 0
    assert world.condition("Applied") == ("False", "BaselineUnmeasured")


def test_a_cordoned_node_is_still_where_the_pods_run() -> None:
    """A drain in the deciding minute must not make everything equal look like a free choice."""
    world = make_world(lambda _: 20_000.0)
    while len(world.snapshot.runs) < 2:
        world.turn()
    nodes = tuple(replace(node, unschedulable=True) if node.name == f"{ORT}-1" else node for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes, target_pods=())
    world.play()
    assert world.applies == 0
    assert world.condition("Ready") == ("True", "CurrentKept")


def test_waiting_for_a_turn_does_not_end_in_a_decision_on_the_baseline_alone() -> None:
    """The budget is used up by others' Jobs; the least comparison is made all the same."""
    world = make_world()
    while len(world.snapshot.runs) < 1:
        world.turn()
    world.now += timedelta(hours=1)
    world.play()
    assert len(set(world.benched())) >= 2
    assert world.condition("Ready") == ("True", "Applied")


def test_a_family_that_cannot_take_the_pods_any_more_is_not_written() -> None:
    """Decided, then every node of the family is cordoned: the write waits and says for what."""
    world = make_world(spec={"update_policy": {"mode": "Off"}})
    world.play()
    adaptation = world.snapshot.adaptation
    spec = adaptation.spec.model_copy(update={"update_policy": adaptation.spec.update_policy.model_copy(update={"mode": "Apply"})})
    nodes = tuple(replace(node, unschedulable=True) if node.name.startswith(OPENVINO) else node for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes, adaptation=replace(adaptation, spec=spec, generation=2))
    world.turn()
    assert world.applies == 0
    assert world.condition("Applied") == ("False", "NoEligibleNode")


def test_a_deploy_of_a_sidecar_or_a_build_number_measures_nothing_anew() -> None:
    """What does not move the server's speed is no input; its image is."""
    world = make_world(spec={"target_ref": {"name": "ocr", "container": "server"}})
    world.play()
    run, target = world.snapshot.adaptation.status.run, world.snapshot.target
    assert target is not None
    server = target.template.containers[0]
    numbered = replace(server, env=(*server.env, EnvEntry("GIT_SHA", "abc")))
    world.snapshot = replace(world.snapshot, target=replace(target, template=replace(target.template, containers=(numbered, make_container("proxy")))))
    world.turn()
    assert world.snapshot.adaptation.status.run == run
    world.snapshot = replace(world.snapshot, target=replace(target, template=replace(target.template, containers=(replace(server, image="new:2"),))))
    world.play()
    assert world.snapshot.adaptation.status.run != run


def test_the_order_of_pools_in_the_cache_does_not_matter() -> None:
    """After a restart the cache may list them in another order: no new run."""
    world = make_world()
    other = make_pool("zz", make_family("gpu", selector={"matchLabels": {"gpu": "yes"}}))
    world.snapshot = replace(world.snapshot, pools=(*world.snapshot.pools, other))
    world.play()
    run = world.snapshot.adaptation.status.run
    world.snapshot = replace(world.snapshot, pools=tuple(reversed(world.snapshot.pools)))
    world.turn()
    assert world.snapshot.adaptation.status.run == run


def test_a_target_that_no_node_may_take_names_the_restriction() -> None:
    """The taint is the reason, not the image's execution providers."""
    world = make_world()
    taint = Taint("team", "other", "NoSchedule")
    nodes = tuple(replace(node, taints=(taint,)) for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes, target_pods=(), card_pods=())
    world.turn()
    stalled = find_condition(world.snapshot.adaptation.status.conditions, "Stalled")
    assert stalled is not None
    assert "team" in stalled.message


def test_a_server_that_runs_on_the_host_beside_other_cards_is_measured_as_it_is() -> None:
    """The default provider on a node of the other family: not a candidate anywhere else, but the baseline of everything."""
    world = make_world(faster_on(ORT))
    pod = make_pod("ocr-1", make_container(), node=f"{OPENVINO}-1", requests={CARD: 1}, phase="Running", ready=True)
    world.snapshot = replace(world.snapshot, target_pods=(pod,), card_pods=(pod,))
    world.play()
    first = world.benched()[0]
    assert (first.family, first.config.execution_provider) == (OPENVINO, CPU_PROVIDER)
    assert world.condition("Ready") == ("True", "Applied")
