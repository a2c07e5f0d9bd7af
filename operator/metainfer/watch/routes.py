"""Which passes a change wakes. Pure: change and caches in, requests out.

Wakes too many rather than too few: a pass that finds nothing to do costs milliseconds, one that is not woken waits for the
resync. Changes that concern everybody (a node, a card that got free) wake a little later, so that a hundred of them wake once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from metainfer.api.v1alpha1.reasons import READY
from metainfer.decide.facts import AdaptationFacts, JobFacts, NodeFacts, PodFacts, PoolFacts, Portrait, TargetFacts
from metainfer.decide.keeping.turns import turns_of, waits_for_turn, waits_since
from metainfer.decide.leaving import is_marked
from metainfer.decide.names import ADAPTATION_ANNOTATION, ADAPTATION_UID_LABEL, POOL_ANNOTATION
from metainfer.observe.projections import Facts, node_fingerprint
from metainfer.observe.quantities import is_extended_resource
from metainfer.reconcile import ORPHANS, Request
from metainfer.watch.cache import Name
from metainfer.watch.cluster import Change, ClusterCache

Audience = Literal["pools", "adaptations", "waiting", "turns", "marked", "orphans"]
"""Named, not listed: with 5,000 nodes and 2,000 adaptations, listing them once per event would be ten million requests.
``waiting``: adaptations that are not ready; one that is ready looks for changes at its own pace. ``turns``: those that may wait for a
turn that others have, whoever has waited longest first. ``marked``: Deployments that we wrote
to. ``orphans``: the one pass that looks for what deleted pools left."""
THE_SCENE: frozenset[Audience] = frozenset({"pools", "waiting"})
"""Who looks at nodes and free cards."""
ALL: frozenset[Audience] = frozenset({"pools", "adaptations"})


@dataclass(frozen=True, slots=True)
class Wakes:
    """Requests to serve at once, those that can wait for more of the same, and whole audiences, which wait longer."""

    now: frozenset[Request] = frozenset()
    soon: frozenset[Request] = frozenset()
    audiences: frozenset[Audience] = frozenset()


def pool_request(name: str) -> Request:
    """A pass over a pool."""
    return Request("pool", "", name)


def adaptation_request(key: Name) -> Request:
    """A pass over an adaptation."""
    return Request("adaptation", *key)


def target_request(key: Name) -> Request:
    """A pass over a Deployment that we wrote to, because perhaps nobody wants that any more."""
    return Request("target", *key)


def find_wakes(change: Change, cluster: ClusterCache) -> Wakes:
    """The passes for which this change can make a difference."""
    match change.new if change.new is not None else change.old:
        case NodeFacts():
            return _wakes_of_node(change)
        case PodFacts() as pod:
            return _wakes_of_pod(change, pod, cluster)
        case JobFacts() as job:
            return Wakes(frozenset(_owner(job, cluster)), audiences=THE_SCENE if _frees_a_slot(change) else frozenset())
        case TargetFacts():
            return _wakes_of_target(change, cluster)
        case PoolFacts() as pool:
            return _wakes_of_pool(change, pool)
        case AdaptationFacts():
            return _wakes_of_adaptation(change, cluster)
        case Portrait():
            return _wakes_of_portrait(change)
    return Wakes()


def _wakes_of_node(change: Change) -> Wakes:
    if isinstance(change.old, NodeFacts) and isinstance(change.new, NodeFacts) and node_fingerprint(change.old) == node_fingerprint(change.new):
        return Wakes()
    return Wakes(audiences=THE_SCENE)


def _wakes_of_pod(change: Change, pod: PodFacts, cluster: ClusterCache) -> Wakes:
    if change.old == change.new:
        return Wakes()
    now = set(_owner(pod, cluster))
    for deployment in cluster.interest.deployments_of(pod.namespace, pod.labels):
        now |= {adaptation_request(key) for key in cluster.interest.adaptations_of(deployment)}
    moved = _cards_held(change.old) != _cards_held(change.new)
    return Wakes(frozenset(now), audiences=THE_SCENE if moved else frozenset())


def _cards_held(pod: Facts | None) -> object:
    """The node and the cards held there; None = no card is held."""
    if not isinstance(pod, PodFacts) or not pod.holds_resources:
        return None
    cards = {name: count for name, count in pod.requests.items() if is_extended_resource(name)}
    return (pod.node, cards) if cards else None


def _wakes_of_target(change: Change, cluster: ClusterCache) -> Wakes:
    if isinstance(change.old, TargetFacts) and isinstance(change.new, TargetFacts) and _settled(change.old) == _settled(change.new):
        return Wakes()
    itself = {target_request(change.key)} if isinstance(change.new, TargetFacts) and is_marked(change.new) else set()
    return Wakes(frozenset({adaptation_request(key) for key in cluster.interest.adaptations_of(change.key)} | itself))


def _settled(target: TargetFacts) -> TargetFacts:
    return replace(target, resource_version="")


def _wakes_of_pool(change: Change, pool: PoolFacts) -> Wakes:
    old, new = change.old, change.new
    if not (isinstance(old, PoolFacts) and isinstance(new, PoolFacts)) or _asked(old) != _asked(new):
        leaves = not isinstance(new, PoolFacts) or new.deleting
        return Wakes(frozenset({pool_request(pool.name)}), audiences=ALL | {"orphans"} if leaves else ALL)
    if old.status.conditions != new.status.conditions:
        return Wakes(audiences=frozenset({"waiting"}))
    return Wakes()


def _wakes_of_adaptation(change: Change, cluster: ClusterCache) -> Wakes:
    ends = [facts for facts in (change.old, change.new) if isinstance(facts, AdaptationFacts)]
    turns: frozenset[Audience] = frozenset({"turns"}) if _frees_a_turn(change) else frozenset()
    if len(ends) == 2 and _asked(ends[0]) == _asked(ends[1]):
        # Its status: our own, written by the pass that knows what comes next. Only a card that a check found slow, and a turn that it
        # has no more, are news to others.
        return Wakes(soon=frozenset(_condemning_pools(*ends)), audiences=turns)
    targets = {(facts.namespace, facts.spec.target_ref.name) for facts in ends}
    peers = {adaptation_request(key) for target in targets for key in cluster.interest.adaptations_of(target)}
    itself = adaptation_request(change.key)
    # The one that is named no more is to be left; the one that is named may have another policy now.
    marked = {target_request(key) for key in targets if (found := cluster.deployment(*key)) is not None and is_marked(found)}
    return Wakes(frozenset({itself} | marked), frozenset(peers) - {itself}, turns)


def _frees_a_turn(change: Change) -> bool:
    """Whether the adaptation had a turn that it has no more: turns are counted over all adaptations."""
    had = turns_of(change.old) if isinstance(change.old, AdaptationFacts) else frozenset()
    return bool(had - (turns_of(change.new) if isinstance(change.new, AdaptationFacts) else frozenset()))


def _condemning_pools(before: AdaptationFacts, after: AdaptationFacts) -> Iterator[Request]:
    old, new = before.status.check, after.status.check
    verdict, recommendation = new.verdict if new is not None else None, before.status.recommendation
    fresh = verdict is not None and verdict.verdict == "Card" and (old is None or old.verdict != verdict)
    if fresh and recommendation is not None:
        yield pool_request(recommendation.config.pool)


def _asked(facts: PoolFacts | AdaptationFacts) -> tuple[object, ...]:
    """What its user says, without what we said back."""
    annotation = facts.rollback_to if isinstance(facts, AdaptationFacts) else ""
    return (facts.uid, facts.generation, facts.deleting, facts.labels, annotation)


def _wakes_of_portrait(change: Change) -> Wakes:
    pools = {pool_request(facts.spec.pool) for facts in (change.old, change.new) if isinstance(facts, Portrait)}
    return Wakes(soon=frozenset(pools), audiences=frozenset({"waiting"}))


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


def find_members(audience: Audience, cluster: ClusterCache) -> Iterator[Request]:
    """Who is in the audience now."""
    if audience == "pools":
        yield from (pool_request(pool.name) for pool in cluster.pools())
        return
    if audience == "orphans":
        yield ORPHANS
        return
    if audience == "marked":
        yield from (target_request((item.namespace, item.name)) for item in cluster.deployments() if is_marked(item))
        return
    if audience == "turns":
        held = sorted((item for item in cluster.adaptations() if waits_for_turn(item)), key=waits_since)
        yield from (adaptation_request((item.namespace, item.name)) for item in held)
        return
    for item in cluster.adaptations():
        if audience == "adaptations" or not (_is_ready(item) or item.spec.suspend):
            yield adaptation_request((item.namespace, item.name))


def _is_ready(adaptation: AdaptationFacts) -> bool:
    current = adaptation.status.observed_generation == adaptation.generation
    return current and any(item.type == READY and item.status == "True" for item in adaptation.status.conditions)
