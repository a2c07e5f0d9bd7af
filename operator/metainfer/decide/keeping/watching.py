"""Is what was written worse than what was there before? Watched from the write on until ``rollout.watch`` after it settled. Pure.

An ordered chain of small checks, first hit wins. Only the newest decision is judged: what was gone back to ran before, so when it
fails too the cause is elsewhere, and going back further would not find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metainfer.api.durations import parse_duration
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import NodeFacts
from metainfer.decide.keeping.before import find_slower
from metainfer.decide.readback import ReadBack
from metainfer.decide.standing import known_placement
from metainfer.decide.wanted import find_decision, find_wanted


@dataclass(frozen=True, slots=True)
class Failing:
    """Why the newest decision is worse than what it replaced."""

    reason: str
    message: str


def find_failing(draft: Draft, seen: ReadBack) -> Failing | None:
    """The first of the chain, while the decision is watched."""
    if not _is_watched(draft):
        return None
    return next((found for check in CHAIN if (found := check(draft, seen)) is not None), None)


def _is_watched(draft: Draft) -> bool:
    rollout, wanted = draft.snapshot.adaptation.spec.rollout, find_wanted(draft.status)
    if not rollout.auto_rollback or wanted is None or not wanted.is_newest or find_decision(draft.status, wanted.decision_id) is None:
        return False
    placement = known_placement(draft, wanted.decision_id)
    if placement is None or placement.settled_at is None:
        return placement is not None
    return draft.now < parse_time(placement.settled_at) + parse_duration(rollout.watch)


def _find_stuck(draft: Draft, seen: ReadBack) -> Failing | None:
    """The rollout did not come to its end within the time that its owner allows."""
    return Failing("RolloutFailed", f"the rollout did not become ready: {seen.stuck}{_elsewhere(draft, seen)}") if seen.stuck and not _settled(draft) else None


def _find_crashing(draft: Draft, seen: ReadBack) -> Failing | None:
    """Its pods end again and again, and none of them serves: more time would not help."""
    return Failing("RolloutFailed", f"no pod of the decision serves: {seen.crashing}{_elsewhere(draft, seen)}") if seen.crashing else None


def _find_not_effective(draft: Draft, seen: ReadBack) -> Failing | None:
    """Rolled out, and the pods do not run as decided: what was measured is not what serves."""
    if not seen.rolled_out or not seen.other_values or _settled(draft):
        return None
    return Failing("SettingsNotEffective", f"the pods do not run as decided: {'; '.join(seen.other_values[:4])}")


def _find_slower(draft: Draft, _seen: ReadBack) -> Failing | None:
    """It runs as decided, and the target serves slower than before, under a load that is no other."""
    words = find_slower(draft) if _settled(draft) else ""
    return Failing("LatencyWorse", f"slower than what was served before: {words}") if words else None


CHAIN: Final[tuple[Callable[[Draft, ReadBack], Failing | None], ...]] = (_find_crashing, _find_stuck, _find_not_effective, _find_slower)


def _settled(draft: Draft) -> bool:
    placement = draft.status.placement
    return placement is not None and placement.settled_at is not None


def _elsewhere(draft: Draft, seen: ReadBack) -> str:
    """An image that was never run on a processor architecture is the commonest cause that nobody sees in an exit code."""
    nodes = {node.name: node for node in draft.snapshot.nodes}
    found = [nodes[name] for name in seen.troubled_nodes if name in nodes]
    return "".join(f"; node {node.name} is {node.architecture}" for node in found[:1] if _is_foreign(draft, node))


def _is_foreign(draft: Draft, node: NodeFacts) -> bool:
    return any(node.architecture != other.architecture for other in draft.snapshot.nodes)
