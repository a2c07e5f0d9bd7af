"""The chart's roles are enough for everything the operator reads and writes, and for nothing that it must not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.api_server import find_binary
from tests.apiserver.make_cluster import connect_limited, create_node, ensure_kinds, make, make_adaptation, make_deployment, make_pool
from tests.apiserver.make_placed import place
from tests.apiserver.merge_patch import patch_merge
from tests.unit.act.make_actions import LIMITS, make_probe_job

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor
from metainfer.act.release import owns_fields
from metainfer.act.restore import restore_target
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.leaving import decide_leaving
from metainfer.decide.orphans import decide_orphans
from metainfer.decide.plan import Action, ApplyTarget, DeleteJob, DeletePortrait, EmitEvent, RecordDecision, WriteNodeLabels, WritePortrait
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Forbidden
from metainfer.kube.kinds import ADAPTATION, CONFIG_MAP, DEPLOYMENT, EVENT, JOB, NODE, PERSISTENT_VOLUME_CLAIM, POD, POOL, Kind
from metainfer.observe.gather import Gatherer
from metainfer.observe.leftovers import LeftoverGatherer
from metainfer.observe.projections import project_adaptation, project_pool
from metainfer.store.patient import open_patiently
from metainfer.watch.cluster import ClusterCache

pytestmark = [pytest.mark.apiserver, pytest.mark.chart]

Raw = dict[str, Any]
CHART = Path(__file__).resolve().parents[2] / "charts" / "meta-infer"
SECRET = Kind("", "v1", "Secret", "secrets", namespaced=True)


def chart_rules(*options: str) -> list[Raw]:
    """Every rule that the chart gives the operator's service account, wherever it is bound."""
    command = [find_binary("helm"), "template", "meta-infer", CHART, *options]
    rendered = [item for item in yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout) if item]
    bindings = [item for item in rendered if item["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    bound = {item["roleRef"]["name"] for item in bindings if any(subject["kind"] == "ServiceAccount" for subject in item["subjects"])}
    rules = [rule for item in rendered if item["kind"] in ("ClusterRole", "Role") and item["metadata"]["name"] in bound for rule in item["rules"]]
    assert rules, "the chart binds no role"
    return rules


@pytest.fixture
async def operator(kube: KubeClient, namespace: str) -> AsyncIterator[KubeClient]:
    """A client with the chart's rights."""
    client = await connect_limited(kube, namespace, chart_rules())
    yield client
    await client.close()


class Log:
    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        return bool(adaptation_uid and decision)


async def test_every_action_is_within_the_charts_rights(kube: KubeClient, namespace: str, operator: KubeClient) -> None:
    """Each kind of write once, first and second time, as the operator's service account."""
    await ensure_kinds(kube)
    node = await create_node(kube, f"node-{namespace}")
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    spec = NodePortraitSpec(node_uid=node["metadata"]["uid"], pool="lab", family="ort-cpu")
    env = {"containers": [{"name": "server", "env": [{"name": "METAINFER_PRECISION", "value": "int8"}]}]}
    job = make_probe_job(namespace=namespace)
    actions: tuple[Action, ...] = (
        job,
        WriteNodeLabels(node["metadata"]["name"], {FAMILY_LABEL: "ort-cpu"}),
        WritePortrait(node["metadata"]["name"], spec, NodePortraitStatus(cards=1)),
        WritePortrait(node["metadata"]["name"], spec.model_copy(update={"family": "openvino-cpu"}), NodePortraitStatus(cards=2)),
        ApplyTarget(namespace, "ocr", {"spec": {"template": {"spec": env}}}, "d1"),
        RecordDecision("d1", "run-1", datetime.now(UTC), {}),
        EmitEvent("Normal", "Decided", "words"),
    )
    last = (DeletePortrait(node["metadata"]["name"], "left"), DeleteJob(namespace, job.name, "stuck"), WriteNodeLabels(node["metadata"]["name"], {}))
    lab = ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", "lab", f"uid-{namespace}")
    actor = Actor(operator, Log(), LIMITS, lambda _raw: None)
    refused = [
        (type(outcome.action).__name__, outcome.failure.message)
        for plan in (actions, actions, last)
        for outcome in await actor.execute(plan, lab)
        if outcome.failure is not None or outcome.result == "Dropped"
    ]
    assert refused == []
    events, _ = await kube.list(EVENT, namespace="default", field_selector=f"involvedObject.uid=uid-{namespace}")
    assert [item["count"] for item in events] == [2]
    await restore_target(operator, namespace, "ocr")


async def test_status_of_both_kinds_is_within_the_charts_rights(kube: KubeClient, namespace: str, operator: KubeClient) -> None:
    """The claim of every pass."""
    await ensure_kinds(kube)
    pool = project_pool(await kube.create(POOL, make_pool(f"lab-{namespace}")))
    adaptation = project_adaptation(await kube.create(ADAPTATION, make_adaptation("ocr", namespace)))
    actor = Actor(operator, Log(), LIMITS, lambda _raw: None)
    await actor.write_pool_status(pool, pool.status.model_copy(update={"observed_generation": 1}))
    claimed = await actor.write_adaptation_status(adaptation, adaptation.status.model_copy(update={"observed_generation": 1}))
    assert claimed.resource_version != adaptation.resource_version
    await kube.delete(POOL, pool.name)


async def test_every_read_is_within_the_charts_rights(kube: KubeClient, namespace: str, operator: KubeClient, tmp_path: Path) -> None:
    """Target, ConfigMap, claim, RuntimeClass, Events of a Job without pods, and the log (which no kubelet answers here)."""
    await ensure_kinds(kube)
    adaptation = project_adaptation(await kube.create(ADAPTATION, make_adaptation("ocr", namespace)))
    await kube.create(CONFIG_MAP, make(CONFIG_MAP, "site", namespace, data={"A": "1"}))
    claim = {"accessModes": ["ReadOnlyMany"], "volumeName": "absent", "resources": {"requests": {"storage": "1Gi"}}}
    await kube.create(PERSISTENT_VOLUME_CLAIM, make(PERSISTENT_VOLUME_CLAIM, "models", namespace, spec=claim))
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    deployment = make_deployment("ocr", namespace, volumes=volumes, runtimeClassName="absent")
    deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "site"}}]
    await kube.create(DEPLOYMENT, deployment)
    cache = ClusterCache()
    cache.take(ADAPTATION, await kube.get(ADAPTATION, "ocr", namespace))
    store = open_patiently(f"sqlite:///{tmp_path}/samples.db")
    gatherer = Gatherer(cache, operator, store, replace(LIMITS, operator_namespace=namespace), clock=lambda: datetime.now(UTC))
    gathered = await gatherer.gather_adaptation(namespace, "ocr")
    await store.close()
    assert gathered is not None
    assert gathered.snapshot.adaptation == adaptation
    assert (gathered.snapshot.unread, gathered.snapshot.config_maps) == ({}, {"site": {"A": "1"}})
    assert await operator.list(EVENT, namespace=namespace, field_selector="involvedObject.uid=x,reason=FailedCreate")
    with pytest.raises(Exception, match="x") as caught:
        await operator.pod_log(namespace, "x", "probe", tail_lines=1, limit_bytes=100)
    assert not isinstance(caught.value, Forbidden)


async def test_leaving_is_within_the_charts_rights(kube: KubeClient, namespace: str, operator: KubeClient) -> None:
    """Who claims a Deployment, what deleted pools left, and giving everything back."""
    await ensure_kinds(kube)
    for pool in (await kube.list(POOL))[0]:  # other tests' pools might lay claim to the node
        await kube.delete(POOL, pool["metadata"]["name"])
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    await create_node(kube, f"left-{namespace}", labels={FAMILY_LABEL: "gone"})
    cache = ClusterCache()
    cache.take(DEPLOYMENT, await place(kube, namespace, "ocr"))
    cache.take(NODE, await kube.get(NODE, f"left-{namespace}"))
    gatherer = LeftoverGatherer(cache, operator)
    leaving, orphans = await gatherer.gather_leaving(namespace, "ocr"), await gatherer.gather_orphans()
    assert leaving is not None
    assert orphans is not None
    actor = Actor(operator, Log(), LIMITS, lambda _raw: None)
    involved = ObjectRef("apps/v1", "Deployment", "ocr", "uid", namespace)
    outcomes = [*await actor.execute(decide_leaving(leaving), involved), *await actor.execute(decide_orphans(orphans)[""], involved)]
    assert [outcome.failure for outcome in outcomes if outcome.failure is not None] == []
    assert not owns_fields(await kube.get(DEPLOYMENT, "ocr", namespace))
    await kube.delete(NODE, f"left-{namespace}")


async def test_what_the_operator_must_not_do_is_refused(kube: KubeClient, namespace: str, operator: KubeClient) -> None:
    """Secrets, pods, nodes and other people's Deployments are not its to read, make or delete."""
    await kube.create(SECRET, make(SECRET, "key", namespace))
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    pod = make(POD, "p", namespace, spec={"containers": [{"name": "c", "image": "i"}]})
    for attempt in (
        operator.get(SECRET, "key", namespace),
        operator.list(SECRET, namespace=namespace),
        operator.create(POD, pod),
        operator.create(NODE, make(NODE, "n")),
        operator.create(DEPLOYMENT, make_deployment("another", namespace)),
        operator.delete(DEPLOYMENT, "ocr", namespace),
        operator.delete(NODE, "n"),
        operator.create(CONFIG_MAP, make(CONFIG_MAP, "c", namespace)),
        patch_merge(operator, ADAPTATION, "ocr", namespace, {"spec": {"suspend": True}}),
    ):
        with pytest.raises(Forbidden):
            await attempt


async def test_recommend_only_rights_refuse_the_apply_by_name(kube: KubeClient, namespace: str) -> None:
    """A typed outcome for the status, and everything else still works."""
    rules = chart_rules("--set", "rbac.apply.enabled=false")
    limited = await connect_limited(kube, namespace, rules)
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    try:
        actor = Actor(limited, Log(), LIMITS, lambda _raw: None)
        involved = ObjectRef("metainfer.dev/v1alpha1", "ModelAdaptation", "ocr", "uid", namespace)
        body = {"spec": {"template": {"metadata": {"annotations": {"metainfer.dev/decision": "d1"}}}}}
        (outcome,) = await actor.execute((ApplyTarget(namespace, "ocr", body, "d1"),), involved)
        assert (outcome.result, outcome.failure and outcome.failure.reason) == ("Refused", "ApplyTargetForbidden")
        (outcome,) = await actor.execute((make_probe_job(namespace=namespace),), involved)
        assert outcome.result == "Done"
    finally:
        await limited.close()
    assert json.dumps(await kube.get(JOB, "mi-probe-1", namespace))
