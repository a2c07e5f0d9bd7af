"""How many pools and adaptations have which condition: what an alert needs to know of all objects without naming any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from metainfer.api.v1alpha1.common import Condition
from metainfer.decide.facts import AdaptationFacts, PoolFacts
from metainfer.kube.kinds import ADAPTATION, POOL
from metainfer.metrics import CONDITIONS


class Cached(Protocol):
    """``watch.cluster.ClusterCache``."""

    def pools(self) -> tuple[PoolFacts, ...]:
        """Every pool."""
        ...

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        """Every adaptation."""
        ...


def count_conditions(cluster: Cached) -> None:
    """Set the gauge to what the cache has now; combinations that nobody has any more are gone, not zero."""
    counts = Counter((kind, found.type, found.status, found.reason) for kind, found in _conditions(cluster))
    CONDITIONS.clear()
    for labels, count in counts.items():
        CONDITIONS.labels(*labels).set(count)


def _conditions(cluster: Cached) -> Iterator[tuple[str, Condition]]:
    for pool in cluster.pools():
        yield from ((POOL.kind, condition) for condition in pool.status.conditions)
    for adaptation in cluster.adaptations():
        yield from ((ADAPTATION.kind, condition) for condition in adaptation.status.conditions)
