"""What a pass over a pool tells people: each thing once, when it becomes so. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.accelerator_pool import FamilyCalibration
from metainfer.decide.calibration import family_calibration
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import Portrait
from metainfer.decide.plan import EmitEvent
from metainfer.decide.pool_pass import PoolPass
from metainfer.decide.probe_failures import is_sick
from metainfer.decide.probing import failure_words
from metainfer.decide.refusal import refusal_words

MOST_EVENTS = 4
"""Of one pass; the rest is in the status."""


def find_events(work: PoolPass, portraits: Mapping[str, Portrait], calibrations: Mapping[str, FamilyCalibration]) -> tuple[EmitEvent, ...]:
    """Failures first."""
    return (*_failures(work, portraits), *_shifts(work, calibrations), *_health_changes(work, portraits))[:MOST_EVENTS]


def _shifts(work: PoolPass, calibrations: Mapping[str, FamilyCalibration]) -> Iterator[EmitEvent]:
    """A family that does something else than before."""
    for name, calibration in sorted(calibrations.items()):
        if calibration.epoch > family_calibration(work.snapshot.pool, name).epoch:
            words = f"family {name}: its cards do {calibration.shift_permille / 10:.0f} % of what they did (median of {calibration.cards} against themselves)"
            yield EmitEvent("Warning", "CalibrationShifted", f"{words}: what was decided for them is worked out anew, one adaptation after the other")


def _health_changes(work: PoolPass, portraits: Mapping[str, Portrait]) -> Iterator[EmitEvent]:
    """A card that fell out of its family, or came back."""
    for name, portrait in sorted(portraits.items()):
        before, status = work.snapshot.portraits.get(name), portrait.status
        old = before.status.health if before is not None else "Unknown"
        if status.health == old or is_sick(status.probe_failure):
            continue  # one that hands out no card is told of as a failure
        mean = (status.trial.mean_permille if status.trial is not None else 1000) / 10
        if status.health == "Degraded":
            words = f"node {name}: its card does {mean:.0f} % of what its siblings of family {portrait.spec.family} do, by several probes: new pods avoid it"
            yield EmitEvent("Warning", "CardDegraded", words)
        elif old == "Degraded":
            yield EmitEvent("Normal", "CardRecovered", f"node {name}: two good probes in a row ({mean:.0f} % of its siblings of family {portrait.spec.family})")


def _failures(work: PoolPass, portraits: Mapping[str, Portrait]) -> tuple[EmitEvent, ...]:
    """One for each node whose probe fails for a reason that it did not fail for before; repeated failures are in the status only."""
    fresh: list[EmitEvent] = []
    for name, portrait in sorted(portraits.items()):
        before, failure = work.snapshot.portraits.get(name), portrait.status.probe_failure
        known = before.status.probe_failure if before is not None else None
        if failure is not None and (known is None or known.reason != failure.reason):
            fresh.append(EmitEvent("Warning", failure.reason, f"probe of node {failure_words(name, failure)}"[:1024]))
    refusal = work.snapshot.pool.status.refusal
    said = find_condition(work.snapshot.pool.status.conditions, reasons.PROBES_COMPLETED)
    if refusal is not None and (said is None or said.reason != refusal.reason):
        fresh.append(EmitEvent("Warning", refusal.reason, refusal_words(refusal)))
    return tuple(fresh)
