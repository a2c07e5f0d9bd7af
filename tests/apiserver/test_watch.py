"""The watch end to end on a real API server, with faults in front of it: what happens there is in the cache here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
import pytest
from tests.apiserver.fault_proxy import FaultProxy, run_fault_proxy
from tests.apiserver.make_cluster import CARD, create_node, ensure_kinds, make, make_adaptation, make_deployment, make_pool
from tests.apiserver.merge_patch import patch_merge
from tests.unit.watch.make_watch import Watch

from metainfer.kube.client import KubeClient
from metainfer.kube.credentials import read_credentials
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, NODE, POD, POOL
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Transport
from metainfer.watch.edge import build_handler, build_kopf_settings, build_login
from metainfer.watch.resync import Resync

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
PATIENCE_SECONDS = 300.0
"""A guard against hanging, no bound that is tested."""


@dataclass
class LiveWatch(Watch):
    """Everything of the watch that talks to a cluster, and nothing that acts."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kopf_task: asyncio.Task[None] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether kopf still runs."""
        return self.kopf_task is not None and not self.kopf_task.done()


@asynccontextmanager
async def live_watch(kubeconfig: Path, *, period_seconds: float = 1000.0) -> AsyncIterator[LiveWatch]:
    """Lists done, watches open; stopped at the end."""

    async def login() -> Any:
        return await read_credentials({"KUBECONFIG": str(kubeconfig)})

    client = KubeClient(Transport(TokenBucket(1000.0, 1000), login=login))
    watch = LiveWatch()
    resync = Resync(client, watch.intake, period_seconds=period_seconds)
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(build_login(login))
    for kind in (POOL, ADAPTATION, NODE, DEPLOYMENT, JOB, POD):
        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(build_handler(kind, watch.intake, resync))
    lists = asyncio.create_task(resync.run())
    watch.kopf_task = asyncio.create_task(kopf.operator(registry=registry, settings=build_kopf_settings(), clusterwide=True, stop_flag=watch.stop))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await resync.synced.wait()
        yield watch
    finally:
        watch.stop.set()
        await asyncio.gather(watch.kopf_task, return_exceptions=True)
        await resync.stop()
        await lists
        await client.close()


@pytest.fixture
async def proxy(kubeconfig: Path) -> AsyncIterator[FaultProxy]:
    """A proxy of the test's own, without faults at first."""
    async with run_fault_proxy(kubeconfig) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: FaultProxy, tmp_path: Path) -> Path:
    """The kubeconfig of clients that go through the proxy."""
    return proxy.write_kubeconfig(tmp_path / "proxied")


@pytest.fixture(autouse=True)
async def kinds(kube: KubeClient) -> None:
    """Our CRDs."""
    await ensure_kinds(kube)


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until it holds; events need their time, and nobody measures it here."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.02)


def make_pod(name: str, namespace: str, **parts: Any) -> Raw:
    """A pod that wants a card."""
    container = {"name": "server", "image": "x", "resources": {"limits": {CARD: "1"}}}
    return make(POD, name, namespace, spec={"containers": [container]}, **parts)


def make_job(name: str, namespace: str, **labels: str) -> Raw:
    """A Job."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "x"}]}}
    return make(JOB, name, namespace, metadata={"labels": labels}, spec={"template": template})


async def test_what_is_created_changed_and_deleted_is_seen(kube: KubeClient, namespace: str, proxied: Path) -> None:
    """Events of every kind reach the cache and wake who is concerned; Jobs of others are not even sent to us."""
    async with live_watch(proxied) as watch:
        await create_node(kube, f"n-{namespace}", labels={"card": "ort"})
        await kube.create(POOL, make_pool(f"pool-{namespace}"))
        await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
        await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
        await kube.create(POD, make_pod("p", namespace))
        await kube.create(JOB, make_job("foreign", namespace))
        await kube.create(JOB, make_job("ours", namespace, **{"metainfer.dev/purpose": "bench"}))
        cluster = watch.cluster
        await eventually(lambda: cluster.pool(f"pool-{namespace}") and cluster.adaptation(namespace, "ocr") and cluster.deployment(namespace, "ocr"))
        await eventually(lambda: any(pod.namespace == namespace for pod in cluster.card_pods()) and cluster.job(namespace, "ours"))
        assert cluster.job(namespace, "foreign") is None
        await eventually(lambda: any(node.name == f"n-{namespace}" and node.allocatable[CARD] == 1 for node in cluster.nodes() if node.allocatable))
        assert f"{namespace}/ocr" in watch.queue.take()[0]
        await patch_merge(kube, DEPLOYMENT, "ocr", namespace, {"spec": {"replicas": 3}})
        await eventually(lambda: f"{namespace}/ocr" in watch.queue.take()[0])
        for kind, name in ((POD, "p"), (DEPLOYMENT, "ocr"), (JOB, "ours"), (ADAPTATION, "ocr")):
            await kube.delete(kind, name, namespace)
        await kube.delete(NODE, f"n-{namespace}")
        await eventually(lambda: not any(pod.namespace == namespace for pod in cluster.card_pods()) and not cluster.deployment(namespace, "ocr"))
        await eventually(lambda: not cluster.job(namespace, "ours") and not cluster.adaptation(namespace, "ocr"))
        await eventually(lambda: not any(node.name == f"n-{namespace}" for node in cluster.nodes()))


async def test_a_target_that_is_older_than_its_adaptation_is_found(kube: KubeClient, namespace: str, proxied: Path) -> None:
    """Deployment and pods were let pass when nobody named them; naming them brings them in without a new event."""
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    await kube.create(POD, make(POD, "p", namespace, metadata={"labels": {"app": "ocr"}}, spec={"containers": [{"name": "server", "image": "x"}]}))
    async with live_watch(proxied) as watch:
        assert watch.cluster.deployment(namespace, "ocr") is None
        await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
        await eventually(lambda: watch.cluster.deployment(namespace, "ocr") and watch.cluster.pods_matching(namespace, {"app": "ocr"}))
        assert not watch.cluster.interest.gaps


async def test_what_was_deleted_while_the_watch_was_down_is_swept(kube: KubeClient, namespace: str, proxy: FaultProxy, proxied: Path) -> None:
    """kopf never tells of it; the next list does."""
    names = [f"n{number}-{namespace}" for number in range(3)]
    for name in names:
        await create_node(kube, name)
    async with live_watch(proxied, period_seconds=2.0) as watch:
        proxy.refuse = 503
        proxy.cut_watches()
        await kube.delete(NODE, names[0])
        await patch_merge(kube, NODE, names[1], None, {"metadata": {"labels": {"changed": "yes"}}})
        proxy.refuse = 0
        await eventually(lambda: {node.name for node in watch.cluster.nodes()} & set(names) == set(names[1:]))
        await eventually(lambda: any(node.labels.get("changed") for node in watch.cluster.nodes()))
        assert watch.goes_on


async def test_a_burst_of_401_is_survived(kube: KubeClient, namespace: str, proxy: FaultProxy, proxied: Path) -> None:
    """Each login differs from the refused one and none follows at once: kopf goes on, and so do we."""
    async with live_watch(proxied) as watch:
        proxy.journal.clear()
        proxy.refuse = 401
        proxy.cut_watches()
        await eventually(lambda: len([entry for entry in proxy.journal if entry.told == 401]) >= 12)
        proxy.refuse = 0
        await create_node(kube, f"late-{namespace}")
        await eventually(lambda: any(node.name == f"late-{namespace}" for node in watch.cluster.nodes()))
        assert watch.goes_on


async def test_a_watch_that_expired_is_opened_again(kube: KubeClient, namespace: str, proxy: FaultProxy, proxied: Path) -> None:
    """410 inside the stream: a new list, a new watch, no event lost."""
    async with live_watch(proxied) as watch:
        proxy.inject = {"nodes": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}}
        proxy.cut_watches()
        await eventually(lambda: not proxy.inject)
        await create_node(kube, f"after-{namespace}")
        await eventually(lambda: any(node.name == f"after-{namespace}" for node in watch.cluster.nodes()))
        assert watch.goes_on


async def test_a_restart_loses_nothing(kube: KubeClient, namespace: str, proxied: Path) -> None:
    """All state is on the API server: a new process sees what happened meanwhile, and gives every object of ours a pass."""
    await kube.create(ADAPTATION, make_adaptation("stays", namespace))
    await kube.create(ADAPTATION, make_adaptation("goes", namespace, target="other"))
    async with live_watch(proxied) as watch:
        assert {item.name for item in watch.cluster.adaptations(namespace)} == {"stays", "goes"}
    await kube.delete(ADAPTATION, "goes", namespace)
    await kube.create(ADAPTATION, make_adaptation("comes", namespace, target="third"))
    async with live_watch(proxied) as watch:
        assert {item.name for item in watch.cluster.adaptations(namespace)} == {"stays", "comes"}
        assert {f"{namespace}/stays", f"{namespace}/comes"} <= watch.queue.take()[0]


async def test_kopf_leaves_no_trace_on_what_it_watches(kube: KubeClient, namespace: str, proxied: Path) -> None:
    """No finalizer, annotation, status or Event of it, on our kinds or on others'."""
    await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
    created = await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    async with live_watch(proxied) as watch:
        await patch_merge(kube, DEPLOYMENT, "ocr", namespace, {"metadata": {"labels": {"seen": "yes"}}})
        await eventually(lambda: (target := watch.cluster.deployment(namespace, "ocr")) is not None and "seen" in target.labels)
    read = await kube.get(DEPLOYMENT, "ocr", namespace)
    assert {item["manager"] for item in read["metadata"]["managedFields"]} == {item["manager"] for item in created["metadata"]["managedFields"]}
    assert "finalizers" not in read["metadata"]
    assert read["metadata"].get("annotations") == created["metadata"].get("annotations")
