"""Step 9 of a pass: is what was decided still right? An ordered chain of small checks, first hit wins. Pure.

A new check is a function in a module of its own and one line here. It looks at the draft's snapshot and status, may keep notes in the
status (``draft.put``), and asks to be asked again by ``draft.look_again``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.deciding import decided_candidate
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.calibration import find_calibration_shift
from metainfer.decide.keeping.carrying import carry_over
from metainfer.decide.keeping.checking import check_of, follow, note_success, put_check
from metainfer.decide.keeping.drivers import find_driver_change, find_runtime_change
from metainfer.decide.keeping.freshness import find_stale
from metainfer.decide.keeping.images import find_image_change
from metainfer.decide.keeping.lost import find_lost
from metainfer.decide.keeping.served import find_load_shift, find_p99_drift
from metainfer.decide.keeping.serving import note_served
from metainfer.decide.keeping.slow_nodes import note_slow_nodes
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.keeping.taking_back import taken_back_words
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.scene import Scene
from metainfer.decide.wanted import find_rolled_back

KeepCheck = Callable[[Draft, Scene], Suspicion | None]

KEEP_CHAIN: Final[tuple[KeepCheck, ...]] = (
    find_lost, find_driver_change, find_image_change, find_runtime_change, find_p99_drift, find_load_shift, find_calibration_shift, find_stale,
)  # fmt: skip
"""Ordered: PlacementLost, DriverVersionChanged, RuntimeChanged, P99Drift, LoadShifted, CalibrationShifted, FreshnessExpired."""


def keep_true(draft: Draft, scene: Scene, plan: AdaptationPlan) -> AdaptationPlan:
    """The plan of a pass that came so far, with what doubts about the decision add to it; the same plan where there are none."""
    if find_rolled_back(draft.status) is not None:
        return _rest(draft, scene, plan)
    if _is_done(draft):
        carry_over(draft)
        note_served(draft)
        note_slow_nodes(draft)
        note_success(draft)
        follow(draft, scene, find_suspicion(draft, scene))
    elif _is_applied(draft):
        _look_for_loss(draft, scene)
    else:
        return plan
    return draft.finish(plan.requeue_after_seconds)


def _rest(draft: Draft, scene: Scene, plan: AdaptationPlan) -> AdaptationPlan:
    """A decision was taken back: why is somebody's to find out, so what was gone back to is only asked for its place."""
    note_served(draft)
    draft.find(reasons.ANSWER_TRUE, "False", "TakenBack", taken_back_words(draft.status))
    if _is_applied(draft):
        _look_for_loss(draft, scene)
    return draft.finish(plan.requeue_after_seconds)


def _look_for_loss(draft: Draft, scene: Scene) -> None:
    """What is on the Deployment does not run: a rollout, or its place is gone. Everything else is asked of what runs."""
    found = find_lost(draft, scene)
    if found is not None or check_of(draft).due:
        follow(draft, scene, found)
    elif draft.suspicion is not None:
        put_check(draft, suspicion=None)


def find_suspicion(draft: Draft, scene: Scene) -> Suspicion | None:
    """The first hit. Every check is asked in every pass, because some keep notes of what they see."""
    found = [check(draft, scene) for check in KEEP_CHAIN]
    return next((item for item in found if item is not None), None)


def _is_applied(draft: Draft) -> bool:
    applied = draft.findings.get(reasons.APPLIED)
    return applied is not None and applied.status == "True" and decided_candidate(draft) is not None


def _is_done(draft: Draft) -> bool:
    """Whether the run has come to its end: applied and read back, kept, or recommended only."""
    run = draft.status.run
    return run is not None and run.step == "Done" and decided_candidate(draft) is not None
