"""What a deleted pool leaves behind: node labels and portraits that no living pool has made. Pure; needs no finalizer.

Its Jobs go by themselves: the pool owns them, and Kubernetes collects them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.decide.facts import NodeFacts, PoolFacts, Portrait
from metainfer.decide.families import Membership, assign_nodes
from metainfer.decide.plan import Action, DeletePortrait, WriteNodeLabels


@dataclass(frozen=True, slots=True)
class OrphanSnapshot:
    """All pools that live, and what may be left of others."""

    pools: tuple[PoolFacts, ...]
    unread: tuple[str, ...]
    """Living pools whose spec this version cannot read: nothing of theirs is an orphan."""
    nodes: tuple[NodeFacts, ...]
    portraits: Mapping[str, Portrait]


def decide_orphans(snapshot: OrphanSnapshot) -> Mapping[str, tuple[Action, ...]]:
    """What to remove, by the name of the pool that left it (empty where nothing tells)."""
    living = {pool.name for pool in snapshot.pools if not pool.deleting} | set(snapshot.unread)
    plan: dict[str, tuple[Action, ...]] = {}
    for node, portrait in snapshot.portraits.items():
        if portrait.spec.pool not in living:
            plan[portrait.spec.pool] = (*plan.get(portrait.spec.pool, ()), DeletePortrait(node, "its pool is gone"))
    labelled = tuple(WriteNodeLabels(node.name, {}) for node in _unclaimed(snapshot, living))
    return plan | ({"": labelled} if labelled else {})


def _unclaimed(snapshot: OrphanSnapshot, living: set[str]) -> Iterator[NodeFacts]:
    """Nodes with our labels that belong to no living pool, nor did a moment ago (a labeller that restarts drops its labels)."""
    labelled = [node for node in snapshot.nodes if FAMILY_LABEL in node.labels or HEALTH_LABEL in node.labels]
    if not labelled or snapshot.unread:
        return
    pools = tuple(pool for pool in snapshot.pools if not pool.deleting)
    kept = {node for node, portrait in snapshot.portraits.items() if portrait.spec.pool in living}
    for pool in pools:
        places = assign_nodes(pool, pools, labelled)
        kept |= {name for name, place in places.items() if isinstance(place, Membership) or place.reason == reasons.LABEL_MISSING}
    yield from (node for node in labelled if node.name not in kept)
