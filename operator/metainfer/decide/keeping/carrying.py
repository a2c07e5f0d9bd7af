"""What is known of how the target serves outlives a decision that changed nothing. Pure.

Baselines are of the placement. Were they made anew with every weekly decision, a card that became slower would be the measure of itself
within days.
"""

from __future__ import annotations

from metainfer.decide.deciding import is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.inputs import trigger_reason


def carry_over(draft: Draft) -> None:
    """Move baselines from the former decision to this one, where it only confirmed what runs because that had grown old."""
    recommendation, served, check = draft.status.recommendation, draft.status.served, draft.status.check
    if recommendation is None or trigger_reason(draft.status.run) != "FreshnessExpired" or not is_kept(draft):
        return
    moved = {"decision_id": recommendation.decision_id}
    if served is not None and served.decision_id != recommendation.decision_id:
        draft.put(served=served.model_copy(update=moved))
    if check is not None and check.baseline is not None and check.baseline.decision_id != recommendation.decision_id:
        draft.put(check=check.model_copy(update={"baseline": check.baseline.model_copy(update=moved)}))
