"""What a pass reads from memory: the Protocol that the watch cache implements and ``gather`` is written against.

Nothing here talks to the API server; whatever a write may depend on is read again by ``gather``. Every method returns
what the cache holds now and never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metainfer.decide.facts import AdaptationFacts, JobFacts, Labels, NodeFacts, PodFacts, PoolFacts, Portrait, TargetFacts


class ClusterView(Protocol):
    """The cluster as last seen; our own writes are in it at once (``remember``)."""

    def pools(self) -> tuple[PoolFacts, ...]:
        """Every AcceleratorPool."""
        ...

    def pool(self, name: str) -> PoolFacts | None:
        """One AcceleratorPool."""
        ...

    def adaptations(self, namespace: str | None = None) -> tuple[AdaptationFacts, ...]:
        """Every ModelAdaptation, or those of one namespace."""
        ...

    def adaptation(self, namespace: str, name: str) -> AdaptationFacts | None:
        """One ModelAdaptation."""
        ...

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node."""
        ...

    def card_pods(self) -> tuple[PodFacts, ...]:
        """Pods that are bound, not finished and hold an extended resource of a pool's family."""
        ...

    def pods_of_job(self, namespace: str, job_name: str) -> tuple[PodFacts, ...]:
        """Pods of one measuring Job, finished ones included."""
        ...

    def pods_matching(self, namespace: str, match_labels: Labels) -> tuple[PodFacts, ...]:
        """Pods of a namespace that carry all these labels; an empty set of labels matches none."""
        ...

    def jobs(self) -> tuple[JobFacts, ...]:
        """Every measuring Job of ours (by its purpose label), ``pods`` filled in."""
        ...

    def portraits(self) -> Mapping[str, Portrait]:
        """Every NodePortrait, by node name."""
        ...

    def deployment(self, namespace: str, name: str) -> TargetFacts | None:
        """A Deployment as last seen: for deciding whether to look, never for deciding what to write."""
        ...
