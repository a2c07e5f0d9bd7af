"""Leaving a Deployment on a real API server: what its owner declares is what remains, and what cannot be given back is named."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.apiserver.controllers import run_controllers
from tests.apiserver.make_cluster import create_node, ensure_kinds, make_adaptation, make_deployment, make_pool
from tests.apiserver.make_placed import DECISION, PRECISION, Kubectl, by_both_owners, declared, env_of, make_actor, place, try_place
from tests.apiserver.merge_patch import patch_merge
from tests.apiserver.test_act import as_manager

from metainfer.act.events import ObjectRef
from metainfer.act.release import owns_fields
from metainfer.act.restore import preview_restored, restore_target
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FAMILY_LABEL, PREIMAGE_ANNOTATION
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.plan import WriteNodeLabels, WritePortrait
from metainfer.decide.pre_image import read_pre_image
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Conflict, NotFound
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, EVENT, NAMESPACE, NODE, POOL, PORTRAIT
from metainfer.observe.leftovers import LeftoverGatherer
from metainfer.predict.physics import PhysicsPredictor
from metainfer.reconcile import ORPHANS, Reconciler, Request
from metainfer.watch.cluster import ClusterCache

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
OCR = "ocr"


@pytest.fixture(autouse=True)
async def _kinds(kube: KubeClient) -> None:
    """Our CRDs."""
    await ensure_kinds(kube)


# --- one Deployment ---


@by_both_owners
@pytest.mark.parametrize(
    "affinity",
    [
        pytest.param({}, id="affinity: {}"),
        pytest.param({"nodeAffinity": {}}, id="nodeAffinity: {}"),
        pytest.param({"podAntiAffinity": {}}, id="podAntiAffinity"),
    ],
)
async def test_empty_parents_come_back_in_the_one_rollout_of_restoring(
    kube: KubeClient, namespace: str, kubectl: Kubectl, flags: tuple[str, ...], affinity: Raw
) -> None:
    """An empty map of the owner would go with our part of it. Written once, given back once: two generations in all."""
    kubectl.apply(make_deployment(OCR, namespace, affinity=affinity), *flags)
    before = await kube.get(DEPLOYMENT, OCR, namespace)
    await place(kube, namespace, OCR)
    restored = await restore_target(kube, namespace, OCR)
    assert restored.left == ()
    assert declared(restored.deployment) == declared(before)
    assert restored.deployment["metadata"]["generation"] == before["metadata"]["generation"] + 2, "one write each"
    assert not owns_fields(restored.deployment)
    again = await restore_target(kube, namespace, OCR)
    assert (again.changed, again.deployment["metadata"]["resourceVersion"]) == (False, restored.deployment["metadata"]["resourceVersion"])


@pytest.mark.parametrize("own_env", [pytest.param({"LOG_LEVEL": "info"}, id="beside another entry"), pytest.param({}, id="as the only entry")])
async def test_an_owner_that_declares_the_very_value_that_is_there_keeps_it(
    kube: KubeClient, namespace: str, kubectl: Kubectl, own_env: dict[str, str]
) -> None:
    """Client-side apply records nothing of it but its own annotation. After restoring, the owner can also take it out again."""
    kubectl.apply(make_deployment(OCR, namespace, env=own_env))
    value = env_of(await place(kube, namespace, OCR))[PRECISION]
    declaring = make_deployment(OCR, namespace, env={**own_env, PRECISION: str(value)})
    kubectl.apply(declaring)
    preview = await preview_restored(kube, await kube.get(DEPLOYMENT, OCR, namespace))
    restored = await restore_target(kube, namespace, OCR)
    assert (restored.left, env_of(restored.deployment)) == ((), {**own_env, PRECISION: value})
    assert declared(preview) == declared(restored.deployment)
    assert {key: item for key, item in declared(restored.deployment).items() if key != "annotations"} == _without_name(kubectl, declaring)
    kubectl.apply(make_deployment(OCR, namespace, env=own_env))
    assert env_of(await kube.get(DEPLOYMENT, OCR, namespace)) == own_env


def _without_name(kubectl: Kubectl, manifest: Raw) -> Raw:
    """What a fresh create of the manifest would be."""
    fresh = copy.deepcopy(manifest)
    fresh["metadata"]["name"] = "fresh"
    made = declared(json.loads(kubectl.run("create", "--dry-run=server", "-o", "json", "-f", "-", manifest=fresh)))
    return {key: item for key, item in made.items() if key != "annotations"}


async def test_a_restoring_that_was_judged_on_an_older_version_is_judged_again(kube: KubeClient, namespace: str, kubectl: Kubectl) -> None:
    """Between judging and writing, a new adaptation may have written: its fields must not go."""
    kubectl.apply(make_deployment(OCR, namespace))
    judged = (await place(kube, namespace, OCR))["metadata"]
    await place(kube, namespace, OCR, decision="another")
    with pytest.raises(Conflict):
        await restore_target(kube, namespace, OCR, uid=judged["uid"], resource_version=judged["resourceVersion"])
    assert (await kube.get(DEPLOYMENT, OCR, namespace))["spec"]["template"]["metadata"]["annotations"] == {DECISION_ANNOTATION: "another"}


# --- the sweep ---


class Sweep:
    """One pass of the reconciler over what may be left, with a cache that shows what it is told."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self.kube, self.namespace, self.cache = kube, namespace, ClusterCache()
        actor = make_actor(kube, self._remember)
        self._reconciler = Reconciler(LeftoverGatherer(self.cache, kube), SimpleNamespace(problem=""), actor, PhysicsPredictor())  # type: ignore[arg-type]  # these passes need no more

    def _remember(self, raw: Any) -> None:
        self.cache.take(DEPLOYMENT, raw)

    async def look(self, *adaptations: str) -> None:
        """A pass over the Deployment, these adaptations in the cache."""
        for name in adaptations:
            self.cache.take(ADAPTATION, await self.kube.get(ADAPTATION, name, self.namespace))
        await self._look_at_target()

    async def _look_at_target(self) -> None:
        while True:
            self.cache.take(DEPLOYMENT, await self.kube.get(DEPLOYMENT, OCR, self.namespace))
            try:
                await self._reconciler.reconcile(Request("target", self.namespace, OCR), datetime.now(UTC))
            except Conflict:
                continue  # as the queue does
            return

    async def look_for_orphans(self) -> None:
        """The pass over what deleted pools left."""
        for kind in (NODE, PORTRAIT, POOL):
            for raw in (await self.kube.list(kind))[0]:
                self.cache.take(kind, raw)
        await self._reconciler.reconcile(ORPHANS, datetime.now(UTC))

    async def events(self) -> list[tuple[str, str]]:
        """Reason and message of the Deployment's Events."""
        found, _ = await self.kube.list(EVENT, namespace=self.namespace, field_selector=f"involvedObject.name={OCR}")
        return [(item["reason"], item["message"]) for item in found]


@pytest.fixture
def sweep(kube: KubeClient, namespace: str) -> Sweep:
    """With an empty cache: an operator that has just started."""
    return Sweep(kube, namespace)


async def adapt(kube: KubeClient, namespace: str, **spec: Any) -> str:
    """An adaptation of the Deployment, and its decision written; the Deployment as it was before is returned by ``kube``."""
    manifest = make_adaptation(OCR, namespace)
    manifest["spec"] |= spec
    uid: str = (await kube.create(ADAPTATION, manifest))["metadata"]["uid"]
    await place(kube, namespace, OCR, uid=uid, policy=spec.get("deletionPolicy", "Restore"))
    return uid


async def test_a_deleted_adaptation_gives_everything_back(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """Also when nobody saw the deletion; an Event on the Deployment says so, once."""
    kubectl.apply(make_deployment(OCR, namespace))
    before = await kube.get(DEPLOYMENT, OCR, namespace)
    await adapt(kube, namespace)
    await sweep.look(OCR)
    assert owns_fields(await kube.get(DEPLOYMENT, OCR, namespace))
    await kube.delete(ADAPTATION, OCR, namespace)
    late = Sweep(kube, namespace)
    await late.look()
    await late.look()
    after = await kube.get(DEPLOYMENT, OCR, namespace)
    assert declared(after) == declared(before)
    assert [reason for reason, _ in await late.events()] == ["Restored"]


async def test_a_stale_cache_takes_nothing_away(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """The adaptation lives, and the cache does not have it: unreadable, or not listed yet. It is asked for before anything is written."""
    kubectl.apply(make_deployment(OCR, namespace))
    await adapt(kube, namespace)
    await sweep.look()
    assert owns_fields(await kube.get(DEPLOYMENT, OCR, namespace))
    assert await sweep.events() == []


async def test_retain_keeps_what_is_applied(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """The policy counts as it was last said, also when it was changed after the write: that costs no rollout."""
    kubectl.apply(make_deployment(OCR, namespace))
    await adapt(kube, namespace)
    template = (await kube.get(DEPLOYMENT, OCR, namespace))["spec"]["template"]
    await patch_merge(kube, ADAPTATION, OCR, namespace, {"spec": {"deletionPolicy": "Retain"}})
    await sweep.look(OCR)
    renewed = await kube.get(DEPLOYMENT, OCR, namespace)
    pre_image = read_pre_image(renewed["metadata"]["annotations"])
    assert pre_image is not None
    assert (pre_image.deletion_policy, renewed["spec"]["template"]) == ("Retain", template)
    await sweep.look(OCR)
    assert (await kube.get(DEPLOYMENT, OCR, namespace))["metadata"]["resourceVersion"] == renewed["metadata"]["resourceVersion"]
    await kube.delete(ADAPTATION, OCR, namespace)
    await Sweep(kube, namespace).look()
    assert declared(await kube.get(DEPLOYMENT, OCR, namespace)) == declared(renewed)
    assert (await restore_target(kube, namespace, OCR)).changed, "by name, it can be given back all the same"


async def test_a_target_that_is_named_no_more_is_given_back(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """The adaptation lives and names another Deployment."""
    kubectl.apply(make_deployment(OCR, namespace))
    before = await kube.get(DEPLOYMENT, OCR, namespace)
    await adapt(kube, namespace)
    await patch_merge(kube, ADAPTATION, OCR, namespace, {"spec": {"targetRef": {"name": "another"}}})
    await sweep.look(OCR)
    assert declared(await kube.get(DEPLOYMENT, OCR, namespace)) == declared(before)


async def test_a_namespace_that_is_going_is_left_alone(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """No rollout in a namespace that takes no new pods."""
    kubectl.apply(make_deployment(OCR, namespace))
    await adapt(kube, namespace)
    await kube.delete(ADAPTATION, OCR, namespace)
    await kube.delete(NAMESPACE, namespace)
    applied = await kube.get(DEPLOYMENT, OCR, namespace)
    await sweep.look()
    assert (await kube.get(DEPLOYMENT, OCR, namespace))["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


# --- ownership lost ---


@pytest.mark.parametrize("touched", [pytest.param(False, id="at once"), pytest.param(True, id="after a later write")])
async def test_fields_whose_records_a_backup_lost_are_named_and_never_called_restored(
    kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep, touched: bool
) -> None:
    """managedFields reset: nothing is ours any more, an apply of nothing would remove nothing and answer 200."""
    kubectl.apply(make_deployment(OCR, namespace))
    await adapt(kube, namespace)
    await patch_merge(kube, DEPLOYMENT, OCR, namespace, {"metadata": {"managedFields": [{}]}})
    if touched:
        await as_manager(kube, "chart").apply(DEPLOYMENT, OCR, make_deployment(OCR, namespace), namespace=namespace)
    await kube.delete(ADAPTATION, OCR, namespace)
    await sweep.look()
    await sweep.look()
    ((reason, message),) = await sweep.events()
    assert reason == "FieldsLeft"
    for path in (f'containers[name="server"].env[name="{PRECISION}"]', "nodeAffinity.requiredDuringScheduling", "template.metadata.annotations"):
        assert path in message
    assert ("manager before-first-apply" if touched else "manager unknown") in message
    assert env_of(await kube.get(DEPLOYMENT, OCR, namespace))[PRECISION] == "bf16", "named, and not taken from whoever owns it now"


@pytest.fixture(scope="module")
def _replica_sets(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controllers that ``kubectl rollout undo`` needs."""
    with run_controllers(kubeconfig, ("deployment-controller", "replicaset-controller"), tmp_path_factory.mktemp("controllers") / "log"):
        yield


async def rolled_out(kube: KubeClient, namespace: str) -> Raw:
    """The Deployment once its controller has seen its newest template."""
    async with asyncio.timeout(120):
        while True:
            live = await kube.get(DEPLOYMENT, OCR, namespace)
            if (live.get("status") or {}).get("observedGeneration") == live["metadata"]["generation"]:
                return live
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("_replica_sets")
async def test_a_rollout_undo_leaves_no_record_but_ours_and_that_goes_too(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """Nobody is recorded for taking fields away. We stay recorded for the container, which would fail its renaming by server-side apply."""
    manifest = make_deployment(OCR, namespace)
    manifest["spec"]["replicas"] = 0
    kubectl.apply(manifest)
    before = await rolled_out(kube, namespace)
    await adapt(kube, namespace)
    await rolled_out(kube, namespace)
    kubectl.run("rollout", "undo", f"deployment/{OCR}", "-n", namespace)
    undone = await rolled_out(kube, namespace)
    managers = {item["manager"] for item in undone["metadata"]["managedFields"]}
    assert (declared(undone), managers) == (declared(before), {"kubectl-client-side-apply", "kube-controller-manager", "metainfer"})
    await kube.delete(ADAPTATION, OCR, namespace)
    await sweep.look()
    after = await kube.get(DEPLOYMENT, OCR, namespace)
    assert (declared(after), owns_fields(after)) == (declared(before), False)


@pytest.mark.usefixtures("_replica_sets")
async def test_fields_that_a_rollout_undo_brought_back_are_named(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """Undone, our fields are gone without a record; undone once more, they come back as kubectl's."""
    manifest = make_deployment(OCR, namespace)
    manifest["spec"]["replicas"] = 0
    kubectl.apply(manifest)
    before = await rolled_out(kube, namespace)
    await adapt(kube, namespace)
    applied = await rolled_out(kube, namespace)
    kubectl.run("rollout", "undo", f"deployment/{OCR}", "-n", namespace)
    undone = await rolled_out(kube, namespace)
    assert declared(undone)["spec"] == declared(before)["spec"]
    kubectl.run("rollout", "undo", f"deployment/{OCR}", "-n", namespace)
    assert declared(await rolled_out(kube, namespace))["spec"] == declared(applied)["spec"]
    await kube.delete(ADAPTATION, OCR, namespace)
    await sweep.look()
    ((reason, message),) = await sweep.events()
    assert reason == "FieldsLeft"
    assert f'env[name="{PRECISION}"] (manager kubectl)' in message


# --- pools ---


@pytest.fixture
async def pool(kube: KubeClient, namespace: str) -> AsyncIterator[str]:
    """A pool that has labelled and portrayed a node of its own."""
    name, node = f"pool-{namespace}", f"node-{namespace}"
    raw = await create_node(kube, node, labels={"card": "ort"})
    await kube.create(POOL, make_pool(name, nodeSelector={"matchLabels": {"kubernetes.io/hostname": node}}))
    await patch_merge(kube, NODE, node, None, {"metadata": {"labels": {"kubernetes.io/hostname": node}}})
    spec = NodePortraitSpec(node_uid=raw["metadata"]["uid"], pool=name, family="ort-cpu")
    writes = (WriteNodeLabels(node, {FAMILY_LABEL: "ort-cpu"}), WritePortrait(node, spec, NodePortraitStatus(cards=1)))
    await make_actor(kube).execute(writes, ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", name, "uid"))
    yield name
    await kube.delete(POOL, name)
    await kube.delete(PORTRAIT, node)
    await kube.delete(NODE, node)


async def test_a_deleted_pool_leaves_no_label_and_no_portrait(kube: KubeClient, namespace: str, pool: str, sweep: Sweep) -> None:
    """While it lives nothing is taken away; afterwards all of it, and labels of other hands stay."""
    node = f"node-{namespace}"
    await patch_merge(kube, NODE, node, None, {"metadata": {"labels": {"metainfer.dev/health": "by-hand"}}})
    await sweep.look_for_orphans()
    assert (await kube.get(NODE, node))["metadata"]["labels"][FAMILY_LABEL] == "ort-cpu"
    await kube.get(PORTRAIT, node)
    await kube.delete(POOL, pool)
    late = Sweep(kube, namespace)
    await late.look_for_orphans()
    labels = (await kube.get(NODE, node))["metadata"]["labels"]
    assert FAMILY_LABEL not in labels
    assert (labels["card"], labels["metainfer.dev/health"]) == ("ort", "by-hand")
    with pytest.raises(NotFound):
        await kube.get(PORTRAIT, node)


# --- conflicts that come all the same ---


async def test_a_policy_that_cannot_be_renewed_is_no_fight(kube: KubeClient, namespace: str, kubectl: Kubectl, sweep: Sweep) -> None:
    """Somebody declares our annotation in their manifest: left as it is."""
    kubectl.apply(make_deployment(OCR, namespace))
    await adapt(kube, namespace)
    stolen = make_deployment(OCR, namespace)
    stolen["metadata"]["annotations"] = {PREIMAGE_ANNOTATION: "mine", DECISION_ANNOTATION: DECISION}
    kubectl.apply(stolen)
    await sweep.look(OCR)
    assert (await kube.get(DEPLOYMENT, OCR, namespace))["metadata"]["annotations"][PREIMAGE_ANNOTATION] == "mine"
    assert (await try_place(kube, namespace, OCR)).result == "Contested"
