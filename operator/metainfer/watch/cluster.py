"""The cluster as last seen: the caches of all kinds together, and the ``ClusterView`` that a pass reads.

Takes raw objects from the watch, from lists and from answers to our own writes, and says what changed. Wakes nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from metainfer.decide.facts import AdaptationFacts, JobFacts, Labels, NodeFacts, PodFacts, PoolFacts, Portrait, TargetFacts
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, NODE, POD, POOL, PORTRAIT, Kind
from metainfer.observe import projections
from metainfer.observe.projections import Facts, ProjectionError
from metainfer.observe.quantities import is_extended_resource
from metainfer.watch.cache import Identity, KindCache, Name, identify
from metainfer.watch.interest import Interest

Raw = Mapping[str, Any]

_PROJECT: Final[Mapping[Kind, Callable[[Raw], Facts]]] = {
    NODE: projections.project_node,
    POD: projections.project_pod,
    JOB: projections.project_job,
    DEPLOYMENT: projections.project_target,
    POOL: projections.project_pool,
    ADAPTATION: projections.project_adaptation,
    PORTRAIT: projections.project_portrait,
}


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one object: ``old`` None = it is new to us, ``new`` None = it is gone, or no longer kept."""

    kind: Kind
    key: Name
    old: Facts | None
    new: Facts | None


class ClusterCache:
    """All kept facts. One thread only; every method returns at once."""

    def __init__(self) -> None:
        self._nodes: KindCache[NodeFacts] = KindCache()
        self._pods: KindCache[PodFacts] = KindCache()
        self._jobs: KindCache[JobFacts] = KindCache()
        self._deployments: KindCache[TargetFacts] = KindCache()
        self._pools: KindCache[PoolFacts] = KindCache()
        self._adaptations: KindCache[AdaptationFacts] = KindCache()
        self._portraits: KindCache[Portrait] = KindCache()
        self._kinds: Mapping[Kind, KindCache[Any]] = {
            NODE: self._nodes, POD: self._pods, JOB: self._jobs, DEPLOYMENT: self._deployments,
            POOL: self._pools, ADAPTATION: self._adaptations, PORTRAIT: self._portraits,
        }  # fmt: skip
        self._job_pods: dict[Name, set[Name]] = {}  # Job -> its pods
        self._job_of: dict[Name, Name] = {}  # pod -> its Job
        self._jobs_with_pods: dict[Name, JobFacts] = {}  # every pass reads them all: joined again only where something changed
        self._card_pods: dict[Name, PodFacts] = {}
        self.interest = Interest()
        self._problems: dict[tuple[Kind, Name], tuple[int, ProjectionError]] = {}

    # --- in ---

    def take(self, kind: Kind, raw: Raw) -> Change | None:
        """Keep this version of an object if it is news and matters; None = nothing changed.

        Raises ProjectionError for an object that cannot be read; what was known of it is dropped, as it is no longer true.
        """
        identity, cache = identify(raw), self._kinds[kind]
        if not cache.is_news(identity) or self._problems.get((kind, identity.key), (-1,))[0] == identity.version:
            return None
        if not self._wants(kind, raw):
            return self._drop(kind, identity)
        try:
            facts = _PROJECT[kind](raw)
        except ProjectionError as problem:
            self._drop(kind, identity)
            self._problems[kind, identity.key] = identity.version, problem
            raise
        self._problems.pop((kind, identity.key), None)
        old = cache.put(identity, facts)
        self._index(kind, identity.key, facts)
        return Change(kind, identity.key, old, facts)

    def remove(self, kind: Kind, raw: Raw) -> Change | None:
        """The object was deleted; ``raw`` is its last version."""
        return self._remove(kind, identify(raw))

    def remove_missing(self, kind: Kind, listed: Collection[str], version: int, namespace: str | None = None) -> list[Change]:
        """Everything that a complete list at ``version`` no longer shows (``listed``: the uids it shows) was deleted."""
        gone = self._kinds[kind].find_gone(listed, version, namespace)
        removed = (self._remove(kind, replace(identity, version=version)) for identity in gone)
        return [change for change in removed if change is not None]

    def forget(self, kind: Kind, namespace: str, name: str) -> Change | None:
        """The API server just said that there is no such object."""
        return self._drop(kind, Identity(namespace, name, "", 0))

    def highest_version(self, kind: Kind) -> int:
        """The latest version seen of the kind."""
        return self._kinds[kind].highest

    def forget_versions(self, kind: Kind) -> None:
        """See ``KindCache.forget_versions``."""
        self._kinds[kind].forget_versions()

    def count(self, kind: Kind) -> int:
        """Objects kept of the kind."""
        return len(self._kinds[kind])

    def problem(self, kind: Kind, key: Name) -> str | None:
        """Why this object cannot be read; None = it can, or is not there."""
        found = self._problems.get((kind, key))
        return None if found is None else found[1].message

    def problems(self, kind: Kind) -> tuple[ProjectionError, ...]:
        """Objects of the kind that cannot be read."""
        return tuple(problem for (found, _), (_, problem) in self._problems.items() if found == kind)

    def _wants(self, kind: Kind, raw: Raw) -> bool:
        if kind == POD:
            return self.interest.wants_pod(raw)
        return kind != DEPLOYMENT or self.interest.wants_deployment(raw)

    def _remove(self, kind: Kind, identity: Identity) -> Change | None:
        self._problems.pop((kind, identity.key), None)
        return self._gone(kind, identity.key, self._kinds[kind].remove(identity))

    def _drop(self, kind: Kind, identity: Identity) -> Change | None:
        return self._gone(kind, identity.key, self._kinds[kind].drop(identity))

    def _gone(self, kind: Kind, key: Name, old: Facts | None) -> Change | None:
        if old is None:
            return None
        self._index(kind, key, None)
        return Change(kind, key, old, None)

    def _index(self, kind: Kind, key: Name, facts: Any) -> None:
        if kind == POD:
            self._index_pod(key, facts)
        elif kind == JOB:
            self._jobs_with_pods.pop(key, None)
        elif kind == ADAPTATION:
            self.interest.aim(key, None if facts is None else (key[0], facts.spec.target_ref.name))
        elif kind == DEPLOYMENT:
            self.interest.select(key, None if facts is None else facts.match_labels)

    def _index_pod(self, key: Name, pod: PodFacts | None) -> None:
        self._card_pods.pop(key, None)
        if pod is None:
            job = self._job_of.pop(key, None)
            if job is not None:
                self._jobs_with_pods.pop(job, None)
                self._job_pods[job].discard(key)
                if not self._job_pods[job]:
                    del self._job_pods[job]
            return
        kind, _, owner = pod.owner.partition("/")
        if kind == JOB.kind:
            job = self._job_of[key] = pod.namespace, owner
            self._jobs_with_pods.pop(job, None)
            self._job_pods.setdefault(job, set()).add(key)
        if pod.phase not in ("Succeeded", "Failed") and any(map(is_extended_resource, pod.requests)):
            self._card_pods[key] = pod

    # --- out: ClusterView ---

    def pools(self) -> tuple[PoolFacts, ...]:
        """Every AcceleratorPool."""
        return tuple(self._pools)

    def pool(self, name: str) -> PoolFacts | None:
        """One AcceleratorPool."""
        return self._pools.get(("", name))

    def adaptations(self, namespace: str | None = None) -> tuple[AdaptationFacts, ...]:
        """Every ModelAdaptation, or those of one namespace."""
        return tuple(item for item in self._adaptations if namespace in (None, item.namespace))

    def adaptation(self, namespace: str, name: str) -> AdaptationFacts | None:
        """One ModelAdaptation."""
        return self._adaptations.get((namespace, name))

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node."""
        return tuple(self._nodes)

    def card_pods(self) -> tuple[PodFacts, ...]:
        """Pods, bound or not, that are not finished and request any extended resource."""
        return tuple(self._card_pods.values())

    def pods_of_job(self, namespace: str, job_name: str) -> tuple[PodFacts, ...]:
        """Pods of one Job, finished ones included, oldest first."""
        found = (self._pods.get(key) for key in self._job_pods.get((namespace, job_name), ()))
        return tuple(sorted((pod for pod in found if pod is not None), key=_age_order))

    def pods_matching(self, namespace: str, match_labels: Labels) -> tuple[PodFacts, ...]:
        """Kept pods of a namespace that carry all these labels; an empty set of labels matches none."""
        if not match_labels:
            return ()
        here = (pod for pod in self._pods if pod.namespace == namespace)
        return tuple(pod for pod in here if all(pod.labels.get(key) == value for key, value in match_labels.items()))

    def jobs(self) -> tuple[JobFacts, ...]:
        """Every measuring Job, ``pods`` filled in."""
        return tuple(self._with_pods(job) for job in self._jobs)

    def _with_pods(self, job: JobFacts) -> JobFacts:
        key = job.namespace, job.name
        found = self._jobs_with_pods.get(key)
        if found is None:
            found = self._jobs_with_pods[key] = replace(job, pods=self.pods_of_job(*key))
        return found

    def job(self, namespace: str, name: str) -> JobFacts | None:
        """One measuring Job, without its pods."""
        return self._jobs.get((namespace, name))

    def portraits(self) -> Mapping[str, Portrait]:
        """Every NodePortrait, by node name."""
        return {portrait.node: portrait for portrait in self._portraits}

    def deployments(self) -> tuple[TargetFacts, ...]:
        """Every Deployment that an adaptation names, or that we wrote to."""
        return tuple(self._deployments)

    def deployment(self, namespace: str, name: str) -> TargetFacts | None:
        """A Deployment that an adaptation names, or that we wrote to."""
        return self._deployments.get((namespace, name))


def _age_order(pod: PodFacts) -> tuple[float, str]:
    return (pod.created_at.timestamp() if pod.created_at else 0.0, pod.name)
