"""An object that the schema takes and this version cannot read says so in its own status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from metainfer.decide.unreadable import mark_unreadable

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PROBLEM = "objective.goal: Input should be 'Latency', 'Throughput' or 'Cost'"


def make_raw(**status: Any) -> dict[str, Any]:
    """An adaptation as it is on the wire, with a status of a newer version."""
    return {"metadata": {"name": "ocr", "generation": 4, "resourceVersion": "7"}, "spec": {}, "status": status}


def test_ready_and_stalled_say_what_cannot_be_read() -> None:
    """Both with the words of the field; ``Reconciling`` goes, as nothing is under way."""
    before = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}, {"type": "Reconciling", "status": "True"}]
    status = mark_unreadable(make_raw(conditions=before), PROBLEM, NOW)
    found = {item["type"]: item for item in status["conditions"]}
    assert {kind: (item["status"], item["reason"]) for kind, item in found.items()} == {"Ready": ("False", "Unreadable"), "Stalled": ("True", "Unreadable")}
    assert all(PROBLEM in item["message"] for item in found.values())
    assert {item["observedGeneration"] for item in found.values()} == {status["observedGeneration"]} == {4}


def test_everything_else_of_the_status_is_kept() -> None:
    """The version that wrote it may come back."""
    raw = make_raw(placement={"decisionId": "d"}, aFieldOfTomorrow=[1], conditions=[{"type": "Applied", "status": "True", "reason": "Applied"}])
    status = mark_unreadable(raw, PROBLEM, NOW)
    assert (status["placement"], status["aFieldOfTomorrow"]) == ({"decisionId": "d"}, [1])
    assert {"type": "Applied", "status": "True", "reason": "Applied"} in status["conditions"]


def test_what_is_said_already_is_not_said_again() -> None:
    """Equal status, no write, whatever the time."""
    once = mark_unreadable(make_raw(), PROBLEM, NOW)
    raw = make_raw(**once)
    assert mark_unreadable(raw, PROBLEM, NOW + timedelta(hours=1)) == raw["status"]
