from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CARD, make_container, make_node, make_target, make_template

from metainfer.decide.facts import Spread
from metainfer.decide.room import cards_requested, find_no_room, pod_requests, target_resource_allows

GPU = "nvidia.com/gpu"
DETECTOR = make_template(make_container("detector", limits={GPU: 1}), one_per_host=True)


def no_room(target: object, free: Mapping[str, int], resource: str = GPU) -> tuple[str, str] | None:
    found = find_no_room(target, [make_node(name) for name in free], free, resource)  # type: ignore[arg-type]  # built by make_target
    return None if found is None else (found.reason, found.message)


def free_on(hosts: int, cards: int) -> dict[str, int]:
    return {f"n{index}": cards for index in range(hosts)}


def test_one_pod_per_host_needs_as_many_hosts_as_replicas() -> None:
    """Sixteen free cards on two hosts do not hold three replicas that avoid each other."""
    target = make_target("nvr", template=DETECTOR, replicas=3, max_surge=1, max_unavailable=0)
    found = no_room(target, free_on(2, 8))
    assert found is not None
    assert found[0] == "TooFewHosts"
    assert "3 replicas, one per host, 2 nodes" in found[1]


def test_a_rollout_that_starts_a_pod_first_needs_a_host_for_it() -> None:
    """Three hosts hold three replicas, but with maxUnavailable 0 the rollout would wait for a fourth for ever."""
    target = make_target("nvr", template=DETECTOR, replicas=3, max_surge=1, max_unavailable=0)
    found = no_room(target, free_on(3, 2))
    assert found is not None
    assert found[0] == "NoRoomForSurge"
    assert "4 pods" in found[1]
    assert "maxSurge 1" in found[1]


def test_one_host_more_than_replicas_is_enough() -> None:
    """Four hosts: three replicas and the one that a rollout starts first."""
    target = make_target("nvr", template=DETECTOR, replicas=3, max_surge=1, max_unavailable=0)
    assert no_room(target, free_on(4, 1)) is None


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"strategy": "Recreate"}, id="Recreate stops the old pods first"),
        pytest.param({"max_surge": 0, "max_unavailable": 1}, id="maxSurge 0 takes a pod away first"),
        pytest.param({"max_surge": 1, "max_unavailable": 1}, id="maxUnavailable 1 frees a place for the waiting pod"),
    ],
)
def test_a_rollout_that_may_take_a_pod_away_needs_no_room(strategy: dict[str, object]) -> None:
    """As many places as replicas are enough when an old pod may leave before the new one is there."""
    assert no_room(make_target("nvr", template=DETECTOR, replicas=3, **strategy), free_on(3, 1)) is None


def test_a_large_surge_needs_only_one_more_place() -> None:
    """With maxSurge 100 % the other new pods wait until an old one has left; the rollout still ends."""
    target = make_target("ocr", make_container(limits={GPU: 1}), replicas=4, max_surge=4, max_unavailable=0)
    assert no_room(target, {"n1": 5}) is None
    found = no_room(target, {"n1": 4})
    assert found is not None
    assert found[0] == "NoRoomForSurge"


def test_cards_are_counted_over_all_nodes_when_pods_may_share_a_host() -> None:
    """Two free cards on one of two nodes hold two replicas and no third."""
    template = make_template(make_container(limits={GPU: 1}))
    assert no_room(make_target(template=template, replicas=2, max_unavailable=1), {"n1": 2, "n2": 0}) is None
    found = no_room(make_target(template=template, replicas=3, max_unavailable=1), {"n1": 2, "n2": 0})
    assert found == ("TooFewFreeCards", "3 replicas, 1 nvidia.com/gpu each, 2 free on 2 nodes")


def test_hosts_without_a_free_card_are_no_place() -> None:
    """One pod per host: a host whose cards are all held does not count, and the message says so."""
    found = no_room(make_target("nvr", template=DETECTOR, replicas=2), {"n1": 1, "n2": 0, "n3": 0})
    assert found is not None
    assert found[0] == "TooFewHosts"
    assert "1 of 3 nodes with a free card" in found[1]


def test_a_target_that_asks_for_no_card_is_not_bound_by_free_cards() -> None:
    """A server on plain processors fits where every card is held."""
    target = make_target("ocr", make_container(requests={"cpu": 1000}), replicas=3)
    assert no_room(target, {"n1": 0}) is None


def test_without_a_node_there_is_no_room() -> None:
    """An empty family is full."""
    assert no_room(make_target("ocr", make_container(limits={GPU: 1})), {}) is not None


@given(
    replicas=st.integers(1, 6),
    surge=st.integers(0, 3),
    unavailable=st.integers(0, 3),
    one_per_host=st.booleans(),
    free=st.dictionaries(st.sampled_from(["n1", "n2", "n3", "n4"]), st.integers(0, 3)),
)
def test_room_is_what_a_played_rollout_gets_through_with(*, replicas: int, surge: int, unavailable: int, one_per_host: bool, free: dict[str, int]) -> None:
    """Played step by step as the Deployment controller does it, the rollout ends exactly when there is room."""
    if surge == unavailable == 0:
        return
    template = make_template(make_container(limits={GPU: 1}), one_per_host=one_per_host)
    target = make_target(template=template, replicas=replicas, max_surge=surge, max_unavailable=min(unavailable, replicas))
    places = sum(min(count, 1) if one_per_host else count for count in free.values())
    assert (no_room(target, free) is None) == rollout_ends(replicas, surge, min(unavailable, replicas), places)


def rollout_ends(replicas: int, surge: int, unavailable: int, places: int) -> bool:
    """Old pods hold their places; new pods start where one is left; old ones leave while enough pods are available."""
    if places < replicas:
        return False
    old, new = replicas, 0
    for _ in range(4 * replicas):
        new += max(0, min(replicas + surge - old - new, replicas - new))
        available = old + min(new, places - old)
        old -= max(0, min(available - (replicas - unavailable), old))
    return old == 0 and new == replicas


def test_limits_count_where_requests_are_missing() -> None:
    """A template may name only the limit of a card; the pod asks for it all the same."""
    template = make_template(make_container(limits={GPU: 1, "memory": 6 << 30}, requests={"memory": 2 << 30}))
    assert pod_requests(template) == {GPU: 1, "memory": 2 << 30}


def test_a_native_sidecar_counts_as_part_of_the_pod() -> None:
    """The card of a restartable init container is the pod's card."""
    template = make_template(
        make_container("fetch", init=True, requests={"cpu": 3000}),
        make_container("model-server", init=True, restartable=True, limits={GPU: 1}, requests={"cpu": 1000}),
        make_container("app", requests={"cpu": 500}),
    )
    assert cards_requested(template) == {GPU: 1}
    assert pod_requests(template)["cpu"] == 3000


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    """A later init container adds to the sidecars that were started before, and the larger of both sums counts."""
    template = make_template(
        make_container("sidecar", init=True, restartable=True, requests={"cpu": 1000}),
        make_container("unpack", init=True, requests={"cpu": 3000}),
        make_container("app", requests={"cpu": 500}),
    )
    assert pod_requests(template)["cpu"] == 4000


def test_only_names_with_a_foreign_domain_are_cards() -> None:
    """Processors, memory, huge pages and Kubernetes' own names are not."""
    asked = {"cpu": 1, "memory": 1, "hugepages-2Mi": 1, "example.kubernetes.io/thing": 1, CARD: 1, "amd.com/gpu": 0}
    assert cards_requested(make_template(make_container(requests=asked))) == {CARD: 1}


@pytest.mark.parametrize(
    ("limits", "resource", "want_allowed"),
    [
        pytest.param({GPU: 1}, GPU, True, id="the same resource"),
        pytest.param({GPU: 1}, "amd.com/gpu", False, id="another vendor's"),
        pytest.param({"rdma/hca": 1, GPU: 1}, GPU, True, id="with a network device beside it"),
        pytest.param({}, CARD, True, id="asks for none"),
    ],
)
def test_a_target_keeps_the_resource_that_it_asks_for(limits: dict[str, int], resource: str, *, want_allowed: bool) -> None:
    """Requests are never changed, so another resource would leave the pod without a card."""
    assert target_resource_allows(make_template(make_container(limits=limits)), resource) is want_allowed


def test_percentages_were_resolved_before() -> None:
    """The default of 25 % is one pod of surge and none unavailable at one replica: a lone server needs a second place."""
    target = make_target("ocr", make_container(limits={GPU: 1}), replicas=1, max_surge=math.ceil(0.25), max_unavailable=math.floor(0.25))
    found = no_room(target, {"n1": 1})
    assert found is not None
    assert found[0] == "NoRoomForSurge"


ZONE = "topology.kubernetes.io/zone"


def spread_room(replicas: int, cards: Mapping[str, int], spread: Spread, *, closed: tuple[str, ...] = (), surge: bool = False) -> tuple[str, str] | None:
    """Why replicas of one card each do not fit on one node for each zone with so many free cards."""
    template = make_template(make_container(limits={GPU: 1}), spreads=(spread,))
    target = make_target(template=template, replicas=replicas, max_unavailable=0 if surge else 1)
    nodes = {zone: make_node(f"n-{zone}", labels={ZONE: zone}) for zone in (*cards, *closed)}
    free = {f"n-{zone}": count for zone, count in cards.items()}
    found = find_no_room(target, [nodes[zone] for zone in cards], free, GPU, closed=[nodes[zone] for zone in closed])
    return None if found is None else (found.reason, found.message)


@pytest.mark.parametrize(
    ("replicas", "cards", "spread", "want"),
    [
        pytest.param(4, {"a": 3, "b": 1}, Spread(ZONE), True, id="the full zone holds the other at two"),
        pytest.param(3, {"a": 3, "b": 1}, Spread(ZONE), False, id="two and one"),
        pytest.param(4, {"a": 3, "b": 1}, Spread(ZONE, max_skew=2), False, id="three and one, where two more are allowed"),
        pytest.param(6, {"a": 2, "b": 2, "c": 2}, Spread(ZONE), False, id="even"),
        pytest.param(2, {"a": 8, "b": 0}, Spread(ZONE), True, id="a zone without a free card still counts"),
        pytest.param(2, {"a": 8}, Spread(ZONE), False, id="one zone spreads over itself"),
        pytest.param(3, {"a": 8, "b": 8}, Spread(ZONE, min_domains=3), True, id="fewer zones than minDomains: one each"),
        pytest.param(3, {"a": 8, "b": 8}, Spread(ZONE, one_per_domain=True), True, id="anti-affinity by zone: one each"),
        pytest.param(2, {"a": 8, "b": 0, "c": 1}, Spread(ZONE, one_per_domain=True), False, id="anti-affinity does not mind a full zone"),
    ],
)
def test_replicas_that_must_spread_need_room_in_every_zone(replicas: int, cards: dict[str, int], spread: Spread, *, want: bool) -> None:
    """Free cards in one zone are no use where the pods may not all go there."""
    found = spread_room(replicas, cards, spread)
    assert (found is not None and found[0] == "SpreadTooNarrow") == want


def test_the_reason_names_the_zones_and_their_room() -> None:
    """Numbers, as for hosts and cards."""
    assert spread_room(4, {"a": 3, "b": 1}, Spread(ZONE)) == (
        "SpreadTooNarrow",
        "4 replicas, at most 1 more in one topology.kubernetes.io/zone than in another, with room for: a 3, b 1",
    )


def test_a_zone_whose_nodes_are_cordoned_holds_the_others_back() -> None:
    """The scheduler counts its pods too, which are none."""
    assert spread_room(4, {"a": 4, "b": 4}, Spread(ZONE)) is None
    assert spread_room(4, {"a": 4, "b": 4}, Spread(ZONE), closed=("c",)) is not None


def test_a_rollout_needs_its_place_under_the_spread_too() -> None:
    """Two and three fit; the sixth pod that maxUnavailable 0 starts first has a free card and no zone to go to."""
    assert spread_room(5, {"a": 2, "b": 5}, Spread(ZONE)) is None
    found = spread_room(5, {"a": 2, "b": 5}, Spread(ZONE), surge=True)
    assert found is not None
    assert found[0] == "NoRoomForSurge"
