"""One frozen snapshot per pass: from the cache, the store, and the few objects that are read fresh from the API server.

The target is always read fresh, because what is decided from it is written back. What may not be read (Forbidden) becomes a fact in the
snapshot; everything else that fails, fails the pass. Judges nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from metainfer.decide.facts import (
    AdaptationFacts,
    AdaptationSnapshot,
    CanaryFacts,
    CheckResult,
    JobFacts,
    MeasuringLimits,
    NodeFacts,
    PodFacts,
    PoolFacts,
    PoolSnapshot,
    ProbeResult,
    ProfileResult,
    RunResult,
    TargetFacts,
)  # fmt: skip
from metainfer.decide.families import assign_nodes
from metainfer.decide.latency.served import ServedFacts
from metainfer.decide.names import ADAPTATION_UID_LABEL, NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL
from metainfer.observe.canary import CanaryReader, is_asked, read_canary
from metainfer.observe.leftovers import LeftoverGatherer, LeftoverReader
from metainfer.observe.reports import AnyResult, Ending, Moment, RemainsReader, find_ending, find_lost_nodes, look_again, read_result
from metainfer.observe.surroundings import Surroundings, read_target
from metainfer.observe.told import tell
from metainfer.observe.view import ClusterView

ResultT = TypeVar("ResultT", ProfileResult, RunResult, CheckResult)
Clock = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ClusterReader(RemainsReader, LeftoverReader, CanaryReader, Protocol):
    """Fresh reads, besides those that results need; ``KubeClient`` has them."""


class ResultStore(Protocol):
    """What was recorded before; while the store is away, what this process knows of it.

    The question that finds it away raises ConnectionError: a pass rests on the one or on the other, never on both.
    """

    @property
    def problem(self) -> str:
        """Why the store is away; empty = it is not."""
        ...

    async def has_decision(self, adaptation_uid: str, decision_id: str) -> bool | None:
        """Whether a decision is recorded, or waits for it; None = nobody knows before the store is back."""
        ...

    async def known_jobs(self, job_uids: Collection[str]) -> frozenset[str]:
        """Which of these Jobs' results are recorded."""
        ...

    async def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        """Recorded results of these probe Jobs."""
        ...

    async def find_profile(self, adaptation_uid: str, run_id: str) -> ProfileResult | None:
        """The last profile made for a run."""
        ...

    async def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        """The benchmarks of a run, oldest first."""
        ...

    async def find_checks(self, adaptation_uid: str, run_id: str) -> tuple[CheckResult, ...]:
        """The checks of what a run decided, oldest first."""
        ...


class LooksAtLatency(Protocol):
    """``served.ServedReader``."""

    def look(self, adaptation: AdaptationFacts, pods: Sequence[PodFacts], group: str = "") -> ServedFacts:
        """What is known now of the latency that these pods serve; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class GatheredPool:
    """A pool's snapshot, and what must be recorded before it is decided on."""

    snapshot: PoolSnapshot
    fresh: tuple[ProbeResult, ...]


@dataclass(frozen=True, slots=True)
class GatheredAdaptation:
    """An adaptation's snapshot, and what must be recorded before it is decided on (also of earlier runs)."""

    snapshot: AdaptationSnapshot
    fresh: tuple[ProfileResult | RunResult | CheckResult, ...]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Jobs that have ended: those whose results the store has, and the results of the others."""

    known: frozenset[str]
    fresh: tuple[AnyResult, ...]


class Gatherer(LeftoverGatherer):
    """Builds snapshots. Stateless: two passes share nothing but the cache behind ``view``."""

    _reader: ClusterReader

    def __init__(  # budget: what a gatherer reads from, each by itself
        self,
        view: ClusterView,
        reader: ClusterReader,
        store: ResultStore,
        limits: MeasuringLimits,
        *,
        clock: Clock = _utc_now,
        served: LooksAtLatency | None = None,
    ) -> None:
        super().__init__(view, reader)
        self._store = store
        self._limits = limits
        self._clock = clock
        self._served = served

    async def gather_pool(self, name: str) -> GatheredPool | None:
        """All facts for one pass over a pool; None when it is gone. Raises ApiError."""
        pool = self._view.pool(name)
        if pool is None:
            return None
        pools, nodes, portraits = self._view.pools(), self._view.nodes(), self._view.portraits()
        jobs = _jobs_of_pool(pool, pools, nodes, self._view.jobs())
        # Results count only from where nobody but us creates Jobs.
        mine = [job for job in jobs if _is_probe_of(job, name) and job.namespace == self._limits.operator_namespace]
        jobs, own = await tell(jobs, mine, self._reader, self._clock())
        ended = await self._read_ended(own, nodes)
        fresh = tuple(item for item in ended.fresh if isinstance(item, ProbeResult))
        recorded = await self._store.find_probes(ended.known) if ended.known else ()
        in_portrait = {portrait.status.probe_job for portrait in portraits.values()}
        results = tuple(sorted((item for item in (*recorded, *fresh) if item.job not in in_portrait), key=lambda item: item.finished_at))
        snapshot = PoolSnapshot(
            pool, pools, nodes, self._view.card_pods(), portraits, jobs, results, self._limits, self._store.problem, adaptations=self._view.adaptations()
        )
        return GatheredPool(snapshot, fresh)

    async def gather_adaptation(self, namespace: str, name: str) -> GatheredAdaptation | None:
        """All facts for one pass over an adaptation, its target read fresh; None when it is gone. Raises ApiError."""
        adaptation = self._view.adaptation(namespace, name)
        if adaptation is None:
            return None
        around = Surroundings()
        target = await read_target(adaptation, around, self._reader)
        pods = _pods_of(self._view, target) if target is not None else ()
        nodes, jobs = self._view.nodes(), self._view.jobs()
        mine = [job for job in jobs if job.labels.get(ADAPTATION_UID_LABEL) == adaptation.uid and job.namespace == namespace]
        jobs, own = await tell(jobs, mine, self._reader, self._clock())
        ended = await self._read_ended(own, nodes)
        profile, runs = await self._find_results(adaptation, ended)
        everybody = self._view.adaptations()
        decided = adaptation.status.recommendation
        snapshot = AdaptationSnapshot(
            adaptation=adaptation,
            peers=tuple(item for item in everybody if item.namespace == namespace and item.uid != adaptation.uid),
            others=tuple(item for item in everybody if item.uid != adaptation.uid),
            target=target,
            target_pods=pods,
            config_maps=around.config_maps,
            runtime_class=around.runtime_class,
            claim_terms=around.claim_terms,
            pools=self._view.pools(),
            nodes=nodes,
            card_pods=self._view.card_pods(),
            portraits=self._view.portraits(),
            jobs=jobs,
            profile=profile,
            runs=runs,
            checks=await self._find_checks(adaptation, ended),
            limits=self._limits,
            unread=around.unread,
            absent_claims=frozenset(around.absent_claims),
            store_problem=self._store.problem,
            served=self._look_at_latency(adaptation, pods),
            canary=await self._look_at_canary(adaptation),
            decision_recorded=await self._store.has_decision(adaptation.uid, decided.decision_id) if decided is not None else None,
        )
        return GatheredAdaptation(snapshot, tuple(item for item in ended.fresh if not isinstance(item, ProbeResult)))

    def _look_at_latency(self, adaptation: AdaptationFacts, pods: Sequence[PodFacts]) -> ServedFacts | None:
        """Only of a target for which something was or is being decided; the reading itself goes on beside the passes."""
        watched = self._served is not None and adaptation.status.run is not None and not adaptation.spec.suspend
        return self._served.look(adaptation, pods) if watched and self._served is not None and pods else None

    async def _look_at_canary(self, adaptation: AdaptationFacts) -> CanaryFacts | None:
        if not is_asked(adaptation):
            return None
        found = await read_canary(adaptation, self._reader)
        watched = self._served is not None and bool(found.pods) and not adaptation.spec.suspend
        return replace(found, served=self._served.look(adaptation, found.pods, "/canary")) if watched and self._served is not None else found

    async def _read_ended(self, jobs: Sequence[JobFacts], nodes: Sequence[NodeFacts]) -> _Ended:
        moment = Moment(self._clock(), self._limits.job_start_seconds, find_lost_nodes(jobs, nodes))
        endings: list[tuple[JobFacts, Ending]] = [(job, ending) for job in jobs if (ending := find_ending(job, moment)) is not None]
        known = await self._store.known_jobs([job.uid for job, _ in endings])
        seen = [(job, await look_again(job, ending, moment, self._reader)) for job, ending in endings if job.uid not in known]
        results = [await read_result(job, ending, self._reader) for job, ending in seen if ending is not None]
        return _Ended(known, tuple(item for item in results if item is not None))

    async def _find_results(self, adaptation: AdaptationFacts, ended: _Ended) -> tuple[ProfileResult | None, tuple[RunResult, ...]]:
        run = adaptation.status.run
        if run is None:
            return None, ()
        stored_profile = await self._store.find_profile(adaptation.uid, run.id)
        if stored_profile is None and run.profile_run:
            stored_profile = await self._store.find_profile(adaptation.uid, run.profile_run)
        stored_runs = await self._store.find_runs(adaptation.uid, run.id)
        profiles = [*([stored_profile] if stored_profile else []), *(item for item in ended.fresh if isinstance(item, ProfileResult) and item.run_id == run.id)]
        runs = [*stored_runs, *(item for item in ended.fresh if isinstance(item, RunResult) and item.run_id == run.id)]
        return (_oldest_first(profiles) or (None,))[-1], _oldest_first(runs)

    async def _find_checks(self, adaptation: AdaptationFacts, ended: _Ended) -> tuple[CheckResult, ...]:
        """Asked for only where a check was ever claimed."""
        run = adaptation.status.run
        if run is None or adaptation.status.check is None:
            return ()
        fresh = (item for item in ended.fresh if isinstance(item, CheckResult) and item.run_id == run.id)
        return _oldest_first((*await self._store.find_checks(adaptation.uid, run.id), *fresh))


def _pods_of(view: ClusterView, target: TargetFacts) -> tuple[PodFacts, ...]:
    """The target's pods: by its labels, and of its ReplicaSets only, because another Deployment's pods may carry the same labels."""
    found = view.pods_matching(target.namespace, target.match_labels or target.template.labels)
    return tuple(pod for pod in found if pod.owner.startswith(f"ReplicaSet/{target.name}-"))


def _oldest_first(results: Sequence[ResultT]) -> tuple[ResultT, ...]:
    """Sorted; of several results under one Job name (it was started again) only the last."""
    last = {item.job: item for item in sorted(results, key=lambda item: item.finished_at)}
    return tuple(sorted(last.values(), key=lambda item: item.finished_at))


def _is_probe_of(job: JobFacts, pool: str) -> bool:
    return job.labels.get(PURPOSE_LABEL) == "probe" and job.annotations.get(POOL_ANNOTATION) == pool


def _jobs_of_pool(pool: PoolFacts, pools: Sequence[PoolFacts], nodes: Sequence[NodeFacts], jobs: Sequence[JobFacts]) -> tuple[JobFacts, ...]:
    """Jobs that say they belong to the pool, and whatever else measures on its nodes."""
    named = {name for job in jobs for name in (job.annotations.get(NODE_ANNOTATION), *(pod.node for pod in job.pods))}
    members = assign_nodes(pool, pools, [node for node in nodes if node.name in named]).keys()
    return tuple(
        job
        for job in jobs
        if job.annotations.get(POOL_ANNOTATION) == pool.name or job.annotations.get(NODE_ANNOTATION) in members or any(pod.node in members for pod in job.pods)
    )
