"""Whose metrics to read: the argument of every source of served latency."""

from __future__ import annotations

from dataclasses import dataclass

from metainfer.decide.latency.sources import LatencySource, OwnQuery


@dataclass(frozen=True, slots=True)
class ServedPod:
    """One pod of the target."""

    name: str
    address: str = ""
    """Its IP; empty = it cannot be scraped."""
    port: int = 0
    """Of its metrics; 0 = the source's."""
    path: str = ""
    """Of its metrics; empty = the source's."""


@dataclass(frozen=True, slots=True)
class ServedTarget:
    """The pods of one Deployment, by name: a pattern would match those of another one whose name begins alike."""

    namespace: str
    pods: tuple[ServedPod, ...]
    source: LatencySource | OwnQuery
