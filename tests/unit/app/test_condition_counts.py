"""The gauge of conditions: what alerts count on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prometheus_client import REGISTRY
from tests.unit.decide.make_facts import make_adaptation, make_pool

from metainfer.api.v1alpha1.common import Condition
from metainfer.app.condition_counts import count_conditions
from metainfer.decide.facts import AdaptationFacts, PoolFacts


@dataclass
class Cached:
    """Objects as a cache has them."""

    held: tuple[AdaptationFacts, ...]

    def pools(self) -> tuple[PoolFacts, ...]:
        return (make_pool(),)

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        return self.held


def with_condition(kind: str, status: str, reason: str) -> AdaptationFacts:
    condition = Condition(type=kind, status=status, reason=reason, last_transition_time="2026-03-01T12:00:00Z")  # type: ignore[arg-type]
    adaptation = make_adaptation()
    return replace(adaptation, status=adaptation.status.model_copy(update={"conditions": (condition,)}))


def counted(kind: str, status: str, reason: str) -> float | None:
    return REGISTRY.get_sample_value("metainfer_conditions", {"kind": "ModelAdaptation", "type": kind, "status": status, "reason": reason})


def test_conditions_are_counted_and_those_that_ended_are_gone() -> None:
    """One series per combination that somebody has; an alert on it ends when the last object has it no more."""
    stalled = with_condition("Stalled", "True", "NoPool")
    cluster = Cached((stalled, stalled, with_condition("Ready", "True", "Applied")))
    count_conditions(cluster)
    assert counted("Stalled", "True", "NoPool") == 2
    assert counted("Ready", "True", "Applied") == 1
    cluster.held = (with_condition("Ready", "True", "Applied"),)
    count_conditions(cluster)
    assert counted("Stalled", "True", "NoPool") is None
    assert counted("Ready", "True", "Applied") == 1
