"""Writes on a real API server: accepted where they must be, refused where they must be, and without a trace afterwards."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.apiserver.make_cluster import (
    QUOTA,
    create_node,
    ensure_kinds,
    ensure_priority_class,
    make,
    make_adaptation,
    make_deployment,
    make_pool,
)
from tests.apiserver.merge_patch import patch_merge
from tests.unit.act.make_actions import LIMITS, make_bench_job, make_probe_job

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor, Outcome
from metainfer.act.jobs import build_job
from metainfer.act.release import find_contested_env, owns_fields
from metainfer.act.restore import restore_target
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus, FamilyStatus
from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.api.v1alpha1.model_adaptation import RunStatus
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.facts import Toleration
from metainfer.decide.plan import Action, ApplyTarget, DeleteJob, DeletePortrait, EmitEvent, RecordDecision, WriteNodeLabels, WritePortrait
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Conflict, Forbidden, NotFound
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, EVENT, JOB, NAMESPACE, NODE, POD, POOL, PORTRAIT, Kind
from metainfer.observe.projections import project_adaptation, project_pool

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
PRECISION = "METAINFER_PRECISION"
CLASS = "meta-infer-probe-of-tests"


class NoLog:
    """A decision log that nobody should need here."""

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        raise AssertionError((adaptation_uid, decision))


def unique(name: str) -> str:
    """Cluster-scoped objects outlive a test's namespace."""
    return f"{name}-{secrets.token_hex(4)}"


async def execute(kube: Any, *actions: Action, remembered: list[Raw] | None = None, involved: ObjectRef | None = None) -> list[Outcome]:
    remember = remembered.append if remembered is not None else lambda _raw: None
    actor = Actor(kube, NoLog(), replace(LIMITS, priority_class=CLASS), remember)  # type: ignore[arg-type]  # a list takes any object
    return list(await actor.execute(actions, involved or ObjectRef("v1", "ConfigMap", "anything", "uid-x", "default")))


def results(outcomes: list[Outcome]) -> list[str]:
    return [item.result for item in outcomes]


# --- Jobs ------------------------------------------------------------------------------------------------------------


async def restrict(kube: KubeClient, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await patch_merge(kube, NAMESPACE, namespace, None, {"metadata": {"labels": labels}})
    await ensure_priority_class(kube, CLASS)


def pod_of(job: Mapping[str, Any], namespace: str) -> Raw:
    """The pod that the Job controller would make."""
    template = copy.deepcopy(job["spec"]["template"])
    metadata = {"name": job["metadata"]["name"], "namespace": namespace, "labels": template["metadata"].get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.parametrize("purpose", ["probe", "bench"])
async def test_jobs_and_their_pods_are_accepted_under_pod_security_restricted(kube: KubeClient, namespace: str, purpose: str) -> None:
    """In every namespace that is locked down as it should be; a pod without our care is refused there."""
    await restrict(kube, namespace)
    action = (make_probe_job if purpose == "probe" else make_bench_job)(namespace=namespace)
    remembered: list[Raw] = []
    assert results(await execute(kube, action, remembered=remembered)) == ["Done"]
    (job,) = remembered
    pod = await kube.create(POD, pod_of(job, namespace))
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (-1000, "Never")
    careless = pod_of(job, namespace)
    careless["metadata"]["name"] = "careless"
    del careless["spec"]["containers"][0]["securityContext"]
    with pytest.raises(Forbidden, match="restricted"):
        await kube.create(POD, careless)


async def test_the_server_changes_nothing_that_was_asked_for(kube: KubeClient, namespace: str) -> None:
    """Every field of the manifest is known to the API: none is dropped or defaulted away."""

    def differences(want: Any, got: Any, path: str = "") -> list[str]:
        if isinstance(want, dict):
            missing = [f"{path}.{key}" for key in want if key not in (got or {})]
            return missing + [found for key in want if key in (got or {}) for found in differences(want[key], got[key], f"{path}.{key}")]
        if isinstance(want, list):
            return [found for index, item in enumerate(want) for found in differences(item, got[index], f"{path}[{index}]")]
        return [] if want == got else [f"{path}: {want!r} became {got!r}"]

    odd = {"cpu": 3500, "memory": (2 << 30) + 1}  # others are rewritten: 4000m becomes 4
    toleration = Toleration("gpu", "Exists", "", "NoSchedule")
    want = build_job(make_bench_job(namespace=namespace, tolerations=(toleration,), runtime_class="gpu", requests=odd, limits=odd), LIMITS)
    got = await kube.create(JOB, want)
    assert differences(want, got) == []


async def test_a_priority_class_that_preempts_is_refused_not_used(kube: KubeClient, namespace: str) -> None:
    """Whoever points the setting at such a class learns it before anybody is evicted."""
    name = unique("preempting")
    await ensure_priority_class(kube, name, preemptionPolicy="PreemptLowerPriority")
    pod = pod_of(build_job(make_probe_job(namespace=namespace), replace(LIMITS, priority_class=name)), namespace)
    with pytest.raises(Forbidden, match="PreemptionPolicy"):
        await kube.create(POD, pod)


async def test_a_job_is_created_once_and_deleted_by_uid(kube: KubeClient, namespace: str) -> None:
    """Twice is once; the Job of another time is left alone; gone is fine."""
    action = make_probe_job(namespace=namespace)
    assert results(await execute(kube, action, action)) == ["Done", "Unchanged"]
    job = await kube.get(JOB, action.name, namespace)
    await execute(kube, DeleteJob(namespace, action.name, "stuck", uid="another"))
    assert (await kube.get(JOB, action.name, namespace))["metadata"]["uid"] == job["metadata"]["uid"]
    assert results(await execute(kube, *(DeleteJob(namespace, action.name, "stuck") for _ in range(2)))) == ["Done", "Unchanged"]
    with pytest.raises(NotFound):
        await kube.get(JOB, action.name, namespace)


async def refused_by_quota(kube: KubeClient, namespace: str) -> Outcome:
    """The first Job that the quota holds up: admission knows quotas from a watch of its own, so earlier ones may pass."""
    for number in range(50):
        (outcome,) = await execute(kube, replace(make_probe_job(namespace=namespace), name=f"quota-{number}"))
        if outcome.result == "Refused":
            return outcome
        await asyncio.sleep(0.1)
    pytest.fail("the quota never came into force")


async def test_a_quota_on_jobs_is_told_with_its_numbers(kube: KubeClient, namespace: str) -> None:
    """The user can do something about it."""
    await kube.create(QUOTA, make(QUOTA, "team", namespace, spec={"hard": {"count/jobs.batch": "0"}}))
    # No controller runs here that would take the quota into force.
    status = {"hard": {"count/jobs.batch": "0"}, "used": {"count/jobs.batch": "0"}}
    await patch_merge(kube, QUOTA, "team", namespace, {"status": status}, subresource="status")
    outcome = await refused_by_quota(kube, namespace)
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.failure.retryable) == ("QuotaExceeded", True)
    assert "limited: count/jobs.batch=0" in outcome.failure.message


# --- Node labels and portraits ---------------------------------------------------------------------------------------


async def test_node_labels_are_ours_alone_and_given_up_without_a_trace(kube: KubeClient) -> None:
    """The vendor's labels stay; a second write of the same is none; an empty set leaves nothing of us."""
    name = unique("node")
    await create_node(kube, name, labels={"vendor.example/product": "X"})
    labels = {FAMILY_LABEL: "ort-cpu", HEALTH_LABEL: "degraded"}
    remembered: list[Raw] = []
    assert results(await execute(kube, WriteNodeLabels(name, labels), WriteNodeLabels(name, labels), remembered=remembered)) == ["Done", "Unchanged"]
    node = await kube.get(NODE, name)
    assert labels.items() <= node["metadata"]["labels"].items()
    assert remembered == [node]
    await execute(kube, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}))
    assert HEALTH_LABEL not in (await kube.get(NODE, name))["metadata"]["labels"]
    await execute(kube, WriteNodeLabels(name, {}))
    node = await kube.get(NODE, name)
    assert node["metadata"]["labels"] == {"vendor.example/product": "X"}
    assert not owns_fields(node)


async def test_a_node_that_is_gone_is_not_made_by_labelling_it(kube: KubeClient) -> None:
    """An apply creates what is not there."""
    name = unique("gone")
    assert results(await execute(kube, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}))) == ["Unchanged"]
    await create_node(kube, name)
    with pytest.raises(Conflict):
        await execute(Meanwhile(kube, "apply", lambda: kube.delete(NODE, name)), WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}))
    with pytest.raises(NotFound):
        await kube.get(NODE, name)


async def test_a_label_that_somebody_else_set_is_contested_by_name(kube: KubeClient) -> None:
    """Never forced."""
    name = unique("node")
    await create_node(kube, name, labels={FAMILY_LABEL: "by-hand"})
    (outcome,) = await execute(kube, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}))
    assert outcome.result == "Contested"
    assert [item.field for item in outcome.conflicts] == [f".metadata.labels.{FAMILY_LABEL}"]
    assert (await kube.get(NODE, name))["metadata"]["labels"][FAMILY_LABEL] == "by-hand"


def make_portrait(node: Raw, **status: Any) -> WritePortrait:
    spec = NodePortraitSpec(node_uid=node["metadata"]["uid"], pool="lab", family="ort-cpu")
    return WritePortrait(node["metadata"]["name"], spec, NodePortraitStatus(**({"observed_generation": 1, "cards": 1, "health": "Healthy"} | status)))


async def test_a_portrait_is_owned_by_its_node_and_written_only_when_it_changed(kube: KubeClient) -> None:
    """It goes with the node; an unchanged one costs no write; an unset field really goes."""
    await ensure_kinds(kube)
    node = await create_node(kube, unique("node"))
    action = make_portrait(node, measured_at="2026-03-01T12:00:00Z")
    assert results(await execute(kube, action, action)) == ["Done", "Unchanged"]
    portrait = await kube.get(PORTRAIT, action.node)
    assert [(item["kind"], item["uid"]) for item in portrait["metadata"]["ownerReferences"]] == [("Node", node["metadata"]["uid"])]
    assert portrait["status"]["measuredAt"] == "2026-03-01T12:00:00Z"
    assert results(await execute(kube, make_portrait(node, health="Degraded"))) == ["Done"]
    status = (await kube.get(PORTRAIT, action.node))["status"]
    assert (status["health"], "measuredAt" in status) == ("Degraded", False)
    moved = replace(action, spec=action.spec.model_copy(update={"family": "openvino-cpu"}))
    assert results(await execute(kube, moved)) == ["Done"]
    assert (await kube.get(PORTRAIT, action.node))["spec"]["family"] == "openvino-cpu"


async def test_the_portrait_of_a_replaced_node_is_another_object(kube: KubeClient) -> None:
    """Garbage collection of the old node must not take the new portrait along."""
    await ensure_kinds(kube)
    first = make_portrait(await create_node(kube, unique("node")))
    await execute(kube, first)
    old = await kube.get(PORTRAIT, first.node)
    await kube.delete(NODE, first.node)
    second = make_portrait(await create_node(kube, first.node))
    assert results(await execute(kube, second)) == ["Done"]
    new = await kube.get(PORTRAIT, first.node)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["ownerReferences"][0]["uid"] == second.spec.node_uid


async def test_only_the_pool_that_has_a_portrait_deletes_it(kube: KubeClient) -> None:
    """The node has moved to another pool meanwhile."""
    await ensure_kinds(kube)
    action = make_portrait(await create_node(kube, unique("node")))
    await execute(kube, action)
    pools = [ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", name, "uid") for name in ("another", "lab", "lab")]
    outcomes = [item for pool in pools for item in await execute(kube, DeletePortrait(action.node, "left"), involved=pool)]
    assert results(outcomes) == ["Unchanged", "Done", "Unchanged"]


# --- Events ----------------------------------------------------------------------------------------------------------


async def test_events_are_aggregated_on_the_server(kube: KubeClient, namespace: str) -> None:
    """Three times the same is one Event with count 3, also over restarts; cluster-scoped objects have theirs in default."""
    told = EmitEvent("Warning", "ProbeFailed", unique("card of node-1 refused"))
    adaptation = ObjectRef("metainfer.dev/v1alpha1", "ModelAdaptation", "ocr", unique("uid"), namespace)
    pool = ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", "lab", unique("uid"))
    for involved in (adaptation, pool, adaptation, pool, adaptation):
        assert results(await execute(kube, told, involved=involved)) == ["Done"]
    events, _ = await kube.list(EVENT, namespace=namespace, field_selector=f"involvedObject.uid={adaptation.uid}")
    assert [(item["count"], item["reason"], item["message"], item["type"]) for item in events] == [(3, "ProbeFailed", told.message, "Warning")]
    events, _ = await kube.list(EVENT, namespace="default", field_selector=f"involvedObject.uid={pool.uid}")
    assert [item["count"] for item in events] == [2]


# --- Status ----------------------------------------------------------------------------------------------------------


async def test_status_is_compared_and_swapped(kube: KubeClient, namespace: str) -> None:
    """Equal is no write, an older version is a Conflict, and what is no longer set is gone."""
    await ensure_kinds(kube)
    remembered: list[Raw] = []
    actor = Actor(kube, NoLog(), LIMITS, remembered.append)  # type: ignore[arg-type]  # a list takes any object
    facts = project_adaptation(await kube.create(ADAPTATION, make_adaptation("ocr", namespace)))
    assert facts.status.observed_generation == -1
    run = RunStatus(id="r", inputs_hash="h", started_at=datetime(2026, 3, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), step="Profiling")
    claimed = await actor.write_adaptation_status(facts, facts.status.model_copy(update={"observed_generation": 1, "run": run}))
    assert project_adaptation(await kube.get(ADAPTATION, "ocr", namespace)) == claimed
    assert await actor.write_adaptation_status(claimed, claimed.status) == claimed
    assert len(remembered) == 1
    with pytest.raises(Conflict):
        await actor.write_adaptation_status(facts, facts.status.model_copy(update={"observed_generation": 7}))
    await actor.write_adaptation_status(claimed, claimed.status.model_copy(update={"run": None}))
    assert "run" not in (await kube.get(ADAPTATION, "ocr", namespace))["status"]


async def test_a_pools_status_is_compared_and_swapped_too(kube: KubeClient) -> None:
    """The same protocol for the cluster-scoped kind."""
    await ensure_kinds(kube)
    name, remembered = unique("lab"), list[Raw]()
    actor = Actor(kube, NoLog(), LIMITS, remembered.append)  # type: ignore[arg-type]  # a list takes any object
    facts = project_pool(await kube.create(POOL, make_pool(name)))
    status = AcceleratorPoolStatus(observed_generation=1, nodes=2, families=(FamilyStatus(name="ort-cpu", nodes=2, cards=2),))
    await actor.write_pool_status(facts, status)
    written = project_pool(await kube.get(POOL, name))
    assert written.status == status
    await actor.write_pool_status(written, status)
    assert len(remembered) == 1
    with pytest.raises(Conflict):
        await actor.write_pool_status(facts, status)
    await kube.delete(POOL, name)


# --- The target ------------------------------------------------------------------------------------------------------


class Meanwhile:
    """The same client, but before the first call of ``verb`` something happens in the cluster."""

    def __init__(self, kube: KubeClient, verb: str, happens: Any) -> None:
        self._kube, self._verb, self._happens = kube, verb, happens

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kube, name)
        if name != self._verb:
            return method

        async def after(*arguments: Any, **options: Any) -> Any:
            happens, self._happens = self._happens, None
            if happens is not None:
                await happens()
            return await method(*arguments, **options)

        return after


def make_apply(namespace: str, *, env: Mapping[str, str], release: tuple[tuple[str, str], ...] = ()) -> ApplyTarget:
    """Our whole set of fields: env entries, both halves of node affinity, an annotation."""
    term = {"matchExpressions": [{"key": FAMILY_LABEL, "operator": "In", "values": ["ort-cpu"]}]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}],
    }
    containers = [{"name": "server", "env": [{"name": key, "value": value} for key, value in env.items()]}]
    template = {"metadata": {"annotations": {"metainfer.dev/decision": "d1"}}, "spec": {"containers": containers, "affinity": {"nodeAffinity": affinity}}}
    return ApplyTarget(namespace, "ocr", {"spec": {"template": template}}, "d1", release)


def owned_by_nobody(deployment: Mapping[str, Any]) -> Raw:
    """What the owner's manifest comes to: the object without what every object has of its own."""
    spec = copy.deepcopy(deployment["spec"])
    return {"spec": spec, "labels": deployment["metadata"]["labels"], "annotations": deployment["metadata"].get("annotations")}


def env_of(deployment: Mapping[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value") for item in deployment["spec"]["template"]["spec"]["containers"][0].get("env", ())}


async def overwrite(kube: KubeClient, deployment: Raw) -> None:
    """An owner on client-side apply starts to declare our name: a merge by name, which takes over the value and nothing else."""
    index = next(number for number, item in enumerate(deployment["spec"]["template"]["spec"]["containers"][0]["env"]) if item["name"] == PRECISION)
    path = f"/spec/template/spec/containers/0/env/{index}/value"
    await as_manager(kube, "kubectl-client-side-apply").patch_json(
        DEPLOYMENT, "ocr", deployment["metadata"]["namespace"], [{"op": "replace", "path": path, "value": "fp32"}]
    )


class OtherManager(KubeClient):
    """The same server under another field manager's name."""

    def __init__(self, kube: KubeClient, manager: str) -> None:
        super().__init__(kube._transport)
        self._manager = manager

    async def _send_json(self, call: Any) -> Raw:
        return await super()._send_json(replace(call, query={**(call.query or {}), "fieldManager": self._manager}))


def as_manager(kube: KubeClient, manager: str) -> KubeClient:
    return OtherManager(kube, manager)


async def create_target(kube: KubeClient, namespace: str, owner: str = "kubectl-client-side-apply") -> Raw:
    return await as_manager(kube, owner).create(DEPLOYMENT, make_deployment("ocr", namespace))


async def test_our_fields_are_added_and_restoring_leaves_the_owners_object(kube: KubeClient, namespace: str) -> None:
    """Spec, labels and annotations are what they were, and nothing is recorded under our name."""
    before = await create_target(kube, namespace)
    remembered: list[Raw] = []
    assert results(await execute(kube, make_apply(namespace, env={PRECISION: "int8"}), remembered=remembered)) == ["Done"]
    assert env_of(remembered[0]) == {PRECISION: "int8"}
    after = (await restore_target(kube, namespace, "ocr")).deployment
    assert owned_by_nobody(after) == owned_by_nobody(before)
    assert not owns_fields(after)


async def test_the_same_apply_twice_is_one_rollout(kube: KubeClient, namespace: str) -> None:
    """Killed after the write: the second one changes nothing."""
    await create_target(kube, namespace)
    action = make_apply(namespace, env={PRECISION: "int8"})
    remembered: list[Raw] = []
    await execute(kube, action, action, remembered=remembered)
    assert len({item["metadata"]["resourceVersion"] for item in remembered}) == 1


async def test_an_apply_is_for_the_version_that_was_judged(kube: KubeClient, namespace: str) -> None:
    """The owner moved since, so what is his must be judged again: nothing is written."""
    judged = (await create_target(kube, namespace))["metadata"]["resourceVersion"]
    moved = await patch_merge(kube, DEPLOYMENT, "ocr", namespace, {"metadata": {"labels": {"team": "speech"}}})
    with pytest.raises(Conflict):
        await execute(kube, replace(make_apply(namespace, env={PRECISION: "int8"}), resource_version=judged))
    assert await kube.get(DEPLOYMENT, "ocr", namespace) == moved


async def test_an_apply_that_was_held_up_on_its_way_changes_nothing(kube: KubeClient, namespace: str) -> None:
    """It arrives when something else stands there: the answer is a conflict, not a rollout back to what was decided before."""
    await create_target(kube, namespace)

    async def decide_anew() -> None:
        await execute(kube, make_apply(namespace, env={PRECISION: "bf16"}))

    with pytest.raises(Conflict):
        await execute(Meanwhile(kube, "apply", decide_anew), make_apply(namespace, env={PRECISION: "int8"}))
    assert env_of(await kube.get(DEPLOYMENT, "ocr", namespace)) == {PRECISION: "bf16"}


async def test_a_conflict_names_path_and_manager_and_changes_nothing(kube: KubeClient, namespace: str) -> None:
    """The owner has taken our value over: never forced."""
    await create_target(kube, namespace)
    remembered: list[Raw] = []
    await execute(kube, make_apply(namespace, env={PRECISION: "int8"}), remembered=remembered)
    await overwrite(kube, remembered[0])
    before = await kube.get(DEPLOYMENT, "ocr", namespace)
    (outcome,) = await execute(kube, make_apply(namespace, env={PRECISION: "bf16"}))
    assert outcome.result == "Contested"
    want = f'.spec.template.spec.containers[name="server"].env[name="{PRECISION}"].value', "kubectl-client-side-apply"
    assert [(item.field, item.manager) for item in outcome.conflicts] == [want]
    assert (await kube.get(DEPLOYMENT, "ocr", namespace))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_leaving_a_contested_name_out_without_release_would_delete_the_owners_entry(kube: KubeClient, namespace: str) -> None:
    """Why the release step exists: if this ever stops failing, it can go."""
    await create_target(kube, namespace)
    remembered: list[Raw] = []
    await execute(kube, make_apply(namespace, env={PRECISION: "int8", "OTHER": "1"}), remembered=remembered)
    await overwrite(kube, remembered[0])
    await execute(kube, make_apply(namespace, env={"OTHER": "1"}))
    assert PRECISION not in env_of(await kube.get(DEPLOYMENT, "ocr", namespace))


async def test_a_released_name_stays_the_owners_and_the_rest_stays_ours(kube: KubeClient, namespace: str) -> None:
    """Stepping back from one env entry: value, generation and our other fields are untouched."""
    await create_target(kube, namespace)
    remembered: list[Raw] = []
    await execute(kube, make_apply(namespace, env={PRECISION: "int8", "OTHER": "1"}), remembered=remembered)
    await overwrite(kube, remembered[0])
    contested = await kube.get(DEPLOYMENT, "ocr", namespace)
    assert find_contested_env(contested) == (("server", PRECISION),)
    action = make_apply(namespace, env={"OTHER": "1"}, release=(("server", PRECISION),))
    assert results(await execute(kube, action, action)) == ["Done", "Done"]
    after = await kube.get(DEPLOYMENT, "ocr", namespace)
    assert env_of(after) == {PRECISION: "fp32", "OTHER": "1"}
    assert after["metadata"]["generation"] == contested["metadata"]["generation"]
    assert find_contested_env(after) == ()


async def test_restoring_a_contested_target_is_identical_to_the_owners_own(kube: KubeClient, namespace: str) -> None:
    """Compared with a Deployment that never knew us: the owner's manifest with the name in it."""
    await create_target(kube, namespace)
    remembered: list[Raw] = []
    await execute(kube, make_apply(namespace, env={PRECISION: "int8", "OTHER": "1"}), remembered=remembered)
    await overwrite(kube, remembered[0])
    restored = (await restore_target(kube, namespace, "ocr")).deployment
    await kube.delete(DEPLOYMENT, "ocr", namespace)
    never_known = await kube.create(DEPLOYMENT, make_deployment("ocr", namespace, env={PRECISION: "fp32"}))
    assert owned_by_nobody(restored) == owned_by_nobody(never_known)
    assert not owns_fields(restored)


async def test_restoring_what_is_not_ours_writes_nothing(kube: KubeClient, namespace: str) -> None:
    """Twice is once, and a target we never wrote to is none of our business."""
    before = await create_target(kube, namespace)
    after = (await restore_target(kube, namespace, "ocr")).deployment
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_server_side_owner_keeps_what_he_applies_himself(kube: KubeClient, namespace: str) -> None:
    """Co-owned with the same value: giving ours up leaves his."""
    owner = as_manager(kube, "chart")
    manifest = make_deployment("ocr", namespace, env={PRECISION: "int8"})
    await owner.apply(DEPLOYMENT, "ocr", make_deployment("ocr", namespace), namespace=namespace)
    await execute(kube, make_apply(namespace, env={PRECISION: "int8"}))
    await owner.apply(DEPLOYMENT, "ocr", manifest, namespace=namespace)
    assert env_of((await restore_target(kube, namespace, "ocr")).deployment) == {PRECISION: "int8"}


async def test_a_write_in_between_makes_the_release_a_conflict(kube: KubeClient, namespace: str) -> None:
    """The patch names an index of managedFields: it must never hit another one's item."""
    await create_target(kube, namespace)
    remembered: list[Raw] = []
    await execute(kube, make_apply(namespace, env={PRECISION: "int8"}), remembered=remembered)
    await overwrite(kube, remembered[0])

    async def relabel() -> None:
        await patch_merge(as_manager(kube, "somebody"), DEPLOYMENT, "ocr", namespace, {"metadata": {"labels": {"moved": "yes"}}})

    with pytest.raises(Conflict):
        await restore_target(Meanwhile(kube, "patch_json", relabel), namespace, "ocr")
    assert env_of(await kube.get(DEPLOYMENT, "ocr", namespace)) == {PRECISION: "fp32"}
    assert env_of((await restore_target(kube, namespace, "ocr")).deployment) == {PRECISION: "fp32"}


async def test_a_target_deleted_in_between_is_not_half_created(kube: KubeClient, namespace: str) -> None:
    """An apply creates what is not there; ours must not."""
    await create_target(kube, namespace)
    racing = Meanwhile(kube, "apply", lambda: kube.delete(DEPLOYMENT, "ocr", namespace))
    with pytest.raises(Conflict):
        await execute(racing, make_apply(namespace, env={PRECISION: "int8"}))
    with pytest.raises(NotFound):
        await kube.get(DEPLOYMENT, "ocr", namespace)


async def test_a_container_that_is_not_there_is_refused_by_the_server(kube: KubeClient, namespace: str) -> None:
    """422 'image Required': an outcome for the status, never a retry."""
    await create_target(kube, namespace)
    body = {"spec": {"template": {"spec": {"containers": [{"name": "wrong", "env": [{"name": PRECISION, "value": "int8"}]}]}}}}
    (outcome,) = await execute(kube, ApplyTarget(namespace, "ocr", body, "d1"))
    assert (outcome.result, outcome.failure and outcome.failure.reason) == ("Refused", "ApplyTargetInvalid")
    assert outcome.failure is not None
    assert "image: Required" in outcome.failure.message


def test_kinds_used_here_are_the_operators() -> None:
    """A typo in a kind would test another object."""
    assert isinstance(DEPLOYMENT, Kind)
    assert DEPLOYMENT.api_version == "apps/v1"
