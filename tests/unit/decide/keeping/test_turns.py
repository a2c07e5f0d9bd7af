"""Who has a turn and who waits for one, as far as a status tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decide.keeping.test_damping import NOW, make_other

from metainfer.decide.keeping.turns import turns_of, waits_for_turn, waits_since

SUSPICION = {"suspicion": {"reason": "DriverVersionChanged", "message": "it is 2", "noticedAt": NOW}}


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({}, {"Run"}, id="worked out anew"),
        pytest.param({"step": "Done", "check": {"due": "FreshnessExpired: old"}}, {"Run"}, id="claimed, not begun"),
        pytest.param({"trigger": "SpecChanged: by hand"}, set(), id="asked for by somebody"),
        pytest.param({"step": "Applying"}, {"Rollout"}, id="written"),
        pytest.param({"step": "RollingOut", "trigger": "SpecChanged: by hand"}, {"Rollout"}, id="rolled out, whoever asked"),
        pytest.param({"step": "RollingOut", "check": {"due": "PlacementLost: gone"}}, {"Run", "Rollout"}, id="lost while it is rolled out"),
        pytest.param({"step": "Done"}, set(), id="done"),
        pytest.param({"stalled": True}, set(), id="waits for somebody"),
        pytest.param({"step": "RollingOut", "ready": "RolloutStuck"}, set(), id="stuck"),
        pytest.param({"step": "RollingOut", "spec": {"suspend": True}}, set(), id="suspended: no pass would ever say that the rollout is over"),
    ],
)
def test_a_turn_is_held_from_its_claim_to_its_end(fields: dict[str, Any], want: set[str]) -> None:
    """Counted over all adaptations, from what stands in their statuses."""
    other = make_other("a", **fields)
    assert turns_of(other) == want
    assert turns_of(replace(other, deleting=True)) == set()


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({"ready": "WaitingForTurn"}, True, id="decided, not written"),
        pytest.param({"step": "Done", "ready": "Applied", "check": SUSPICION}, True, id="suspected"),
        pytest.param({"step": "Done", "check": SUSPICION | {"due": "DriverVersionChanged: it is 2"}}, False, id="its run begins"),
        pytest.param({"step": "Done", "check": SUSPICION, "spec": {"suspend": True}}, False, id="suspended"),
        pytest.param({"step": "Done", "ready": "Applied"}, False, id="at peace"),
    ],
)
def test_who_waits_for_a_turn_is_told_by_its_status(fields: dict[str, Any], want: bool) -> None:
    """Rather too many than too few: a gate that is shut for another cause only its own pass sees."""
    assert waits_for_turn(make_other("a", **fields)) == want


def test_whoever_waits_is_known_since_when() -> None:
    """A suspicion since it was noticed, a decision since it was made."""
    assert waits_since(make_other("a", step="Done", check=SUSPICION)) == NOW
    assert waits_since(make_other("a", ready="WaitingForTurn", decided_at="2026-02-01T12:00:00Z")) == NOW
