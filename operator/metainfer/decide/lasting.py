"""Does what was applied last, and if not: put it back, or step back? Pure.

Fields can vanish without any error: an owner that replaces whole objects, one on client-side apply that drops its affinity block, a
``kubectl rollout undo``, a Deployment made anew. Once may be chance, so they are applied again and counted; when it repeats, somebody
else means it, and every round costs their users two rollouts. A human's hand is respected for the cooldown from the first time on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.api.v1alpha1.model_adaptation import ApplyRefusal, ModelAdaptationStatus, RemovalStatus
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.deciding import is_kept
from metainfer.decide.draft import Draft
from metainfer.decide.facts import ManagedFields
from metainfer.decide.ownership import PREFERRED_AFFINITY, REQUIRED_AFFINITY, env_path, readable
from metainfer.decide.placement import PlacementPlan
from metainfer.decide.scene import Scene
from metainfer.decide.standing import PLACEMENT_REMOVED, is_removed, is_same_target
from metainfer.decide.wanted import find_wanted

REMOVALS_LIMIT: Final = 3
"""The third removal in a row is a custom, not chance."""
REPLACERS: Final = {"argocd": 2}
"""Managers that put a whole object in place of the old one at every sync (Argo CD with Replace=true), and their own limit."""
REMOVAL_WINDOW: Final = timedelta(days=1)
"""Removals further apart than this are not one fight."""
JUST_NOW: Final = timedelta(minutes=10)
"""An older record is of another write: passes follow the Deployment's events within seconds, and lists within minutes."""
ROLLED_BACK: Final = "RolledBack"
APPLY_REFUSED: Final = "ApplyRefused"
REFUSED_RETRY_BASE: Final = timedelta(minutes=1)
REFUSED_RETRY_LIMIT: Final = timedelta(hours=1)
REFUSALS_LIMIT: Final = 24
"""Tries after 1, 2, 4, ... 60 minutes, for most of a day: nothing that is watched tells when a right or a policy is mended."""
HANDS: Final = ("kubectl", "kubectl-edit", "kubectl-replace", "kubectl-patch", "kubectl-rollout")
"""Managers behind which a human stands; a client-side apply is an owner's."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What was applied and is not there any more."""

    paths: tuple[str, ...]
    """Empty = all of it."""
    manager: str
    """Who is recorded for a write just now; empty = nobody, because taking fields away leaves no record."""
    recreated: bool = False
    """The Deployment itself was made anew."""


@dataclass(frozen=True, slots=True)
class Veto:
    """Why a decision that stands is not written now; ``seconds`` until it may be."""

    reason: str
    message: str
    seconds: float | None = None


def find_refusal(draft: Draft) -> Veto | None:
    """Whether the API server refused this decision so short a time ago, or so often, that it is not tried now."""
    refusal, wanted = draft.status.apply_refusal, find_wanted(draft.status)
    if refusal is None or wanted is None or refusal.decision_id != wanted.decision_id:
        return None
    words = f"nothing was written: {refusal.message}"
    if refusal.attempts >= REFUSALS_LIMIT:
        return Veto(APPLY_REFUSED, f"{words}; once that is mended, change the adaptation to try again")
    pause = min(REFUSED_RETRY_BASE * 2 ** (refusal.attempts - 1), REFUSED_RETRY_LIMIT)
    seconds = (parse_time(refusal.refused_at) + pause - draft.now).total_seconds()
    return Veto(APPLY_REFUSED, f"{words}; it is tried again, at most an hour apart", seconds) if seconds > 0 else None


def count_refusal(status: ModelAdaptationStatus, message: str, now: datetime) -> ApplyRefusal | None:
    """What to remember of a write that was refused."""
    before, wanted = status.apply_refusal, find_wanted(status)
    if wanted is None:
        return None
    again = before is not None and before.decision_id == wanted.decision_id
    attempts = before.attempts + 1 if before is not None and again else 1
    return ApplyRefusal(decision_id=wanted.decision_id, attempts=attempts, refused_at=format_time(now), message=message[:512])


def note_written_again(status: ModelAdaptationStatus) -> ModelAdaptationStatus:
    """The status after a write that was taken: what is missing from now on was taken off once more."""
    placement = status.placement
    if placement is None or placement.removal is None or placement.removal.written_again:
        return status
    removal = placement.removal.model_copy(update={"written_again": True})
    return status.model_copy(update={"placement": placement.model_copy(update={"removal": removal})})


def carried_removal(draft: Draft, scene: Scene) -> RemovalStatus | None:
    """What a decision that is in place inherits: removals of another decision count only where the whole Deployment was made anew."""
    placement, wanted = draft.status.placement, find_wanted(draft.status)
    if placement is None or wanted is None:
        return None
    same = placement.decision_id == wanted.decision_id
    known = placement.removal if same or not is_same_target(placement, scene.target) else None
    return known.model_copy(update={"written_again": True}) if known is not None else None


def find_missing(scene: Scene, plan: PlacementPlan) -> tuple[str, ...]:
    """Fields of the plan that the Deployment does not have."""
    template, container = scene.target.template, scene.container
    have = {readable(env_path(container, entry.name)) for entry in container.env}
    halves = {REQUIRED_AFFINITY: template.required_terms is not None, PREFERRED_AFFINITY: template.preferred_present}
    have |= {readable(path) for path, present in halves.items() if present}
    return tuple(path for path in plan.touched if path not in have)


def find_veto(draft: Draft, scene: Scene, plan: PlacementPlan) -> Veto | None:
    """Whether somebody has taken off what was applied and that is to be respected. Counts removals in the status."""
    placement, loss = draft.status.placement, _find_loss(draft, scene, plan)
    if placement is None or loss is None:
        return None
    removal = _count(draft, placement.removal, loss)
    draft.put(placement=placement.model_copy(update={"removal": removal}))
    return _judge(draft, removal, loss)


def _find_loss(draft: Draft, scene: Scene, plan: PlacementPlan) -> Loss | None:
    target, placement, wanted = scene.target, draft.status.placement, find_wanted(draft.status)
    if placement is None or wanted is None:
        return None
    manager = _find_taker(target.managed, max(placement.applied_at, format_time(draft.now - JUST_NOW)))
    if not is_same_target(placement, target):
        recreated = target.created_at is not None and target.created_at > parse_time(placement.applied_at)
        return Loss((), manager, recreated=True) if recreated else None
    if is_removed(draft):
        return Loss((), manager) if placement.decision_id == wanted.decision_id or is_kept(draft) else None
    missing = find_missing(scene, plan) if placement.decision_id == wanted.decision_id else ()
    return Loss(missing, manager) if missing else None


def _find_taker(managed: Sequence[ManagedFields], since: str) -> str:
    """The manager that replaces whole objects, if there is one, else the last that is recorded since then."""
    replacer = next((item.manager for item in managed if item.manager in REPLACERS), None)
    newer = [item for item in managed if item.manager != FIELD_MANAGER and not item.subresource and item.time >= since]
    last = max(newer, key=lambda item: item.time, default=None)
    return replacer or (last.manager if last is not None else "")


def _is_by_hand(removal: RemovalStatus, loss: Loss) -> bool:
    """A removal of everything that nobody is recorded for is a human's; of a part, an owner's that dropped a block."""
    return not loss.recreated and (removal.manager in HANDS or (not removal.manager and not loss.paths))


def _count(draft: Draft, before: RemovalStatus | None, loss: Loss) -> RemovalStatus:
    """One more, unless it is the removal that is known and was not answered yet."""
    if before is not None and not before.written_again:
        return before
    lately = before is not None and draft.now - parse_time(before.noticed_at) < REMOVAL_WINDOW
    count = before.count + 1 if before is not None and lately else 1
    return RemovalStatus(count=count, noticed_at=format_time(draft.now), manager=loss.manager[:128])


def _judge(draft: Draft, removal: RemovalStatus, loss: Loss) -> Veto | None:
    what = f"{_words(loss.paths)} taken off the Deployment by {_who(removal.manager)}"
    if removal.count >= REPLACERS.get(removal.manager, REMOVALS_LIMIT):
        hint = "Argo CD replaces the whole object (Replace=true): take that option out" if removal.manager in REPLACERS else "find out who does that"
        return Veto(PLACEMENT_REMOVED, f"{what}, {removal.count} times: nothing is written any more. {hint}, then change the adaptation to apply again")
    if not _is_by_hand(removal, loss):
        return None
    until = parse_time(removal.noticed_at) + parse_duration(draft.snapshot.adaptation.spec.update_policy.cooldown)
    if draft.now >= until:
        return None
    words = f"{what}: respected until {format_time(until)} (updatePolicy.cooldown), then written again; set updatePolicy.mode to Off to keep it so"
    return Veto(ROLLED_BACK, words, (until - draft.now).total_seconds())


def _words(paths: Sequence[str]) -> str:
    return f"{', '.join(paths[:4])} {'was' if len(paths) == 1 else 'were'}" if paths else "what was applied was"


def _who(manager: str) -> str:
    return f"manager {manager}" if manager else "a manager that left no record, as kubectl does for rollout undo and replace"
