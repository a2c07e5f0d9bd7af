"""Somebody goes back to an earlier decision by annotation: honoured at once, and not fought. Pure.

It stands until the annotation is removed, or until the inputs change: that is a new question, to which no old answer was asked for. The
annotation of then is used up, and says so until somebody takes it off.
"""

from __future__ import annotations

from typing import Final

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import ROLLBACK_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import RollbackStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.draft import Draft
from metainfer.decide.inputs import find_changed, read_inputs
from metainfer.decide.keeping.taking_back import note_taken_back, taken_back_words
from metainfer.decide.scene import Scene
from metainfer.decide.wanted import OWNERS, Wanted, find_earlier

OWNER: Final = "owner"
"""Value of the annotation for the Deployment as its owner declares it."""
SHOWN: Final = 64
"""Characters of the annotation that are kept and shown; an id has twelve."""


def follow_request(draft: Draft, scene: Scene) -> bool:
    """Whether somebody's wish stands: then nothing is decided here, and what they asked for is wanted (``wanted``)."""
    note_taken_back(draft)
    requested, run, back = draft.snapshot.adaptation.rollback_to[:SHOWN], draft.status.run, draft.status.rollback
    if not requested:
        if back is not None:
            draft.put(rollback=None)
        return False
    if run is None:
        return _refuse(draft, requested)
    if back is None or back.requested != requested:
        goal = _find_goal(draft, requested)
        if goal is None:
            return _refuse(draft, requested)
        since = format_time(draft.now)
        draft.put(rollback=RollbackStatus(requested=requested, decision_id=goal.decision_id, config=goal.config, run=run.id, since=since))
    return _stands(draft, scene)


def _stands(draft: Draft, scene: Scene) -> bool:
    run, back = draft.status.run, draft.status.rollback
    if run is None or back is None:
        return False
    if back.run != run.id or find_changed(run, read_inputs(draft.snapshot, scene)):
        words = f"annotation {ROLLBACK_ANNOTATION} ({back.requested}) was honoured until the inputs changed: remove it, or set it anew"
        draft.find(reasons.ROLLED_BACK, "False", "RequestUsedUp", words)
        return False
    draft.find(reasons.ROLLED_BACK, "True", "ByAnnotation", taken_back_words(draft.status))
    return True


def _find_goal(draft: Draft, requested: str) -> Wanted | None:
    """One of the last decisions, else one that the store has; None = nobody knows it."""
    if requested == OWNER:
        return OWNERS
    entry = next((entry for entry in (*draft.status.decisions, *draft.snapshot.history) if entry.id == requested), None)
    if entry is None:
        return None
    return find_earlier(draft.status, entry.replaced) if entry.outcome == "Kept" else Wanted(entry.id, entry.config)


def _refuse(draft: Draft, requested: str) -> bool:
    """What it names is nothing that was decided: said once and for all, and nothing is changed for it."""
    draft.put(rollback=None)
    known = ", ".join(entry.id for entry in draft.status.decisions) or "none yet"
    away = "; the sample store is away, so only these are known" if draft.snapshot.store_problem else ""
    words = f"annotation {ROLLBACK_ANNOTATION} names {requested!r}, which is no decision of this adaptation; the last ones are: {known}{away}"
    draft.find(reasons.ROLLED_BACK, "False", "UnknownDecision", f"{words}. Set one of them, or {OWNER!r} for what the Deployment's owner declares")
    return False
