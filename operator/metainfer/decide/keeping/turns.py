"""Turns, of which only so many may be had at a time: to be worked out anew, and to be rolled out. Pure.

Told from the status alone, so that the gates (``damping``) can count who has one, and the watch sees when one becomes free and who waits
for it.
"""

from __future__ import annotations

from typing import Final, Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import AdaptationFacts
from metainfer.decide.inputs import trigger_reason

Turn = Literal["Run", "Rollout"]
WAITING: Final = "WaitingForTurn"
AUTOMATIC: Final = frozenset(
    {
        *("PlacementLost", "DriverVersionChanged", "RuntimeChanged", "P99Drift", "LoadShifted", "CalibrationShifted", "FreshnessExpired"),
        *("ModelChanged", "TriedAgain"),
    }
)
"""Triggers that nobody asked for at that moment: their runs wait for turns, and their changes for maintenance windows."""
FAILED: Final = frozenset({"RolloutStuck", "SettingsNotEffective"})
"""Reasons of Ready that say that what was written does not run."""


def turns_of(adaptation: AdaptationFacts) -> frozenset[Turn]:
    """The turns that it has now: none where no pass goes on with it, or where it waits for somebody."""
    if adaptation.deleting or adaptation.spec.suspend or _is_stalled(adaptation.status):
        return frozenset()
    run, check = adaptation.status.run, adaptation.status.check
    found: set[Turn] = {"Run"} if check is not None and check.due else set()
    if run is not None and run.step in ("Applying", "RollingOut"):
        found.add("Rollout")
    elif run is not None and run.step != "Done" and trigger_reason(run) in AUTOMATIC:
        found.add("Run")
    return frozenset(found)


def waits_for_turn(adaptation: AdaptationFacts) -> bool:
    """Whether a turn that becomes free may be for it: its decision is not written for want of one, or something is suspected and not looked into.

    What else holds a suspicion back only its own pass can tell.
    """
    ready, check = find_condition(adaptation.status.conditions, reasons.READY), adaptation.status.check
    suspected = check is not None and check.suspicion is not None and check.claim is None and not check.due
    return (suspected or (ready is not None and ready.reason == WAITING)) and not adaptation.spec.suspend


def waits_since(adaptation: AdaptationFacts) -> str:
    """From when on, as status has it: who came first is asked first."""
    status = adaptation.status
    if status.check is not None and status.check.suspicion is not None:
        return status.check.suspicion.noticed_at
    return status.recommendation.decided_at if status.recommendation is not None else ""


def _is_stalled(status: ModelAdaptationStatus) -> bool:
    ready = find_condition(status.conditions, reasons.READY)
    return find_condition(status.conditions, reasons.STALLED) is not None or (ready is not None and ready.reason in FAILED)
