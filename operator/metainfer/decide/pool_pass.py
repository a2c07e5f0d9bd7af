"""What the steps of one pass over a pool work with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from metainfer.decide.facts import AdaptationFacts, JobFacts, NodeFacts, PoolSnapshot
from metainfer.decide.families import Membership, NoMembership, assign_nodes
from metainfer.decide.names import NODE_ANNOTATION, PURPOSE_LABEL


@dataclass(frozen=True, slots=True)
class PoolPass:
    """The snapshot, and which node is in which family."""

    snapshot: PoolSnapshot
    places: Mapping[str, Membership | NoMembership]
    nodes: Mapping[str, NodeFacts]
    jobs_of_node: Mapping[str, tuple[JobFacts, ...]]
    """Probe Jobs, running and finished."""
    now: datetime

    def members(self) -> tuple[tuple[NodeFacts, Membership], ...]:
        """Nodes that are in one of the pool's families."""
        return tuple((self.nodes[name], place) for name, place in self.places.items() if isinstance(place, Membership))

    def keeps_place(self, name: str) -> bool:
        """A labeller that restarts drops the vendor's labels for a minute: missing is not changed."""
        place = self.places.get(name)
        return name in self.nodes and (place is None or (isinstance(place, NoMembership) and place.reason == "LabelMissing"))


Told = TypeVar("Told")


def newest_by_node(told: Iterable[tuple[str, AdaptationFacts, Told]], moment: Callable[[Told], str]) -> dict[str, tuple[str, Told]]:
    """Of what adaptations say about nodes, the newest for each node, and who says it."""
    found: dict[str, tuple[str, Told]] = {}
    for node, adaptation, item in told:
        if node not in found or moment(found[node][1]) < moment(item):
            found[node] = f"{adaptation.namespace}/{adaptation.name}", item
    return found


def open_pass(snapshot: PoolSnapshot, now: datetime) -> PoolPass:
    """Everything that is worked out once."""
    places = assign_nodes(snapshot.pool, snapshot.pools, snapshot.nodes)
    jobs_of_node: dict[str, tuple[JobFacts, ...]] = {}
    for job in snapshot.jobs:
        if job.labels.get(PURPOSE_LABEL) == "probe":
            name = job.annotations.get(NODE_ANNOTATION, "")
            jobs_of_node[name] = (*jobs_of_node.get(name, ()), job)
    return PoolPass(snapshot, places, {node.name: node for node in snapshot.nodes}, jobs_of_node, now)
