"""What is to be on the Deployment: the newest decision, or what was there before one that was taken back. Pure, from the status alone."""

from __future__ import annotations

from dataclasses import dataclass

from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, DecisionStatus, ModelAdaptationStatus, RollbackStatus


@dataclass(frozen=True, slots=True)
class Wanted:
    """One state of the Deployment."""

    decision_id: str
    """Empty: none of ours."""
    config: ConfigStatus | None
    """None: the Deployment as its owner declares it."""
    is_newest: bool = False
    """Whether it is what was decided last; else it is gone back to."""


OWNERS = Wanted("", None)


def find_wanted(status: ModelAdaptationStatus) -> Wanted | None:
    """None = nothing was decided yet."""
    back, recommendation = find_request(status), status.recommendation
    if back is not None:
        return Wanted(back.decision_id, back.config)
    if recommendation is None:
        return None
    failed = find_rolled_back(status)
    if failed is None:
        return Wanted(recommendation.decision_id, recommendation.config, is_newest=True)
    return find_earlier(status, failed.replaced)


def find_request(status: ModelAdaptationStatus) -> RollbackStatus | None:
    """What somebody went back to by annotation, as long as it stands."""
    back, run = status.rollback, status.run
    return back if back is not None and run is not None and back.run == run.id else None


def find_rolled_back(status: ModelAdaptationStatus) -> DecisionStatus | None:
    """The newest decision, if it turned out worse than what was there before."""
    entry = find_decision(status, status.recommendation.decision_id) if status.recommendation is not None else None
    return entry if entry is not None and entry.outcome == "RolledBack" else None


def find_earlier(status: ModelAdaptationStatus, decision_id: str) -> Wanted:
    """The state that a decision stands for: one that kept what ran, or was taken back, stands for what was there before it."""
    for _ in status.decisions:
        entry = find_decision(status, decision_id)
        if entry is None:
            break
        if entry.outcome not in ("Kept", "RolledBack"):
            return Wanted(entry.id, entry.config)
        decision_id = entry.replaced
    return OWNERS


def find_decision(status: ModelAdaptationStatus, decision_id: str) -> DecisionStatus | None:
    """One of the last decisions."""
    return next((entry for entry in status.decisions if entry.id == decision_id), None)
