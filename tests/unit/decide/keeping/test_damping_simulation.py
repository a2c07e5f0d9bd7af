"""The simulation behind the damping's figures: it jumps over windows, and that must make no difference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.load_script import load_script

DAYS = 16
"""Two decisions grow old in them."""


@pytest.fixture(scope="module")
def damping() -> ModuleType:
    """The script, whose name has no ending."""
    return load_script("damping")


def live(damping: ModuleType, *, jumps: bool) -> Any:
    """A workload that lived so many days, with a whole pass after every window, or a short one where something can follow."""

    class Thorough(damping.Workload):  # type: ignore[misc,name-defined] # a module that is loaded by its path
        def _next_event(self) -> int:
            return int(self.at)

        def _is_kept(self) -> bool:
            return False

    noise = damping.Noise(np.random.default_rng(5), 0.15)
    kind = damping.Workload if jumps else Thorough
    workload = kind(noise, noise.series(96 * DAYS))
    while workload.step():
        pass
    return workload


def test_jumping_over_windows_makes_no_difference(damping: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks, runs and verdicts, in a fraction of the passes."""
    for module, name in ((damping.adaptation, "build_scene"), (damping.starting, "read_inputs")):
        monkeypatch.setattr(module, name, getattr(module, name))  # what the script remembers is forgotten after the test
    every, few = live(damping, jumps=False), live(damping, jumps=True)
    assert few.passes < every.passes / 4
    assert (few.needless, few.checked, few.verdict) == (every.needless, every.checked, every.verdict)
    assert few.checked > 3
    assert few.world.status.run == every.world.status.run
    assert few.world.status.check == every.world.status.check


def test_a_card_of_half_the_speed_is_found_within_hours(damping: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three windows, a check, and no more where it is that plain."""
    for module, name in ((damping.adaptation, "build_scene"), (damping.starting, "read_inputs")):
        monkeypatch.setattr(module, name, getattr(module, name))
    assert [damping.find_delay(seed, 100, 0.15) < 8 for seed in range(3)] == [True] * 3
