"""Leaving with the operator as a process and Kubernetes' own garbage collection: whatever goes, in whatever order, nothing hangs or stays."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.api_server import ROOT, find_binary, run_api_server
from tests.apiserver.controllers import run_controllers
from tests.apiserver.make_cluster import create_node, ensure_kinds, make, make_adaptation, make_deployment, make_pool
from tests.apiserver.make_placed import PRECISION, declared, env_of, make_actor, place
from tests.apiserver.merge_patch import patch_merge
from tests.apiserver.test_watch_process import run_process
from tests.unit.act.make_actions import LIMITS, make_probe_job

from metainfer.act.events import ObjectRef
from metainfer.act.jobs import build_job
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.plan import WriteNodeLabels, WritePortrait
from metainfer.kube.client import KubeClient
from metainfer.kube.credentials import Credentials, read_credentials
from metainfer.kube.errors import NotFound
from metainfer.kube.kinds import ADAPTATION, CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, EVENT, JOB, NAMESPACE, NODE, POOL, PORTRAIT, Kind
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Call, Transport

pytestmark = [pytest.mark.apiserver, pytest.mark.chart]

Raw = dict[str, Any]
OCR = "ocr"
CONTROLLERS = ("namespace-controller", "garbage-collector-controller", "deployment-controller", "replicaset-controller")
PATIENCE_SECONDS = 300.0
"""A guard against hanging, no bound that is tested."""


@pytest.fixture(scope="module")
def own_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server whose CRDs may go, with the controllers that make things go."""
    directory = tmp_path_factory.mktemp("leaving")
    with run_api_server(directory) as server, run_controllers(server.kubeconfig, CONTROLLERS, directory / "controllers.log"):
        yield server.kubeconfig


@pytest.fixture
async def own(own_kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """Its administrator; our kinds are there."""

    async def login() -> Credentials:
        return await read_credentials({"KUBECONFIG": str(own_kubeconfig)})

    client = KubeClient(Transport(TokenBucket(2000.0, 2000), login=login))
    await ensure_kinds(client)
    yield client
    await client.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that others do."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.1)


async def is_gone(client: KubeClient, kind: Kind, name: str, namespace: str | None = None) -> bool:
    """Whether there is no such object (or kind)."""
    try:
        await client.get(kind, name, namespace)
    except NotFound:
        return True
    return False


async def delete_kinds(client: KubeClient) -> None:
    """Our CRDs, and every object of them; the server has forgotten the group too, or a namespace that goes next would wait for its turn again."""
    names = [f"{plural}.metainfer.dev" for plural in ("modeladaptations", "acceleratorpools", "nodeportraits")]
    for name in names:
        await client.delete(CUSTOM_RESOURCE_DEFINITION, name)

    async def are_gone() -> bool:
        return all([await is_gone(client, CUSTOM_RESOURCE_DEFINITION, name) for name in names]) and await is_forgotten()

    async def is_forgotten() -> bool:
        try:
            await client._transport.send(Call("get", "GET", "/apis/metainfer.dev/v1alpha1"))
        except NotFound:
            return True
        return False

    await until(are_gone)


async def make_target(client: KubeClient, namespace: str) -> Raw:
    """A namespace with a Deployment, as its owner made it."""
    await client.create(NAMESPACE, make(NAMESPACE, namespace))
    return await client.create(DEPLOYMENT, make_deployment(OCR, namespace))


async def adapt(client: KubeClient, namespace: str) -> None:
    """An adaptation, and its decision on the Deployment."""
    adaptation = make_adaptation(OCR, namespace)
    adaptation["spec"]["suspend"] = True
    uid = (await client.create(ADAPTATION, adaptation))["metadata"]["uid"]
    await place(client, namespace, OCR, uid=uid)


async def make_measured_pool(client: KubeClient, name: str, namespace: str) -> str:
    """A pool with a labelled and portrayed node and a probe Job; the Job's name."""
    node = await create_node(client, name, labels={"card": "ort"})
    pool = await client.create(POOL, make_pool(name))
    job = make_probe_job(namespace=namespace, owner={key: pool[key] for key in ("apiVersion", "kind")} | {"name": name, "uid": pool["metadata"]["uid"]})
    await client.create(JOB, build_job(job, replace(LIMITS, priority_class="")))
    spec = NodePortraitSpec(node_uid=node["metadata"]["uid"], pool=name, family="ort-cpu")
    writes = (WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}), WritePortrait(name, spec, NodePortraitStatus(cards=1)))
    await make_actor(client).execute(writes, ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", name, "uid"))
    return job.name


async def test_what_is_left_is_given_back_whether_the_operator_saw_it_or_not(own: KubeClient, own_kubeconfig: Path, tmp_path: Path) -> None:
    """Adaptation and pool deleted while it was down; then another adaptation while it runs; then the whole namespace; then the CRDs."""
    before = declared(await make_target(own, "one"))
    await adapt(own, "one")
    job = await make_measured_pool(own, "cards", "one")
    await own.delete(ADAPTATION, OCR, "one")
    await own.delete(POOL, "cards")

    async def is_restored(namespace: str = "one") -> bool:
        return declared(await own.get(DEPLOYMENT, OCR, namespace)) == before

    async def is_clean() -> bool:
        labels = (await own.get(NODE, "cards"))["metadata"]["labels"]
        return FAMILY_LABEL not in labels and await is_gone(own, PORTRAIT, "cards") and await is_gone(own, JOB, job, "one")

    async with run_process(own_kubeconfig, tmp_path / "store.db") as running:
        await running.until("/readyz", 200)
        await until(is_restored)
        await until(is_clean)
        await adapt(own, "one")
        assert not await is_restored()
        await own.delete(ADAPTATION, OCR, "one")
        await until(is_restored)

        await adapt(own, "one")
        await own.delete(NAMESPACE, "one")
        await until(lambda: is_gone(own, NAMESPACE, "one"))

        before = declared(await make_target(own, "two"))
        await adapt(own, "two")
        await delete_kinds(own)
        await until(lambda: is_restored("two"))
    events, _ = await own.list(EVENT, namespace="two", field_selector=f"involvedObject.name={OCR}")
    assert "Restored" in {item["reason"] for item in events}
    await own.delete(NAMESPACE, "two")
    await own.delete(NODE, "cards")


RELEASE, CRDS, SPACE = "release", "crds", "namespace"


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((CRDS, SPACE, RELEASE), id="the CRDs, the namespace, the release"),
        pytest.param((SPACE, RELEASE, CRDS), id="the namespace, the release, the CRDs"),
    ],
)
async def test_uninstalling_in_any_order_never_hangs(own: KubeClient, own_kubeconfig: Path, order: tuple[str, ...], tmp_path: Path) -> None:
    """No operator runs at all: nothing waits for one. What was applied stays, until somebody restores it."""
    await delete_kinds(own)
    namespace = release = f"first-{order[0]}"
    environment = os.environ | {"KUBECONFIG": str(own_kubeconfig), "HELM_CACHE_HOME": str(tmp_path)}

    def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([find_binary("helm"), *arguments, "--namespace", namespace], env=environment, capture_output=True, text=True, check=False)

    # A namespace that goes first takes the release's record along: what is left of that has its own names.
    own_names = ("--set", f"crds.keep=false,store.persistence.enabled=false,fullnameOverride={release},priorityClass.name={release}")
    installed = helm("install", release, str(ROOT / "charts" / "meta-infer"), "--create-namespace", *own_names)
    assert installed.returncode == 0, installed.stderr
    await ensure_kinds(own)
    await own.create(DEPLOYMENT, make_deployment(OCR, namespace))
    await adapt(own, namespace)
    await own.create(POOL, make_pool(namespace))

    async def remove(what: str) -> None:
        if what == RELEASE:
            done = helm("uninstall", release, "--timeout", "120s")
            assert done.returncode == 0 or "not found" in done.stderr, done.stderr
        elif what == SPACE:
            await own.delete(NAMESPACE, namespace)
            await until(lambda: is_gone(own, NAMESPACE, namespace))
        else:
            await delete_kinds(own)

    for what in order:
        await remove(what)
        if not await is_gone(own, DEPLOYMENT, OCR, namespace):
            assert env_of(await own.get(DEPLOYMENT, OCR, namespace))[PRECISION] == "bf16"
    assert await is_gone(own, CUSTOM_RESOURCE_DEFINITION, "modeladaptations.metainfer.dev")


# --- by hand ---


async def restore(kubeconfig: Path, *arguments: str) -> tuple[int, str, str]:
    """``metainfer restore``, as a process; exit status and what it said."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("METAINFER_")}
    environ |= {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "metainfer.cli", "restore", *arguments, stdout=pipe, stderr=pipe, env=environ)
    said, problems = await process.communicate()
    return process.returncode or 0, said.decode(), problems.decode()


async def test_restoring_by_hand_needs_no_operator(kube: KubeClient, namespace: str, kubeconfig: Path) -> None:
    """A dry run prints the difference and changes nothing; then it is what it was, and there is nothing more to do."""
    await ensure_kinds(kube)
    before = await kube.create(DEPLOYMENT, make_deployment(OCR, namespace, affinity={}))
    applied = await place(kube, namespace, OCR)
    status, said, _ = await restore(kubeconfig, "--namespace", namespace, "--dry-run")
    assert status == 0
    for line in ("-          value: bf16", "-        nodeAffinity:", "+      affinity: {}", "-    metainfer.dev/decision: d41d8cd98f00"):
        assert line in said, said
    assert (await kube.get(DEPLOYMENT, OCR, namespace))["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]
    assert await restore(kubeconfig, "--namespace", namespace, "--name", OCR) == (0, f"{namespace}/{OCR}: restored\n", "")
    assert declared(await kube.get(DEPLOYMENT, OCR, namespace)) == declared(before)
    assert (await restore(kubeconfig, "--namespace", namespace))[:2] == (0, "nothing of the operator is on any Deployment asked for\n")


async def test_restoring_by_hand_says_what_it_could_not_do(kube: KubeClient, namespace: str, kubeconfig: Path) -> None:
    """3 where fields are left, 0 for what is to be retained, 1 without an answer, 2 for a wrong question; a living adaptation is pointed out."""
    await ensure_kinds(kube)
    await kube.create(DEPLOYMENT, make_deployment(OCR, namespace))
    uid = (await kube.create(ADAPTATION, make_adaptation(OCR, namespace)))["metadata"]["uid"]
    await place(kube, namespace, OCR, uid=uid, policy="Retain")
    status, said, problems = await restore(kubeconfig, "--namespace", namespace)
    assert (status, "deletionPolicy is Retain" in said, problems) == (0, True, "")
    await patch_merge(kube, DEPLOYMENT, OCR, namespace, {"metadata": {"managedFields": [{}]}})
    status, said, problems = await restore(kubeconfig, "--namespace", namespace, "--name", OCR)
    assert status == 3
    assert f'env[name="{PRECISION}"] (manager unknown)' in said
    assert f"warning: ModelAdaptation {OCR} still names it" in problems
    assert (await restore(kubeconfig, "--namespace", namespace, "--name", OCR, "--accept-left"))[0] == 0
    assert (await restore(kubeconfig, "--namespace", namespace, "--name", "absent"))[0] == 1
    assert (await restore(kubeconfig, "--name", OCR))[0] == 2
