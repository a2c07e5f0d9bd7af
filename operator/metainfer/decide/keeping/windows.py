"""When something may be written that nobody asked for at that moment. Pure: the time is an argument, time zones are data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1.model_adaptation import MaintenanceWindow
from metainfer.decide.keeping.cron import ScheduleInvalid, read_schedule


@dataclass(frozen=True, slots=True)
class Opening:
    """Whether one of the windows is open, else when the next one is."""

    is_open: bool
    next_at: datetime | None = None
    problem: str = ""
    """What is wrong with a window, in words; one that cannot be read never opens."""


def find_opening(windows: Sequence[MaintenanceWindow], now: datetime) -> Opening:
    """Without windows it is always time."""
    if not windows:
        return Opening(is_open=True)
    found = [_look(window, now) for window in windows]
    if any(item.is_open for item in found):
        return Opening(is_open=True)
    coming = [item.next_at for item in found if item.next_at is not None]
    return Opening(is_open=False, next_at=min(coming, default=None), problem="; ".join(item.problem for item in found if item.problem))


def _look(window: MaintenanceWindow, now: datetime) -> Opening:
    try:
        schedule, zone = read_schedule(window.schedule), ZoneInfo(window.time_zone)
    except ScheduleInvalid as error:
        return Opening(is_open=False, problem=f"schedule {window.schedule!r}: {error}")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Opening(is_open=False, problem=f"time zone {window.time_zone!r} is not known: name one like Europe/Berlin")
    if schedule.last_before(now, zone, parse_duration(window.duration)) is not None:
        return Opening(is_open=True)
    return Opening(is_open=False, next_at=schedule.next_after(now, zone))
