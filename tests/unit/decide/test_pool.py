"""The pass over a pool: who is probed, what a portrait says, which labels a node gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import CARD, CPU_PROVIDER, FAMILY_LABEL_OF_VENDOR, make_family, make_figures, make_node, make_pod, make_pool, make_portrait

from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.decide.conditions import find_condition, format_time
from metainfer.decide.facts import JobFacts, MeasuringLimits, NodeFacts, PodFacts, PoolSnapshot, Portrait, ProbeResult, Taint
from metainfer.decide.families import Membership
from metainfer.decide.names import NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL
from metainfer.decide.plan import CreateJob, DeleteJob, DeletePortrait, EmitEvent, PoolPlan, WriteNodeLabels, WritePortrait
from metainfer.decide.pool import decide_pool
from metainfer.decide.portraits import assess_family, build_identity
from metainfer_probe.contract import Failure, Machine, MicroProbe, NodeReport, ProviderFigures

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def make_pool_snapshot(*nodes: NodeFacts, **fields: Any) -> PoolSnapshot:
    """A pool of one family over the given nodes, nothing measured yet."""
    pool = fields.pop("pool", make_pool(spec={"limits": {"max_concurrent_probes": 2}}))
    defaults: dict[str, Any] = {
        "pools": (pool,), "card_pods": (), "portraits": {}, "jobs": (), "results": (), "limits": MeasuringLimits(probe_image="probe:1"),
    }  # fmt: skip
    return PoolSnapshot(pool=pool, nodes=nodes, **(defaults | fields))


def make_member(name: str, **fields: Any) -> NodeFacts:
    """A node of family ort-cpu."""
    labels = {FAMILY_LABEL_OF_VENDOR: "ort-cpu", FAMILY_LABEL: "ort-cpu"} | dict(fields.pop("labels", {}))
    return make_node(name, labels=labels, **fields)


def make_young_portrait(node: NodeFacts, **fields: Any) -> Portrait:
    """A portrait of this very card, made a minute ago."""
    identity = build_identity(node, Membership("cards", make_family()))
    return make_portrait(node.name, identity=identity, measured_at=format_time(NOW - timedelta(minutes=1)), **fields)


def make_probe_job(node: str, **fields: Any) -> JobFacts:
    """A probe Job for a node."""
    annotations = {NODE_ANNOTATION: node, POOL_ANNOTATION: "cards"}
    defaults: dict[str, Any] = {"uid": "uid-job", "labels": {PURPOSE_LABEL: "probe"}, "annotations": annotations, "created_at": NOW}
    return JobFacts(namespace="meta-infer-system", name=f"mi-probe-{node}", **(defaults | fields))


def make_report(gflops: float = 60.0) -> NodeReport:
    """A complete report of one provider."""
    figures = ProviderFigures(
        provider=CPU_PROVIDER, runtime_version="1.32.0", precision="fp32", matmul_gflops={"big": gflops, "gemv": gflops / 10},
        launch_p50_us=12.0, launch_p99_us=30.0, compile_ms=3.0, effective_precision="fp32",
    )  # fmt: skip
    machine = Machine(card_model="Some CPU", architecture="x86_64", kernel="6.1", cores=4, memory_bytes=16 << 30, load_permille=10)
    micro = MicroProbe(gflops=gflops, bandwidth_gigabytes_per_second=10.0, spread_permille=20)
    return NodeReport(machine=machine, micro=micro, figures=(figures,), bandwidth_gigabytes_per_second={"main": 10.0}, measured_seconds=30.0)


def make_result(node: str, **fields: Any) -> ProbeResult:
    """A finished probe."""
    return ProbeResult(**({"job": f"mi-probe-{node}", "node": node, "finished_at": NOW, "report": make_report()} | fields))


def started(plan: PoolPlan) -> list[str | None]:
    """Nodes for which the plan starts a probe."""
    return [action.node for action in plan.actions if isinstance(action, CreateJob)]


def labels_written(plan: PoolPlan) -> Mapping[str, Mapping[str, str]]:
    """Labels by node."""
    return {action.node: dict(action.labels) for action in plan.actions if isinstance(action, WriteNodeLabels)}


def test_unmeasured_nodes_are_probed_up_to_the_cap() -> None:
    """Two at a time here; the others wait for their turn and the status says so."""
    plan = decide_pool(make_pool_snapshot(*(make_member(f"n{index}") for index in range(4))), NOW)
    assert started(plan) == ["n0", "n1"]
    completed = find_condition(plan.status.conditions, "ProbesCompleted")
    assert completed is not None
    assert (completed.status, completed.reason) == ("False", "Probing")


def test_a_second_pass_starts_nothing_twice() -> None:
    """Jobs that run count against the cap and against their node."""
    nodes = [make_member(f"n{index}") for index in range(4)]
    jobs = tuple(make_probe_job(name, active=1) for name in ("n0", "n1"))
    assert started(decide_pool(make_pool_snapshot(*nodes, jobs=jobs), NOW)) == []


def test_the_same_inputs_give_the_same_job_name() -> None:
    """AlreadyExists after a crash must mean: this very probe."""
    snapshot = make_pool_snapshot(make_member("n0"))
    assert [action.name for action in decide_pool(snapshot, NOW).actions if isinstance(action, CreateJob)] == [
        action.name for action in decide_pool(snapshot, NOW + timedelta(hours=3)).actions if isinstance(action, CreateJob)
    ]


@pytest.mark.parametrize(
    ("change", "want_reason"),
    [
        pytest.param({"ready": False}, "NodeNotReady", id="not ready"),
        pytest.param({"unschedulable": True}, "NodeUnschedulable", id="cordoned"),
        pytest.param({"conditions": {"DiskPressure": "True"}}, "DiskPressure", id="under disk pressure"),
        pytest.param({"allocatable": {"ephemeral-storage": 19 << 30}, "image_bytes": {"big": 17 << 30}}, "NoImageSpace", id="no room for the image"),
    ],
)
def test_a_node_that_cannot_take_a_probe_says_why(change: dict[str, Any], want_reason: str) -> None:
    """No Job is started and the pool names the obstacle."""
    plan = decide_pool(make_pool_snapshot(make_member("n0", **change)), NOW)
    completed = find_condition(plan.status.conditions, "ProbesCompleted")
    assert started(plan) == []
    assert completed is not None
    assert completed.reason == want_reason


def test_a_busy_node_is_not_probed() -> None:
    """A probe never takes a card that somebody uses."""
    pod: PodFacts = make_pod("server", node="n0", requests={CARD: 1}, phase="Running")
    plan = decide_pool(make_pool_snapshot(make_member("n0"), card_pods=(pod,)), NOW)
    completed = find_condition(plan.status.conditions, "ProbesCompleted")
    assert started(plan) == []
    assert completed is not None
    assert (completed.reason, plan.status.families[0].free_cards) == ("NodeBusy", 0)


def test_a_node_whose_own_probe_holds_the_card_is_being_measured_not_busy() -> None:
    """The last node of a pool said NodeBusy for the whole time of its probe."""
    pod: PodFacts = make_pod("probe", node="n0", requests={CARD: 1}, phase="Running")
    snapshot = make_pool_snapshot(make_member("n0"), card_pods=(pod,), jobs=(make_probe_job("n0", active=1, pods=(pod,)),))
    completed = find_condition(decide_pool(snapshot, NOW).status.conditions, "ProbesCompleted")
    assert completed is not None
    assert completed.reason == "Probing"


def test_a_finished_probe_becomes_a_portrait_and_a_family_label() -> None:
    """Report in, portrait out; the node is labelled with its family and, being typical, with no health."""
    node = make_node("n0", labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu"})
    plan = decide_pool(make_pool_snapshot(node, results=(make_result("n0"),)), NOW)
    (write,) = [action for action in plan.actions if isinstance(action, WritePortrait)]
    assert (write.status.figures[0].matmul_megaflops["big"], write.status.health, write.status.correction_factor_permille) == (60_000, "Healthy", 1000)
    assert labels_written(plan) == {"n0": {FAMILY_LABEL: "ort-cpu"}}
    ready = find_condition(plan.status.conditions, "Ready")
    assert ready is not None
    assert ready.status == "True"


def test_a_pass_over_a_measured_pool_writes_nothing() -> None:
    """Steady state: no action, no probe, no requeue."""
    node = make_member("n0")
    portraits = {"n0": make_young_portrait(node)}
    first = decide_pool(make_pool_snapshot(node, portraits=portraits), NOW)
    assert first.actions == ()
    assert first.requeue_after_seconds is None


def test_a_card_that_is_slower_than_its_siblings_is_labelled_degraded() -> None:
    """This card, not its SKU: 30 % below the median is degraded, and only that node carries the label."""
    nodes = [make_member(f"n{index}") for index in range(3)]
    slow = make_figures(matmul_megaflops={"big": 35_000}, launch_p50_nanoseconds=24_000)
    typical = make_figures(matmul_megaflops={"big": 70_000})
    portraits = {node.name: make_young_portrait(node, figures=(slow if node.name == "n2" else typical,)) for node in nodes}
    plan = decide_pool(make_pool_snapshot(*nodes, portraits=portraits), NOW)
    assert labels_written(plan) == {"n2": {FAMILY_LABEL: "ort-cpu", HEALTH_LABEL: "degraded"}}
    assert plan.status.families[0].degraded == 1


@pytest.mark.parametrize(("health", "want"), [("Healthy", "Healthy"), ("Degraded", "Degraded")])
def test_health_does_not_flap_between_its_two_bounds(health: str, want: str) -> None:
    """At 82 % of the median a healthy card stays healthy and a degraded one stays degraded."""
    figures = [make_figures(matmul_megaflops={"big": value}, launch_p50_nanoseconds=0) for value in (82_000, 100_000, 100_000)]
    portraits = [make_portrait(f"n{index}", figures=(item,), bandwidth_megabytes_per_second={}, health=health) for index, item in enumerate(figures)]
    assert assess_family(portraits)["n0"].health == want


def test_a_family_of_one_is_its_own_median() -> None:
    """Nothing to compare with is no reason to doubt."""
    assert assess_family([make_portrait("n0")])["n0"].correction_factor_permille == 1000


def test_a_failed_probe_is_named_and_tried_again_later() -> None:
    """One Event, a condition with the failure's own words, the next try after the back-off."""
    node = make_member("n0")
    failed = make_probe_job("n0", condition="Failed", failed=1, created_at=NOW - timedelta(minutes=2))
    result = make_result("n0", report=None, failure=Failure(reason="CardRefused", message="the kubelet refused the card"))
    snapshot = make_pool_snapshot(node, jobs=(failed,), results=(result,))
    plan = decide_pool(snapshot, NOW)
    assert started(plan) == []
    assert [action.reason for action in plan.actions if isinstance(action, EmitEvent)] == ["CardRefused"]
    completed = find_condition(plan.status.conditions, "ProbesCompleted")
    assert completed is not None
    assert "the kubelet refused the card" in completed.message
    again = decide_pool(replace(snapshot, pool=replace(snapshot.pool, status=plan.status)), NOW + timedelta(minutes=4))
    assert started(again) == ["n0"]
    assert not [action for action in again.actions if isinstance(action, EmitEvent)]


def test_a_probe_that_waits_is_left_to_its_deadline() -> None:
    """Its deadline ends it as a failed attempt, which the back-off counts; taken back it would be started again at once, for ever."""
    waiting = make_pod("p", unschedulable="0/1 nodes: Insufficient cpu", node=None, phase="Pending")
    job = make_probe_job("n0", created_at=NOW - timedelta(minutes=10), active=1, pods=(waiting,))
    plan = decide_pool(make_pool_snapshot(make_member("n0"), jobs=(job,)), NOW)
    assert not [action for action in plan.actions if isinstance(action, CreateJob | DeleteJob)]


def test_a_node_without_many_labels_does_not_break_the_status() -> None:
    """The message about missing labels is bounded like the schema has it."""
    keys = {f"feature.node.kubernetes.io/cpu-cpuid.{index:040d}": "true" for index in range(12)}
    pool = make_pool("cards", make_family(selector={"matchLabels": keys}))
    plan = decide_pool(make_pool_snapshot(make_node("n0"), pool=pool), NOW)
    assert [len(item.message) <= 512 for item in plan.status.unassigned] == [True]


def test_a_labeller_that_restarts_changes_nothing() -> None:
    """Labels gone for a minute: portrait and our own family label stay, and the pool says which label is missing."""
    node = make_node("n0", labels={FAMILY_LABEL: "ort-cpu"})
    plan = decide_pool(make_pool_snapshot(node, portraits={"n0": make_portrait("n0")}), NOW)
    assert plan.actions == ()
    labels = find_condition(plan.status.conditions, "LabelsAvailable")
    assert labels is not None
    assert (labels.status, labels.reason) == ("False", "LabelMissing")
    assert FAMILY_LABEL_OF_VENDOR in labels.message


def test_a_changed_label_moves_the_node_out_of_its_family() -> None:
    """Another product label is another card: our labels and the portrait go."""
    node = make_node("n0", labels={FAMILY_LABEL: "ort-cpu", FAMILY_LABEL_OF_VENDOR: "other"})
    plan = decide_pool(make_pool_snapshot(node, portraits={"n0": make_portrait("n0")}), NOW)
    assert labels_written(plan) == {"n0": {}}
    assert [action.node for action in plan.actions if isinstance(action, DeletePortrait)] == ["n0"]


def test_a_node_of_two_pools_belongs_to_the_older_one() -> None:
    """The younger pool names the older one and starts nothing there."""
    older, younger = make_pool("older", created_at=NOW - timedelta(days=2)), make_pool("younger", created_at=NOW - timedelta(days=1))
    plan = decide_pool(make_pool_snapshot(make_member("n0"), pool=younger, pools=(older, younger)), NOW)
    assert started(plan) == []
    assert [(item.reason, "older" in item.message) for item in plan.status.unassigned] == [("PoolOverlap", True)]


def test_an_old_portrait_is_measured_again_and_kept_meanwhile() -> None:
    """Stale is not gone."""
    node = make_member("n0")
    portrait = make_young_portrait(node)
    old = replace(portrait, status=portrait.status.model_copy(update={"measured_at": format_time(NOW - timedelta(days=8))}))
    plan = decide_pool(make_pool_snapshot(node, portraits={"n0": old}), NOW)
    assert started(plan) == ["n0"]
    assert not [action for action in plan.actions if isinstance(action, DeletePortrait)]


def test_a_probe_tolerates_the_vendors_taint_but_not_a_cordon() -> None:
    """'Only for accelerators' is for us; 'unschedulable' is not."""
    taints = (Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"))
    plan = decide_pool(make_pool_snapshot(make_member("n0", taints=taints)), NOW)
    (job,) = [action for action in plan.actions if isinstance(action, CreateJob)]
    assert [toleration.key for toleration in job.tolerations] == ["nvidia.com/gpu"]
