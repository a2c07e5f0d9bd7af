"""Conditions: what moves, what stays, what disappears."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from metainfer.decide.conditions import Finding, format_time, merge_conditions, parse_time

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def merged(before: tuple[Finding, ...], after: tuple[Finding, ...]):  # noqa: ANN201 - a tuple of conditions
    """Conditions after two passes five minutes apart."""
    first = merge_conditions((), before, now=NOW, generation=1)
    return merge_conditions(first, after, now=LATER, generation=2)


def test_the_transition_time_stays_while_only_reason_and_message_change() -> None:
    """lastTransitionTime belongs to the status alone."""
    (condition,) = merged((Finding("Ready", "False", "Profiling", "a"),), (Finding("Ready", "False", "Validating", "b"),))
    assert (condition.last_transition_time, condition.reason, condition.message, condition.observed_generation) == (format_time(NOW), "Validating", "b", 2)


def test_the_transition_time_moves_when_the_status_flips() -> None:
    """A flip is dated by the pass that saw it."""
    (condition,) = merged((Finding("Ready", "False", "Profiling"),), (Finding("Ready", "True", "Applied"),))
    assert condition.last_transition_time == format_time(LATER)


@pytest.mark.parametrize("kind", ["Reconciling", "Stalled"])
def test_kstatus_conditions_exist_only_while_true(kind: str) -> None:
    """A False Reconciling or Stalled would read as news to kstatus tools."""
    assert merged((Finding(kind, "True", "Busy"),), (Finding(kind, "False", "Idle"),)) == ()


def test_a_long_message_is_cut_to_what_the_schema_takes() -> None:
    """A message past the bound would have the whole status refused."""
    (condition,) = merge_conditions((), (Finding("Ready", "False", "Long", "x" * 5000),), now=NOW, generation=1)
    assert len(condition.message) == 2048


def test_times_survive_a_round_trip() -> None:
    """What is written is read back as the same second."""
    assert parse_time(format_time(NOW)) == NOW
