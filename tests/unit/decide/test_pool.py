"""The pass over a pool: who is probed, what a portrait says, which labels a node gets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from metainfer.decide.refusal import record_refusal
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
        pytest.param({"conditions": {"MemoryPressure": "True"}}, "MemoryPressure", id="under memory pressure"),
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


def test_a_family_of_one_is_its_own_median() -> None:
    """Nothing to compare with is no reason to doubt."""
    assert assess_family([make_portrait("n0")])["n0"].correction_factor_permille == 1000


GPU_LOST = Failure(reason="CardRefused", message="Allocate failed: GPU is lost", retryable=True)
EVICTED = Failure(reason="Evicted", message="The node was low on resource: ephemeral-storage.")


@dataclass
class Cluster:
    """A pool whose plans are carried out: portraits and labels are written, Jobs fail as they are told to, and are forgotten after an hour."""

    snapshot: PoolSnapshot
    failure: Failure
    now: datetime = NOW
    starts: list[tuple[int, str | None]] = field(default_factory=list)
    """(minute, node) of every probe."""
    events: list[EmitEvent] = field(default_factory=list)

    def turn(self, minutes: float = 1.0) -> PoolPlan:
        """One pass, and what follows from it."""
        plan = decide_pool(self.snapshot, self.now)
        pool = replace(self.snapshot.pool, status=plan.status)
        self.snapshot = replace(self.snapshot, pool=pool)
        for action in plan.actions:
            if isinstance(action, CreateJob):
                self._fail(action)
            elif isinstance(action, WritePortrait):
                portrait = Portrait(action.node, action.spec, action.status)
                self.snapshot = replace(self.snapshot, portraits={**self.snapshot.portraits, action.node: portrait})
            elif isinstance(action, WriteNodeLabels):
                nodes = tuple(replace(node, labels=make_labels(node, action)) if node.name == action.node else node for node in self.snapshot.nodes)
                self.snapshot = replace(self.snapshot, nodes=nodes)
            elif isinstance(action, EmitEvent):
                self.events.append(action)
        self.now += timedelta(minutes=minutes)
        hour_ago = self.now - timedelta(hours=1)
        self.snapshot = replace(
            self.snapshot,
            jobs=tuple(job for job in self.snapshot.jobs if job.created_at is None or job.created_at > hour_ago),
            results=tuple(item for item in self.snapshot.results if item.finished_at > hour_ago),
        )
        return plan

    def play(self, minutes: int) -> None:
        """A pass each minute."""
        for _ in range(minutes):
            self.turn()

    def _fail(self, action: CreateJob) -> None:
        assert action.name not in {job.name for job in self.snapshot.jobs}, "a finished Job of the same name would be taken for done"
        self.starts.append((round((self.now - NOW).total_seconds() / 60), action.node))
        job = JobFacts(
            action.namespace, action.name, f"uid-{action.name}", action.labels, action.annotations, created_at=self.now, condition="Failed", failed=1
        )
        result = ProbeResult(action.name, action.node or "", self.now + timedelta(seconds=5), failure=self.failure, job_uid=job.uid)
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, job), results=(*self.snapshot.results, result))


def make_labels(node: NodeFacts, action: WriteNodeLabels) -> Mapping[str, str]:
    """A node's labels after we wrote ours."""
    return {key: value for key, value in node.labels.items() if key not in (FAMILY_LABEL, HEALTH_LABEL)} | dict(action.labels)


def completed(plan: PoolPlan) -> tuple[str, str]:
    """Reason and message of ProbesCompleted."""
    found = find_condition(plan.status.conditions, "ProbesCompleted")
    assert found is not None
    return found.reason, found.message


def test_a_card_that_is_refused_takes_its_node_out_at_once() -> None:
    """One pass after the refusal the node avoids new pods; the pool says which, why, and when it is tried again."""
    cluster = Cluster(make_pool_snapshot(make_member("v100-1")), GPU_LOST)
    cluster.turn()
    plan = cluster.turn()
    assert labels_written(plan) == {"v100-1": {FAMILY_LABEL: "ort-cpu", HEALTH_LABEL: "degraded"}}
    reason, message = completed(plan)
    assert reason == "CardRefused"
    assert "v100-1" in message
    assert "GPU is lost" in message
    assert "tried again at 2026-03-01T12:05:05Z" in message
    assert (plan.status.families[0].degraded, plan.status.families[0].probed) == (1, 0)


def test_a_failed_probe_is_tried_again_ever_later_though_its_jobs_are_gone() -> None:
    """Jobs are kept for an hour, the count in the portrait for as long as the node: at most one an hour in the end, and one Event in all."""
    cluster = Cluster(make_pool_snapshot(make_member("n0")), GPU_LOST)
    cluster.play(6 * 60)
    minutes = [minute for minute, _ in cluster.starts]
    pauses = [later - earlier for earlier, later in itertools.pairwise(minutes)]
    assert pauses[:4] == [6, 11, 21, 41]
    assert set(pauses[4:]) == {61}
    assert [event.reason for event in cluster.events] == ["CardRefused"]


def test_between_two_tries_nothing_is_written() -> None:
    """A condition that counts down would be a write each minute."""
    cluster = Cluster(make_pool_snapshot(make_member("n0")), GPU_LOST)
    cluster.play(3)
    before = cluster.snapshot.pool.status
    plan = cluster.turn()
    assert (plan.actions, plan.status) == ((), before)


def test_an_evicted_probe_is_not_tried_again_by_itself() -> None:
    """Pulling the image may be what filled the node: not in a day, not after a restart, but when something is different."""
    cluster = Cluster(make_pool_snapshot(make_member("edge-1")), EVICTED)
    cluster.play(24 * 60)
    assert cluster.starts == [(0, "edge-1")]
    reason, message = completed(cluster.turn())
    assert (reason, "not tried again by itself" in message) == ("Evicted", True)
    cluster.snapshot = replace(cluster.snapshot, limits=replace(cluster.snapshot.limits, probe_image="probe:2"))
    cluster.turn()
    assert len(cluster.starts) == 2


def test_a_portrait_that_is_deleted_is_another_try() -> None:
    """What the message tells people to do."""
    cluster = Cluster(make_pool_snapshot(make_member("edge-1")), EVICTED)
    cluster.play(90)
    cluster.snapshot = replace(cluster.snapshot, portraits={})
    cluster.turn()
    assert len(cluster.starts) == 2


def test_two_good_probes_make_a_node_well_again() -> None:
    """Its failure is forgotten with the first; the mark is taken off with the second, so that a card that comes and goes does not take it along."""
    cluster = Cluster(make_pool_snapshot(make_member("n0")), GPU_LOST)
    cluster.play(3)
    cluster.snapshot = replace(cluster.snapshot, results=(make_result("n0", job="first", finished_at=cluster.now),))
    first = cluster.turn()
    assert completed(first)[0] == "Measured"
    assert cluster.snapshot.portraits["n0"].status.probe_failure is None
    assert cluster.snapshot.portraits["n0"].status.health == "Degraded"
    cluster.snapshot = replace(cluster.snapshot, results=(make_result("n0", job="second", finished_at=cluster.now),))
    assert labels_written(cluster.turn()) == {"n0": {FAMILY_LABEL: "ort-cpu"}}


def test_a_failed_probe_keeps_the_portrait_there_is() -> None:
    """What was measured once is old, not wrong; another pool's problem is none of this node's."""
    node = make_member("n0")
    old = replace(make_young_portrait(node), status=make_young_portrait(node).status.model_copy(update={"measured_at": "2026-01-01T00:00:00Z"}))
    cluster = Cluster(make_pool_snapshot(node, portraits={"n0": old}), Failure(reason="NodeLost", message="gone", retryable=True))
    cluster.play(2)
    status = cluster.snapshot.portraits["n0"].status
    assert (status.figures, status.health) == (old.status.figures, "Healthy")
    assert status.probe_failure is not None
    assert status.probe_failure.reason == "NodeLost"


REFUSAL = Failure(reason="QuotaExceeded", message="exceeded quota: q, requested: count/jobs.batch=1, used: 4, limited: 4", retryable=True)


def refuse(snapshot: PoolSnapshot, job: str, now: datetime) -> PoolSnapshot:
    """The snapshot after the API server did not take the Job."""
    refusal = record_refusal(snapshot.pool.status.refusal, job, REFUSAL, now)
    return replace(snapshot, pool=replace(snapshot.pool, status=snapshot.pool.status.model_copy(update={"refusal": refusal})))


def test_a_probe_that_the_api_server_does_not_take_is_said_and_tried_ever_later() -> None:
    """One Job at a time, after 1, 2, 4, ... 60 minutes; the condition has the quota's numbers and stays the same meanwhile."""
    snapshot = make_pool_snapshot(make_member("n0"), make_member("n1"))
    first = next(action for action in decide_pool(snapshot, NOW).actions if isinstance(action, CreateJob))
    tries, said, now = [], set(), NOW
    snapshot = refuse(snapshot, first.name, now)
    for minute in range(1, 300):
        now = NOW + timedelta(minutes=minute)
        plan = decide_pool(snapshot, now)
        said.add(completed(plan))
        snapshot = replace(snapshot, pool=replace(snapshot.pool, status=plan.status))
        if names := [action.name for action in plan.actions if isinstance(action, CreateJob)]:
            assert names == [first.name]
            tries.append(minute)
            snapshot = refuse(snapshot, first.name, now)
    assert tries == [1, 3, 7, 15, 31, 63, 123, 183, 243]
    ((reason, message),) = said
    assert reason == "QuotaExceeded"
    assert "used: 4, limited: 4" in message


def test_a_probe_that_is_taken_at_last_ends_the_refusal() -> None:
    """The others follow in the next pass."""
    snapshot = make_pool_snapshot(make_member("n0"), make_member("n1"))
    first = next(action for action in decide_pool(snapshot, NOW).actions if isinstance(action, CreateJob))
    job = JobFacts(first.namespace, first.name, "uid", first.labels, first.annotations, created_at=NOW, active=1)
    plan = decide_pool(replace(refuse(snapshot, first.name, NOW), jobs=(job,)), NOW)
    assert (started(plan), plan.status.refusal) == (["n1"], None)


def test_a_probe_that_waits_is_left_to_its_deadline() -> None:
    """Its deadline ends it as a failed attempt, which the back-off counts; taken back it would be started again at once, for ever."""
    waiting = make_pod("p", unschedulable="0/1 nodes: Insufficient cpu", node=None, phase="Pending")
    job = make_probe_job("n0", created_at=NOW - timedelta(minutes=10), active=1, pods=(waiting,))
    plan = decide_pool(make_pool_snapshot(make_member("n0"), jobs=(job,)), NOW)
    assert not [action for action in plan.actions if isinstance(action, CreateJob | DeleteJob)]


def test_a_probe_that_does_not_start_says_why_while_it_waits() -> None:
    """A queue holds it; it takes no place under the cap, and the others go on."""
    job = make_probe_job("n0", created_at=NOW - timedelta(minutes=10), suspended=True, suspended_by="queue lab of kueue.x-k8s.io")
    pool = make_pool(spec={"limits": {"max_concurrent_probes": 1}})
    plan = decide_pool(make_pool_snapshot(make_member("n0"), make_member("n1"), pool=pool, jobs=(job,)), NOW)
    assert started(plan) == ["n1"]
    alone = decide_pool(make_pool_snapshot(make_member("n0"), jobs=(job,)), NOW)
    assert completed(alone)[0] == "JobSuspended"
    assert "suspended by queue lab of kueue.x-k8s.io" in completed(alone)[1]


@pytest.mark.parametrize("failed", [False, True], ids=["reported, and kept by a sidecar", "given up, and never started"])
def test_a_probe_that_lives_on_after_its_result_is_ended(*, failed: bool) -> None:
    """It would hold a card; an ordinary Job ends by itself within seconds and is kept for its record."""
    job = make_probe_job("n0", created_at=NOW - timedelta(minutes=5), active=1)
    failure = Failure(reason="ImagePullFailed", message="x", retryable=True)
    result = make_result("n0", job=job.name, **({"report": None, "failure": failure} if failed else {}))
    snapshot = make_pool_snapshot(make_member("n0"), jobs=(job,), results=(result,))
    first = decide_pool(snapshot, NOW)
    (write,) = [action for action in first.actions if isinstance(action, WritePortrait)]
    later = replace(snapshot, portraits={"n0": Portrait("n0", write.spec, write.status)})
    ends = [[action.name for action in plan.actions if isinstance(action, DeleteJob)] for plan in (first, decide_pool(later, NOW + timedelta(seconds=30)))]
    assert ends == [[], [job.name]]


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


def test_an_older_pools_nodes_are_told_in_a_condition_of_the_younger() -> None:
    """NodeConflict names node and pool; the younger one starts nothing there and leaves the labels to the older."""
    older, younger = make_pool("older", created_at=NOW - timedelta(days=2)), make_pool("younger", created_at=NOW - timedelta(days=1))
    node = make_member("n0", labels={HEALTH_LABEL: "degraded"})
    mine = make_portrait("n0", pool="younger")
    plan = decide_pool(make_pool_snapshot(node, pool=younger, pools=(older, younger), portraits={"n0": mine}), NOW)
    conflict, ready = (find_condition(plan.status.conditions, kind) for kind in ("NodeConflict", "Ready"))
    assert conflict is not None
    assert ready is not None
    assert (conflict.status, conflict.reason) == ("True", "PoolOverlap")
    assert "node n0 belongs to the older pool older" in conflict.message
    assert (ready.status, ready.reason) == ("False", "PoolOverlap")
    assert labels_written(plan) == {}
    alone = decide_pool(make_pool_snapshot(node, pool=younger, pools=(younger,)), NOW)
    (found,) = [item for item in alone.status.conditions if item.type == "NodeConflict"]
    assert (found.status, found.reason) == ("False", "OnlyPool")


def renamed_under_way(**job: Any) -> tuple[PoolSnapshot, JobFacts]:
    """A probe was started for the family under its former name; the pool has been edited since."""
    node = make_member("n0", labels={FAMILY_LABEL: "ort-cpu"})
    before = make_pool_snapshot(node)
    (start,) = [action for action in decide_pool(before, NOW).actions if isinstance(action, CreateJob)]
    facts = JobFacts(start.namespace, start.name, "uid-job", start.labels, start.annotations, created_at=NOW, **job)
    renamed = make_pool("cards", make_family("renamed", selector={"matchLabels": {FAMILY_LABEL_OF_VENDOR: "ort-cpu"}}))
    return replace(before, pool=renamed, pools=(renamed,), jobs=(facts,)), facts


def test_a_probe_for_a_family_that_is_gone_is_ended() -> None:
    """It holds the card that the node's family of today has to be measured on."""
    snapshot, job = renamed_under_way(active=1)
    plan = decide_pool(snapshot, NOW)
    assert [(action.name, action.uid) for action in plan.actions if isinstance(action, DeleteJob)] == [(job.name, job.uid)]


def test_the_result_of_a_probe_for_a_family_that_is_gone_does_not_count() -> None:
    """No portrait, no failure and no back-off: the node is measured for the family that it is in."""
    snapshot, job = renamed_under_way(condition="Complete", succeeded=1)
    plan = decide_pool(replace(snapshot, results=(make_result("n0", job=job.name),)), NOW + timedelta(minutes=1))
    assert not [action for action in plan.actions if isinstance(action, WritePortrait | DeleteJob)]
    assert started(plan) == ["n0"]
    assert labels_written(plan) == {"n0": {FAMILY_LABEL: "renamed"}}


def test_the_result_of_a_probe_for_the_same_family_counts_after_any_other_edit() -> None:
    """Caps, prices and other families of the pool make no other card of this one."""
    node = make_member("n0")
    before = make_pool_snapshot(node)
    (start,) = [action for action in decide_pool(before, NOW).actions if isinstance(action, CreateJob)]
    job = JobFacts(start.namespace, start.name, "uid-job", start.labels, start.annotations, created_at=NOW, condition="Complete", succeeded=1)
    edited = make_pool("cards", make_family(hourly_cost_micros=7), make_family("other", selector={"matchLabels": {"x": "y"}}))
    plan = decide_pool(replace(before, pool=edited, pools=(edited,), jobs=(job,), results=(make_result("n0", job=job.name),)), NOW + timedelta(minutes=1))
    assert [action.node for action in plan.actions if isinstance(action, WritePortrait)] == ["n0"]


def test_a_new_portrait_does_not_have_all_its_siblings_written_again() -> None:
    """It moves the family's median by a fraction of the noise: with a thousand nodes that were a thousand writes per probe."""
    nodes = [make_member(f"n{index}") for index in range(9)]
    portraits = {}
    for index, node in enumerate(nodes[:8]):
        figures = (make_figures(matmul_megaflops={"big": 60_000 + 100 * index}),)
        portraits[node.name] = make_young_portrait(node, figures=figures)
    plan = decide_pool(make_pool_snapshot(*nodes, portraits=portraits, results=(make_result("n8"),)), NOW)
    assert [action.node for action in plan.actions if isinstance(action, WritePortrait)] == ["n8"]


def test_a_factor_that_moved_by_more_than_a_percent_is_written() -> None:
    """The portrait says what the card is worth."""
    nodes = [make_member(f"n{index}") for index in range(3)]
    speeds = {"n0": 60_000, "n1": 60_000, "n2": 54_000}
    portraits = {
        node.name: make_young_portrait(node, figures=(make_figures(matmul_megaflops={"big": speeds[node.name]}),), bandwidth_megabytes_per_second={})
        for node in nodes
    }
    plan = decide_pool(make_pool_snapshot(*nodes, portraits=portraits), NOW)
    (write,) = [action for action in plan.actions if isinstance(action, WritePortrait)]
    assert write.node == "n2"
    assert write.status.correction_factor_permille < 970


def test_a_new_pool_of_thousands_is_labelled_in_several_passes() -> None:
    """Its first probes do not wait for the last label; the next pass comes soon and goes on where this one ended."""
    nodes = [make_node(f"n{index:04d}", labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu"}) for index in range(250)]
    plan = decide_pool(make_pool_snapshot(*nodes), NOW)
    assert (len(labels_written(plan)), plan.requeue_after_seconds) == (200, 1.0)
    kinds = [type(action) for action in plan.actions if isinstance(action, CreateJob | WriteNodeLabels)]
    assert kinds == sorted(kinds, key=lambda kind: kind is WriteNodeLabels), "Jobs first"
    labelled = [replace(node, labels={**node.labels, **labels_written(plan).get(node.name, {})}) for node in nodes]
    rest = decide_pool(make_pool_snapshot(*labelled), NOW)
    assert (len(labels_written(rest)), rest.requeue_after_seconds) == (50, 60.0)
