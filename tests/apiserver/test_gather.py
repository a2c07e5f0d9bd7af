"""Snapshots from a real API server: what is read fresh, what a Job left behind, and what few rights keep from us."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.make_cluster import (
    connect_limited,
    create_node,
    ensure_kinds,
    make,
    make_adaptation,
    make_deployment,
    make_pool,
)
from tests.apiserver.merge_patch import patch_merge
from tests.unit.act.make_actions import LIMITS, make_bench_job, make_probe_job
from tests.unit.observe.make_jobs import CANDIDATE, make_report

from metainfer.act.jobs import build_job
from metainfer.decide.facts import NodeTerm, Requirement, RunResult, RuntimeClassFacts
from metainfer.decide.names import candidate_json
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import AlreadyExists
from metainfer.kube.kinds import (
    ADAPTATION,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POOL,
    RUNTIME_CLASS,
    WATCHED,
)
from metainfer.observe.gather import GatheredAdaptation, Gatherer
from metainfer.store.patient import PatientStore, open_patiently
from metainfer.watch.cluster import ClusterCache
from metainfer_probe.contract import encode_summary

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
LATER = datetime(2100, 1, 1, tzinfo=UTC)
READ_RULES: list[Raw] = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PatientStore]:
    opened = open_patiently(f"sqlite:///{tmp_path}/samples.db")
    yield opened
    await opened.close()


async def look(kube: KubeClient) -> ClusterCache:
    """The cache after its first lists."""
    cache = ClusterCache()
    for kind in WATCHED:
        items, _ = await kube.list(kind)
        for item in items:
            cache.take(kind, item)
    return cache


async def make_gatherer(kube: KubeClient, store: PatientStore, namespace: str, reader: KubeClient | None = None) -> Gatherer:
    limits = replace(LIMITS, operator_namespace=namespace)
    return Gatherer(await look(kube), reader or kube, store, limits, clock=lambda: datetime.now(UTC))


async def gather(kube: KubeClient, store: PatientStore, namespace: str, reader: KubeClient | None = None) -> GatheredAdaptation:
    gathered = await (await make_gatherer(kube, store, namespace, reader)).gather_adaptation(namespace, "ocr")
    assert gathered is not None
    return gathered


async def finish(kube: KubeClient, job: Raw, container: Raw, **pod_status: Any) -> None:
    """What Job controller and kubelet would leave: a pod of the Job whose probe container is in that state."""
    template = copy.deepcopy(job["spec"]["template"])
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
    template["spec"].pop("priorityClassName", None)
    template["spec"].pop("preemptionPolicy", None)
    template["spec"]["nodeName"] = "node-of-tests"
    metadata = {"labels": template["metadata"]["labels"], "ownerReferences": [owner]}
    await kube.create(POD, make(POD, f"{name}-x", namespace, metadata=metadata, spec=template["spec"]))
    state = {"name": "probe", "image": "probe:1", "imageID": "x", "ready": False, "restartCount": 0, "state": container}
    status = {"phase": "Running", "containerStatuses": [state], **pod_status}
    await patch_merge(kube, POD, f"{name}-x", namespace, {"status": status}, subresource="status")


async def create_run(kube: KubeClient, namespace: str) -> Raw:
    """An adaptation that has claimed run-1; returns it."""
    await ensure_kinds(kube)
    created = await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
    run = {"id": "run-1", "inputsHash": "h", "startedAt": "2026-03-01T12:00:00Z", "step": "Validating"}
    return await kube.replace_status(ADAPTATION, "ocr", namespace, {"observedGeneration": 1, "run": run}, created["metadata"]["resourceVersion"])


async def create_bench(kube: KubeClient, adaptation: Raw) -> Raw:
    namespace, uid = adaptation["metadata"]["namespace"], adaptation["metadata"]["uid"]
    action = make_bench_job(
        namespace=namespace,
        owner={"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "name": "ocr", "uid": uid},
        node="node-of-tests",
        labels={"metainfer.dev/purpose": "bench", "metainfer.dev/adaptation-uid": uid, "metainfer.dev/run": "run-1"},
        annotations={"metainfer.dev/candidate": candidate_json(CANDIDATE), "metainfer.dev/node": "node-of-tests", "metainfer.dev/pool": "lab"},
    )
    return await kube.create(JOB, build_job(action, LIMITS))


async def ensure_node(kube: KubeClient) -> None:
    with suppress(AlreadyExists):
        await create_node(kube, "node-of-tests", labels={"card": "ort"})


async def test_a_finished_benchmark_is_read_recorded_and_then_known(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """From the pod's termination message to the store and back, with a log that nobody can read any more."""
    await ensure_node(kube)
    adaptation = await create_run(kube, namespace)
    job = await create_bench(kube, adaptation)
    ended = {"exitCode": 0, "reason": "Completed", "message": encode_summary(make_report()), "finishedAt": "2026-03-01T12:01:00Z"}
    await finish(kube, job, {"terminated": ended})
    first = await gather(kube, store, namespace)
    (result,) = first.fresh
    assert isinstance(result, RunResult)
    assert (result.report, result.candidate, result.node, result.job_uid) == (make_report(), CANDIDATE, "node-of-tests", job["metadata"]["uid"])
    assert first.snapshot.runs == (result,)
    await store.record_run(adaptation["metadata"]["uid"], result)
    second = await gather(kube, store, namespace)
    assert (second.fresh, second.snapshot.runs) == ((), (result,))
    await kube.delete(POD, f"{job['metadata']['name']}-x", namespace)
    await kube.delete(JOB, job["metadata"]["name"], namespace)
    third = await gather(kube, store, namespace)
    assert ([item for item in third.snapshot.jobs if item.namespace == namespace], third.snapshot.runs) == ([], (result,))


async def test_a_job_whose_pods_are_refused_says_why_in_the_controllers_words(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """The Job controller's Events are selected by the Job's UID on the server."""
    await ensure_node(kube)
    job = await create_bench(kube, await create_run(kube, namespace))
    words = 'pods "x" is forbidden: exceeded quota: team, requested: limits.cpu=4, used: limits.cpu=10, limited: limits.cpu=12'
    for uid, message in ((job["metadata"]["uid"], words), ("another", "not this one")):
        about = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "namespace": namespace, "uid": uid}
        event = make(EVENT, f"e-{uid[:8]}", namespace, involvedObject=about, reason="FailedCreate", message=message, type="Warning")
        await kube.create(EVENT, event)
    gatherer = await make_gatherer(kube, store, namespace)
    gatherer._clock = lambda: LATER  # the allowance for starting is long over
    gathered = await gatherer.gather_adaptation(namespace, "ocr")
    assert gathered is not None
    (result,) = gathered.fresh
    assert result.failure is not None
    assert (result.failure.reason, result.failure.message.endswith("limited: limits.cpu=12")) == ("QuotaExceeded", True)


async def test_a_pools_probe_is_gathered_with_its_nodes_and_jobs(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """The whole way of a pool's pass, from real objects."""
    await ensure_node(kube)
    await ensure_kinds(kube)
    name = f"lab-{namespace}"
    pool = await kube.create(POOL, make_pool(name))
    owner = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "name": name, "uid": pool["metadata"]["uid"]}
    annotations = {"metainfer.dev/node": "node-of-tests", "metainfer.dev/pool": name}
    job = await kube.create(JOB, build_job(make_probe_job(namespace=namespace, owner=owner, annotations=annotations), LIMITS))
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "GPU is lost", "containerStatuses": []}
    await finish(kube, job, {"waiting": {"reason": "ContainerCreating"}}, **refused)
    gathered = await (await make_gatherer(kube, store, namespace)).gather_pool(name)
    await kube.delete(POOL, name)
    assert gathered is not None
    assert "node-of-tests" in {node.name for node in gathered.snapshot.nodes}
    assert [item.uid for item in gathered.snapshot.jobs if item.namespace == namespace] == [job["metadata"]["uid"]]
    (result,) = gathered.fresh
    assert result.failure is not None
    assert (result.node, result.failure.reason) == ("node-of-tests", "CardRefused")


async def create_surroundings(kube: KubeClient, namespace: str) -> None:
    """A target with a ConfigMap, a volume on one node and a RuntimeClass."""
    volume, handler = f"pv-{namespace}", f"rc-{namespace}"
    await kube.create(CONFIG_MAP, make(CONFIG_MAP, "site", namespace, data={"BATCH": "16"}))
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume_spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    await kube.create(PERSISTENT_VOLUME, make(PERSISTENT_VOLUME, volume, spec=volume_spec))
    claim_spec = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
    await kube.create(PERSISTENT_VOLUME_CLAIM, make(PERSISTENT_VOLUME_CLAIM, "models", namespace, spec=claim_spec))
    await kube.create(RUNTIME_CLASS, make(RUNTIME_CLASS, handler, handler="runc", scheduling={"nodeSelector": {"gpu": "yes"}}))
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    deployment = make_deployment("ocr", namespace, volumes=volumes, runtimeClassName=handler)
    deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "site"}}, {"configMapRef": {"name": "absent"}}]
    await kube.create(DEPLOYMENT, deployment)


async def test_a_target_is_gathered_with_everything_that_restricts_it(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """Fresh, also when the cache never saw it."""
    await create_run(kube, namespace)
    gatherer = await make_gatherer(kube, store, namespace)
    await create_surroundings(kube, namespace)
    gathered = await gatherer.gather_adaptation(namespace, "ocr")
    assert gathered is not None
    snapshot = gathered.snapshot
    assert snapshot.target is not None
    assert snapshot.target.raw == await kube.get(DEPLOYMENT, "ocr", namespace)
    assert snapshot.config_maps == {"site": {"BATCH": "16"}, "absent": None}
    assert snapshot.claim_terms == {"models": (NodeTerm((Requirement("kubernetes.io/hostname", "In", ("node-1",)),)),)}
    assert snapshot.runtime_class == RuntimeClassFacts(f"rc-{namespace}", {"gpu": "yes"})
    assert snapshot.unread == {}
    await kube.delete(PERSISTENT_VOLUME, f"pv-{namespace}")
    await kube.delete(RUNTIME_CLASS, f"rc-{namespace}")


async def test_with_few_rights_the_snapshot_says_what_is_missing(kube: KubeClient, namespace: str, store: PatientStore) -> None:
    """The API server's own words, by object; the pass goes on."""
    await create_run(kube, namespace)
    await create_surroundings(kube, namespace)
    limited = await connect_limited(kube, namespace, READ_RULES)
    try:
        snapshot = (await gather(kube, store, namespace, limited)).snapshot
    finally:
        await limited.close()
    assert snapshot.target is not None
    assert snapshot.unread.keys() == {"ConfigMap site", "ConfigMap absent", "PersistentVolumeClaim models", f"RuntimeClass rc-{namespace}"}
    assert 'cannot get resource "configmaps"' in snapshot.unread["ConfigMap site"]
    assert (snapshot.config_maps, snapshot.claim_terms, snapshot.runtime_class) == ({}, {"models": None}, None)
    await kube.delete(PERSISTENT_VOLUME, f"pv-{namespace}")
    await kube.delete(RUNTIME_CLASS, f"rc-{namespace}")
