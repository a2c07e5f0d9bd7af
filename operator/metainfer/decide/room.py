"""Do the target's replicas fit on a family, also while they are rolled out? Pure. Numbers only; who may run where is `restrictions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metainfer.decide.facts import ContainerFacts, NodeFacts, PodTemplateFacts, Quantities, Spread, TargetFacts
from metainfer.decide.families import Exclusion

TOO_FEW_HOSTS: Final = "TooFewHosts"  # one pod per host, more replicas than hosts
TOO_FEW_FREE_CARDS: Final = "TooFewFreeCards"  # the replicas need more cards than are free
SPREAD_TOO_NARROW: Final = "SpreadTooNarrow"  # the pods must spread over zones that have not enough room each
NO_ROOM_FOR_SURGE: Final = "NoRoomForSurge"  # the replicas fit, the pod that a rollout starts first does not
_LISTED_DOMAINS: Final = 8


def pod_requests(template: PodTemplateFacts) -> Quantities:
    """What one pod asks for, by the scheduler's rule; a limit without a request counts as the request.

    Containers and restartable init containers run together and add up; any other init container runs beside the
    restartable ones before it.
    """
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in template.containers:
        if not container.init:
            continue
        own = _asked(container)
        if container.restartable:
            sidecars += own
            peak |= sidecars
        else:
            peak |= sidecars + own
    together = sidecars + _sum(_asked(container) for container in template.containers if not container.init)
    return dict(together | peak)


def _asked(container: ContainerFacts) -> Counter[str]:
    return Counter({**container.limits, **container.requests})


def _sum(parts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total += part
    return total


def cards_requested(template: PodTemplateFacts) -> Mapping[str, int]:
    """Extended resources that one pod asks for: names with a domain, and not Kubernetes' own."""
    return {name: count for name, count in pod_requests(template).items() if "/" in name and "kubernetes.io/" not in name}


def target_resource_allows(template: PodTemplateFacts, resource: str) -> bool:
    """Whether the target may get cards of this resource: those it asks for, or any when it asks for none.

    We never change requests, so a target that asks for ``nvidia.com/gpu`` cannot be moved to another vendor's cards.
    """
    asked = cards_requested(template)
    return not asked or resource in asked


@dataclass(frozen=True, slots=True)
class _Room:
    """Places for pods, counted."""

    places: int
    """How many pods of the target can run at the same time."""
    what: str
    """What there is, in words."""
    reason: str
    each: str
    """What one replica needs, in words."""


def find_no_room(  # budget: what must fit, and where
    target: TargetFacts, nodes: Sequence[NodeFacts], free_cards: Mapping[str, int], resource: str, *, closed: Sequence[NodeFacts] = ()
) -> Exclusion | None:
    """Why the replicas do not fit on these nodes, in numbers; ``free_cards`` per node, the target's own pods not counted as holders.

    ``closed``: nodes that the pod's own selectors allow and that take none now (cordoned, tainted): the scheduler spreads over them too.
    A rollout that may not take a pod away first (maxUnavailable 0) needs one more place. It needs only one, whatever
    maxSurge is: the other new pods wait until an old one has left.
    """
    replicas = max(1, target.replicas)
    rooms = _rooms(target, nodes, free_cards, resource, closed)
    for room in rooms:
        if room.places < replicas:
            return Exclusion(room.reason, f"{_count(replicas, 'replica')}, {room.each}, {room.what}")
    for room in rooms:
        if room.places < replicas + _surge_places(target):
            return Exclusion(
                NO_ROOM_FOR_SURGE,
                f"{_count(replicas, 'replica')}, {room.each}, {room.what}: a rollout with maxSurge {target.max_surge} and maxUnavailable 0 "
                f"needs room for {replicas + 1} pods; set maxUnavailable 1, or strategy Recreate",
            )
    return None


def _surge_places(target: TargetFacts) -> int:
    return 1 if target.strategy == "RollingUpdate" and target.max_surge > 0 and target.max_unavailable == 0 else 0


def _rooms(target: TargetFacts, nodes: Sequence[NodeFacts], free_cards: Mapping[str, int], resource: str, closed: Sequence[NodeFacts]) -> tuple[_Room, ...]:
    """The room by each rule that bounds it, the most basic first."""
    per_pod = cards_requested(target.template).get(resource, 0)
    enough = max(1, target.replicas) + 1
    pods = {node.name: free_cards.get(node.name, 0) // per_pod if per_pod else enough for node in nodes}
    if target.template.one_per_host:
        pods = {name: min(1, count) for name, count in pods.items()}
    hosts = _on_hosts(target, pods, free_cards, f"{per_pod or 'no'} {resource} each")
    return (hosts, *(_over(spread, (*nodes, *closed), pods) for spread in target.template.spreads))


def _on_hosts(target: TargetFacts, pods: Mapping[str, int], free_cards: Mapping[str, int], each: str) -> _Room:
    total, places = _count(len(pods), "node"), sum(pods.values())
    if target.template.one_per_host:
        what = total if places == len(pods) else f"{places} of {total} with a free card"
        return _Room(places, what, TOO_FEW_HOSTS, "one per host")
    return _Room(places, f"{sum(free_cards.get(name, 0) for name in pods)} free on {total}", TOO_FEW_FREE_CARDS, each)


def _over(spread: Spread, nodes: Sequence[NodeFacts], pods: Mapping[str, int]) -> _Room:
    """Room for pods that must spread: the domain with least room bounds the others, too, by maxSkew.

    Kubernetes' rule (topologySpreadConstraints, DoNotSchedule): a pod may go where afterwards count - least count <= maxSkew, over the
    domains of the nodes that the pod's node affinity allows, full ones included; below minDomains domains the least count is 0.
    """
    rooms: Counter[str] = Counter()
    for node in nodes:
        if spread.topology_key in node.labels:
            rooms[node.labels[spread.topology_key]] += pods.get(node.name, 0)
    least = min(rooms.values(), default=0) if len(rooms) >= spread.min_domains else 0
    bound = 1 if spread.one_per_domain else least + spread.max_skew
    words = ", ".join(f"{domain} {count}" for domain, count in sorted(rooms.items())[:_LISTED_DOMAINS])
    each = f"one per {spread.topology_key}" if spread.one_per_domain else f"at most {spread.max_skew} more in one {spread.topology_key} than in another"
    return _Room(sum(min(count, bound) for count in rooms.values()), f"with room for: {words or 'none'}", SPREAD_TOO_NARROW, each)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
