"""The whole property, for one seed; ``make chaos SEED=N`` is the same for any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.run import LEAST_FAULTS, LEAST_KILLS, play, say

pytestmark = pytest.mark.apiserver

SEED = 1


async def test_killed_frozen_and_cut_off_nothing_is_lost_done_twice_or_written_for_nothing(admin: Path, tmp_path: Path) -> None:
    """The real process on the real API server behind the fault proxy, against the undisturbed run of the same seed."""
    remains, verdict = await play(admin, tmp_path, SEED)
    say(remains, verdict)
    assert verdict.is_clean, verdict.summary
    assert verdict.kills >= LEAST_KILLS
    assert verdict.faults >= LEAST_FAULTS
