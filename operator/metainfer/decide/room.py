"""Do the target's replicas fit on a family, also while they are rolled out? Pure. Numbers only; who may run where is `restrictions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metainfer.decide.facts import ContainerFacts, NodeFacts, PodTemplateFacts, Quantities, TargetFacts
from metainfer.decide.families import Exclusion

TOO_FEW_HOSTS: Final = "TooFewHosts"  # one pod per host, more replicas than hosts
TOO_FEW_FREE_CARDS: Final = "TooFewFreeCards"  # the replicas need more cards than are free
NO_ROOM_FOR_SURGE: Final = "NoRoomForSurge"  # the replicas fit, the pod that a rollout starts first does not


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


def find_no_room(target: TargetFacts, nodes: Sequence[NodeFacts], free_cards: Mapping[str, int], resource: str) -> Exclusion | None:
    """Why the replicas do not fit on these nodes, in numbers; ``free_cards`` per node, the target's own pods not counted as holders.

    A rollout that may not take a pod away first (maxUnavailable 0) needs one more place. It needs only one, whatever
    maxSurge is: the other new pods wait until an old one has left.
    """
    replicas = max(1, target.replicas)
    room = _room(target, nodes, free_cards, resource)
    if room.places < replicas:
        return Exclusion(room.reason, f"{_count(replicas, 'replica')}, {room.each}, {room.what}")
    if room.places < replicas + _surge_places(target):
        return Exclusion(
            NO_ROOM_FOR_SURGE,
            f"{_count(replicas, 'replica')}, {room.each}, {room.what}: a rollout with maxSurge {target.max_surge} and maxUnavailable 0 "
            f"needs room for {replicas + 1} pods; set maxUnavailable 1, or strategy Recreate",
        )
    return None


def _surge_places(target: TargetFacts) -> int:
    return 1 if target.strategy == "RollingUpdate" and target.max_surge > 0 and target.max_unavailable == 0 else 0


def _room(target: TargetFacts, nodes: Sequence[NodeFacts], free_cards: Mapping[str, int], resource: str) -> _Room:
    per_pod = cards_requested(target.template).get(resource, 0)
    enough = max(1, target.replicas) + 1
    pods = {node.name: free_cards.get(node.name, 0) // per_pod if per_pod else enough for node in nodes}
    total = _count(len(nodes), "node")
    if target.template.one_per_host:
        hosts = sum(count > 0 for count in pods.values())
        what = total if hosts == len(nodes) else f"{hosts} of {total} with a free card"
        return _Room(hosts, what, TOO_FEW_HOSTS, "one per host")
    free = sum(free_cards.get(node.name, 0) for node in nodes)
    return _Room(sum(pods.values()), f"{free} free on {total}", TOO_FEW_FREE_CARDS, f"{per_pod or 'no'} {resource} each")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
