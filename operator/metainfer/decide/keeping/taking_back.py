"""Takes a decision back that turned out worse than what was there before, and says so. Pure; what is to run then is ``wanted``'s."""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.draft import Draft
from metainfer.decide.names import short_hash
from metainfer.decide.plan import Action, EmitEvent, RecordDecision
from metainfer.decide.wanted import find_rolled_back, find_wanted


def take_back(draft: Draft, reason: str, message: str) -> None:
    """From here on what the newest decision replaced is wanted again."""
    recommendation = draft.status.recommendation
    verdict = {"outcome": "RolledBack", "reason": reason, "message": message[:512]}
    decisions = [
        entry.model_copy(update=verdict) if recommendation is not None and entry.id == recommendation.decision_id else entry for entry in draft.status.decisions
    ]
    draft.put(decisions=tuple(decisions))
    note_taken_back(draft)
    tell_taken_back(draft)


def note_taken_back(draft: Draft) -> None:
    """The condition: True while the newest decision is not what is wanted."""
    failed = find_rolled_back(draft.status)
    if failed is None:
        draft.find(reasons.ROLLED_BACK, "False", "NothingTakenBack")
    else:
        draft.find(reasons.ROLLED_BACK, "True", failed.reason, taken_back_words(draft.status))


def taken_back_words(status: ModelAdaptationStatus) -> str:
    """What was taken back, why, and to what."""
    failed, wanted = find_rolled_back(status), find_wanted(status)
    if failed is None or wanted is None:
        return ""
    where = f"decision {wanted.decision_id}" if wanted.config is not None else "what the owner declares"
    return f"decision {failed.id} was worse than what was there before and is taken back to {where}: {failed.message}"


def tell_taken_back(draft: Draft) -> None:
    """Event and record, with whatever writes the way back: a pass that was killed in between tells it again, and nothing is doubled."""
    failed = find_rolled_back(draft.status)
    if failed is None or draft.status.run is None:
        return
    adaptation, wanted = draft.snapshot.adaptation, find_wanted(draft.status)
    document = {
        "adaptation": f"{adaptation.namespace}/{adaptation.name}",
        "rolledBack": failed.id,
        "to": wanted.decision_id if wanted is not None else "",
        "reason": failed.reason,
        "message": failed.message,
    }
    record = RecordDecision(short_hash(failed.id, "rollback", length=12), draft.status.run.id, draft.now, document, rollback=failed.reason)
    told: tuple[Action, ...] = (record, EmitEvent("Warning", failed.reason, taken_back_words(draft.status)[:1024]))
    draft.act(*(action for action in told if action not in draft.actions))
