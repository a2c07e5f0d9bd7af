"""The loop: one pass over one object, in numbered steps. It knows no rule and no client, only the order.

A pass is level-triggered: everything is recomputed from the API server and the store, it may run twice and may be killed at any
line. The claim (step 4) comes before every side effect; side effects have names derived from their inputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from metainfer.decide.facts import AdaptationSnapshot, PoolSnapshot, ProbeResult, ProfileResult, RunResult
from metainfer.decide.plan import Action, AdaptationPlan, CreateJob, PoolPlan


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at."""

    kind: Literal["pool", "adaptation"]
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """When to look again without an event; None = only on events and at the resync."""

    requeue_after_seconds: float | None = None


FreshResult = ProbeResult | ProfileResult | RunResult
