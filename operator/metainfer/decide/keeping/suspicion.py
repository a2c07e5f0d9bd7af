"""Why a decision that is in place may no longer be right. The noun that every rule of this package returns. Pure.

A suspicion starts nothing by itself: it has to stand for its settle time, pass the gates (``damping``), and then it either has the
present configuration checked, or leads to a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Wish = Literal["Check", "Run"]
"""``Check``: look at the same instance first, it may be the load or the model. ``Run``: what was found is beyond doubt, decide anew."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a rule found."""

    reason: str
    """Name of the trigger, PascalCase; it stays the same while the same thing is suspected."""
    message: str
    """Names the thing. The part of it that changes from pass to pass makes no new suspicion."""
    wants: Wish
    family: str = ""
    """Family of cards that it concerns; empty = no particular one."""
    node: str = ""
    """Where to look first, for example the node of the slowest pod; empty = anywhere that a pod serves."""
    settle_seconds: float = 0.0
    """For how long it must have stood, without a break, before anything follows from it."""
    blocked: str = ""
    """Why nothing can follow from it just now, in words; empty = something can."""
    is_urgent: bool = False
    """What serves now does not serve: neither cooldown nor maintenance windows are waited for."""
