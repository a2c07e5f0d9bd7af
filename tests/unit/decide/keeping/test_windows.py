"""Maintenance windows: when they are open, and what waits for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.decide.keeping.play_drift import settled
from tests.unit.decide.make_world import ORT, faster_on

from metainfer.api.v1alpha1.model_adaptation import MaintenanceWindow, UpdatePolicy
from metainfer.decide.conditions import format_time
from metainfer.decide.keeping.windows import find_opening

MONDAY = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def make_window(schedule: str, **fields: Any) -> MaintenanceWindow:
    """Two hours from then on."""
    return MaintenanceWindow(schedule=schedule, **({"duration": "2h"} | fields))


@pytest.mark.parametrize(
    ("windows", "now", "want_open", "want_next"),
    [
        pytest.param((), MONDAY, True, None, id="none: always"),
        pytest.param((make_window("0 12 * * *"),), MONDAY, True, None, id="it begins this minute"),
        pytest.param((make_window("0 10 * * *"),), MONDAY - timedelta(seconds=1), True, None, id="its last second"),
        pytest.param((make_window("0 10 * * *"),), MONDAY, False, MONDAY + timedelta(hours=22), id="it has just ended"),
        pytest.param((make_window("0 2 * * 6,0"),), MONDAY, False, datetime(2026, 3, 7, 2, 0, tzinfo=UTC), id="at weekends"),
        pytest.param((make_window("0 2 * * 6"), make_window("30 12 * * *")), MONDAY, False, MONDAY + timedelta(minutes=30), id="the next of several"),
        pytest.param((make_window("0 13 * * *", time_zone="Europe/Berlin"),), MONDAY, True, None, id="in another zone"),
        pytest.param((make_window("0 22 * * 0", duration="20h"),), MONDAY, True, None, id="over midnight"),
        pytest.param(
            (make_window("0 2 * * *", time_zone="Europe/Berlin"),), datetime(2026, 3, 28, 12, 0, tzinfo=UTC), False, datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
            id="a beginning that the clock jumps over comes when it lands",
        ),
        pytest.param((make_window("0 0 30 2 *"),), MONDAY, False, None, id="a day that never comes"),
    ],
)  # fmt: skip
def test_a_window_is_open_from_its_beginning_for_its_duration(
    windows: tuple[MaintenanceWindow, ...], now: datetime, *, want_open: bool, want_next: datetime | None
) -> None:
    """In its own time zone; of several the one that opens next counts."""
    opening = find_opening(windows, now)
    assert (opening.is_open, opening.next_at) == (want_open, want_next)


@pytest.mark.parametrize(
    ("window", "want"),
    [
        pytest.param(make_window("0 25 * * *"), "0 25 * * *", id="an hour that there is not"),
        pytest.param(make_window("a b c d e"), "a b c d e", id="no schedule"),
        pytest.param(make_window("0 2 * * *", time_zone="Mars/Olympus"), "Mars/Olympus", id="no such zone"),
    ],
)
def test_a_window_that_cannot_be_read_stays_shut_and_is_named(window: MaintenanceWindow, want: str) -> None:
    """The others still open."""
    opening = find_opening((window,), MONDAY)
    assert (opening.is_open, opening.next_at, want in opening.problem) == (False, None, True)
    assert find_opening((window, make_window("0 12 * * *")), MONDAY).is_open


def test_a_choice_that_nobody_asked_for_waits_for_a_window() -> None:
    """It is measured when it is due, and written when it may be; the condition says when that is."""
    world = settled()
    opens = world.now + timedelta(days=8, hours=3)
    window = make_window(f"{opens.minute} {opens.hour} * * *", duration="1h")
    world.change_spec(update_policy=UpdatePolicy(cooldown="1m", maintenance_windows=(window,)))
    world.p50_us = faster_on(ORT)
    world.now += timedelta(days=8)
    plan = world.play(60)
    assert world.applies == 1
    assert world.condition("Ready") == ("False", "OutsideWindow")
    opens_at = opens.replace(second=0, microsecond=0)
    assert f"the next one opens at {format_time(opens_at)}" in world.message("Ready")
    assert plan.requeue_after_seconds is not None
    world.now = opens_at
    world.play()
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))


def test_what_somebody_asked_for_does_not_wait() -> None:
    """A user who changes the image waits for the answer."""
    world = settled()
    world.change_spec(update_policy=UpdatePolicy(maintenance_windows=(make_window("0 0 30 2 *"),)))
    world.p50_us = faster_on(ORT)
    world.change_target(image="server:2")
    world.play(60)
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))


def test_what_was_taken_off_is_put_back_at_any_time() -> None:
    """It was written in a window once."""
    world = settled()
    world.p50_us = faster_on(ORT)
    world.now += timedelta(days=8)
    world.play(60)
    assert (world.applies, world.condition("Ready")) == (2, ("True", "Applied"))
    world.change_spec(update_policy=UpdatePolicy(maintenance_windows=(make_window("0 0 30 2 *"),)))
    target = world.snapshot.target
    assert target is not None
    world.snapshot = replace(world.snapshot, target=replace(target, template=replace(target.template, required_terms=None)))
    world.play()
    assert world.applies == 3
