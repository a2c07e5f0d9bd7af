"""Schedules: what each field may say, and when the next time is; compared with a plain walk over the minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from metainfer.decide.keeping.cron import ScheduleInvalid, read_schedule

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("0 12 * * *", datetime(2026, 3, 3, 12, 0, tzinfo=UTC), id="strictly after"),
        pytest.param("*/20 * * * *", datetime(2026, 3, 2, 12, 20, tzinfo=UTC), id="steps"),
        pytest.param("10-30/10 13 * * *", datetime(2026, 3, 2, 13, 10, tzinfo=UTC), id="steps of a range"),
        pytest.param("50/5 12 * * *", datetime(2026, 3, 2, 12, 50, tzinfo=UTC), id="steps from a number on"),
        pytest.param("5,3 13 * * *", datetime(2026, 3, 2, 13, 3, tzinfo=UTC), id="a list in any order"),
        pytest.param("0 2 * * SAT", datetime(2026, 3, 7, 2, 0, tzinfo=UTC), id="a day by name"),
        pytest.param("0 2 * * 7", datetime(2026, 3, 8, 2, 0, tzinfo=UTC), id="Sunday is 7"),
        pytest.param("0 2 * * 0", datetime(2026, 3, 8, 2, 0, tzinfo=UTC), id="and 0"),
        pytest.param("0 2 * jun-aug mon-fri", datetime(2026, 6, 1, 2, 0, tzinfo=UTC), id="ranges of names"),
        pytest.param("0 2 20 * 5", datetime(2026, 3, 6, 2, 0, tzinfo=UTC), id="either day is enough where both are bounded"),
        pytest.param("0 2 */10 * *", datetime(2026, 3, 11, 2, 0, tzinfo=UTC), id="every tenth day"),
        pytest.param("0 0 29 2 *", datetime(2028, 2, 29, 0, 0, tzinfo=UTC), id="a leap day"),
        pytest.param("0 0 31 4 *", None, id="a day that never comes"),
    ],
)
def test_the_next_time_of_a_schedule(text: str, want: datetime | None) -> None:
    """As crontab(5) says."""
    assert read_schedule(text).next_after(NOON, UTC) == want


NO_SCHEDULES = [
    *("60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-3 * * * *", "*/0 * * * *", "*/x * * * *", "* * * * FOO", "* * * *"),
    *("* * * * * *", ", * * * *", "-1 * * * *", "1- * * * *", "*-5 * * * *", "@daily"),
]


@pytest.mark.parametrize("text", NO_SCHEDULES)
def test_what_is_no_schedule_is_refused_by_name(text: str) -> None:
    """Never read as something else."""
    with pytest.raises(ScheduleInvalid, match=r"is no |fields in place of 5"):
        read_schedule(text)


@pytest.mark.parametrize("text", ["30 2 * * *", "0,30 */3 * * *", "15 1-3 * * 0", "0 0 1 * *"])
@pytest.mark.parametrize("start", [datetime(2026, 3, 27, 0, 0, tzinfo=UTC), datetime(2026, 10, 23, 0, 0, tzinfo=UTC)], ids=["spring", "autumn"])
def test_it_finds_what_a_walk_over_the_minutes_finds(text: str, start: datetime) -> None:
    """Where the clock jumps over a time it comes an hour later by the clock; where it shows one twice, the first counts."""
    schedule, walked = read_schedule(text), set()
    for minute in range(5 * 24 * 60):
        moment = start + timedelta(minutes=minute)
        local = moment.astimezone(BERLIN)
        fits = local.minute in schedule.minutes and local.hour in schedule.hours and local.day in schedule.days and local.isoweekday() % 7 in schedule.weekdays
        if fits and not local.fold:
            walked.add(moment)
    found, moment = set(), start - timedelta(minutes=1)
    while (after := schedule.next_after(moment, BERLIN)) is not None and after < start + timedelta(days=5):
        found.add(after)
        moment = after
    landed = {time for time in found - walked if time.astimezone(BERLIN).date().isoformat() == "2026-03-29"}
    assert found - landed == walked
    assert all(time.astimezone(BERLIN).hour == 3 for time in landed)


def test_the_last_time_counts_only_within_its_reach() -> None:
    """A window that has ended is not open."""
    schedule = read_schedule("0 10 * * *")
    assert schedule.last_before(NOON, UTC, timedelta(hours=3)) == NOON - timedelta(hours=2)
    assert schedule.last_before(NOON, UTC, timedelta(hours=2)) is None
    assert schedule.last_before(NOON, UTC, timedelta(days=3)) == NOON - timedelta(hours=2)
