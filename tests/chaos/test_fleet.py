"""A driver that changes under many adaptations at once, on a real API server with simulated nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.fleet import MEASUREMENTS, ROLLOUTS, play_fleet

pytestmark = pytest.mark.apiserver

COUNT = 16
PATIENCE_SECONDS = 180.0


async def test_a_driver_change_under_many_adaptations_keeps_the_caps_and_comes_to_an_end(admin: Path, tmp_path: Path) -> None:
    """One answer for each adaptation on these cards, none for the others, never more Jobs or rollouts at a time than the pool allows."""
    outcome = await play_fleet(admin, tmp_path, COUNT, patience_seconds=PATIENCE_SECONDS)
    assert outcome.ended, outcome
    assert outcome.affected == COUNT - COUNT // 8
    assert (outcome.answered, outcome.repeated, outcome.disturbed) == (outcome.affected, 0, 0), outcome
    assert 1 <= outcome.most_measuring <= MEASUREMENTS, outcome
    assert 1 <= outcome.most_rolling <= ROLLOUTS, outcome
