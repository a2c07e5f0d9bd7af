from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.decide.test_adaptation import make_world

from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.plan import RecordDecision
from metainfer.predict.physics import PhysicsPredictor


def record_after_restart(*, recorded: bool | None) -> tuple[RecordDecision, list[RecordDecision]]:
    """The decision as it was taken, and what a later pass has recorded when the store knows that much of it."""
    world = make_world()
    world.play()
    (taken,) = (action for action in world.actions if isinstance(action, RecordDecision))
    plan = decide_adaptation(replace(world.snapshot, decision_recorded=recorded), PhysicsPredictor(), world.now)
    return taken, [action for action in plan.actions if isinstance(action, RecordDecision)]


def test_a_decision_that_the_store_never_got_is_made_up_from_the_status() -> None:
    """Same identity and moment, and what the status knows of its grounds."""
    taken, (again,) = record_after_restart(recorded=False)
    assert (again.decision_id, again.run_id) == (taken.decision_id, taken.run_id)
    assert again.decided_at == taken.decided_at.replace(microsecond=0)
    same = ("adaptation", "inputsHash", "objective", "selected", "gainPercent", "lowConfidence", "infeasible", "rejections")
    assert {name: again.document[name] for name in same} == {name: taken.document[name] for name in same}
    assert again.document["fromStatus"] is True
    ranked = {line["candidate"]: line["verdict"] for line in taken.document["ranking"]}
    assert {line["candidate"]: line["verdict"] for line in again.document["ranking"]}.items() <= ranked.items()
    assert again.document["selected"] in [line["candidate"] for line in again.document["ranking"]]


@pytest.mark.parametrize("recorded", [True, None], ids=["it is recorded", "nobody knows"])
def test_a_decision_is_recorded_again_only_when_it_is_known_to_be_missing(recorded: bool | None) -> None:
    """While the store is away there is nobody to ask."""
    _, again = record_after_restart(recorded=recorded)
    assert again == []
