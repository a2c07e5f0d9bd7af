"""What deleted pools left behind, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.decide.make_facts import FAMILY_LABEL_OF_VENDOR, make_node, make_pool, make_portrait

from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.decide.orphans import OrphanSnapshot, decide_orphans
from metainfer.decide.plan import DeletePortrait, WriteNodeLabels

LABELLED = make_node("n1", labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu", FAMILY_LABEL: "ort-cpu"})
UNLABELLED_BY_VENDOR = make_node("n1", labels={FAMILY_LABEL: "ort-cpu", HEALTH_LABEL: "degraded"})
POOL = make_pool()


@pytest.mark.parametrize(
    ("snapshot", "want"),
    [
        pytest.param(OrphanSnapshot((POOL,), (), (LABELLED,), {"n1": make_portrait("n1")}), {}, id="the pool lives"),
        pytest.param(
            OrphanSnapshot((), (), (LABELLED,), {"n1": make_portrait("n1")}),
            {"cards": (DeletePortrait("n1", "its pool is gone"),), "": (WriteNodeLabels("n1", {}),)},
            id="the pool is gone",
        ),
        pytest.param(
            OrphanSnapshot((replace(POOL, deleting=True),), (), (LABELLED,), {}), {"": (WriteNodeLabels("n1", {}),)}, id="somebody's finalizer holds the pool"
        ),
        pytest.param(OrphanSnapshot((), ("cards",), (LABELLED,), {"n1": make_portrait("n1")}), {}, id="a pool that cannot be read lives"),
        pytest.param(OrphanSnapshot((POOL,), (), (LABELLED,), {}), {}, id="a member without a portrait"),
        pytest.param(OrphanSnapshot((POOL,), (), (UNLABELLED_BY_VENDOR,), {}), {}, id="the vendor's label is only missing"),
        pytest.param(OrphanSnapshot((), (), (make_node("n1"),), {}), {}, id="nothing is ours"),
        pytest.param(
            OrphanSnapshot((POOL,), (), (make_node("n1", labels={FAMILY_LABEL_OF_VENDOR: "other", FAMILY_LABEL: "x"}),), {}),
            {"": (WriteNodeLabels("n1", {}),)},
            id="in no family of any pool",
        ),
        pytest.param(
            OrphanSnapshot((make_pool("new"),), (), (LABELLED,), {"n1": make_portrait("n1")}),
            {"cards": (DeletePortrait("n1", "its pool is gone"),)},
            id="another pool has taken the node",
        ),
    ],
)
def test_only_what_no_living_pool_made_is_taken_away(snapshot: OrphanSnapshot, want: dict[str, tuple[object, ...]]) -> None:
    """Portraits by the pool they name, labels by membership."""
    assert decide_orphans(snapshot) == want
