"""Which node belongs to which family, and what a family offers. Pure; `observe` reads the nodes, `act` writes the labels.

Membership is by the family's own label selector and nothing else: a node without the label a family selects on is in no
family, and said to be. Cards are found from ``status.allocatable`` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.common import LabelSelector
from metainfer.decide.facts import Labels, NodeFacts, PodFacts, PoolFacts, Portrait, Requirement


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place: its pool and family."""

    pool: str
    family: AcceleratorFamily


@dataclass(frozen=True, slots=True)
class NoMembership:
    """Why a node of the pool is in none of its families."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why the target cannot run on a node (or a family), in PascalCase and in a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class FamilyOption:
    """One family as a target sees it."""

    pool: str
    family: AcceleratorFamily
    nodes: tuple[NodeFacts, ...]
    """Nodes of the family on which the target may run."""
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)
    """The family's other nodes."""
    portraits: tuple[Portrait, ...] = ()
    """Of ``nodes``, most typical first: healthy before degraded, those with the driver that counts before others, correction factor nearest to 1."""
    free_cards: Mapping[str, int] = field(default_factory=dict)
    """Per node of ``nodes``: allocatable cards minus those held by pods; the target's own pods do not count."""
    no_room: Exclusion | None = None
    """Set when the target's replicas (with their surge) do not fit."""
    unmeasurable: Mapping[str, Exclusion] = field(default_factory=dict)
    """Those of ``nodes`` where no Job of the adaptation can be started until somebody changes something."""

    @property
    def members(self) -> frozenset[str]:
        """Names of all its nodes, open to the target or not."""
        return frozenset(node.name for node in self.nodes) | frozenset(self.excluded)

    @property
    def typical(self) -> Portrait | None:
        """The portrait that stands for the family."""
        return self.portraits[0] if self.portraits else None


def requirement_holds(requirement: Requirement, labels: Labels) -> bool:
    """One node-selector expression, with Kubernetes' semantics (NotIn also holds when the label is absent)."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
    return False


def _compares(requirement: Requirement, value: str | None) -> bool:
    try:
        have, bound = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def selector_requirements(selector: LabelSelector) -> tuple[Requirement, ...]:
    """A label selector as node-selector expressions, in a stable order."""
    exact = tuple(Requirement(key, "In", (value,)) for key, value in sorted(selector.match_labels.items()))
    return exact + tuple(Requirement(item.key, item.operator, item.values) for item in selector.match_expressions)


def selector_keys(selector: LabelSelector) -> tuple[str, ...]:
    """The labels that a selector looks at, sorted."""
    return tuple(sorted({*selector.match_labels, *(item.key for item in selector.match_expressions)}))


def selector_matches(selector: LabelSelector, labels: Labels) -> bool:
    """Whether all entries hold; an empty selector matches everything."""
    return all(requirement_holds(requirement, labels) for requirement in selector_requirements(selector))


@dataclass(frozen=True, slots=True)
class _Selectors:
    """A pool's selectors as expressions, worked out once for thousands of nodes."""

    pool: PoolFacts
    bounds: tuple[Requirement, ...]
    families: tuple[tuple[AcceleratorFamily, tuple[Requirement, ...]], ...]


def assign_nodes(pool: PoolFacts, pools: Sequence[PoolFacts], nodes: Sequence[NodeFacts]) -> Mapping[str, Membership | NoMembership]:
    """Each node of the pool with its family, or why it has none. Nodes outside the pool are not in the result.

    A node that an older pool takes too belongs to the older one (``PoolOverlap``).
    """
    mine = _selectors(pool)
    elders = [_selectors(other) for other in pools if (other.created_at, other.name) < (pool.created_at, pool.name) and not other.deleting]
    result: dict[str, Membership | NoMembership] = {}
    for node in nodes:
        place = _place(mine, node)
        if place is None:
            continue
        if isinstance(place, Membership):
            owner = next((elder.pool.name for elder in elders if _find_family(elder, node) is not None), None)
            if owner is not None:
                place = NoMembership(reasons.POOL_OVERLAP, f"node {node.name} belongs to the older pool {owner}")
        result[node.name] = place
    return result


def _selectors(pool: PoolFacts) -> _Selectors:
    families = tuple((family, selector_requirements(family.selector)) for family in pool.spec.families)
    return _Selectors(pool, selector_requirements(pool.spec.node_selector), families)


def _find_family(selectors: _Selectors, node: NodeFacts) -> AcceleratorFamily | None:
    if not _all_hold(selectors.bounds, node.labels):
        return None
    return next((family for family, requirements in selectors.families if _all_hold(requirements, node.labels)), None)


def _all_hold(requirements: Sequence[Requirement], labels: Labels) -> bool:
    return all(requirement_holds(requirement, labels) for requirement in requirements)


def _place(selectors: _Selectors, node: NodeFacts) -> Membership | NoMembership | None:
    family, pool = _find_family(selectors, node), selectors.pool
    if family is not None:
        return Membership(pool.name, family)
    if not _all_hold(selectors.bounds, node.labels):
        return None
    holds_cards = any(node.allocatable.get(family.resource, 0) > 0 for family in pool.spec.families)
    return _missing(pool, node) if selectors.bounds or holds_cards else None


def _missing(pool: PoolFacts, node: NodeFacts) -> NoMembership:
    absent = sorted(
        {
            requirement.key
            for family in pool.spec.families
            for requirement in selector_requirements(family.selector)
            if requirement.operator not in ("NotIn", "DoesNotExist") and requirement.key not in node.labels
        }
    )
    if absent:
        return NoMembership(reasons.LABEL_MISSING, f"node {node.name} is in no family: label {', '.join(absent)} missing")
    return NoMembership("NoFamilyMatches", f"node {node.name} is in no family: no family's selector matches its labels")


def cards_used(pods: Sequence[PodFacts], resource: str) -> Counter[str]:
    """Cards held on each node by pods that are bound and not finished."""
    used: Counter[str] = Counter()
    for pod in pods:
        if pod.holds_resources and pod.node is not None:
            used[pod.node] += pod.requests.get(resource, 0)
    return used
