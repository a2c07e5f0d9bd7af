"""A driver that changes under many adaptations at once, on a real API server with simulated nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.fleet import Caps, play_fleet

pytestmark = pytest.mark.apiserver

COUNT = 5
CAPS = Caps(measurements=4, rollouts=2)
"""Four adaptations are concerned: as many as may run anew at a time; two of them wait for the others' rollouts."""
PATIENCE_SECONDS = 900.0
"""A guard against hanging, no bound that is tested."""


async def test_a_driver_change_under_many_adaptations_keeps_the_caps_and_comes_to_an_end(admin: Path, tmp_path: Path) -> None:
    """One answer for each adaptation on these cards, none for the others, never more Jobs or rollouts at a time than the pool allows."""
    outcome = await play_fleet(admin, tmp_path, COUNT, caps=CAPS, patience_seconds=PATIENCE_SECONDS)
    assert outcome.ended, outcome
    assert (outcome.affected, outcome.answered, outcome.moved) == (4, 4, 4), outcome
    assert (outcome.repeated, outcome.disturbed) == (0, 0), outcome
    assert 1 <= outcome.most_measuring <= CAPS.measurements, outcome
    assert 1 <= outcome.most_rolling <= CAPS.rollouts, outcome
