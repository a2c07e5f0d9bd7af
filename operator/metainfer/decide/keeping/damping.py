"""What stands between a suspicion and a Job, a run or a write: every automatic trigger may fire for the whole fleet in one minute. Pure.

Gates are ordered, the first one that is shut says why and until when. Turns are counted from what is on the API server (the statuses of
other adaptations, claimed before anything is done), never from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.conditions import find_condition, format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.families import selector_matches
from metainfer.decide.inputs import trigger_reason
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.keeping.turns import AUTOMATIC, FAILED, WAITING, turns_of
from metainfer.decide.keeping.windows import find_opening
from metainfer.decide.triggers import SETTLE_SPREAD, spread

REST_SECONDS: Final = 3600.0
"""After a check or a run that changed nothing. Doubled each time: what is suspected and never found is the world's noise."""
REST_LIMIT_SECONDS: Final = 21_600.0
"""A real change must not wait for longer because there was a false alarm before it. A check costs a Job of 40 s, and writes nothing."""
MOST_DOUBLINGS: Final = 5
FAILURE_HOLDS: Final = timedelta(days=1)
"""For how long a placement that failed keeps its family's others from the same change; by then somebody has looked at it."""
TURN_SECONDS: Final = 60.0
"""Between looks at what has no time of its own. A turn that becomes free wakes those who wait for it (``watch.routes``)."""
FAMILY_WIDE: Final = frozenset({"DriverVersionChanged", "RuntimeChanged", "CalibrationShifted"})
"""Triggers that concern every adaptation of a family: the first failure stops the others."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that is shut."""

    reason: str
    message: str
    until: datetime | None = None
    """None = nobody knows; it is looked at again soon."""

    def __str__(self) -> str:
        """As a condition has it."""
        return f"{self.reason}: {self.message}"

    def seconds(self, now: datetime) -> float:
        """Until it is worth looking again."""
        return max(1.0, (self.until - now).total_seconds()) if self.until is not None else TURN_SECONDS


GateCheck = Callable[[Draft, Suspicion], Gate | None]


def find_gate(draft: Draft, found: Suspicion) -> Gate | None:
    """The first gate that keeps a suspicion from a check or a run; None = it may pass."""
    return next((gate for check in GATES if (gate := check(draft, found)) is not None), None)


def _settles(draft: Draft, found: Suspicion) -> Gate | None:
    """Also the jitter: whatever a whole fleet notices at the same moment settles at different ones."""
    since = parse_time(draft.suspicion.noticed_at) if draft.suspicion is not None else draft.now
    until = since + timedelta(seconds=spread(draft, found.settle_seconds, SETTLE_SPREAD, found.reason))
    return Gate("Settling", f"it has to stand until {format_time(until)}", until) if draft.now < until else None


def _is_blocked(_draft: Draft, found: Suspicion) -> Gate | None:
    return Gate("NothingToDo", found.blocked) if found.blocked else None


def _rests(draft: Draft, found: Suspicion) -> Gate | None:
    """After checks or runs for the same trigger that changed nothing."""
    until = rests_until(draft.status)
    if until is None or draft.now >= until or draft.status.check is None or draft.status.check.acted_on != found.reason:
        return None
    times = draft.status.check.in_vain
    return Gate("Resting", f"nothing came of it {times} times in a row, so it is looked at again at {format_time(until)}", until)


def rests_until(status: ModelAdaptationStatus) -> datetime | None:
    """Until when nothing follows from a suspicion, because nothing came of the last ones; None = at once."""
    check = status.check
    if check is None or not check.in_vain or not check.acted_at:
        return None
    return parse_time(check.acted_at) + timedelta(seconds=min(REST_LIMIT_SECONDS, REST_SECONDS * 2.0 ** min(check.in_vain - 1, MOST_DOUBLINGS)))


def _cools_down(draft: Draft, found: Suspicion) -> Gate | None:
    placement, cooldown = draft.status.placement, draft.snapshot.adaptation.spec.update_policy.cooldown
    if placement is None or found.is_urgent:
        return None
    until = parse_time(placement.applied_at) + parse_duration(cooldown)
    if draft.now >= until:
        return None
    return Gate(
        "CoolingDown", f"the placement was changed at {placement.applied_at}; nothing follows before {format_time(until)} (updatePolicy.cooldown)", until
    )


def _follows_failure(draft: Draft, found: Suspicion) -> Gate | None:
    if found.reason not in FAMILY_WIDE:
        return None
    return _find_failure(draft, draft.recommended.pool if draft.recommended is not None else "", found.family)


def _waits_for_turn(draft: Draft, found: Suspicion) -> Gate | None:
    """No more runs at a time than the pool has places for their Jobs: the budget of a run counts from its start."""
    pool = draft.snapshot.pool(draft.recommended.pool) if draft.recommended is not None else None
    if found.wants != "Run" or pool is None:
        return None
    going = sum("Run" in turns_of(other) and selector_matches(other.spec.pool_selector, pool.labels) for other in draft.snapshot.others)
    allowed = pool.spec.limits.max_concurrent_measurements
    if going < allowed:
        return None
    return Gate(WAITING, f"{going} adaptations on pool {pool.name} are being worked out anew, {allowed} may be (limits.maxConcurrentMeasurements)")


GATES: Final[tuple[GateCheck, ...]] = (_settles, _is_blocked, _rests, _cools_down, _follows_failure, _waits_for_turn)


def find_write_gate(draft: Draft, pool_name: str, family: str) -> Gate | None:
    """What keeps a decision from being written now; None = it may be."""
    reason = trigger_reason(draft.status.run)
    failed = _find_failure(draft, pool_name, family) if reason in FAMILY_WIDE else None
    return failed or _is_out_of_hours(draft, reason) or _rolls_out(draft, pool_name)


def _is_out_of_hours(draft: Draft, reason: str) -> Gate | None:
    if reason not in AUTOMATIC or reason == "PlacementLost":
        return None
    opening = find_opening(draft.snapshot.adaptation.spec.update_policy.maintenance_windows, draft.now)
    if opening.is_open:
        return None
    when = f"the next one opens at {format_time(opening.next_at)}" if opening.next_at is not None else "none of them ever opens"
    problem = f" ({opening.problem})" if opening.problem else ""
    return Gate("OutsideWindow", f"it is outside updatePolicy.maintenanceWindows, and {when}{problem}", opening.next_at)


def _rolls_out(draft: Draft, pool_name: str) -> Gate | None:
    pool = draft.snapshot.pool(pool_name)
    if pool is None:
        return None
    going = sum("Rollout" in turns_of(other) and _decided_for(other.status) == pool_name for other in draft.snapshot.others)
    allowed = pool.spec.limits.max_concurrent_rollouts
    if going < allowed:
        return None
    return Gate(WAITING, f"{going} Deployments are being rolled out onto pool {pool_name}, {allowed} may be (limits.maxConcurrentRollouts)")


def _decided_for(status: ModelAdaptationStatus) -> str:
    """The pool of what is being brought in."""
    return status.recommendation.config.pool if status.recommendation is not None else ""


def _find_failure(draft: Draft, pool_name: str, family: str) -> Gate | None:
    """Another adaptation of the family whose placement failed after such a change, lately."""
    for other in draft.snapshot.others:
        failed_at = _failed_at(other.status, pool_name, family)
        if failed_at is not None and draft.now < failed_at + FAILURE_HOLDS:
            until = failed_at + FAILURE_HOLDS
            what = f"{other.namespace}/{other.name} failed on family {family} after the same kind of change"
            return Gate("StoppedByFailure", f"{what}: nothing follows before it is settled there, or {format_time(until)}", until)
    return None


def _failed_at(status: ModelAdaptationStatus, pool_name: str, family: str) -> datetime | None:
    """When the newest decision was made, if it came of a change of the whole family and does not run, or was taken back."""
    run, newest = status.run, status.decisions[0] if status.decisions else None
    if newest is None or (newest.config.pool, newest.config.family) != (pool_name, family) or newest.trigger.partition(":")[0] not in FAMILY_WIDE:
        return None
    ready = find_condition(status.conditions, reasons.READY)
    stuck = run is not None and newest.outcome == "Applied" and ready is not None and ready.reason in FAILED
    return parse_time(newest.decided_at) if stuck or newest.outcome == "RolledBack" else None
