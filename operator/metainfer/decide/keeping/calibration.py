"""The cards of a family that a decision rests on do something else than they did: ``calibration`` found it out for the pool. Pure."""

from __future__ import annotations

from typing import Final

from metainfer.decide.draft import Draft
from metainfer.decide.keeping.drivers import dependencies
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.known_families import adopt, look_at_family
from metainfer.decide.scene import Scene

SETTLE_SECONDS: Final = 300.0
"""Nothing to settle, but every adaptation of the family sees it at the same moment, and waits differently long."""


def find_calibration_shift(draft: Draft, scene: Scene) -> Suspicion | None:
    """``CalibrationShifted``: a run, because figures of the former epoch are of other cards."""
    for option in dependencies(draft, scene):
        now = look_at_family(draft, option)
        known = adopt(draft, now)
        if now.calibration.epoch > known.calibration_epoch:
            words = f"family {option.family.name} of pool {option.pool}: its cards do {now.calibration.shift_permille / 10:.0f} % of what they did"
            return Suspicion("CalibrationShifted", words, "Run", family=option.family.name, settle_seconds=SETTLE_SECONDS)
    return None
