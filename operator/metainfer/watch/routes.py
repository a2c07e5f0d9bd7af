"""Which passes a change wakes. Pure: change and caches in, requests out.

Wakes too many rather than too few: a pass that finds nothing to do costs milliseconds, one that is not woken waits for the
resync. Changes that concern everybody (a node, a card that got free) wake a little later, so that a hundred of them wake once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from metainfer.api.v1alpha1.reasons import READY
from metainfer.decide.facts import AdaptationFacts, JobFacts, NodeFacts, PodFacts, PoolFacts, Portrait, TargetFacts
from metainfer.decide.names import ADAPTATION_ANNOTATION, ADAPTATION_UID_LABEL, POOL_ANNOTATION
from metainfer.observe.projections import Facts, node_fingerprint
from metainfer.observe.quantities import is_extended_resource
from metainfer.reconcile import Request
from metainfer.watch.cache import Name
from metainfer.watch.cluster import Change, ClusterCache


@dataclass(frozen=True, slots=True)
class Wakes:
    """Requests to serve at once, and those that can wait for more of the same."""

    now: frozenset[Request] = frozenset()
    soon: frozenset[Request] = frozenset()


def pool_request(name: str) -> Request:
    """A pass over a pool."""
    return Request("pool", "", name)


def adaptation_request(key: Name) -> Request:
    """A pass over an adaptation."""
    return Request("adaptation", *key)


def find_wakes(change: Change, cluster: ClusterCache) -> Wakes:
    """The passes for which this change can make a difference."""
    match change.new if change.new is not None else change.old:
        case NodeFacts():
            return _wakes_of_node(change, cluster)
        case PodFacts() as pod:
            return _wakes_of_pod(change, pod, cluster)
        case JobFacts() as job:
            return Wakes(frozenset(_owner(job, cluster)), _pools(cluster) | _waiting(cluster) if _frees_a_slot(change) else frozenset())
        case TargetFacts():
            return _wakes_of_target(change, cluster)
        case PoolFacts() as pool:
            return _wakes_of_pool(change, pool, cluster)
        case AdaptationFacts():
            return _wakes_of_adaptation(change, cluster)
        case Portrait():
            return _wakes_of_portrait(change, cluster)
    return Wakes()


def _wakes_of_node(change: Change, cluster: ClusterCache) -> Wakes:
    if isinstance(change.old, NodeFacts) and isinstance(change.new, NodeFacts) and node_fingerprint(change.old) == node_fingerprint(change.new):
        return Wakes()
    return Wakes(soon=_pools(cluster) | _waiting(cluster))


def _wakes_of_pod(change: Change, pod: PodFacts, cluster: ClusterCache) -> Wakes:
    if change.old == change.new:
        return Wakes()
    now = set(_owner(pod, cluster))
    for deployment in cluster.interest.deployments_of(pod.namespace, pod.labels):
        now |= {adaptation_request(key) for key in cluster.interest.adaptations_of(deployment)}
    moved = _cards_held(change.old) != _cards_held(change.new)
    return Wakes(frozenset(now), _pools(cluster) | _waiting(cluster) if moved else frozenset())


def _cards_held(pod: Facts | None) -> object:
    """The node and the cards held there; None = no card is held."""
    if not isinstance(pod, PodFacts) or not pod.holds_resources:
        return None
    cards = {name: count for name, count in pod.requests.items() if is_extended_resource(name)}
    return (pod.node, cards) if cards else None


def _wakes_of_target(change: Change, cluster: ClusterCache) -> Wakes:
    if isinstance(change.old, TargetFacts) and isinstance(change.new, TargetFacts) and _settled(change.old) == _settled(change.new):
        return Wakes()
    return Wakes(frozenset(adaptation_request(key) for key in cluster.interest.adaptations_of(change.key)))


def _settled(target: TargetFacts) -> TargetFacts:
    return replace(target, resource_version="")


def _wakes_of_pool(change: Change, pool: PoolFacts, cluster: ClusterCache) -> Wakes:
    others = _pools(cluster) - {pool_request(pool.name)}
    if not (isinstance(change.old, PoolFacts) and isinstance(change.new, PoolFacts)):
        return Wakes(frozenset({pool_request(pool.name)}), others | _adaptations(cluster))
    if _asked(change.old) != _asked(change.new):
        return Wakes(frozenset({pool_request(pool.name)}), others | _adaptations(cluster))
    if change.old.status.conditions != change.new.status.conditions:
        return Wakes(soon=_waiting(cluster))
    return Wakes()


def _wakes_of_adaptation(change: Change, cluster: ClusterCache) -> Wakes:
    ends = [facts for facts in (change.old, change.new) if isinstance(facts, AdaptationFacts)]
    if len(ends) == 2 and _asked(ends[0]) == _asked(ends[1]):
        # Its status: our own, written by the pass that knows what comes next.
        return Wakes()
    targets = {(facts.namespace, facts.spec.target_ref.name) for facts in ends}
    peers = {adaptation_request(key) for target in targets for key in cluster.interest.adaptations_of(target)}
    itself = adaptation_request(change.key)
    return Wakes(frozenset({itself}), frozenset(peers) - {itself})


def _asked(facts: PoolFacts | AdaptationFacts) -> tuple[object, ...]:
    """What its user says, without what we said back."""
    return (facts.uid, facts.generation, facts.deleting, facts.labels)


def _wakes_of_portrait(change: Change, cluster: ClusterCache) -> Wakes:
    pools = {pool_request(facts.spec.pool) for facts in (change.old, change.new) if isinstance(facts, Portrait)}
    return Wakes(soon=frozenset(pools) | _waiting(cluster))


def _owner(facts: JobFacts | PodFacts, cluster: ClusterCache) -> Iterator[Request]:
    """Who asked for the Job, or for the Job of the pod: an adaptation (which names a pool too), or a pool for its probes."""
    job: JobFacts | PodFacts | None = facts
    if isinstance(facts, PodFacts):
        kind, _, name = facts.owner.partition("/")
        job = (cluster.job(facts.namespace, name) if kind == "Job" else None) or facts
    if job is None:
        return
    namespace, _, name = job.annotations.get(ADAPTATION_ANNOTATION, "").rpartition("/")
    if name:
        yield adaptation_request((namespace or job.namespace, name))
    elif pool := job.annotations.get(POOL_ANNOTATION):
        yield pool_request(pool)
    elif uid := job.labels.get(ADAPTATION_UID_LABEL):
        yield from (adaptation_request((item.namespace, item.name)) for item in cluster.adaptations(job.namespace) if item.uid == uid)


def _frees_a_slot(change: Change) -> bool:
    """Whether one measuring Job less runs now: caps count those that run."""
    return _runs(change.old) and not _runs(change.new)


def _runs(job: Facts | None) -> bool:
    return isinstance(job, JobFacts) and not job.finished


def _pools(cluster: ClusterCache) -> frozenset[Request]:
    return frozenset(pool_request(pool.name) for pool in cluster.pools())


def _adaptations(cluster: ClusterCache) -> frozenset[Request]:
    return _requests(cluster.adaptations())


def _waiting(cluster: ClusterCache) -> frozenset[Request]:
    """Adaptations that are not ready: one that is looks for changes at its own pace."""
    return _requests(item for item in cluster.adaptations() if not _is_ready(item) and not item.spec.suspend)


def _requests(items: Iterable[AdaptationFacts]) -> frozenset[Request]:
    return frozenset(adaptation_request((item.namespace, item.name)) for item in items)


def _is_ready(adaptation: AdaptationFacts) -> bool:
    current = adaptation.status.observed_generation == adaptation.generation
    return current and any(item.type == READY and item.status == "True" for item in adaptation.status.conditions)
