"""What a pass sees of served latency: the last windows, or why there are none. Filled by ``observe``, judged by ``decide.keeping``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from metainfer.decide.latency.reading import LatencyReading


@dataclass(frozen=True, slots=True)
class NodeLatency:
    """What the pods on one node served in a window."""

    requests: int
    mean_us: float | None
    p99_us: float | None
    """None where the node's own requests do not support it."""


@dataclass(frozen=True, slots=True)
class ServedWindow:
    """One window of one target."""

    ended_at: datetime
    reading: LatencyReading
    nodes: Mapping[str, NodeLatency] = field(default_factory=dict)
    """By node; empty where the source does not tell pods apart."""

    @property
    def began_at(self) -> datetime:
        """Its other end."""
        return self.ended_at - timedelta(seconds=self.reading.seconds)


@dataclass(frozen=True, slots=True)
class LatencyProblem:
    """Why there is no reading: a reason and a message for a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ServedFacts:
    """Served latency as far as it is known now."""

    windows: tuple[ServedWindow, ...] = ()
    """Newest last."""
    problem: LatencyProblem | None = None
    """Why the last attempt gave nothing, or why there is none at all."""
    next_at: datetime | None = None
    """When there is something new to read; None = nothing is read."""
