"""Takes a decision back that turned out worse than what was there before, and says so. Pure; what is to run then is ``wanted``'s."""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import ROLLBACK_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.draft import Draft
from metainfer.decide.names import short_hash
from metainfer.decide.plan import EmitEvent, RecordDecision
from metainfer.decide.wanted import find_request, find_rolled_back, find_wanted


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
    """What was taken back, why, and to what; empty where the newest decision is wanted."""
    failed, wanted, request = find_rolled_back(status), find_wanted(status), find_request(status)
    if wanted is None or wanted.is_newest:
        return ""
    where = f"decision {wanted.decision_id}" if wanted.config is not None else "what the owner declares"
    if request is not None or failed is None:
        return f"gone back to {where} by annotation {ROLLBACK_ANNOTATION}: nothing else is decided before it is removed or the inputs change"
    return f"decision {failed.id} was worse than what was there before and is taken back to {where}: {failed.message}"


def tell_taken_back(draft: Draft) -> None:
    """Event and record, with whatever writes the way back: a pass that was killed in between tells it again, and nothing is doubled."""
    failed, request, run, words = find_rolled_back(draft.status), find_request(draft.status), draft.status.run, taken_back_words(draft.status)
    if run is None or not words:
        return
    if request is not None:
        record = _record(draft, short_hash(run.id, request.requested, request.since, length=12), "ByAnnotation", words)
        event = EmitEvent("Normal", "ByAnnotation", words[:1024])
    elif failed is not None:
        record = _record(draft, short_hash(failed.id, "rollback", length=12), failed.reason, failed.message)
        event = EmitEvent("Warning", failed.reason, words[:1024])
    else:
        return
    draft.act(*(action for action in (record, event) if action not in draft.actions))


def _record(draft: Draft, record_id: str, reason: str, message: str) -> RecordDecision:
    """A rollback is a decision, too: what from, what to, and why."""
    adaptation, status, wanted = draft.snapshot.adaptation, draft.status, find_wanted(draft.status)
    document = {
        "adaptation": f"{adaptation.namespace}/{adaptation.name}",
        "rolledBack": status.recommendation.decision_id if status.recommendation is not None else "",
        "to": wanted.decision_id if wanted is not None else "",
        "reason": reason,
        "message": message,
    }
    return RecordDecision(record_id, status.run.id if status.run is not None else "", draft.now, document, rollback=reason)
