"""The composition root: builds every part, starts them in order, and ends the process when one of them ends.

Order: our runtime before kopf (tasks that are older than kopf's are not cancelled by it), stopped in kopf's cleanup. Nothing
here retries: a process that exits is restarted, and every part is built to be killed at any line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import kopf

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor, Outcome
from metainfer.act.ports import Remember
from metainfer.act.status import write_adaptation_status, write_pool_status
from metainfer.act.unreadable import report_unreadable
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.app.condition_counts import count_conditions
from metainfer.app.ending import start_exit_deadline
from metainfer.app.health import HealthServer, LagWatch
from metainfer.app.learning import Learner
from metainfer.app.passes import build_work
from metainfer.app.recalling import RecallingGatherer, StoredModels
from metainfer.app.serving import ServedWatch, build_served_watch, count_served
from metainfer.app.upkeep import keep_compact
from metainfer.decide.facts import AdaptationFacts, PoolFacts
from metainfer.decide.plan import Action
from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import ADAPTATION, POOL
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.registry import Registry
from metainfer.predict.shipped import open_shipped_model
from metainfer.reconcile import Reconciler, Request
from metainfer.settings import Settings
from metainfer.store.patient import PatientStore, open_patiently
from metainfer.watch.cluster import ClusterCache
from metainfer.watch.edge import build_kopf_settings, register
from metainfer.watch.intake import Intake
from metainfer.watch.queue import WorkQueue
from metainfer.watch.resync import Resync

GRACE_SECONDS = 3.0
"""For passes in hand at shutdown: a write in flight takes well below a second. A pass that writes to thousands of nodes is cut
off, which every pass allows."""
STUCK_SECONDS = 30.0
"""A dispatcher or event loop that has not moved for so long will not move again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterWrites:
    """The reconciler's writes: ``act``'s functions with client and cache given to them."""

    client: KubeClient
    actor: Actor
    remember: Remember
    cluster: ClusterCache

    async def execute(self, actions: Sequence[Action], involved: ObjectRef) -> Sequence[Outcome]:
        """See ``Actor.execute``."""
        return await self.actor.execute(actions, involved)

    async def write_pool_status(self, facts: PoolFacts, status: AcceleratorPoolStatus) -> PoolFacts:
        """See ``act.status``."""
        return await write_pool_status(self.client, facts, status, self.remember)

    async def write_adaptation_status(self, facts: AdaptationFacts, status: ModelAdaptationStatus) -> AdaptationFacts:
        """See ``act.status``."""
        return await write_adaptation_status(self.client, facts, status, self.remember)

    async def report_unreadable(self, request: Request, now: datetime) -> None:
        """See ``act.unreadable``."""
        kind = POOL if request.kind == "pool" else ADAPTATION
        problem = self.cluster.problem(kind, (request.namespace, request.name))
        if problem is not None:
            await report_unreadable(self.client, kind, request.name, request.namespace or None, problem=problem, now=now)


@dataclass(slots=True)
class Operator:
    """All parts of one running operator."""

    settings: Settings
    client: KubeClient
    queue: WorkQueue[Request]
    resync: Resync
    intake: Intake
    reconciler: Reconciler
    store: PatientStore
    cluster: ClusterCache
    learner: Learner
    served: ServedWatch
    lag: LagWatch = field(default_factory=LagWatch)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a part ended that must not, and when all are to stop: kopf is told to stop, and the process exits."""
    failed: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    health: HealthServer | None = None

    async def start(self) -> None:
        """Start everything but kopf."""
        self.health = HealthServer(self.find_deadly_troubles, self.find_missing, self.settings.health_port, before_scrape=self.count)
        await self.health.start()
        parts = {
            "resync": self.resync.run(),
            "passes": self.serve(),
            "event loop": self.lag.run(),
            "store": self.store.run(),
            "store upkeep": self.keep_store(),
            "learning": self.learner.run(),
        }
        for name, part in parts.items():
            self._spawn(name, part)

    async def serve(self) -> None:
        """Passes begin once everything was listed: before that, what is absent may only be unseen."""
        await self.resync.synced.wait()
        await self.queue.run(build_work(self.reconciler), self.settings.workers)

    async def keep_store(self) -> None:
        """Compact the store, once it is known which adaptations there are."""
        await self.resync.synced.wait()
        every = self.settings.store_compact_seconds
        await keep_compact(self.store, self.settings.retention(), lambda: {item.uid for item in self.cluster.adaptations()}, every_seconds=every)

    async def stop(self) -> None:
        """Stop taking keys, let writes in flight finish, close. Safe to call twice."""
        self.ended.set()  # kopf would wait 5 s for its own task that waits for this
        tasks, self.tasks = self.tasks, []
        if not tasks:
            return
        await self.queue.stop(GRACE_SECONDS)
        await self.resync.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.served.close()
        await self.client.close()
        await self.store.close()
        if self.health is not None:
            await self.health.stop()
        _log.info("stopped")

    def find_deadly_troubles(self) -> Mapping[str, str]:
        """For /healthz: what only a restart cures."""
        troubles = {}
        if self.lag.lag_seconds > STUCK_SECONDS:
            troubles["event loop"] = f"woke {self.lag.lag_seconds:.0f} s late"
        idle = time.monotonic() - self.queue.served_at
        if self.resync.synced.is_set() and idle > STUCK_SECONDS:
            troubles["queue"] = f"not served for {idle:.0f} s"
        return troubles

    def find_missing(self) -> Mapping[str, str]:
        """For /readyz: which kinds were not listed yet, and why."""
        return {kind.kind: words for kind, words in self.resync.waiting_for.items()}

    def count(self) -> None:
        """Figures that are only worked out when somebody asks for them."""
        count_conditions(self.cluster)
        count_served(self.cluster, datetime.now(UTC))

    def _spawn(self, name: str, part: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(part, name=name)
        task.add_done_callback(self._note_end)
        self.tasks.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task not in self.tasks:
            return  # we are stopping
        self.failed = True
        self.ended.set()
        _log.error("a part ended, exiting", exc_info=None if task.cancelled() else task.exception(), extra={"part": task.get_name()})


def build_operator(settings: Settings, store: PatientStore) -> Operator:
    """Join the parts. Needs a running event loop; connects to nothing yet."""
    client = KubeClient.connect(requests_per_second=settings.requests_per_second, burst=settings.request_burst)
    cluster, limits = ClusterCache(), settings.limits()
    queue: WorkQueue[Request] = WorkQueue(measured=True)
    intake = Intake(cluster, queue)
    writes = ClusterWrites(client, Actor(client, store, limits, intake.remember), intake.remember, cluster)
    models = Registry(open_shipped_model())
    served = build_served_watch(settings, queue)
    gatherer = RecallingGatherer(cluster, client, store, limits, models, served=served.reader)
    reconciler = Reconciler(gatherer, store, writes, LearnedPredictor(models))

    def look_at_pools() -> None:
        for pool in cluster.pools():
            queue.add(Request("pool", "", pool.name))

    learner = Learner(StoredModels(store), models, look_at_pools, enough=settings.learn_after_samples)
    resync = Resync(client, intake, period_seconds=settings.resync_seconds)
    return Operator(settings, client, queue, resync, intake, reconciler, store, cluster, learner, served)


async def run(settings: Settings, store: PatientStore) -> int:
    """Run until SIGTERM (0), or until a part fails (1)."""
    operator = build_operator(settings, store)
    await operator.start()
    registry = kopf.OperatorRegistry()
    register(registry, operator.intake, operator.resync, operator.stop)
    try:
        await _run_kopf(registry, operator.ended)
    except Exception:  # noqa: BLE001 - whatever it was, the process ends, after an orderly stop
        # A watch that died: to go on without it would look healthy and see nothing.
        _log.exception("kopf ended, exiting")
        operator.failed = True
    finally:
        await operator.stop()
    return 1 if operator.failed else 0


async def _run_kopf(registry: kopf.OperatorRegistry, stop: asyncio.Event) -> None:
    """Run until SIGTERM, ``stop``, or the death of a watch. The first part that ends begins the end of the process."""
    older = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=build_kopf_settings(),
        # Ours, because kopf's default looks up the user's name, and the image's user 65532 has none.
        identity="metainfer",  # type: ignore[arg-type]  # its NewType is not public
        clusterwide=True,
        stop_flag=stop,
    )
    for task in tasks:
        task.add_done_callback(start_exit_deadline)
    await kopf.run_tasks(tasks, ignored=older)


def run_operator(settings: Settings) -> int:
    """Open the store (which blocks, and may fail for now), then run; returns the exit status."""
    store = open_patiently(settings.store_url)
    return asyncio.run(run(settings, store))
