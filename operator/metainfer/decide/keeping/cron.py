"""The five fields of cron(5), as far as windows need them: which times a schedule names. Pure.

Minute, hour, day of the month, month, day of the week (0 and 7 are Sunday); lists, ranges, steps and English names. Where both days are
bounded either of them is enough, as in every cron. A time that a clock jumps over comes when the clock has landed, one that it shows
twice comes the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
HORIZON_DAYS: Final = 366 * 8
"""A 29th of February comes at least once in eight years."""


class ScheduleInvalid(ValueError):
    """A schedule that names no times, in words."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()

    def read(self, text: str) -> frozenset[int]:
        """The numbers that the text stands for."""
        return frozenset(number for part in text.split(",") for number in self._part(part))

    def _part(self, part: str) -> range:
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        low = self.low if span == "*" else self._number(first)
        high = self._number(last) if dash else (self.high if span == "*" or step else low)
        if low > high or (step and not step.isdecimal()) or step == "0":
            raise ScheduleInvalid(f"{part!r} is no {self.name}")
        return range(low, high + 1, int(step) if step else 1)

    def _number(self, text: str) -> int:
        if text.upper() in self.words:
            return self.words.index(text.upper()) + self.low
        if not text.isdecimal() or not self.low <= int(text) <= self.high:
            raise ScheduleInvalid(f"{text!r} is no {self.name}: it goes from {self.low} to {self.high}")
        return int(text)


_FIELDS: Final = (
    _Field("minute", 0, 59), _Field("hour", 0, 23), _Field("day of the month", 1, 31), _Field("month", 1, 12, MONTHS), _Field("day of the week", 0, 7, DAYS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedule:
    """When something begins, by a local clock."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Both kinds of days are bounded: one of them is enough."""

    def last_before(self, moment: datetime, zone: tzinfo, reach: timedelta) -> datetime | None:
        """The last beginning up to this moment, if it is no longer ago than that; in UTC."""
        today, first = moment.astimezone(zone).date(), (moment - reach).astimezone(zone).date()
        for back in range((today - first).days + 2):
            found = [time for time in self._times(today - timedelta(days=back), zone) if time <= moment]
            if found:
                return max(found) if max(found) > moment - reach else None
        return None

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The first beginning after this moment, in UTC; None = there is none."""
        today = moment.astimezone(zone).date()
        for ahead in range(HORIZON_DAYS):
            found = [time for time in self._times(today + timedelta(days=ahead), zone) if time > moment]
            if found:
                return min(found)
        return None

    def _times(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        if not self._names(day):
            return
        for hour in self.hours:
            for minute in self.minutes:
                yield datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC)

    def _names(self, day: date) -> bool:
        by_date, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (by_date or by_week if self.either_day else by_date and by_week)


def read_schedule(text: str) -> Schedule:
    """Raises ScheduleInvalid, which names the part that cannot be read."""
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ScheduleInvalid(f"{len(parts)} fields in place of {len(_FIELDS)}")
    minutes, hours, days, months, weekdays = (known.read(part) for known, part in zip(_FIELDS, parts, strict=True))
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    return Schedule(minutes, hours, days, months, frozenset(number % 7 for number in weekdays), either)
