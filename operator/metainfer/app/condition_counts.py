"""How many pools and adaptations have which condition, and nodes which health: what an alert needs to know of all without naming any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import Gauge

from metainfer.api.v1alpha1.common import Condition
from metainfer.decide.facts import AdaptationFacts, PoolFacts, Portrait
from metainfer.kube.kinds import ADAPTATION, POOL
from metainfer.metrics import CONDITIONS, NODES


class Cached(Protocol):
    """``watch.cluster.ClusterCache``."""

    def pools(self) -> tuple[PoolFacts, ...]:
        """Every pool."""
        ...

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        """Every adaptation."""
        ...

    def portraits(self) -> Mapping[str, Portrait]:
        """Every portrait, by node."""
        ...


def count_conditions(cluster: Cached) -> None:
    """Set the gauges to what the cache has now; combinations that nobody has any more are gone, not zero."""
    _set(CONDITIONS, Counter((kind, found.type, found.status, found.reason) for kind, found in _conditions(cluster)))
    _set(NODES, Counter((portrait.spec.family, portrait.status.health) for portrait in cluster.portraits().values()))


def _set(gauge: Gauge, counts: Mapping[tuple[str, ...], int]) -> None:
    gauge.clear()
    for labels, count in counts.items():
        gauge.labels(*labels).set(count)


def _conditions(cluster: Cached) -> Iterator[tuple[str, Condition]]:
    for pool in cluster.pools():
        yield from ((POOL.kind, condition) for condition in pool.status.conditions)
    for adaptation in cluster.adaptations():
        yield from ((ADAPTATION.kind, condition) for condition in adaptation.status.conditions)
