"""The gauge of conditions: what alerts count on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prometheus_client import REGISTRY
from tests.unit.decide.make_facts import make_adaptation, make_pool, make_portrait

from metainfer.api.v1alpha1.common import Condition
from metainfer.app.condition_counts import count_conditions
from metainfer.decide.facts import AdaptationFacts, PoolFacts, Portrait


@dataclass
class Cached:
    """Objects as a cache has them."""

    held: tuple[AdaptationFacts, ...]

    def pools(self) -> tuple[PoolFacts, ...]:
        return (make_pool(),)

    def adaptations(self) -> tuple[AdaptationFacts, ...]:
        return self.held

    def portraits(self) -> Mapping[str, Portrait]:
        healthy = make_portrait()
        degraded = replace(healthy, status=healthy.status.model_copy(update={"health": "Degraded"}))
        return {"a": healthy, "b": degraded, "c": healthy}


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


def test_nodes_are_counted_by_health() -> None:
    """Degraded cards can be alerted on."""
    count_conditions(Cached(()))
    assert REGISTRY.get_sample_value("metainfer_nodes", {"family": "ort-cpu", "health": "Degraded"}) == 1
    assert REGISTRY.get_sample_value("metainfer_nodes", {"family": "ort-cpu", "health": "Healthy"}) == 2
