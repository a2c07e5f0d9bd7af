"""Decisions grow old: what nobody noticed changing (libraries on the nodes, neighbours, wear) is measured again after a while. Pure."""

from __future__ import annotations

from typing import Final

from metainfer.api.durations import parse_duration_us
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.scene import Scene
from metainfer.decide.triggers import spread
from metainfer.decide.wanted import find_wanted

FRESHNESS_SPREAD: Final = 0.1
"""Share of the period over which the adaptations of one day spread: 17 hours of a week."""


def find_stale(draft: Draft, _scene: Scene) -> Suspicion | None:
    """``FreshnessExpired``: the decision is older than ``spec.freshness``, and its share of the spread."""
    recommendation, freshness, wanted = draft.status.recommendation, draft.snapshot.adaptation.spec.freshness, find_wanted(draft.status)
    if recommendation is None or wanted is None or not wanted.is_newest:
        return None  # what was taken back is somebody's to look at first
    allowed_seconds = spread(draft, parse_duration_us(freshness) / 1e6, FRESHNESS_SPREAD, "freshness")
    left_seconds = allowed_seconds - (draft.now - parse_time(recommendation.decided_at)).total_seconds()
    if left_seconds > 0:
        draft.look_again(left_seconds)
        return None
    return Suspicion("FreshnessExpired", f"the decision of {recommendation.decided_at} is older than spec.freshness ({freshness})", "Run")
