"""What of ours the Deployment carries now, whatever earlier passes believed: the truth behind ``Applied``. Pure.

Nothing here decides whether to write; a decision that stands is told as standing also where nobody manages it any more.
"""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import Placement
from metainfer.decide.draft import Draft
from metainfer.decide.facts import TargetFacts
from metainfer.decide.placement import PlacementPlan
from metainfer.decide.scene import Scene
from metainfer.decide.wanted import find_wanted

PLACEMENT_REMOVED = "PlacementRemoved"


def note_standing(draft: Draft) -> None:
    """First word on ``Applied``, from the live Deployment; a pass that comes further has the last one."""
    target, placement = draft.snapshot.target, draft.status.placement
    if target is None and f"Deployment {draft.snapshot.adaptation.spec.target_ref.name}" in draft.snapshot.unread:
        draft.find(reasons.APPLIED, "Unknown", "TargetUnreadable", "the Deployment could not be read")
    elif target is None:
        draft.find(reasons.APPLIED, "False", reasons.TARGET_NOT_FOUND, "there is no Deployment to write to")
        draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "NotApplied")
    elif placement is not None and is_standing(placement, target):
        draft.find(reasons.APPLIED, "True", "Applied" if _is_wanted(draft, placement) else "EarlierDecision", _still_there(placement))
    elif placement is not None and not is_same_target(placement, target):
        words = f"decision {placement.decision_id} was written to a Deployment of this name that has been deleted since"
        draft.find(reasons.APPLIED, "False", "TargetRecreated", words)
        draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "NotApplied")
    elif placement is not None:
        draft.find(reasons.APPLIED, "False", PLACEMENT_REMOVED, f"decision {placement.decision_id} is no longer on the Deployment")


def is_standing(placement: Placement, target: TargetFacts) -> bool:
    """Whether the Deployment carries the mark of what was placed."""
    return target.template.annotations.get(DECISION_ANNOTATION) == placement.decision_id


def is_same_target(placement: Placement, target: TargetFacts) -> bool:
    """Whether it is the very Deployment that was written, not one created anew under its name."""
    return placement.target_uid in ("", target.uid)


def known_placement(draft: Draft, decision_id: str) -> Placement | None:
    """The record of this decision on this very Deployment, if it was read back before."""
    target, placement = draft.snapshot.target, draft.status.placement
    known = target is not None and placement is not None and placement.decision_id == decision_id and is_same_target(placement, target)
    return placement if known else None


def is_in_place(draft: Draft, scene: Scene, plan: PlacementPlan, decision_id: str) -> bool:
    """Whether the decision is on the Deployment, in the container that serves now: one that was renamed has lost its settings."""
    placement, container = draft.status.placement, scene.container
    if scene.target.template.annotations.get(DECISION_ANNOTATION) != decision_id:
        return False
    known_there = placement is None or placement.container in ("", container.name)
    return known_there or set(plan.env) <= {entry.name for entry in container.env}


def is_removed(draft: Draft) -> bool:
    """Whether what was placed last has been taken off the very Deployment that it was written to."""
    target, placement = draft.snapshot.target, draft.status.placement
    return target is not None and placement is not None and is_same_target(placement, target) and not is_standing(placement, target)


def earlier_words(draft: Draft) -> str:
    """For a decision that is not written: what of an earlier one is still there, else nothing."""
    target, placement = draft.snapshot.target, draft.status.placement
    if target is None or placement is None or not is_standing(placement, target):
        return ""
    return "" if _is_wanted(draft, placement) else f"; {_still_there(placement)}"


def _is_wanted(draft: Draft, placement: Placement) -> bool:
    wanted = find_wanted(draft.status)
    return wanted is not None and wanted.decision_id == placement.decision_id


def _still_there(placement: Placement) -> str:
    return f"decision {placement.decision_id}, written at {placement.applied_at}, is on the Deployment"
