"""First match wins: what a family's affinity says of those that take nodes before it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import LONG_AGO, make_family, make_node, make_pool

from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.facts import PoolFacts, Requirement
from metainfer.decide.families import Membership, assign_nodes, requirement_holds
from metainfer.decide.rivals import exclude_rivals, family_requirements, find_rivals


def selecting(**labels: str) -> dict[str, Any]:
    """A selector by exact labels."""
    return {"selector": {"matchLabels": labels}}


def asking(*expressions: dict[str, Any]) -> dict[str, Any]:
    """A selector by expressions."""
    return {"selector": {"matchExpressions": list(expressions)}}


A, B = "big", "any"
NO_MIG = {"key": "mig", "operator": "DoesNotExist"}


def excluded(pool: PoolFacts, *others: PoolFacts, family: str = B) -> tuple[Requirement, ...]:
    """What the family's vendor term says of its rivals."""
    found = next(item for item in pool.spec.families if item.name == family)
    return exclude_rivals(find_rivals(pool, found, (pool, *others)), family)


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param(selecting(card="l4"), selecting(card="h100"), (), id="other values of one label: nobody is in both"),
        pytest.param(selecting(vendor="n", memory="80"), selecting(vendor="n"), (Requirement("memory", "NotIn", ("80",)),), id="one thing more"),
        pytest.param(selecting(card="l4"), asking(NO_MIG), (Requirement("card", "NotIn", ("l4",)),), id="another label"),
        pytest.param(asking(NO_MIG), selecting(card="l4"), (Requirement("mig", "Exists"),), id="its opposite"),
        pytest.param(
            asking({"key": "gib", "operator": "Gt", "values": ["40"]}), selecting(card="l4"), (Requirement(FAMILY_LABEL, "NotIn", (A,)),), id="no opposite"
        ),
        pytest.param(selecting(card="l4", zone="a"), asking(NO_MIG), (Requirement(FAMILY_LABEL, "NotIn", (A,)),), id="two things more: by our label"),
        pytest.param(asking(NO_MIG), asking({"key": "mig", "operator": "Exists"}), (), id="with and without"),
        pytest.param(asking({"key": "card", "operator": "NotIn", "values": ["l4"]}), selecting(card="l4"), (), id="all but this"),
    ],
)
def test_an_earlier_family_of_the_pool_is_kept_out(first: dict[str, Any], second: dict[str, Any], want: tuple[Requirement, ...]) -> None:
    """Exactly where that can be said in one expression; the first family itself says nothing of the second."""
    pool = make_pool("cards", make_family(A, **first), make_family(B, **second))
    assert excluded(pool) == want
    assert excluded(pool, family=A) == ()


def test_families_of_an_older_pool_are_kept_out_and_those_of_a_younger_one_are_not() -> None:
    """The older pool has its nodes first; the pools' own selectors count with them."""
    mine = make_pool("mine", make_family(B, **selecting(card="l4")), created_at=LONG_AGO)
    older = make_pool(
        "older", make_family(A, **selecting(card="l4")), created_at=LONG_AGO - timedelta(days=1), spec={"node_selector": {"match_labels": {"team": "a"}}}
    )
    assert excluded(mine, older) == (Requirement("team", "NotIn", ("a",)),)
    younger = make_pool("younger", make_family(A, **selecting(card="l4", zone="b")), created_at=LONG_AGO + timedelta(days=1))
    assert excluded(mine, younger) == ()


@pytest.mark.parametrize("labels", [{"vendor": "n"}, {"vendor": "n", "memory": "80"}, {"vendor": "n", "memory": "40"}, {"memory": "80"}, {"vendor": "m"}])
def test_the_vendor_term_admits_exactly_the_nodes_of_the_family(labels: dict[str, str]) -> None:
    """Whatever labels a fresh node has, before anybody gave it ours: affinity and membership agree."""
    pool = make_pool("cards", make_family(A, **selecting(vendor="n", memory="80")), make_family(B, **selecting(vendor="n")))
    node = make_node(labels=labels)
    family = pool.spec.families[1]
    place = assign_nodes(pool, (pool,), (node,)).get(node.name)
    term = (*family_requirements(pool, family), *excluded(pool))
    assert all(requirement_holds(item, node.labels) for item in term) == (isinstance(place, Membership) and place.family.name == B)
