"""Measuring Jobs that fail on a real API server, with what kubelets, schedulers and Job controllers write put there by hand.

What the API server itself does (quotas, admission policies, rights) is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.make_cluster import (
    QUOTA,
    connect_limited,
    create_node,
    ensure_kinds,
    ensure_priority_class,
    make,
    make_adaptation,
    make_deployment,
    make_pool,
)
from tests.apiserver.merge_patch import patch_merge
from tests.apiserver.test_gather import create_bench, create_run, ensure_node, finish, look
from tests.unit.act.make_actions import LIMITS
from tests.unit.observe.make_jobs import make_report

from metainfer.act.execute import Actor
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import ProbeResult
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import ApiError
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, EVENT, JOB, NODE, PERSISTENT_VOLUME_CLAIM, POD, POOL, PORTRAIT, Kind
from metainfer.observe.gather import Gatherer
from metainfer.observe.projections import project_job
from metainfer.predict.physics import PhysicsPredictor
from metainfer.reconcile import Reconciler, Request
from metainfer.store.patient import PatientStore, open_patiently
from metainfer.watch.cluster import ClusterCache
from metainfer_probe.contract import Failure, Machine, MicroProbe, NodeReport, ProviderFigures, encode_summary

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
POLICY = Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False)
BINDING = Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", namespaced=False)
POLICY_ATTEMPTS = 300
"""A policy is in force some seconds after it was created; ten attempts a second."""
WITHOUT_JOBS: list[Raw] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "patch"]}]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PatientStore]:
    opened = open_patiently(f"sqlite:///{tmp_path}/samples.db")
    yield opened
    await opened.close()


# --- Refused by the API server ---------------------------------------------------------------------------------------


@dataclass
class Operator:
    """The passes of an operator whose cache is filled before each of them, and a clock that the test moves."""

    kube: KubeClient
    store: PatientStore
    namespace: str
    writer: KubeClient | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def reconcile(self, kind: Any, name: str) -> float | None:
        """One pass; returns when it wants to look again, in seconds."""
        cache, limits = await look(self.kube), replace(LIMITS, operator_namespace=self.namespace)

        def remember(raw: Any) -> None:
            cache.take(next(item for item in (JOB, POOL, ADAPTATION, PORTRAIT, NODE) if item.kind == raw["kind"]), raw)

        gatherer = Gatherer(cache, self.kube, self.store, limits, clock=lambda: self.now)
        actor = Actor(self.writer or self.kube, self.store, limits, remember, clock=lambda: self.now)
        reconciler = Reconciler(gatherer, self.store, Writes(actor, cache), PhysicsPredictor())
        request = Request(kind, "" if kind == "pool" else self.namespace, name)
        return (await reconciler.reconcile(request, self.now)).requeue_after_seconds


class Writes:
    """An Actor, for passes that meet nothing unreadable."""

    def __init__(self, actor: Actor, cache: ClusterCache) -> None:
        self.execute = actor.execute
        self.write_pool_status = actor.write_pool_status
        self.write_adaptation_status = actor.write_adaptation_status
        self.cache = cache

    async def report_unreadable(self, request: Request, now: datetime) -> None:
        raise AssertionError((request, now))


async def create_pool(kube: KubeClient, namespace: str) -> str:
    """A pool over one node of its own, both named after the namespace."""
    await ensure_kinds(kube)
    await ensure_priority_class(kube, LIMITS.priority_class)
    await create_node(kube, f"node-{namespace}", labels={"card": namespace})
    # The API server taints a new node as not ready; the controller that would take the taint off does not run here.
    await patch_merge(kube, NODE, f"node-{namespace}", None, {"spec": {"taints": None}})
    pool = make_pool(f"pool-{namespace}")
    pool["spec"]["families"][0]["selector"] = {"matchLabels": {"card": namespace}}
    pool["metadata"]["labels"] = {"of": namespace}
    await kube.create(POOL, pool)
    return f"pool-{namespace}"


async def deny_by_quota(kube: KubeClient, namespace: str) -> None:
    """No Jobs at all; no controller runs here that would take the quota into force."""
    hard = {"count/jobs.batch": "0"}
    await kube.create(QUOTA, make(QUOTA, "team", namespace, spec={"hard": hard}))
    await patch_merge(kube, QUOTA, "team", namespace, {"status": {"hard": hard, "used": {"count/jobs.batch": "0"}}}, subresource="status")


async def deny_by_policy(kube: KubeClient, namespace: str) -> None:
    """A ValidatingAdmissionPolicy that wants a label on Jobs of this namespace, once it is in force."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    check = {"expression": "has(object.metadata.labels) && 'team' in object.metadata.labels", "message": "every Job needs the label team"}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [check]}
    await kube.create(POLICY, make(POLICY, f"team-{namespace}", spec=spec))
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {"policyName": f"team-{namespace}", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector}}
    await kube.create(BINDING, make(BINDING, f"team-{namespace}", spec=binding))
    container = {"name": "c", "image": "i"}
    job = make(JOB, "early", namespace, spec={"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}})
    for number in range(POLICY_ATTEMPTS):
        try:
            await kube.create(JOB, job | {"metadata": {"name": f"early-{number}", "namespace": namespace}})
        except ApiError:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the policy does not come into force")


@pytest.mark.parametrize(
    ("deny", "want_reason", "want_words"),
    [
        pytest.param(deny_by_quota, "QuotaExceeded", "used: count/jobs.batch=0, limited: count/jobs.batch=0", id="a quota"),
        pytest.param(deny_by_policy, "JobRefused", "every Job needs the label team", id="an admission policy"),
    ],
)
async def test_probes_that_the_api_server_refuses_are_a_condition_that_stays(
    kube: KubeClient, namespace: str, store: PatientStore, deny: Callable[..., Any], want_reason: str, want_words: str
) -> None:
    """Said after the second pass with the server's words, not written again by the third, tried again when due, and gone with its cause."""
    pool = await create_pool(kube, namespace)
    await deny(kube, namespace)
    operator = Operator(kube, store, namespace)
    assert await operator.reconcile("pool", pool) == 1.0
    await operator.reconcile("pool", pool)
    said = await kube.get(POOL, pool)
    condition = next(item for item in said["status"]["conditions"] if item["type"] == "ProbesCompleted")
    assert (condition["status"], condition["reason"]) == ("False", want_reason)
    assert want_words in condition["message"]
    operator.now += timedelta(seconds=30)
    await operator.reconcile("pool", pool)
    assert (await kube.get(POOL, pool))["metadata"]["resourceVersion"] == said["metadata"]["resourceVersion"]
    operator.now += timedelta(seconds=31)
    await operator.reconcile("pool", pool)
    again = await kube.get(POOL, pool)
    assert again["status"]["refusal"]["attempts"] == 2
    assert next(item for item in again["status"]["conditions"] if item["type"] == "ProbesCompleted") == condition
    events, _ = await kube.list(EVENT, namespace="default", field_selector=f"involvedObject.name={pool}")
    assert [item["reason"] for item in events] == [want_reason]


async def test_a_probe_is_started_when_the_quota_has_room_again(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """The refusal goes from the status as it came."""
    pool = await create_pool(kube, namespace)
    await deny_by_quota(kube, namespace)
    operator = Operator(kube, store, namespace)
    for _ in range(2):
        await operator.reconcile("pool", pool)
    await kube.delete(QUOTA, "team", namespace)
    operator.now += timedelta(minutes=2)
    await operator.reconcile("pool", pool)
    jobs, _ = await kube.list(JOB, namespace=namespace)
    assert len(jobs) == 1
    await operator.reconcile("pool", pool)
    status = (await kube.get(POOL, pool))["status"]
    assert "refusal" not in status
    assert next(item for item in status["conditions"] if item["type"] == "ProbesCompleted")["reason"] == "Probing"


async def test_without_the_right_to_create_jobs_the_condition_says_so(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """The chart bound the rights in other namespaces only."""
    pool = await create_pool(kube, namespace)
    limited = await connect_limited(kube, namespace, WITHOUT_JOBS)
    try:
        operator = Operator(kube, store, namespace, writer=limited)
        for _ in range(2):
            await operator.reconcile("pool", pool)
    finally:
        await limited.close()
    refusal = (await kube.get(POOL, pool))["status"]["refusal"]
    assert (refusal["reason"], 'cannot create resource "jobs"' in refusal["message"]) == ("RightMissing", True)


def make_node_report() -> NodeReport:
    """Of one provider."""
    shapes = {"tiny": 2.0, "gemv": 4.0, "m32": 40.0, "m256": 60.0, "big": 70.0}
    figures = ProviderFigures(
        provider="CPUExecutionProvider", runtime_version="1", precision="fp32", matmul_gflops=shapes, launch_p50_us=10, launch_p99_us=20, compile_ms=1,
        effective_precision="fp32",
    )  # fmt: skip
    machine = Machine(card_model="Made-up CPU", architecture="x86_64", kernel="6.1", cores=4, memory_bytes=1 << 34, load_permille=5)
    micro = MicroProbe(gflops=60, bandwidth_gigabytes_per_second=10, spread_permille=3)
    return NodeReport(machine=machine, micro=micro, figures=(figures,), bandwidth_gigabytes_per_second={"main": 10.0}, measured_seconds=30.0)


async def create_portrayed_adaptation(kube: KubeClient, namespace: str, operator: Operator) -> None:
    """An adaptation whose pool has a portrait, made from a probe Job's real report."""
    pool = await create_pool(kube, namespace)
    await operator.reconcile("pool", pool)
    ((job,), _) = await kube.list(JOB, namespace=namespace)
    ended = {"exitCode": 0, "reason": "Completed", "message": encode_summary(make_node_report()), "finishedAt": "2026-03-01T12:01:00Z"}
    await finish(kube, job, {"terminated": ended})
    await operator.reconcile("pool", pool)
    await kube.delete(JOB, job["metadata"]["name"], namespace)
    deployment = make_deployment("ocr", namespace)
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"metainfer.dev/card": "1"}}
    await kube.create(DEPLOYMENT, deployment)
    adaptation = make_adaptation("ocr", namespace)
    adaptation["spec"]["poolSelector"] = {"matchLabels": {"of": namespace}}
    await kube.create(ADAPTATION, adaptation)


async def conditions_of(kube: KubeClient, namespace: str) -> dict[str, tuple[str, str, str]]:
    """Type -> status, reason, message."""
    found = (await kube.get(ADAPTATION, "ocr", namespace))["status"]["conditions"]
    return {item["type"]: (item["status"], item["reason"], item["message"]) for item in found}


async def test_a_model_claim_that_does_not_exist_is_said_and_then_a_refused_job_is(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """Both of one adaptation, one after the other: no Job waits for a claim that is not there, and a refused one is no silent 'profiling'."""
    operator = Operator(kube, store, namespace)
    await create_portrayed_adaptation(kube, namespace, operator)
    await operator.reconcile("adaptation", "ocr")
    assert (await conditions_of(kube, namespace))["Ready"][:2] == ("False", "ClaimMissing")
    assert (await kube.list(JOB, namespace=namespace))[0] == []
    claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    await kube.create(PERSISTENT_VOLUME_CLAIM, make(PERSISTENT_VOLUME_CLAIM, "models", namespace, spec=claim))
    await deny_by_quota(kube, namespace)
    for _ in range(3):
        await operator.reconcile("adaptation", "ocr")
    said = await conditions_of(kube, namespace)
    assert said["Ready"][:2] == ("False", "QuotaExceeded")
    assert said["Profiled"][1] == "QuotaExceeded"
    assert "limited: count/jobs.batch=0" in said["Ready"][2]
    before = await kube.get(ADAPTATION, "ocr", namespace)
    operator.now += timedelta(seconds=40)
    await operator.reconcile("adaptation", "ocr")
    assert (await kube.get(ADAPTATION, "ocr", namespace))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await kube.delete(QUOTA, "team", namespace)
    operator.now += timedelta(seconds=40)
    await operator.reconcile("adaptation", "ocr")
    await operator.reconcile("adaptation", "ocr")
    assert (await conditions_of(kube, namespace))["Profiled"][1] == "Profiling"
    assert len((await kube.list(JOB, namespace=namespace))[0]) == 1


# --- Failed on the node: what the kubelet leaves in a pod's status -----------------------------------------------------


def terminated(exit_code: int, reason: str = "Error", message: str = "") -> Raw:
    """A container that ended."""
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": "2026-03-01T12:01:00Z"}}


def waiting(reason: str, message: str) -> Raw:
    """A container that was not started."""
    return {"waiting": {"reason": reason, "message": message}}


SUMMARY = encode_summary(make_report())
ENDED = encode_summary(make_report(failure=Failure(reason="Terminated", message="the Job was ended (SIGTERM)", retryable=True)))
ADMISSION = "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed: GPU is lost, which is unexpected"
CASES = [
    pytest.param(waiting("ErrImagePull", 'rpc error: code = NotFound desc = failed to pull image "probe:1"'), {"phase": "Pending"}, "ImagePullFailed", True,
                 id="the image is missing"),
    pytest.param(waiting("ErrImagePull", "no match for platform in manifest sha256:0: not found"), {"phase": "Pending"}, "ArchitectureMismatch", False,
                 id="the image is for another architecture"),
    pytest.param(terminated(255, "Error", "exec /opt/venv/bin/metainfer-probe: exec format error"), {"phase": "Failed"}, "ArchitectureMismatch", False,
                 id="exec format error"),
    pytest.param(terminated(137, "OOMKilled"), {"phase": "Failed"}, "OutOfMemory", False, id="killed for memory"),
    pytest.param(terminated(0, "Completed", ENDED), {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
                 "Evicted", False, id="evicted, its report says only that it was ended"),
    pytest.param(waiting("ContainerCreating", ""), {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": ADMISSION, "containerStatuses": []},
                 "CardRefused", True, id="the card was refused"),
    pytest.param(waiting("CreateContainerConfigError", "container has runAsNonRoot and image has non-numeric user"), {"phase": "Pending"},
                 "ContainerNotCreated", False, id="the container cannot be created"),
    pytest.param(waiting("CreateContainerError", "failed to mkdir /models: read-only file system"), {"phase": "Pending"}, "ContainerNotCreated", False,
                 id="a read-only file system"),
    pytest.param(terminated(1, "Error", "Traceback: no space left"), {"phase": "Failed"}, "ReportMissing", True, id="a crash"),
    pytest.param(terminated(0, "Completed", "x" * 200), {"phase": "Succeeded"}, "ReportGarbled", True, id="garbage"),
    pytest.param(terminated(0, "Completed", SUMMARY[:100]), {"phase": "Succeeded"}, "ReportGarbled", True, id="cut off"),
    pytest.param(terminated(0, "Completed", SUMMARY.replace('"v":1', '"v":0')), {"phase": "Succeeded"}, "ReportVersion", False, id="an older contract"),
    pytest.param(terminated(0, "Completed", SUMMARY.replace('"v":1', '"v":9')), {"phase": "Succeeded"}, "ReportVersion", False, id="a newer contract"),
    pytest.param(terminated(0, "Completed", SUMMARY.replace('"rounds":7', '"rounds":8')), {"phase": "Succeeded"}, "ReportChecksum", True, id="altered"),
    pytest.param(waiting("ContainerCreating", ""), {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True",
                 "reason": "PreemptionByScheduler", "message": "preempting", "lastTransitionTime": "2026-03-01T12:01:00Z"}]}, "Disrupted", True,
                 id="preempted"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "status", "want_reason", "want_retry"), CASES)
async def test_what_a_kubelet_leaves_is_a_failure_with_a_name(
    kube: KubeClient, namespace: str, store: PatientStore, container: Raw, status: Raw, want_reason: str, want_retry: bool
) -> None:
    """From the pod's status on the API server to reason, words that name the Job, and whether trying again can help."""
    await ensure_node(kube)
    job = await create_bench(kube, await create_run(kube, namespace))
    await finish(kube, job, container, **status)
    later = datetime.now(UTC) + timedelta(seconds=LIMITS.job_start_seconds + 1)
    gathered = await Gatherer(await look(kube), kube, store, LIMITS, clock=lambda: later).gather_adaptation(namespace, "ocr")
    assert gathered is not None
    (result,) = gathered.fresh
    assert result.failure is not None
    assert (result.failure.reason, result.failure.retryable) == (want_reason, want_retry)
    assert job["metadata"]["name"] in result.failure.message


async def test_a_pod_that_the_scheduler_cannot_place_says_why_in_time(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """While it waits the Job is no result; when its allowance is over it is, in the scheduler's words."""
    await ensure_node(kube)
    job = await create_bench(kube, await create_run(kube, namespace))
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient metainfer.dev/card."}
    name, owner = job["metadata"]["name"], {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    spec = {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe:1"}]}
    metadata = {"labels": job["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner | {"controller": True}]}
    await kube.create(POD, make(POD, f"{name}-x", namespace, metadata=metadata, spec=spec))
    await patch_merge(kube, POD, f"{name}-x", namespace, {"status": {"phase": "Pending", "conditions": [unplaced]}}, subresource="status")
    results = []
    for seconds in (60, LIMITS.job_start_seconds + 1):
        clock = datetime.now(UTC) + timedelta(seconds=seconds)
        gathered = await Gatherer(await look(kube), kube, store, LIMITS, clock=lambda clock=clock: clock).gather_adaptation(namespace, "ocr")
        assert gathered is not None
        results.append([item.failure.reason for item in gathered.fresh if item.failure is not None])
    assert results == [[], ["Unschedulable"]]


async def test_a_job_that_a_queue_suspends_is_known_by_it(kube: KubeClient, namespace: str) -> None:
    """By the label that queue systems give the Jobs in their care, as the API server stores it."""
    job = await create_bench(kube, await create_run(kube, namespace))
    name = job["metadata"]["name"]
    assert project_job(job).suspended is False
    await patch_merge(kube, JOB, name, namespace, {"spec": {"suspend": True}})
    held = project_job(await kube.get(JOB, name, namespace))
    assert (held.suspended, held.suspended_by) == (True, ""), "held by our own client, which is nobody"
    await patch_merge(kube, JOB, name, namespace, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "lab"}}})
    assert project_job(await kube.get(JOB, name, namespace)).suspended_by == "queue lab of kueue.x-k8s.io"


async def test_a_refused_card_is_on_the_node_and_in_its_portrait_a_pass_later(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """From the kubelet's UnexpectedAdmissionError to the label that keeps new pods away; written once."""
    await ensure_node(kube)
    pool = await create_pool(kube, namespace)
    operator = Operator(kube, store, namespace)
    await operator.reconcile("pool", pool)
    ((job,), _) = await kube.list(JOB, namespace=namespace)
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": ADMISSION, "containerStatuses": []}
    await finish(kube, job, waiting("ContainerCreating", ""), **refused)
    await operator.reconcile("pool", pool)
    node = f"node-{namespace}"
    assert (await kube.get(NODE, node))["metadata"]["labels"]["metainfer.dev/health"] == "degraded"
    portrait = await kube.get(PORTRAIT, node)
    failure = portrait["status"]["probeFailure"]
    assert (failure["reason"], failure["attempts"], failure["retryable"], portrait["status"]["health"]) == ("CardRefused", 1, True, "Degraded")
    for _ in range(2):  # the first ends the Job, which no controller does here, the second sees that it is gone
        operator.now += timedelta(seconds=60)
        await operator.reconcile("pool", pool)
    before = await kube.get(POOL, pool)
    for _ in range(3):  # the next try is due five minutes after the first
        operator.now += timedelta(seconds=45)
        await operator.reconcile("pool", pool)
    after = await kube.get(POOL, pool)
    assert after["status"] == before["status"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert await kube.get(PORTRAIT, node) == portrait
    condition = find_condition((await look(kube)).pool(pool).status.conditions, "ProbesCompleted")  # type: ignore[union-attr]  # it was just read
    assert condition is not None
    assert (condition.reason, "GPU is lost" in condition.message) == ("CardRefused", True)
    results = [item for item in await store.find_probes([job["metadata"]["uid"]]) if isinstance(item, ProbeResult)]
    assert [item.failure.reason for item in results if item.failure is not None] == ["CardRefused"]
