"""Why a run is started, or started anew: an ordered chain of small checks, first hit wins. Pure.

Each check names what it found. A change that somebody else made has to stand still for a while first: deploys come in bursts, and
a benchmark beside a rollout measures the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.checks import CheckStatus
from metainfer.api.v1alpha1.common import HEALTH_LABEL
from metainfer.api.v1alpha1.model_adaptation import PendingRunStatus, RunStatus
from metainfer.decide.conditions import find_condition, format_time, parse_time
from metainfer.decide.deciding import decided_candidate
from metainfer.decide.draft import Draft
from metainfer.decide.inputs import Inputs, find_changed, inputs_hash
from metainfer.decide.names import hash_share
from metainfer.decide.portraits import DEGRADED_LABEL_VALUE
from metainfer.decide.readback import is_rolled_out
from metainfer.decide.scene import Scene

SETTLE_SECONDS: Final = 30.0
"""A deploy's second change (image, then settings) follows its first within seconds."""
SETTLE_LIMIT_SECONDS: Final = 600.0
"""Kubernetes' own default for a rollout to make progress: whoever changes things for longer is measured in between."""
SETTLE_SPREAD: Final = 0.5
"""Share by which one adaptation waits longer than another, so that a family's change does not start all at once."""
RESTART_SECONDS: Final = 3600.0
"""After its budget, a run without a decision is tried again: the world may have changed. Doubled each time, up to 16 hours."""
RESTART_SPREAD: Final = 0.2
MOST_DOUBLINGS: Final = 4

LABEL_SECONDS: Final = 60.0
"""For the pool's pass to mark a node, which a verdict wakes."""

_BY_USER = ("spec", "model", "target")
"""Parts of the adaptation itself: who changes them waits for the answer."""
CHANGES: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("SpecChanged", "the adaptation names another model"),
    "target": ("SpecChanged", "the adaptation names another Deployment"),
    "spec": ("SpecChanged", "the adaptation was changed"),
    "image": ("ImageChanged", "the serving container has another image or command"),
    "settings": ("SettingsChanged", "the owner declares other settings of the server"),
    "resources": ("ResourcesChanged", "the target asks for other resources"),
    "restrictions": ("RestrictionsChanged", "the target may run elsewhere than before"),
    "families": ("FamiliesChanged", "the pools offer other families, or select them otherwise"),
}
"""What a changed part is called, the weightiest first."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a run is to start."""

    reason: str
    message: str
    calm_seconds: float = 0.0
    """For how long nothing further may have changed before it starts."""

    def __str__(self) -> str:
        """As status and Event have it."""
        return f"{self.reason}: {self.message}"


Check = Callable[[Draft, Inputs], Trigger | None]


def find_trigger(draft: Draft, inputs: Inputs) -> Trigger | None:
    """The first of the chain; None = the run there is goes on.

    While something around the target cannot be read, its inputs are only half known: then every change has to stand, since a right that is
    missing for a moment (roles that are being replaced) would otherwise be two runs, the first one on wrong inputs.
    """
    found = next((trigger for check in CHAIN if (trigger := check(draft, inputs)) is not None), None)
    if found is None or not draft.snapshot.unread:
        return found
    words = f"{found.message} (not allowed to read {', '.join(sorted(draft.snapshot.unread))})"
    return replace(found, message=words, calm_seconds=max(found.calm_seconds, SETTLE_SECONDS))


def _find_first(draft: Draft, _inputs: Inputs) -> Trigger | None:
    return Trigger("FirstAdaptation", "nothing was decided yet") if draft.status.run is None else None


def _find_change(draft: Draft, inputs: Inputs) -> Trigger | None:
    run = draft.status.run
    changed = find_changed(run, inputs) if run is not None else ()
    if not changed:
        return None
    found = [CHANGES[name] for name in CHANGES if name in changed]
    calm = 0.0 if any(name in _BY_USER for name in changed) else spread(draft, SETTLE_SECONDS, SETTLE_SPREAD, "settle")
    return Trigger(found[0][0], "; ".join(dict.fromkeys(words for _, words in found)), calm)


def _find_other_model(draft: Draft, _inputs: Inputs) -> Trigger | None:
    """A benchmark ran, or refused to run, on another file than the one that was profiled."""
    profile, run = draft.snapshot.profile, draft.status.run
    if run is None or profile is None or profile.report is None or not profile.report.digest:
        return None
    for result in draft.snapshot.runs:
        digest = result.report.digest if result.report is not None else ""
        failures = (result.failure, result.report.failure if result.report is not None else None)
        refused = any(failure is not None and failure.reason == "DigestMismatch" for failure in failures)
        if refused or digest not in ("", profile.report.digest):
            words = f"{draft.snapshot.adaptation.spec.model.uri} is another file than the one that was profiled (sha256 {profile.report.digest[:12]}…)"
            return Trigger("ModelChanged", words, _doubled(SETTLE_SECONDS, run.attempt))
    return None


def _find_due(draft: Draft, _inputs: Inputs) -> Trigger | None:
    """What was found wrong with the decision (``keeping``), and was claimed in the status."""
    check = draft.status.check
    if check is None or not check.due or _waits_for_label(draft, check):
        return None
    reason, _, message = check.due.partition(": ")
    return Trigger(reason, message)


def _waits_for_label(draft: Draft, check: CheckStatus) -> bool:
    """Pods are to leave a card that was found slow: first its node is marked, or the scheduler would send them back."""
    verdict = check.verdict
    if not check.avoid or verdict is None or (verdict.verdict, verdict.node) != ("Card", check.avoid):
        return False
    node = next((item for item in draft.snapshot.nodes if item.name == check.avoid), None)
    marked = node is None or node.labels.get(HEALTH_LABEL) == DEGRADED_LABEL_VALUE
    return not marked and (draft.now - parse_time(verdict.judged_at)).total_seconds() < LABEL_SECONDS


def _find_undecided(draft: Draft, _inputs: Inputs) -> Trigger | None:
    """The run ended without a decision long ago. A model that cannot be profiled is not tried again before something changes."""
    run, profile = draft.status.run, draft.snapshot.profile
    failure = (profile.failure or (profile.report.failure if profile.report is not None else None)) if profile is not None else None
    broken = profile is None or (failure is not None and not failure.retryable)
    if run is None or broken or decided_candidate(draft) is not None:
        return None
    budget_seconds = parse_duration_us(draft.snapshot.adaptation.spec.validation.budget) / 1e6
    if draft.now < parse_time(run.started_at) + timedelta(seconds=budget_seconds + restart_seconds(draft, run)):
        return None
    ready = find_condition(draft.snapshot.adaptation.status.conditions, reasons.READY)
    return Trigger("TriedAgain", f"the run of {run.started_at} came to no decision ({ready.reason if ready else 'unknown'})")


def restart_seconds(draft: Draft, run: RunStatus) -> float:
    """Pause after a run without a decision, the same for the same adaptation and attempt."""
    return spread(draft, _doubled(RESTART_SECONDS, run.attempt), RESTART_SPREAD, str(run.attempt))


def _doubled(seconds: float, attempt: int) -> float:
    return float(seconds * 2 ** min(attempt, MOST_DOUBLINGS))


def spread(draft: Draft, seconds: float, share: float, salt: str) -> float:
    """Up to ``share`` more, by the adaptation's UID: no chance is involved, so a restart of the operator finds the same."""
    return seconds * (1.0 + share * hash_share(draft.snapshot.adaptation.uid, salt))


CHAIN: Final[tuple[Check, ...]] = (_find_first, _find_change, _find_other_model, _find_due, _find_undecided)


def seconds_to_calm(draft: Draft, scene: Scene, trigger: Trigger, inputs: Inputs) -> float:
    """How long the trigger still has to stand; 0 = start. Notes in the status since when it stands."""
    if trigger.calm_seconds <= 0:
        return 0.0
    digest, known, now = inputs_hash(inputs), draft.status.next_run, format_time(draft.now)
    same = known is not None and known.inputs_hash == digest
    noticed_at, changed_at = (known.noticed_at if known is not None else now), (known.changed_at if known is not None and same else now)
    draft.put(next_run=PendingRunStatus(trigger=str(trigger)[:512], inputs_hash=digest, noticed_at=noticed_at, changed_at=changed_at))
    bound = SETTLE_LIMIT_SECONDS - (draft.now - parse_time(noticed_at)).total_seconds()
    calm = trigger.calm_seconds - (draft.now - parse_time(changed_at)).total_seconds()
    if calm <= 0 and not (scene.target.paused or is_rolled_out(scene.target)):
        calm = SETTLE_SECONDS / 2  # the owner's rollout is under way: its pods start beside the benchmark
    return max(0.0, min(calm, bound))
