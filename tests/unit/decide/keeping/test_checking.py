"""From a suspicion to what follows: one check at a time, a verdict that names its figures, and a run only where it can help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.keeping.play_drift import SLOWER, add_cards, check_of, drifting, settled, show_drift, watched, work_off
from tests.unit.decide.make_facts import CARD, make_pod
from tests.unit.decide.make_world import OPENVINO, ORT, World, kinds

from metainfer.api.v1alpha1.common import HEALTH_LABEL
from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import JobFacts
from metainfer.decide.latency.served import ServedFacts
from metainfer.decide.plan import ApplyTarget, CreateJob, EmitEvent
from metainfer.decide.refusal import record_refusal
from metainfer.predict.physics import PhysicsPredictor
from metainfer_probe.contract import BenchReport, Failure

ANSWER = "AnswerTrue"
Look = Callable[[BenchReport, CreateJob], BenchReport | None]


def slower_card(factor: float) -> Look:
    """Everything on the card takes so many times as long, the micro-probe too."""

    def look(report: BenchReport, _job: CreateJob) -> BenchReport:
        assert report.candidate is not None
        assert report.micro is not None
        candidate = report.candidate.model_copy(update={"mean_us": factor * report.candidate.mean_us, "p99_us": factor * report.candidate.p99_us})
        micro = report.micro.model_copy(
            update={"gflops": report.micro.gflops / factor, "bandwidth_gigabytes_per_second": report.micro.bandwidth_gigabytes_per_second / factor}
        )
        return report.model_copy(update={"candidate": candidate, "micro": micro})

    return look


def other_file(report: BenchReport, _job: CreateJob) -> BenchReport:
    """Somebody has replaced the model."""
    return report.model_copy(update={"digest": "e" * 64})


def no_report(_report: BenchReport, _job: CreateJob) -> None:
    """The Job fails."""


def test_nothing_is_checked_where_nothing_is_watched() -> None:
    """Without a source of latency nothing could ask for a check, so the first one is spared."""
    world = settled()
    for _ in range(5):
        world.turn()
    assert (world.started("check"), world.status.check, world.condition(ANSWER)) == (0, None, ("True", "NothingSuspected"))


def test_the_first_check_is_made_once_the_service_has_a_baseline() -> None:
    """One short Job with the present configuration, on the node of a serving pod; its figures are in the status."""
    world = watched()
    (job,) = [item for item in world.jobs_started if item.purpose == "check"]
    first = check_of(world).baseline
    assert first is not None
    assert (job.node, first.job, first.node) == (first.node, job.name, job.node)
    assert (first.digest, first.mean, first.micro_megaflops) == ("d" * 64, "10290us", 60_000)
    assert job.request.model.sha256 is None, "which file is there is one of the questions"
    for _ in range(5):
        world.turn()
    assert world.started("check") == 1


@pytest.mark.parametrize(
    ("look", "want_verdict", "want_trigger"),
    [
        pytest.param(slower_card(1.0), "Nothing", None, id="as before"),
        pytest.param(slower_card(1.12), "Nothing", None, id="slower within the threshold"),
        pytest.param(slower_card(1.5), "Card", "P99Drift", id="a throttled card"),
        pytest.param(other_file, "Model", "ModelChanged", id="another file"),
        pytest.param(no_report, "CheckFailed", None, id="the check itself fails"),
    ],
)
def test_the_verdict_decides_what_follows(look: Look, want_verdict: str, want_trigger: str | None) -> None:
    """In condition, status and Event; a run only for what another answer can follow from."""
    world = drifting()
    before, world.checked = world.status.run, look
    work_off(world, 80)
    assert before is not None
    verdict = check_of(world).verdict
    assert verdict is not None
    assert (verdict.verdict, verdict.reason) == (want_verdict, "P99Drift")
    assert want_verdict in [event.reason for event in kinds(world.actions, EmitEvent)]
    run = world.status.run
    assert run is not None
    assert (run.trigger.partition(":")[0] if run.id != before.id else None) == want_trigger


@pytest.mark.parametrize(
    ("looks", "want_checks", "want"),
    [
        pytest.param([1.5, 1.5, 1.5], 3, "Card", id="three agree"),
        pytest.param([1.5, 1.3, 1.1], 3, "Card", id="slower on average"),
        pytest.param([1.3, 0.9], 2, "Nothing", id="the second takes it back"),
        pytest.param([1.15, 1.12, 1.12], 3, "Nothing", id="not slower enough on average"),
        pytest.param([1.7], 1, "Card", id="beyond any noise"),
        pytest.param([1.05], 1, "Nothing", id="as before"),
    ],
)
def test_a_card_is_called_slower_by_checks_a_window_apart(looks: list[float], want_checks: int, want: str) -> None:
    """One may be unlucky, or have a neighbour's burst in it. What is plain needs no second one."""
    world = drifting()
    begun, factors = world.started("check"), iter(looks)

    def look(report: BenchReport, job: CreateJob) -> BenchReport | None:
        return slower_card(next(factors))(report, job)

    world.checked = look
    while check_of(world).verdict is None:
        world.turn()
        assert world.started("check") - begun <= want_checks
    verdict = check_of(world).verdict
    assert verdict is not None
    assert (verdict.verdict, world.started("check") - begun) == (want, want_checks)


def test_between_two_checks_the_condition_says_what_is_waited_for() -> None:
    """And when the next one is made."""
    world = drifting()
    world.checked = slower_card(1.3)
    work_off(world)
    assert world.condition(ANSWER) == ("Unknown", "P99Drift")
    assert "seems slower by 1 of 3 checks, the next one is at" in world.message(ANSWER)
    assert world.started("check") == 2


def test_a_service_that_recovers_between_two_checks_acquits_its_card() -> None:
    """The trial is over; it counts as one that came to nothing, so the next is not at once."""
    world = drifting()
    world.checked = slower_card(1.3)
    work_off(world)
    assert check_of(world).trial is not None
    show_drift(world, 1, p99_ms=30.0, mean_ms=8.0)
    work_off(world)
    assert (check_of(world).trial, check_of(world).in_vain, world.started("check")) == (None, 1, 2)
    show_drift(world, 3)
    assert "Resting" in world.message(ANSWER)


def test_a_restart_of_the_operator_acquits_nobody() -> None:
    """Until as many windows are known again, what was suspected stands as it was, with what its checks said; from then on they decide."""
    world = drifting()
    world.checked = slower_card(1.3)
    work_off(world)
    known = check_of(world)
    assert known.trial is not None
    for count in range(3):
        read_again(world, count)
        assert (check_of(world).suspicion, check_of(world).trial, check_of(world).in_vain) == (known.suspicion, known.trial, 0)
        assert f"only {count} of 3 windows are known" in world.message(ANSWER)
    assert world.started("check") == 2
    read_again(world, 3)
    assert check_of(world).suspicion == known.suspicion
    assert "the next one is at" in world.message(ANSWER)


def test_where_latency_is_read_no_more_nothing_is_suspected() -> None:
    """Nobody would ever know better."""
    world = drifting()
    work_off(world)
    read_again(world, 0, watched=False)
    assert check_of(world).suspicion is None


def read_again(world: World, count: int, *, watched: bool = True) -> None:
    """A pass to which so many windows are known."""
    assert world.snapshot.served is not None
    windows = world.snapshot.served.windows
    next_at = world.now + timedelta(minutes=5) if watched else None
    before, world.snapshot = world.snapshot, replace(world.snapshot, served=ServedFacts(windows[len(windows) - count :], None, next_at))
    world.turn()
    world.snapshot = replace(world.snapshot, served=before.served)


def test_a_check_is_made_on_the_node_of_the_slowest_pod() -> None:
    """Where the source tells pods apart; a card elsewhere would say nothing about this one."""
    world = drifting(nodes=(f"{OPENVINO}-2", f"{OPENVINO}-1"))
    pod = world.snapshot.target_pods[0]
    world.snapshot = replace(world.snapshot, target_pods=(pod, replace(pod, name="ocr-3", uid="uid-ocr-3", node=f"{OPENVINO}-2")))
    work_off(world)
    jobs = [job for job in world.jobs_started if job.purpose == "check"]
    assert jobs[-1].node == f"{OPENVINO}-2"


def test_nothing_is_started_twice_when_the_pass_is_killed_after_its_claim() -> None:
    """The claim has the Job's name: the next pass asks for the same Job again, until it is there."""
    world = drifting()
    plan = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
    (job,) = kinds(plan.actions, CreateJob)
    adaptation = replace(world.snapshot.adaptation, status=plan.status)
    again = decide_adaptation(replace(world.snapshot, adaptation=adaptation), PhysicsPredictor(), world.now + timedelta(seconds=40))
    assert [(item.name, item.node) for item in kinds(again.actions, CreateJob)] == [(job.name, job.node)]
    there = JobFacts(job.namespace, job.name, "uid", job.labels, job.annotations, created_at=world.now, active=1)
    waiting = decide_adaptation(replace(world.snapshot, adaptation=adaptation, jobs=(*world.snapshot.jobs, there)), PhysicsPredictor(), world.now)
    assert kinds(waiting.actions, CreateJob) == []
    assert waiting.status.check == plan.status.check


def test_a_check_that_the_api_server_does_not_take_is_tried_ever_later() -> None:
    """And not with every pass: a quota, an admission rule. The condition has the server's words."""
    world = drifting()
    plan = decide_adaptation(world.snapshot, PhysicsPredictor(), world.now)
    (job,) = kinds(plan.actions, CreateJob)
    run = plan.status.run
    assert run is not None
    refusal = record_refusal(None, job.name, Failure(reason="QuotaExceeded", message="exceeded quota: team", retryable=True), world.now)
    status = plan.status.model_copy(update={"run": run.model_copy(update={"refusal": refusal})})
    refused = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status))
    soon = decide_adaptation(refused, PhysicsPredictor(), world.now + timedelta(seconds=1))
    assert kinds(soon.actions, CreateJob) == []
    found = find_condition(soon.status.conditions, ANSWER)
    assert found is not None
    assert "the API server does not take Job" in found.message
    assert "exceeded quota: team" in found.message
    later = decide_adaptation(refused, PhysicsPredictor(), world.now + timedelta(minutes=1))
    assert [item.name for item in kinds(later.actions, CreateJob)] == [job.name]


def test_after_a_check_that_found_nothing_it_is_left_alone_ever_longer() -> None:
    """An hour, two, four, up to six; why and until when is in the condition."""
    world, gaps = drifting(), []
    last = world.now
    for _ in range(8):
        count = world.started("check")
        while world.started("check") == count:
            show_drift(world, minutes=15)
        gaps.append((world.now - last).total_seconds() / 3600)
        last = world.now
    assert [round(gap) for gap in gaps[2:]] == [2, 4, 6, 6, 6, 6]
    work_off(world)
    assert world.condition(ANSWER) == ("True", "Nothing")
    assert "Resting: nothing came of it 8 times in a row" in world.message(ANSWER)
    assert world.applies == 1


def test_pods_leave_a_card_that_was_found_slow() -> None:
    """First the node is marked, then a run; the same choice is written once more, for the scheduler to place the pods anew."""
    world = drifting()
    world.checked = slower_card(1.5)
    slow = next(pod.node for pod in world.snapshot.target_pods)
    add_cards(world, f"{OPENVINO}-2")
    while not check_of(world).due:
        world.turn()
    before = world.status.run
    world.turn()
    assert world.status.run == before, "the scheduler would send them back to the same node"
    nodes = tuple(replace(node, labels={**node.labels, HEALTH_LABEL: "degraded"}) if node.name == slow else node for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes)
    world.play()
    run = world.status.run
    assert run is not None
    assert (run.avoid, run.trigger.partition(":")[0]) == (slow, "P99Drift")
    assert len(kinds(world.actions, ApplyTarget)) == 2
    assert check_of(world).in_vain == 0


def slow_card_in_full_family(slowdown: float, *, held: bool) -> World:
    """The pods' card was found slower; the other one of the family is held by somebody, or degraded. The next pass starts a run."""
    world = drifting()
    world.checked = slower_card(slowdown)
    slow = world.snapshot.target_pods[0].node
    other = next(node.name for node in world.snapshot.nodes if node.name.startswith(OPENVINO) and node.name != slow)
    world.measured = lambda report, job: slower_machine(slowdown, report) if job.node == slow else report
    while not check_of(world).due:
        world.turn()
    degraded = {slow} if held else {slow, other}
    nodes = tuple(replace(item, labels={**item.labels, HEALTH_LABEL: "degraded"}) if item.name in degraded else item for item in world.snapshot.nodes)
    holder = make_pod("holder", node=other if held else slow, uid="uid-holder", requests={CARD: 1})
    world.snapshot = replace(world.snapshot, nodes=nodes, card_pods=(*world.snapshot.card_pods, holder))
    return world


def slower_machine(factor: float, report: BenchReport) -> BenchReport:
    """A benchmark on a card that takes so many times as long for everything, its reference too."""
    assert report.candidate is not None
    assert report.reference is not None
    assert report.micro is not None
    gflops, gigabytes = report.micro.gflops / factor, report.micro.bandwidth_gigabytes_per_second / factor
    candidate, reference = (
        item.model_copy(
            update={
                "mean_us": factor * item.mean_us,
                "p50_us": factor * item.p50_us,
                "p99_us": factor * item.p99_us,
                "throughput_per_second": item.throughput_per_second / factor,
            }
        )
        for item in (report.candidate, report.reference)
    )
    micro = report.micro.model_copy(update={"gflops": gflops, "bandwidth_gigabytes_per_second": gigabytes})
    return report.model_copy(update={"candidate": candidate, "reference": reference, "micro": micro})


@pytest.mark.parametrize("held", [pytest.param(True, id="measured on the slow card"), pytest.param(False, id="measured on another degraded one")])
@pytest.mark.parametrize(
    ("slowdown", "want_family", "want_ready"),
    [
        pytest.param(4.0, ORT, ("True", "Applied"), id="the other family is better than the slow card"),
        pytest.param(1.7, OPENVINO, ("False", "TooFewFreeCards"), id="the slow card is still better than the other family"),
    ],
)
def test_where_the_family_has_no_other_card_the_slow_one_is_compared_with_what_there_is(
    slowdown: float, want_family: str, want_ready: tuple[str, str], *, held: bool
) -> None:
    """A good card of the family would be twice as fast as the other family; none is free, so what counts is the slow one, and once."""
    world = slow_card_in_full_family(slowdown, held=held)
    slow = world.snapshot.target_pods[0].node
    work_off(world, 20)
    at_home = {run.node for run in world.snapshot.runs if run.candidate.family == OPENVINO}
    assert (slow in at_home) is held
    assert world.status.recommendation is not None
    assert world.status.recommendation.config.family == want_family
    assert world.condition("Ready") == want_ready
    assert ("degraded" in world.message("Ready")) is (want_family == OPENVINO)


def test_a_rollout_that_only_lacks_a_place_for_its_first_pod_is_no_reason_to_leave_the_family() -> None:
    """The other card is free: the slow one is not what the present configuration has to be served by."""
    world = slow_card_in_full_family(3.0, held=True)
    target = world.snapshot.target
    assert target is not None
    free = tuple(pod for pod in world.snapshot.card_pods if pod.name != "holder")
    world.snapshot = replace(world.snapshot, target=replace(target, max_surge=1, max_unavailable=0), card_pods=free)
    work_off(world, 20)
    assert world.status.recommendation is not None
    assert world.status.recommendation.config.family == OPENVINO
    assert world.condition("Ready") == ("False", "NoRoomForSurge")


def test_on_a_card_that_is_not_shareable_and_not_free_another_one_is_looked_at() -> None:
    """And the verdict says that this instance could not be: model and driver can be told there, the card not."""
    world = drifting()
    pod = world.snapshot.target_pods[0]
    world.snapshot = replace(world.snapshot, card_pods=(*world.snapshot.card_pods, make_pod("holder", node=pod.node, uid="uid-holder")))
    world.checked = slower_card(2.0)
    work_off(world)
    verdict = check_of(world).verdict
    assert verdict is not None
    assert verdict.verdict == "Nothing"
    assert "no card is free where the pods serve" in verdict.message


def test_where_cards_can_be_shared_the_check_runs_beside_the_server() -> None:
    """Without a card of its own, and the first check was made the same way: what is shared cancels out."""
    world = watched(shareable=True)
    show_drift(world, 3, first=3)
    work_off(world)
    jobs = [job for job in world.jobs_started if job.purpose == "check"]
    assert [(job.resource, job.node) for job in jobs] == [("", world.snapshot.target_pods[0].node)] * 2
    baseline = check_of(world).baseline
    assert baseline is not None
    assert baseline.beside_server


def test_a_busier_service_is_not_a_slower_card() -> None:
    """Slower and busier: the check finds the card as it was, the verdict is the load, and nothing is written."""
    world = watched()
    show_drift(world, 3, first=3, **SLOWER, per_second=20.0)
    work_off(world)
    assert world.condition(ANSWER) == ("True", "Load")
    assert world.applies == 1


def test_a_change_by_the_user_forgets_what_was_suspected() -> None:
    """What is asked is another question now."""
    world = drifting()
    work_off(world)
    assert check_of(world).in_vain == 1
    world.change_target(image="server:2")
    world.play()
    assert world.status.check is None


def test_the_present_configuration_is_on_the_family_that_was_decided() -> None:
    """The check measures what runs, not what ran before."""
    world = drifting()
    work_off(world)
    assert all(ORT not in str(job.node) for job in world.jobs_started if job.purpose == "check")
