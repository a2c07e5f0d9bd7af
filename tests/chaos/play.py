"""One run of the scenario: a cluster, the operator behind the fault proxy, misfortunes as planned, and everything that is left afterwards."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.apiserver.fault_proxy import FaultProxy, run_fault_proxy
from tests.apiserver.faults import Entry
from tests.apiserver.make_cluster import CARD, create_node, ensure_kinds, make
from tests.apiserver.merge_patch import patch_merge
from tests.chaos.kubelet import KubeletLogs, run_kubelet_logs
from tests.chaos.misfortunes import Misfortunes
from tests.chaos.node_side import NodeSide
from tests.chaos.operator_process import OperatorProcess, build_settings, run_operator
from tests.chaos.plan import Plan
from tests.chaos.world import World

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import ADAPTATION, CONFIG_MAP, DEPLOYMENT, JOB, NAMESPACE, NODE, PERSISTENT_VOLUME_CLAIM, POD, POOL, PORTRAIT, Kind

Raw = dict[str, Any]
CHUNK = 3
"""Objects per page of the operator's lists: enough pages for continue tokens that expire."""
QUIET_SECONDS = 3.0
"""Without a write, and longer than the fallback polls of a rollout's end."""
PASSES_EACH = 2
"""Of each adaptation, before the silence says anything: a process that has just been started writes nothing either."""
PATIENCE_SECONDS = 120.0
"""After the last misfortune; back-off after failures is at most that long."""


@dataclass(frozen=True, slots=True)
class Remains:
    """Everything that a run left: what the judges look at."""

    world: World
    journal: Sequence[Entry]
    objects: Mapping[str, Sequence[Raw]]
    """By plural, the run's own only."""
    store: Path
    ends: Sequence[int] = ()
    settled: bool = True
    began: float = 0.0


@dataclass
class Stage:
    """A cluster with everything but the operator."""

    world: World
    kube: KubeClient
    proxy: FaultProxy
    nodes: NodeSide
    directory: Path
    began: float = field(default_factory=time.monotonic)

    def make_operator(self, **settings: str) -> OperatorProcess:
        """An operator that has not been started yet, with the run's settings and some of its own."""
        kubeconfig = self.proxy.write_kubeconfig(self.directory / "proxied")
        return OperatorProcess(kubeconfig, self.directory, build_settings(self.world.system) | settings)

    async def settle(self, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until every adaptation is ready, the pool is portrayed, and passes write nothing any more; False = not in time."""
        deadline = time.monotonic() + patience_seconds
        quiet_since, begun = time.monotonic(), len(self.proxy.journal)
        while time.monotonic() < deadline:
            await asyncio.sleep(0.25)
            journal = self.proxy.journal[begun:]
            quiet_since = max([quiet_since, *(entry.at for entry in journal if entry.writes)])
            passes = sum(entry.label == "get deployments" for entry in journal)
            if not await self._all_ready():
                quiet_since = time.monotonic()
            elif passes >= PASSES_EACH * len(self.world.targets) and time.monotonic() - quiet_since > QUIET_SECONDS:
                return True
        return False

    async def _all_ready(self) -> bool:
        adaptations, _ = await self.kube.list(ADAPTATION, namespace=self.world.namespace)
        pool = await self.kube.get(POOL, self.world.pool)
        return all(_holds(item, "Ready") for item in adaptations) and _holds(pool, "ProbesCompleted")

    async def collect(self, operator: OperatorProcess, *, settled: bool) -> Remains:
        """Everything as it is now."""
        objects: dict[str, Sequence[Raw]] = {}
        for kind in (ADAPTATION, DEPLOYMENT, POD, JOB):
            objects[kind.plural] = [*(await self.kube.list(kind, namespace=self.world.namespace))[0]]
        objects[JOB.plural] = [*objects[JOB.plural], *(await self.kube.list(JOB, namespace=self.world.system))[0]]
        objects[POOL.plural] = [await self.kube.get(POOL, self.world.pool)]
        objects[NODE.plural], _ = await self.kube.list(NODE, label_selector=f"lab={self.world.tag}")
        mine = {item["metadata"]["name"] for item in objects[NODE.plural]}
        objects[PORTRAIT.plural] = [item for item in (await self.kube.list(PORTRAIT))[0] if item["metadata"]["name"] in mine]
        return Remains(self.world, tuple(self.proxy.journal), objects, operator.store, tuple(operator.ends), settled, self.began)


def _holds(raw: Raw, condition: str) -> bool:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    generation = raw["metadata"]["generation"]
    return any(item["type"] == condition and item["status"] == "True" and item["observedGeneration"] == generation for item in conditions)


@asynccontextmanager
async def set_stage(kubeconfig: Path, directory: Path, seed: int, make_world: Callable[[int, str], World] = World) -> AsyncIterator[Stage]:
    """A fresh cluster of the seed on the API server, its node side at work; removed at the end."""
    world = make_world(seed, secrets.token_hex(3))
    async with AsyncExitStack() as stack:
        kube = KubeClient.connect(requests_per_second=2000.0, burst=2000)
        stack.push_async_callback(kube.close)
        logs = await stack.enter_async_context(run_kubelet_logs(kubeconfig.parent / "pki", directory))
        proxy = await stack.enter_async_context(run_fault_proxy(kubeconfig))
        proxy.audits, proxy.chunk = True, CHUNK
        await _create_world(kube, world, logs)
        stack.push_async_callback(_remove_world, kube, world)
        nodes = NodeSide(kube, world, logs, random.Random(f"nodes {seed}"))  # noqa: S311 - a simulation, nothing secret
        at_work = asyncio.create_task(nodes.run())
        stack.push_async_callback(_end, nodes, at_work)
        yield Stage(world, kube, proxy, nodes, directory)


async def _end(nodes: NodeSide, at_work: asyncio.Task[None]) -> None:
    """Let the node side finish its round; what ended it before is an error of the run."""
    nodes.ending = True
    await at_work


async def _create_world(kube: KubeClient, world: World, logs: KubeletLogs) -> None:
    await ensure_kinds(kube)
    for namespace in (world.namespace, world.system):
        await kube.create(NAMESPACE, make(NAMESPACE, namespace))
    cards = {CARD: str(world.cards_per_node)}
    for name, card in world.nodes().items():
        await create_node(kube, name, labels={"card": card, "lab": world.tag})
        kubelet = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.port}}}
        await patch_merge(kube, NODE, name, None, {"status": {**kubelet, "allocatable": cards, "capacity": cards}}, subresource="status")
        await patch_merge(kube, NODE, name, None, {"spec": {"taints": None}})
    await kube.create(CONFIG_MAP, world.make_config_map())
    await kube.create(PERSISTENT_VOLUME_CLAIM, world.make_claim())
    for name in world.targets:
        await kube.create(DEPLOYMENT, world.make_target(name))
    await kube.create(POOL, world.make_pool())
    for name in world.targets:
        await kube.create(ADAPTATION, world.make_adaptation(name))


async def _remove_world(kube: KubeClient, world: World) -> None:
    """What the next run on this API server would see of this one."""
    await kube.delete(POOL, world.pool)
    for name in world.nodes():
        await kube.delete(PORTRAIT, name)
        await kube.delete(NODE, name)
    kinds: tuple[Kind, ...] = (ADAPTATION, DEPLOYMENT, JOB, POD)
    for namespace in (world.namespace, world.system):
        for kind in kinds:
            for item in (await kube.list(kind, namespace=namespace))[0]:
                await kube.delete(kind, item["metadata"]["name"], namespace)


async def play_undisturbed(kubeconfig: Path, directory: Path, seed: int) -> Remains:
    """What the same seed comes to when nothing goes wrong."""
    async with set_stage(kubeconfig, directory, seed) as stage, run_operator(stage.make_operator()) as operator:
        settled = await stage.settle()
        return await stage.collect(operator, settled=settled)


async def play_disturbed(kubeconfig: Path, directory: Path, seed: int, plan: Plan) -> Remains:
    """The same with the plan's misfortunes."""
    async with set_stage(kubeconfig, directory, seed) as stage:
        operator = stage.make_operator()
        misfortunes = Misfortunes(stage.proxy, operator, plan)
        async with run_operator(operator):
            await misfortunes.run()
            settled = await stage.settle()
            return await stage.collect(operator, settled=settled)
