"""Families that take nodes before another one whose selector matches them too: the first match counts, in the affinity as in the pool. Pure.

A node belongs to the first family of its pool that matches, and to the oldest pool. The written affinity names the vendor's labels,
which say nothing of that order: without a word on its rivals, a family's pods would also run on theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.facts import PoolFacts, Requirement
from metainfer.decide.families import selector_requirements

OPPOSITES: Final = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
"""Gt and Lt have none: both fail on a node without the label."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A family that takes its nodes first, and what it asks of them beyond what the other family asks too."""

    pool: str
    family: str
    beyond: tuple[Requirement, ...]


def find_rivals(pool: PoolFacts, family: AcceleratorFamily, pools: Sequence[PoolFacts]) -> tuple[Rival, ...]:
    """Earlier families of the pool and families of older pools that can match a node of this family."""
    mine = family_requirements(pool, family)
    found: list[Rival] = []
    for owner, other in _earlier(pool, family, pools):
        theirs = family_requirements(owner, other)
        beyond = tuple(item for item in theirs if item not in mine)
        if beyond and not any(_disjoint(one, two) for one in mine for two in beyond):
            found.append(Rival(owner.name, other.name, beyond))
    return tuple(found)


def family_requirements(pool: PoolFacts, family: AcceleratorFamily) -> tuple[Requirement, ...]:
    """What pool and family ask of a node's labels together: a node outside the pool was never measured, whatever its labels."""
    return tuple(dict.fromkeys((*selector_requirements(pool.spec.node_selector), *selector_requirements(family.selector))))


def exclude_rivals(rivals: Sequence[Rival], family: str) -> tuple[Requirement, ...]:
    """Expressions that keep the rivals' nodes out.

    Exact where a rival asks for one thing more: its opposite. Else by our own label, which a node has as soon as its pool was looked
    at; a rival of the same family name (in an older pool) cannot be told apart by it.
    """
    return tuple(dict.fromkeys(_excluded(rivals, family)))


def _excluded(rivals: Sequence[Rival], family: str) -> Iterator[Requirement]:
    for rival in rivals:
        only = rival.beyond[0] if len(rival.beyond) == 1 else None
        if only is not None and only.operator in OPPOSITES:
            yield Requirement(only.key, OPPOSITES[only.operator], only.values)
        elif rival.family != family:
            yield Requirement(FAMILY_LABEL, "NotIn", (rival.family,))


def _earlier(pool: PoolFacts, family: AcceleratorFamily, pools: Sequence[PoolFacts]) -> Iterator[tuple[PoolFacts, AcceleratorFamily]]:
    elders = [other for other in pools if (other.created_at, other.name) < (pool.created_at, pool.name) and not other.deleting]
    for elder in sorted(elders, key=lambda item: (item.created_at, item.name)):
        yield from ((elder, other) for other in elder.spec.families)
    for other in pool.spec.families:
        if other.name == family.name:
            return
        yield pool, other


def _disjoint(one: Requirement, two: Requirement) -> bool:
    """Whether no node can meet both."""
    if one.key != two.key:
        return False
    match (one.operator, two.operator):
        case ("In", "In"):
            return not set(one.values) & set(two.values)
        case ("In", "NotIn"):
            return set(one.values) <= set(two.values)
        case ("NotIn", "In"):
            return set(two.values) <= set(one.values)
        case ("DoesNotExist", "In" | "Exists" | "Gt" | "Lt") | ("In" | "Exists" | "Gt" | "Lt", "DoesNotExist"):
            return True
    return False
