from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.unit.decide.make_facts import FAMILY_LABEL_OF_VENDOR, make_adaptation, make_family, make_node, make_pool, make_portrait, make_target
from tests.unit.decide.make_facts import make_pod as make_card_pod
from tests.unit.observe.make_jobs import CANDIDATE, at, make_ended, make_failed_job, make_job, make_pod, make_report, make_state
from tests.unit.watch.make_raw import make_container, make_deployment

from metainfer.decide.facts import (
    AdaptationFacts,
    JobFacts,
    Labels,
    MeasuringLimits,
    NodeFacts,
    NodeTerm,
    PodFacts,
    PoolFacts,
    Portrait,
    ProbeResult,
    ProfileResult,
    Requirement,
    RunResult,
    RuntimeClassFacts,
    TargetFacts,
)
from metainfer.kube.errors import ApiError, Forbidden, NotFound, ServerUnavailable
from metainfer.kube.kinds import POD, Kind
from metainfer.observe.gather import GatheredAdaptation, GatheredPool, Gatherer
from metainfer_probe.contract import encode_summary

LIMITS = MeasuringLimits(operator_namespace="operator", probe_image="probe:1")
FAMILY = {FAMILY_LABEL_OF_VENDOR: "ort-cpu"}


@dataclass
class View:
    """The cache, as a plain object."""

    own_pools: tuple[PoolFacts, ...] = (make_pool("lab"),)
    own_adaptations: tuple[AdaptationFacts, ...] = ()
    own_nodes: tuple[NodeFacts, ...] = (make_node("node-1", labels=FAMILY),)
    own_jobs: tuple[JobFacts, ...] = ()
    own_portraits: Mapping[str, Portrait] = field(default_factory=dict)

    def pools(self) -> tuple[PoolFacts, ...]:
        return self.own_pools

    def pool(self, name: str) -> PoolFacts | None:
        return next((item for item in self.own_pools if item.name == name), None)

    def adaptations(self, namespace: str | None = None) -> tuple[AdaptationFacts, ...]:
        return tuple(item for item in self.own_adaptations if namespace in (None, item.namespace))

    def adaptation(self, namespace: str, name: str) -> AdaptationFacts | None:
        return next((item for item in self.adaptations(namespace) if item.name == name), None)

    def nodes(self) -> tuple[NodeFacts, ...]:
        return self.own_nodes

    def card_pods(self) -> tuple[PodFacts, ...]:
        return (make_card_pod("holder"),)

    def pods_of_job(self, namespace: str, job_name: str) -> tuple[PodFacts, ...]:
        return ()

    def pods_matching(self, namespace: str, match_labels: Labels) -> tuple[PodFacts, ...]:
        return (make_card_pod("target-pod", namespace=namespace, labels=match_labels),)

    def jobs(self) -> tuple[JobFacts, ...]:
        return self.own_jobs

    def portraits(self) -> Mapping[str, Portrait]:
        return self.own_portraits

    def deployment(self, namespace: str, name: str) -> TargetFacts | None:
        return make_target("a stale one that must not be used")


@dataclass
class Server:
    """The API server: objects by (kind, name), or the error for them."""

    objects: Mapping[tuple[str, str], dict[str, Any] | ApiError] = field(default_factory=dict)
    log: str = ""
    pods: list[dict[str, Any]] = field(default_factory=list)
    reads: list[tuple[str, str, str | None]] = field(default_factory=list)
    logs_read: int = 0

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        self.reads.append((kind.kind, name, namespace))
        found = self.objects.get((kind.kind, name), NotFound(404, "NotFound", f"{kind.kind} {name}"))
        if isinstance(found, ApiError):
            raise found
        return found

    async def list(self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = "") -> tuple[list[dict[str, Any]], str]:
        chosen = dict(part.split("=") for part in label_selector.split(",") if part)
        return [pod for pod in self.pods if kind == POD and chosen.items() <= pod["metadata"]["labels"].items()], "1"

    async def pod_log(self, namespace: str, name: str, container: str, *, tail_lines: int, limit_bytes: int) -> str:
        self.logs_read += 1
        return self.log


@dataclass
class Store:
    """What was recorded before. ``problem``: it is away, and this is what is remembered of it; ``down``: the next question finds that out."""

    known: frozenset[str] = frozenset()
    probes: tuple[ProbeResult, ...] = ()
    profile: ProfileResult | None = None
    runs: tuple[RunResult, ...] = ()
    decisions: frozenset[str] = frozenset()
    problem: str = ""
    down: bool = False

    async def has_decision(self, adaptation_uid: str, decision_id: str) -> bool | None:
        self._answer()
        known = adaptation_uid == "uid-ocr" and decision_id in self.decisions
        return known or (None if self.problem else False)

    async def known_jobs(self, job_uids: Collection[str]) -> frozenset[str]:
        self._answer()
        return self.known & frozenset(job_uids)

    async def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        self._answer()
        return tuple(item for item in self.probes if item.job_uid in job_uids)

    async def find_profile(self, adaptation_uid: str, run_id: str) -> ProfileResult | None:
        self._answer()
        return self.profile if (adaptation_uid, run_id) == ("uid-ocr", "run-1") else None

    async def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        self._answer()
        return self.runs if (adaptation_uid, run_id) == ("uid-ocr", "run-1") else ()

    def _answer(self) -> None:
        if self.down:
            raise ConnectionError("the disk is gone")


def make_gatherer(view: View, server: Server | None = None, store: Store | None = None) -> Gatherer:
    return Gatherer(view, server or Server(), store or Store(), LIMITS, clock=lambda: at(30))


def make_probe_job(node: str = "node-1", **fields: Any) -> JobFacts:
    pod = make_pod(make_ended("probe", finished_at=fields.pop("finished_at", at(20))), node=node)
    defaults: dict[str, Any] = {"namespace": "operator", "name": f"probe-{node}", "uid": f"uid-probe-{node}", "annotations": {"metainfer.dev/node": node}}
    return make_job(pod, purpose="probe", **(defaults | fields))


async def gather_pool(view: View, server: Server | None = None, store: Store | None = None) -> GatheredPool:
    gathered = await make_gatherer(view, server, store).gather_pool("lab")
    assert gathered is not None
    return gathered


# --- Pools -----------------------------------------------------------------------------------------------------------


async def test_a_pool_that_is_gone_gives_nothing() -> None:
    """The key outlives the object by a moment."""
    assert await make_gatherer(View()).gather_pool("another") is None


async def test_a_finished_probe_is_a_fresh_result_and_in_the_snapshot() -> None:
    """It is recorded first, and decided on in the same pass."""
    gathered = await gather_pool(View(own_jobs=(make_probe_job(),)))
    assert [item.job for item in gathered.fresh] == ["probe-node-1"]
    assert gathered.snapshot.results == gathered.fresh
    assert gathered.snapshot.store_problem == ""
    assert (gathered.snapshot.limits, gathered.snapshot.pool.name) == (LIMITS, "lab")


async def test_a_recorded_probe_is_read_from_the_store_not_from_its_job() -> None:
    """One log read per Job, however many passes follow."""
    recorded = ProbeResult("probe-node-1", "node-1", at(20), make_report("probe"), job_uid="uid-probe-node-1")  # type: ignore[arg-type]  # its kind is known
    server = Server()
    gathered = await gather_pool(View(own_jobs=(make_probe_job(),)), server, Store(frozenset({"uid-probe-node-1"}), (recorded,)))
    assert (gathered.fresh, gathered.snapshot.results, server.logs_read) == ((), (recorded,), 0)


async def test_a_probe_that_became_a_portrait_is_no_result_but_recorded_all_the_same() -> None:
    """Killed between portrait and record, or the store was down then: nothing is lost."""
    portrait = make_portrait("node-1", pool="lab", probe_job="probe-node-1")
    gathered = await gather_pool(View(own_jobs=(make_probe_job(),), own_portraits={"node-1": portrait}))
    assert [item.job for item in gathered.fresh] == ["probe-node-1"]
    assert gathered.snapshot.results == ()


async def test_results_come_oldest_first() -> None:
    """Of two probes of one node the later one must win."""
    jobs = (make_probe_job(name="second", uid="u2", finished_at=at(25)), make_probe_job(name="first", uid="u1", finished_at=at(5)))
    gathered = await gather_pool(View(own_jobs=jobs))
    assert [item.job for item in gathered.snapshot.results] == ["first", "second"]


async def test_jobs_that_measure_on_the_pools_nodes_are_in_its_snapshot_whoever_started_them() -> None:
    """One measuring Job per node holds across pools and purposes; other nodes' Jobs do not matter."""
    here = make_job(make_pod(), name="bench-here", annotations={"metainfer.dev/pool": "other", "metainfer.dev/node": ""})
    pinned = make_job(name="bench-pinned-here", annotations={"metainfer.dev/pool": "other"})
    mine = make_job(name="probe-elsewhere", annotations={"metainfer.dev/node": "node-9"})
    elsewhere = make_job(make_pod(node="node-9"), name="elsewhere", annotations={"metainfer.dev/pool": "other", "metainfer.dev/node": "node-9"})
    gathered = await gather_pool(View(own_jobs=(here, pinned, mine, elsewhere)))
    assert [job.name for job in gathered.snapshot.jobs] == ["bench-here", "bench-pinned-here", "probe-elsewhere"]


async def test_a_job_in_somebody_elses_namespace_gives_no_probe_result() -> None:
    """Who may create Jobs in a user's namespace must not be able to forge a node's portrait."""
    gathered = await gather_pool(View(own_jobs=(make_probe_job(namespace="attacker"),)))
    assert (gathered.fresh, gathered.snapshot.results) == ((), ())


def make_raw_pod(job: JobFacts, node: str, **status: Any) -> dict[str, Any]:
    """The Job's pod as it is on the API server now."""
    owner = {"kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
    metadata = {"namespace": job.namespace, "name": f"{job.name}-x", "labels": dict(job.labels), "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"} | status}


def make_done_job(pod: PodFacts) -> JobFacts:
    """A probe Job that its controller calls complete."""
    return make_job(pod, purpose="probe", namespace="operator", condition="Complete", finished_at=at(21))


async def test_a_job_that_is_seen_done_before_its_pod_is_asks_the_api_server() -> None:
    """The two watches do not keep step: to record a failure now would measure the node a second time."""
    job = make_done_job(make_pod(make_state()))
    ended = {"exitCode": 0, "message": encode_summary(make_report("probe")), "finishedAt": "2026-03-01T12:00:20Z"}
    server = Server(pods=[make_raw_pod(job, "node-1", phase="Succeeded", containerStatuses=[{"name": "probe", "state": {"terminated": ended}}])])
    gathered = await gather_pool(View(own_jobs=(job,)), server)
    assert [(item.failure, item.report, item.finished_at) for item in gathered.fresh] == [(None, make_report("probe"), at(20))]


async def test_a_pod_that_is_seen_to_fail_and_runs_costs_no_measurement() -> None:
    """What only the cache says may be about an earlier pod: it may still report."""
    job = make_job(make_pod(phase="Failed"), purpose="probe", namespace="operator")
    gathered = await gather_pool(View(own_jobs=(job,)), Server(pods=[make_raw_pod(job, "node-1")]))
    assert gathered.fresh == ()


async def test_pods_of_another_job_do_not_speak_for_it() -> None:
    """A Job that was started again under its name has other pods, with the same labels."""
    job = make_done_job(make_pod(make_state()))
    stranger = make_raw_pod(replace(job, uid="uid-before"), "node-1")
    gathered = await gather_pool(View(own_jobs=(job,)), Server(pods=[stranger]))
    assert [item.failure.reason for item in gathered.fresh if item.failure] == ["PodDisappeared"]


def make_conditioned_node(ready: str) -> NodeFacts:
    return make_node("node-1", labels=FAMILY, ready=ready == "True", conditions={"Ready": ready})


@pytest.mark.parametrize(
    ("nodes", "want"),
    [
        pytest.param((), "NodeLost", id="gone"),
        pytest.param((make_conditioned_node("Unknown"),), "NodeLost", id="silent"),
        pytest.param((make_conditioned_node("False"),), None, id="restarting: its kubelet speaks, and its pods go on"),
        pytest.param((make_conditioned_node("True"),), None, id="ready"),
    ],
)
async def test_a_probe_fails_with_its_node_when_nobody_can_report_any_more(nodes: tuple[NodeFacts, ...], want: str | None) -> None:
    """A node that is not Ready for a moment costs no measurement."""
    job = make_job(make_pod(node="node-1"), purpose="probe", namespace="operator")
    gathered = await gather_pool(View(own_jobs=(job,), own_nodes=nodes), Server(pods=[make_raw_pod(job, "node-1")]))
    assert [item.failure.reason for item in gathered.fresh if item.failure] == ([] if want is None else [want])


async def test_without_the_store_all_that_is_still_in_jobs_is_decided_on_and_nothing_is_lost() -> None:
    """What is not remembered is read from its Job, and the snapshot says why."""
    gathered = await gather_pool(View(own_jobs=(make_probe_job(),)), store=Store(problem="the disk is gone"))
    assert gathered.snapshot.store_problem == "the disk is gone"
    assert [item.job for item in gathered.fresh] == ["probe-node-1"]
    assert gathered.snapshot.results == gathered.fresh


async def test_the_pass_that_finds_the_store_away_is_given_up() -> None:
    """Some answers from the store and some from memory would make a picture that never was."""
    with pytest.raises(ConnectionError, match="the disk is gone"):
        await gather_pool(View(own_jobs=(make_probe_job(),)), store=Store(down=True))


# --- Adaptations -----------------------------------------------------------------------------------------------------


def make_ocr(**fields: Any) -> AdaptationFacts:
    run = {"id": "run-1", "inputsHash": "h", "startedAt": "2026-03-01T12:00:00Z", "step": "Validating"}
    return make_adaptation("ocr", **({"namespace": "models", "uid": "uid-ocr", "status": {"run": run}} | fields))


async def gather(view: View, server: Server | None = None, store: Store | None = None) -> GatheredAdaptation:
    gathered = await make_gatherer(view, server, store).gather_adaptation("models", "ocr")
    assert gathered is not None
    return gathered


async def test_the_target_is_read_fresh_with_its_version() -> None:
    """A stale cache must not lead to a write."""
    raw = make_deployment("ocr", "models")
    gathered = await gather(View(own_adaptations=(make_ocr(),)), Server({("Deployment", "ocr"): raw}))
    target = gathered.snapshot.target
    assert target is not None
    assert (target.name, target.resource_version, target.raw) == ("ocr", raw["metadata"]["resourceVersion"], raw)
    assert [pod.labels for pod in gathered.snapshot.target_pods] == [{"app": "ocr"}]


async def test_an_adaptation_without_target_is_gathered_all_the_same() -> None:
    """Its status has to say that the target is missing."""
    gathered = await gather(View(own_adaptations=(make_ocr(),)))
    assert (gathered.snapshot.target, gathered.snapshot.target_pods, gathered.snapshot.unread) == (None, (), {})


async def test_peers_are_the_others_of_the_namespace() -> None:
    """Two adaptations of one target are told apart by age."""
    others = (make_adaptation("det", namespace="models"), make_adaptation("ocr", namespace="elsewhere"))
    gathered = await gather(View(own_adaptations=(make_ocr(), *others)))
    assert [(item.namespace, item.name) for item in gathered.snapshot.peers] == [("models", "det")]


async def test_config_maps_are_those_that_the_targets_container_names() -> None:
    """Not a sidecar's, never a Secret's; None = it does not exist."""
    env_from = [{"configMapRef": {"name": "site"}}, {"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "absent", "optional": True}}]
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "single", "key": "a"}}}]
    containers = [make_container("server", envFrom=env_from, env=env), make_container("proxy", envFrom=[{"configMapRef": {"name": "proxy"}}])]
    server = Server(
        {
            ("Deployment", "ocr"): make_deployment("ocr", "models", pod={"containers": containers}),
            ("ConfigMap", "site"): {"data": {"BATCH": "16"}},
            ("ConfigMap", "single"): {"data": {"a": "1"}},
        }
    )
    gathered = await gather(View(own_adaptations=(make_ocr(container="server"),)), server)
    assert gathered.snapshot.config_maps == {"site": {"BATCH": "16"}, "absent": None, "single": {"a": "1"}}
    assert {kind for kind, _, _ in server.reads} == {"Deployment", "ConfigMap", "PersistentVolumeClaim"}
    assert {namespace for _, _, namespace in server.reads} == {"models"}


async def test_what_may_not_be_read_is_a_fact_not_a_crash() -> None:
    """A ConfigMap that is forbidden is not the same as one that is missing."""
    forbidden = Forbidden(403, "Forbidden", 'configmaps "site" is forbidden')
    containers = [make_container("server", envFrom=[{"configMapRef": {"name": "site"}}])]
    server = Server({("Deployment", "ocr"): make_deployment("ocr", "models", pod={"containers": containers}), ("ConfigMap", "site"): forbidden})
    gathered = await gather(View(own_adaptations=(make_ocr(),)), server)
    assert gathered.snapshot.config_maps == {}
    assert gathered.snapshot.unread == {"ConfigMap site": 'configmaps "site" is forbidden'}


async def test_a_target_that_may_not_be_read_is_a_fact_too() -> None:
    """Rights for one namespace are missing: the others go on."""
    server = Server({("Deployment", "ocr"): Forbidden(403, "Forbidden", "no")})
    gathered = await gather(View(own_adaptations=(make_ocr(),)), server)
    assert (gathered.snapshot.target, gathered.snapshot.unread) == (None, {"Deployment ocr": "no"})


async def test_a_target_that_cannot_be_understood_is_a_fact_as_well() -> None:
    """Of a newer API, for example: its field is named, and the other adaptations go on."""
    server = Server({("Deployment", "ocr"): make_deployment("ocr", "models", spec={"replicas": "many"})})
    gathered = await gather(View(own_adaptations=(make_ocr(),)), server)
    assert gathered.snapshot.target is None
    assert "many" in gathered.snapshot.unread["Deployment ocr"]


@pytest.mark.parametrize(
    ("run_id", "profile_run", "want"),
    [
        pytest.param("run-1", "", True, id="its own"),
        pytest.param("run-2", "run-1", True, id="of the run it names"),
        pytest.param("run-2", "", False, id="none"),
        pytest.param("run-1", "run-0", True, id="its own first"),
    ],
)
async def test_the_portrait_of_an_earlier_run_is_read_where_the_run_names_it(run_id: str, profile_run: str, want: bool) -> None:
    """A run that began with somebody else's portrait has one of its own as soon as that is made."""
    profile = ProfileResult("p", at(0), run_id="run-1")
    run = {"id": run_id, "inputsHash": "h", "startedAt": "2026-03-01T12:00:00Z", "step": "Validating", "profileRun": profile_run}
    gathered = await gather(View(own_adaptations=(make_ocr(status={"run": run}),)), store=Store(profile=profile))
    assert gathered.snapshot.profile == (profile if want else None)


async def test_an_api_server_that_fails_fails_the_pass() -> None:
    """Half a snapshot must not be decided on."""
    with pytest.raises(ServerUnavailable):
        await gather(View(own_adaptations=(make_ocr(),)), Server({("Deployment", "ocr"): ServerUnavailable(503, "", "down")}))


async def test_volumes_and_runtime_class_restrict_the_target() -> None:
    """Where a bound volume is; None for one that is not bound yet, or can be mounted anywhere."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("local", "anywhere", "unbound", "absent")]
    on_node = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}]}}
    server = Server(
        {
            ("Deployment", "ocr"): make_deployment("ocr", "models", pod={"volumes": volumes, "runtimeClassName": "gpu"}),
            ("PersistentVolumeClaim", "local"): {"spec": {"volumeName": "pv-1"}},
            ("PersistentVolume", "pv-1"): {"spec": {"nodeAffinity": on_node}},
            ("PersistentVolumeClaim", "anywhere"): {"spec": {"volumeName": "pv-2"}},
            ("PersistentVolume", "pv-2"): {"spec": {}},
            ("PersistentVolumeClaim", "unbound"): {"spec": {}},
            ("PersistentVolumeClaim", "models"): {"spec": {"volumeName": "pv-1"}},
            ("RuntimeClass", "gpu"): {"metadata": {"name": "gpu"}, "scheduling": {"nodeSelector": {"gpu": "yes"}}},
        }
    )
    gathered = await gather(View(own_adaptations=(make_ocr(),)), server)
    term = NodeTerm((Requirement("kubernetes.io/hostname", "In", ("node-1",)),))
    assert gathered.snapshot.claim_terms == {"local": (term,), "anywhere": None, "unbound": None, "absent": None, "models": (term,)}
    assert gathered.snapshot.absent_claims == {"absent"}
    assert gathered.snapshot.runtime_class == RuntimeClassFacts("gpu", {"gpu": "yes"})


def make_run(job: str, **fields: Any) -> RunResult:
    defaults: dict[str, Any] = {"run_id": "run-1", "candidate": CANDIDATE, "node": "node-1", "finished_at": at(10), "report": make_report()}
    return RunResult(job=job, job_uid=f"uid-{job}", **(defaults | fields))


async def test_runs_are_the_stores_and_the_fresh_ones_in_the_order_of_measuring() -> None:
    """A recorded run whose Job is still there is not read twice."""
    stored = make_run("b1", finished_at=at(10))
    jobs = tuple(make_job(make_pod(make_ended(finished_at=at(second))), name=name, uid=f"uid-{name}") for second, name in ((20, "b2"), (10, "b1")))
    gathered = await gather(View(own_adaptations=(make_ocr(),), own_jobs=jobs), store=Store(frozenset({"uid-b1"}), runs=(stored,)))
    assert [item.job for item in gathered.snapshot.runs] == ["b1", "b2"]
    assert [item.job for item in gathered.fresh] == ["b2"]


async def test_results_of_an_earlier_run_are_recorded_but_not_decided_on() -> None:
    """The spec changed while a benchmark ran: its figures are a sample, not part of the new decision."""
    job = make_job(make_pod(make_ended()), labels={"metainfer.dev/run": "run-0"})
    gathered = await gather(View(own_adaptations=(make_ocr(),), own_jobs=(job,)))
    assert [item.run_id for item in gathered.fresh if isinstance(item, RunResult)] == ["run-0"]
    assert gathered.snapshot.runs == ()
    assert gathered.snapshot.jobs == (job,)


async def test_before_the_first_run_there_is_nothing_to_look_for() -> None:
    """A new adaptation has no run yet."""
    gathered = await gather(View(own_adaptations=(make_ocr(status={}),)), store=Store(runs=(make_run("b1"),)))
    assert (gathered.snapshot.runs, gathered.snapshot.profile) == ((), None)


async def test_a_fresh_profile_beats_the_failure_before_it() -> None:
    """The retry's portrait counts."""
    failed = ProfileResult("p1", at(5), run_id="run-1", job_uid="uid-p1")
    job = make_job(make_pod(make_ended("profile")), purpose="profile", name="p2")
    gathered = await gather(View(own_adaptations=(make_ocr(),), own_jobs=(job,)), store=Store(profile=failed))
    assert gathered.snapshot.profile is not None
    assert gathered.snapshot.profile.job == "p2"


async def test_jobs_of_others_are_in_the_snapshot_but_give_no_results() -> None:
    """They count against the caps; their reports belong to their own passes, and a foreign namespace cannot forge one."""
    other = make_job(make_pod(make_ended()), name="other", labels={"metainfer.dev/adaptation-uid": "uid-other"})
    forged = make_job(make_pod(make_ended()), name="forged", namespace="attacker")
    gathered = await gather(View(own_adaptations=(make_ocr(),), own_jobs=(other, forged)))
    assert gathered.snapshot.jobs == (other, forged)
    assert (gathered.fresh, gathered.snapshot.runs) == ((), ())


async def test_without_the_store_an_adaptation_still_sees_what_is_in_its_jobs() -> None:
    """A decision is put off or taken by the caller; nothing is hidden from it."""
    jobs = (make_failed_job(reason="DeadlineExceeded", name="b1"), make_job(make_pod(make_ended()), name="b2", uid="uid-b2"))
    gathered = await gather(View(own_adaptations=(make_ocr(),), own_jobs=jobs), store=Store(problem="the disk is gone"))
    assert gathered.snapshot.store_problem == "the disk is gone"
    assert sorted(item.job for item in gathered.fresh) == ["b1", "b2"]
    assert sorted(item.job for item in gathered.snapshot.runs) == ["b1", "b2"]


@pytest.mark.parametrize(
    ("store", "want"),
    [
        pytest.param(Store(), False, id="the store does not have it"),
        pytest.param(Store(decisions=frozenset({"decision-1"})), True, id="it is recorded"),
        pytest.param(Store(problem="the disk is gone"), None, id="nobody knows"),
    ],
)
async def test_the_snapshot_says_whether_the_decision_is_recorded(store: Store, want: bool | None) -> None:
    """A decision that the store never got is made up from the status."""
    config = {"pool": "lab", "family": "cpu", "executionProvider": "CPU", "precision": "fp32", "batchSize": 1, "concurrency": 1}
    figures = {"p50": "1ms", "p99": "2ms", "throughputPerSecond": 10}
    decided = {"decisionId": "decision-1", "config": config, "expected": figures, "decidedAt": "2026-03-01T12:05:00Z", "took": "5m"}
    status = {"run": {"id": "run-1", "inputsHash": "h", "startedAt": "2026-03-01T12:00:00Z", "step": "Done"}, "recommendation": decided}
    gathered = await gather(View(own_adaptations=(make_ocr(status=status),)), store=store)
    assert gathered.snapshot.decision_recorded is want
    assert (await gather(View(own_adaptations=(make_ocr(),)), store=store)).snapshot.decision_recorded is None


def test_the_family_of_the_builders_takes_the_node_of_the_builders() -> None:
    """Else every test about members would pass for the wrong reason."""
    assert make_family("ort-cpu").selector.match_labels == FAMILY
