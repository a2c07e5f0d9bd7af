"""The operator's passes on a real API server, by a clock of the test's own: hours of settling and waiting in seconds.

Everything is the operator's but queue and watches: each turn lists what there is, and then has one pass over each object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.apiserver.merge_patch import patch_merge
from tests.chaos.play import Stage

from metainfer.act.execute import Actor
from metainfer.app.operator import ClusterWrites
from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.names import PURPOSE_LABEL
from metainfer.kube.client import Selection
from metainfer.kube.kinds import DEPLOYMENT, JOB, NODE, POOL, WATCHED
from metainfer.observe.gather import Gatherer
from metainfer.predict.physics import PhysicsPredictor
from metainfer.reconcile import Reconciler, Request
from metainfer.store.patient import open_patiently
from metainfer.watch.cluster import ClusterCache
from metainfer.watch.intake import Intake

Raw = dict[str, Any]
PATIENCE_ROUNDS = 200


class Deaf:
    """In place of the queue: every turn looks at everything."""

    def add(self, key: Request) -> None:
        """Nothing."""

    def add_behind(self, key: Request) -> None:
        """Nothing."""

    def add_after(self, key: Request, delay_seconds: float) -> None:
        """Nothing."""


@dataclass
class VirtualOperator:
    """One operator and its clock."""

    stage: Stage
    reconciler: Reconciler
    intake: Intake
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def play(self, minutes: float, seconds: float = 60.0) -> None:
        """A turn for every so many seconds."""
        for _ in range(round(minutes * 60 / seconds)):
            await self.turn()
            self.now += timedelta(seconds=seconds)

    async def turn(self) -> None:
        """Look at everything; then wait for the nodes, for which no time passes."""
        await self._list()
        world = self.stage.world
        await self.reconciler.reconcile(Request("pool", "", world.pool), self.now)
        for name in world.targets:
            await self.reconciler.reconcile(Request("adaptation", world.namespace, name), self.now)
        await self._wait_for_nodes()

    async def _list(self) -> None:
        for kind in WATCHED:
            listed: set[str] = set()
            version = 0
            async for page in self.stage.kube.list_pages(kind, Selection(None, PURPOSE_LABEL if kind == JOB else "")):
                version = int(page.resource_version)
                self.intake.take_page(kind, page.items)
                listed |= {raw["metadata"]["uid"] for raw in page.items}
            self.intake.take_end(kind, listed, version)

    async def _wait_for_nodes(self) -> None:
        for _ in range(PATIENCE_ROUNDS):
            if await self._is_quiet():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a Job or rollout does not come to an end")

    async def _is_quiet(self) -> bool:
        world = self.stage.world
        jobs = [job for namespace in (world.namespace, world.system) for job in (await self.stage.kube.list(JOB, namespace=namespace))[0]]
        deployments, _ = await self.stage.kube.list(DEPLOYMENT, namespace=world.namespace)
        ended = all(any(item["type"] == "Complete" for item in (job.get("status") or {}).get("conditions") or ()) for job in jobs)
        return ended and all(_is_rolled_out(item) for item in deployments)

    async def relabel(self, nodes: Collection[str], **labels: str | None) -> None:
        """Somebody else's labeller; None takes a label off."""
        for name in nodes:
            await patch_merge(self.stage.kube, NODE, name, None, {"metadata": {"labels": labels}})

    async def probes(self) -> set[str]:
        """Names of all probe Jobs so far."""
        jobs, _ = await self.stage.kube.list(JOB, namespace=self.stage.world.system)
        return {job["metadata"]["name"] for job in jobs}

    async def pool(self) -> Raw:
        """As it is on the API server."""
        return await self.stage.kube.get(POOL, self.stage.world.pool)


def _is_rolled_out(deployment: Raw) -> bool:
    status = deployment.get("status") or {}
    return bool(status.get("observedGeneration") == deployment["metadata"]["generation"] and status.get("availableReplicas") == status.get("replicas"))


def make_virtual_operator(stage: Stage, directory: Path) -> VirtualOperator:
    """With a store of its own and the stage's client."""
    store = open_patiently(f"sqlite:///{directory / 'virtual.db'}")
    cluster, limits = ClusterCache(), MeasuringLimits(operator_namespace=stage.world.system, probe_image="probe:1", priority_class="", bench_rounds=3)
    intake = Intake(cluster, Deaf(), later=lambda _seconds, _call: None)
    operator: VirtualOperator

    def clock() -> datetime:
        return operator.now

    writes = ClusterWrites(stage.kube, Actor(stage.kube, store, limits, intake.remember, clock=clock), intake.remember, cluster)
    reconciler = Reconciler(Gatherer(cluster, stage.kube, store, limits, clock=clock), store, writes, PhysicsPredictor())
    operator = VirtualOperator(stage, reconciler, intake)
    return operator
