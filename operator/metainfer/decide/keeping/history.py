"""The last decisions and what became of each, worked out anew at the end of every pass from what the status and the Deployment say. Pure.

Only ``RolledBack`` is set elsewhere (``taking_back``) and remembered here: what turned out worse is not chosen again for the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import DecisionOutcome, DecisionStatus, ModelAdaptationStatus
from metainfer.decide.deciding import is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.wanted import find_request

KEPT_DECISIONS: Final = 10
"""Of status.decisions; the store has all of them."""


def keep_history(draft: Draft) -> None:
    """Bring ``status.decisions`` up to date, newest first."""
    entries = _with_newest(draft)
    told = [entry.model_copy(update={"outcome": _outcome(draft, entry)}) for entry in entries]
    draft.put(decisions=_shorten(draft.status, tuple(_with_replaced(draft, entry) for entry in told)))


def _with_newest(draft: Draft) -> tuple[DecisionStatus, ...]:
    """The decision of the status, also where a former version took it, in front of those that are known."""
    recommendation, run, known = draft.status.recommendation, draft.status.run, draft.status.decisions
    if recommendation is None or run is None or any(entry.id == recommendation.decision_id for entry in known):
        return known
    newest = DecisionStatus(
        id=recommendation.decision_id,
        decided_at=recommendation.decided_at,
        trigger=run.trigger[:256],
        config=recommendation.config,
        gain_percent=recommendation.gain_percent,
        predicted_gain_percent=recommendation.predicted_gain_percent,
        inputs_hash=run.inputs_hash,
    )
    return (newest, *known)


def _outcome(draft: Draft, entry: DecisionStatus) -> DecisionOutcome:
    recommendation, placement = draft.status.recommendation, draft.status.placement
    if entry.outcome == "RolledBack":
        return entry.outcome
    if placement is not None and placement.decision_id == entry.id:
        return "Applied"
    if recommendation is None or recommendation.decision_id != entry.id:
        return "Kept" if entry.outcome == "Kept" else "Superseded"
    if find_request(draft.status) is not None:
        return "TakenBack" if entry.outcome == "Applied" else entry.outcome
    return "Kept" if is_kept(draft) else "Recommended"


def _with_replaced(draft: Draft, entry: DecisionStatus) -> DecisionStatus:
    """Until a decision is on the Deployment, what is there is what it would replace: so it is known before the write."""
    recommendation, target = draft.status.recommendation, draft.snapshot.target
    pending = recommendation is not None and recommendation.decision_id == entry.id and entry.outcome in ("Recommended", "Kept")
    mark = target.template.annotations.get(DECISION_ANNOTATION, "") if target is not None else entry.replaced
    return entry.model_copy(update={"replaced": mark[:32]}) if pending and mark != entry.id else entry


def _shorten(status: ModelAdaptationStatus, entries: Sequence[DecisionStatus]) -> tuple[DecisionStatus, ...]:
    """The newest ten; what has to be remembered outlives what need not be."""
    run, newest = status.run, entries[0] if entries else None
    spare = [
        entry
        for entry in entries
        if entry is not newest
        and entry.id != (newest.replaced if newest is not None else "")
        and entry.outcome != "Applied"
        and not (entry.outcome == "RolledBack" and run is not None and entry.inputs_hash == run.inputs_hash)
    ]
    dropped = {entry.id for entry in spare[len(spare) - max(0, len(entries) - KEPT_DECISIONS) :]}
    return tuple(entry for entry in entries if entry.id not in dropped)[:KEPT_DECISIONS]
