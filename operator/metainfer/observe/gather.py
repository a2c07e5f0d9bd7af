"""One frozen snapshot per pass: from the cache, the store, and the few objects that are read fresh from the API server.

The target is always read fresh, because what is decided from it is written back. What may not be read (Forbidden) becomes a fact in the
snapshot, and a store that does not answer leaves the results that are still in their Jobs; everything else that fails, fails the
pass. Judges nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from metainfer.decide.facts import (
    AdaptationFacts,
    AdaptationSnapshot,
    JobFacts,
    MeasuringLimits,
    NodeFacts,
    NodeTerm,
    PodFacts,
    PodTemplateFacts,
    PoolFacts,
    PoolSnapshot,
    ProbeResult,
    ProfileResult,
    RunResult,
    RuntimeClassFacts,
    TargetFacts,
)  # fmt: skip
from metainfer.decide.families import assign_nodes
from metainfer.decide.names import ADAPTATION_UID_LABEL, NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL
from metainfer.kube.errors import Forbidden, NotFound
from metainfer.kube.kinds import CONFIG_MAP, DEPLOYMENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, RUNTIME_CLASS, Kind
from metainfer.observe.pods import project_terms
from metainfer.observe.projections import project_runtime_class, project_target
from metainfer.observe.reports import AnyResult, Ending, Moment, RemainsReader, find_ending, read_result
from metainfer.observe.view import ClusterView

T = TypeVar("T")
ResultT = TypeVar("ResultT", ProfileResult, RunResult)
Clock = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ClusterReader(RemainsReader, Protocol):
    """Fresh reads of single objects, besides those that results need; ``KubeClient`` has them."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object; raises NotFound or Forbidden."""
        ...


class ResultStore(Protocol):
    """What was recorded before. Every method raises ConnectionError when the store does not answer."""

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


@dataclass(frozen=True, slots=True)
class GatheredPool:
    """A pool's snapshot, and what must be recorded before it is decided on."""

    snapshot: PoolSnapshot
    fresh: tuple[ProbeResult, ...]
    store_problem: str = ""
    """Why the store did not answer; then nothing is known to be recorded and ``fresh`` holds all that is still in its Jobs."""


@dataclass(frozen=True, slots=True)
class GatheredAdaptation:
    """An adaptation's snapshot, and what must be recorded before it is decided on (also of earlier runs)."""

    snapshot: AdaptationSnapshot
    fresh: tuple[ProfileResult | RunResult, ...]
    store_problem: str = ""


@dataclass(frozen=True, slots=True)
class _Ended:
    """Jobs that have ended: those whose results the store has, and the results of the others."""

    known: frozenset[str]
    fresh: tuple[AnyResult, ...]
    store_problem: str = ""


@dataclass(slots=True)
class _Surroundings:
    """Objects around a target, as they are being read. ``unread``: what Forbidden kept from us."""

    unread: dict[str, str] = field(default_factory=dict)
    config_maps: dict[str, Mapping[str, str] | None] = field(default_factory=dict)
    claim_terms: dict[str, tuple[NodeTerm, ...] | None] = field(default_factory=dict)
    runtime_class: RuntimeClassFacts | None = None


class Gatherer:
    """Builds snapshots. Stateless: two passes share nothing but the cache behind ``view``."""

    def __init__(
        self,
        view: ClusterView,
        reader: ClusterReader,
        store: ResultStore,
        limits: MeasuringLimits,
        *,
        clock: Clock = _utc_now,
    ) -> None:
        self._view = view
        self._reader = reader
        self._store = store
        self._limits = limits
        self._clock = clock

    async def gather_pool(self, name: str) -> GatheredPool | None:
        """All facts for one pass over a pool; None when it is gone. Raises ApiError."""
        pool = self._view.pool(name)
        if pool is None:
            return None
        pools, nodes, portraits = self._view.pools(), self._view.nodes(), self._view.portraits()
        jobs = _jobs_of_pool(pool, pools, nodes, self._view.jobs())
        # Results count only from where nobody but us creates Jobs.
        own = [job for job in jobs if _is_probe_of(job, name) and job.namespace == self._limits.operator_namespace]
        ended = await self._read_ended(own, nodes)
        fresh = tuple(item for item in ended.fresh if isinstance(item, ProbeResult))
        recorded, problem = await self._ask(self._store.find_probes(ended.known), ()) if ended.known else ((), "")
        in_portrait = {portrait.status.probe_job for portrait in portraits.values()}
        results = tuple(sorted((item for item in (*recorded, *fresh) if item.job not in in_portrait), key=lambda item: item.finished_at))
        snapshot = PoolSnapshot(pool, pools, nodes, self._view.card_pods(), portraits, jobs, results, self._limits)
        return GatheredPool(snapshot, fresh, ended.store_problem or problem)

    async def gather_adaptation(self, namespace: str, name: str) -> GatheredAdaptation | None:
        """All facts for one pass over an adaptation, its target read fresh; None when it is gone. Raises ApiError."""
        adaptation = self._view.adaptation(namespace, name)
        if adaptation is None:
            return None
        around = _Surroundings()
        target = await self._read_target(adaptation, around)
        nodes, jobs = self._view.nodes(), self._view.jobs()
        own = [job for job in jobs if job.labels.get(ADAPTATION_UID_LABEL) == adaptation.uid and job.namespace == namespace]
        ended = await self._read_ended(own, nodes)
        profile, runs, problem = await self._find_results(adaptation, ended)
        snapshot = AdaptationSnapshot(
            adaptation=adaptation,
            peers=tuple(item for item in self._view.adaptations(namespace) if item.uid != adaptation.uid),
            target=target,
            target_pods=_pods_of(self._view, target) if target is not None else (),
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
            limits=self._limits,
            unread=around.unread,
        )
        fresh = tuple(item for item in ended.fresh if not isinstance(item, ProbeResult))
        return GatheredAdaptation(snapshot, fresh, ended.store_problem or problem)

    async def _read_ended(self, jobs: Sequence[JobFacts], nodes: Sequence[NodeFacts]) -> _Ended:
        moment = Moment(self._clock(), self._limits.job_start_seconds, _lost_nodes(jobs, nodes))
        endings: list[tuple[JobFacts, Ending]] = [(job, ending) for job in jobs if (ending := find_ending(job, moment)) is not None]
        known, problem = await self._ask(self._store.known_jobs([job.uid for job, _ in endings]), frozenset[str]())
        results = [
            # Without the store the same Jobs are read in every pass: then the summary has to do.
            await read_result(job, ending, self._reader, detail=not problem)
            for job, ending in endings
            if job.uid not in known
        ]
        return _Ended(known, tuple(item for item in results if item is not None), problem)

    async def _find_results(self, adaptation: AdaptationFacts, ended: _Ended) -> tuple[ProfileResult | None, tuple[RunResult, ...], str]:
        run = adaptation.status.run
        if run is None:
            return None, (), ""
        stored_profile, problem = await self._ask(self._store.find_profile(adaptation.uid, run.id), None)
        stored_runs, _ = await self._ask(self._store.find_runs(adaptation.uid, run.id), ())
        profiles = [*([stored_profile] if stored_profile else []), *(item for item in ended.fresh if isinstance(item, ProfileResult) and item.run_id == run.id)]
        runs = [*stored_runs, *(item for item in ended.fresh if isinstance(item, RunResult) and item.run_id == run.id)]
        return (_oldest_first(profiles) or (None,))[-1], _oldest_first(runs), problem

    async def _ask(self, question: Awaitable[T], otherwise: T) -> tuple[T, str]:
        """The store's answer, or ``otherwise`` and why there is none."""
        try:
            return await question, ""
        except ConnectionError as error:
            return otherwise, str(error)

    async def _read_target(self, adaptation: AdaptationFacts, around: _Surroundings) -> TargetFacts | None:
        reference, namespace = adaptation.spec.target_ref, adaptation.namespace
        raw = await self._read(DEPLOYMENT, reference.name, namespace, around)
        if raw is None:
            return None
        target = project_target(raw)
        for name in _named_config_maps(target.template, reference.container):
            found = await self._read(CONFIG_MAP, name, namespace, around)
            if found is not None or _label(CONFIG_MAP, name) not in around.unread:
                around.config_maps[name] = (found.get("data") or {}) if found is not None else None
        for claim in target.template.claims:
            around.claim_terms[claim] = await self._read_claim_terms(claim, namespace, around)
        if target.template.runtime_class:
            found = await self._read(RUNTIME_CLASS, target.template.runtime_class, None, around)
            around.runtime_class = project_runtime_class(found) if found is not None else None
        return target

    async def _read_claim_terms(self, claim: str, namespace: str, around: _Surroundings) -> tuple[NodeTerm, ...] | None:
        """Where the claim's volume can be mounted; None = anywhere, or not known (not bound yet, or not readable)."""
        found = await self._read(PERSISTENT_VOLUME_CLAIM, claim, namespace, around)
        volume = ((found or {}).get("spec") or {}).get("volumeName")
        if not volume:
            return None
        bound = await self._read(PERSISTENT_VOLUME, volume, None, around)
        required = (((bound or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
        return project_terms(required) if required else None

    async def _read(self, kind: Kind, name: str, namespace: str | None, around: _Surroundings) -> dict[str, Any] | None:
        try:
            return await self._reader.get(kind, name, namespace)
        except NotFound:
            return None
        except Forbidden as error:
            around.unread[_label(kind, name)] = error.message
            return None


def _lost_nodes(jobs: Sequence[JobFacts], nodes: Sequence[NodeFacts]) -> frozenset[str]:
    """Nodes of Jobs that are gone, or whose kubelet is silent. One that says itself that it is not Ready is restarting, and its pods go on."""
    heard = {node.name for node in nodes if node.conditions.get("Ready") != "Unknown"}
    named = {pod.node for job in jobs for pod in job.pods if pod.node} | {job.annotations.get(NODE_ANNOTATION, "") for job in jobs}
    return frozenset(named - heard - {""})


def _pods_of(view: ClusterView, target: TargetFacts) -> tuple[PodFacts, ...]:
    """The target's pods: by its labels, and of its ReplicaSets only, because another Deployment's pods may carry the same labels."""
    found = view.pods_matching(target.namespace, target.match_labels or target.template.labels)
    return tuple(pod for pod in found if pod.owner.startswith(f"ReplicaSet/{target.name}-"))


def _label(kind: Kind, name: str) -> str:
    return f"{kind.kind} {name}"


def _oldest_first(results: Sequence[ResultT]) -> tuple[ResultT, ...]:
    """Sorted; of several results under one Job name (it was started again) only the last."""
    last = {item.job: item for item in sorted(results, key=lambda item: item.finished_at)}
    return tuple(sorted(last.values(), key=lambda item: item.finished_at))


def _is_probe_of(job: JobFacts, pool: str) -> bool:
    return job.labels.get(PURPOSE_LABEL) == "probe" and job.annotations.get(POOL_ANNOTATION) == pool


def _jobs_of_pool(pool: PoolFacts, pools: Sequence[PoolFacts], nodes: Sequence[NodeFacts], jobs: Sequence[JobFacts]) -> tuple[JobFacts, ...]:
    """Jobs that say they belong to the pool, and whatever else measures on its nodes."""
    members = assign_nodes(pool, pools, nodes).keys()
    return tuple(
        job
        for job in jobs
        if job.annotations.get(POOL_ANNOTATION) == pool.name or job.annotations.get(NODE_ANNOTATION) in members or any(pod.node in members for pod in job.pods)
    )


def _named_config_maps(template: PodTemplateFacts, container: str | None) -> tuple[str, ...]:
    """ConfigMaps from which the target's container (all of them where none is named) takes environment variables."""
    named: list[str] = []
    for item in template.containers:
        if container is not None and item.name != container:
            continue
        named += [source.name for source in item.env_from if source.kind == "ConfigMap"]
        named += [entry.source.removeprefix("configMap ").partition("/")[0] for entry in item.env if entry.source and entry.source.startswith("configMap ")]
    return tuple(dict.fromkeys(named))
