"""What ``decide`` asks of a predictor, and nothing about how it answers.

``predict`` implements the protocol, ``app`` joins the two. The order of the answers is promised, never the milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metainfer.decide.facts import Candidate, Portrait
from metainfer_probe.contract import ProfileReport


@dataclass(frozen=True, slots=True)
class Question:
    """One candidate on one card under the load that counts."""

    candidate: Candidate
    profile: ProfileReport
    card: Portrait | None
    """The family's typical card; None = never probed."""
    load_clients: int
    """Requests in flight, closed loop without think time (as the benchmark runs it)."""
    profiled_on: Portrait | None = None
    """Portrait of the node on which ``profile`` was measured. Without it the measured curve is carried over by the micro-probe alone."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a client would see, and how far to believe it."""

    p50_us: float
    p99_us: float
    throughput_per_second: float
    log_sigma: float
    """Standard deviation of log(true / predicted)."""
    source: str
    """In words: which figures it rests on."""


class Predictor(Protocol):
    """Ranks candidates before anything is measured."""

    def predict(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """One prediction per question, in the same order; never raises for missing figures, widens ``log_sigma`` instead."""
