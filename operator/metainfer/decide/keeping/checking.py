"""From a suspicion to what follows from it: held back, checked by one Job, or a run. Pure.

Everything is claimed in ``status.check`` before it is done, under names made from the claim, so that a pass which was killed at any line
is done again and nothing twice. A check compares what runs with the first check of it, made once its placement had settled.
"""

from __future__ import annotations

from typing import Final, Literal

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.checks import CheckClaim, CheckFigures, CheckStatus, SuspicionStatus, TrialStatus, VerdictStatus
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.evidence import find_broken
from metainfer.decide.facts import CheckResult
from metainfer.decide.keeping.check_job import find_check_job, start_check
from metainfer.decide.keeping.damping import Gate, find_gate, rests_until
from metainfer.decide.keeping.judging import ACTED_ON, CHECKS, Comparison, Verdict, earlier_figures, judge_check, read_figures
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.own_jobs import POLL_SECONDS, unreported_jobs
from metainfer.decide.plan import EmitEvent
from metainfer.decide.scene import Scene

BASELINE: Final = "Baseline"
"""In place of a trigger: the first check, which nothing has made necessary yet."""
RETRIES: Final = 1
SOON_SECONDS: Final = 1.0
SHOWN: Final[dict[str, Literal["True", "False", "Unknown"]]] = {"Nothing": "True", "Load": "True", "CheckFailed": "Unknown"}
"""``AnswerTrue`` by verdict; False for the others."""


def check_of(draft: Draft) -> CheckStatus:
    """``status.check``, also before there is one."""
    return draft.status.check or CheckStatus()


def put_check(draft: Draft, **fields: object) -> None:
    """Replace fields of ``status.check``."""
    check = check_of(draft).model_copy(update=fields)
    draft.put(check=check if check != CheckStatus() else None)


def follow(draft: Draft, scene: Scene, found: Suspicion | None) -> None:
    """What follows from what was found in this pass, or from its absence."""
    _note(draft, found)
    if _is_under_way(draft, scene):
        return
    _end_trial(draft, found)
    if check_of(draft).due:
        _say_due(draft)
    elif found is None:
        _be_at_peace(draft, scene)
    elif (gate := find_gate(draft, found)) is not None:
        _hold_back(draft, found, gate)
    elif found.wants == "Run":
        _make_due(draft, found.reason, f"{found.reason}: {found.message}", avoid=found.node if found.reason == "PlacementLost" else "")
    elif found.reason == "LoadShifted" and _is_shareable(draft, scene):
        # Beside a busier server a check would measure the load too.
        _conclude(draft, found.reason, Verdict("Load", f"{found.message}; nothing else speaks against the cards"), node="")
    elif not _wait_for_next(draft, found):
        trial = check_of(draft).trial
        _start(draft, scene, found, trial.node if trial is not None else found.node)


def _note(draft: Draft, found: Suspicion | None) -> None:
    """Since when it stands. A run that is due stays due, whatever is found meanwhile."""
    standing = draft.suspicion
    if found is None:
        put_check(draft, suspicion=None)
    elif standing is None or standing.reason != found.reason:
        put_check(draft, suspicion=SuspicionStatus(reason=found.reason, message=found.message[:512], noticed_at=format_time(draft.now)))


def _is_under_way(draft: Draft, scene: Scene) -> bool:
    """Whether a check is still to report. One that has reported is judged, and what follows is for this very pass."""
    claim = check_of(draft).claim
    unreported_jobs(draft, "check", {item.job_uid: item.finished_at for item in draft.snapshot.checks})
    if claim is None:
        return False
    result = next((item for item in reversed(draft.snapshot.checks) if item.job == claim.job), None)
    if result is not None:
        _take(draft, scene, claim, result)
        return check_of(draft).claim is not None
    words = find_check_job(draft, scene, claim)
    if words is None:
        put_check(draft, claim=None)
        return False
    draft.look_again(POLL_SECONDS)
    standing = draft.suspicion
    if standing is not None:
        draft.find(reasons.ANSWER_TRUE, "Unknown", standing.reason, f"{standing.message}; {words}")
    else:
        draft.find(reasons.ANSWER_TRUE, "True", "NothingSuspected", words)
    return True


def _take(draft: Draft, scene: Scene, claim: CheckClaim, result: CheckResult) -> None:
    fault = find_broken(result.as_run())
    if fault is not None:
        _take_failure(draft, scene, claim, fault.message)
        return
    now = read_figures(draft, scene, result, beside_server=_is_shareable(draft, scene))
    put_check(draft, claim=None)
    if claim.reason == BASELINE:
        put_check(draft, baseline=now)
        return
    compared = _compare(draft, claim, now)
    if compared is None:
        return
    verdict = judge_check(compared)
    if compared.is_open and verdict.verdict != "Model":
        _go_on_trial(draft, claim, compared)
    else:
        put_check(draft, trial=None)
        _conclude(draft, claim.reason, verdict, node=claim.node)


def _compare(draft: Draft, claim: CheckClaim, now: CheckFigures) -> Comparison | None:
    before, trial = earlier_figures(draft, claim.node), check_of(draft).trial
    if before is None:
        return None
    known = trial.slowdowns_permille if trial is not None and (trial.reason, trial.node) == (claim.reason, claim.node) else ()
    serves = any(pod.node == claim.node and pod.ready for pod in draft.snapshot.target_pods)
    return Comparison(claim.reason, now, before, draft.snapshot.adaptation.spec.drift.p99_increase_percent, known, serves)


def _go_on_trial(draft: Draft, claim: CheckClaim, compared: Comparison) -> None:
    """It seems slower: looked at again a window later, if it still serves slower then."""
    slowdowns = (*compared.earlier_permille, round(1000 * compared.own_slowdown))
    put_check(draft, trial=TrialStatus(reason=claim.reason, node=claim.node, slowdowns_permille=slowdowns, checked_at=format_time(draft.now)))


def _end_trial(draft: Draft, found: Suspicion | None) -> None:
    """What made it doubtful is over: that was noise, and it is left alone for a while."""
    trial = check_of(draft).trial
    if trial is not None and check_of(draft).claim is None and (found is None or found.reason != trial.reason):
        put_check(draft, trial=None)
        _count(draft, trial.reason)


def _wait_for_next(draft: Draft, found: Suspicion) -> bool:
    """Whether the next check of a trial has to wait: a neighbour's burst should not be in two of them."""
    trial, window = check_of(draft).trial, parse_duration(draft.snapshot.adaptation.spec.drift.window)
    due = parse_time(trial.checked_at) + window if trial is not None else draft.now
    if trial is None or draft.now >= due:
        return False
    done = len(trial.slowdowns_permille)
    words = f"node {trial.node} seems slower by {done} of {CHECKS} checks, the next one is at {format_time(due)}"
    draft.find(reasons.ANSWER_TRUE, "Unknown", found.reason, f"{_noticed(draft)}; {words}")
    draft.look_again((due - draft.now).total_seconds())
    return True


def _take_failure(draft: Draft, scene: Scene, claim: CheckClaim, why: str) -> None:
    """Once more for another try; then it stays unchecked, and nothing is done on a suspicion alone."""
    put_check(draft, claim=None)
    if claim.attempt < RETRIES:
        _claim(draft, scene, claim.reason, claim.node, attempt=claim.attempt + 1)
    elif claim.reason == BASELINE:
        _count(draft, BASELINE)
    else:
        _conclude(draft, claim.reason, Verdict("CheckFailed", f"it could not be checked: {why}"), node=claim.node)


def _conclude(draft: Draft, reason: str, found: Verdict, *, node: str) -> None:
    """The verdict into status, condition and Event; a run where it says that the answer may be another one."""
    message = f"{reason}: {found.message}"[:512]
    judged_at = format_time(draft.now)
    verdict = VerdictStatus(reason=reason, verdict=found.verdict, node=node, message=message, slowdown_permille=found.slowdown_permille, judged_at=judged_at)
    put_check(draft, verdict=verdict)
    acts = found.verdict in ACTED_ON
    draft.act(EmitEvent("Warning" if acts else "Normal", found.verdict, message))
    draft.find(reasons.ANSWER_TRUE, SHOWN.get(found.verdict, "False"), found.verdict, message)
    if acts:
        name = "ModelChanged" if found.verdict == "Model" else reason
        _make_due(draft, reason, f"{name}: {found.message}", avoid=node if found.verdict == "Card" else "")
    else:
        _count(draft, reason)


def _count(draft: Draft, reason: str) -> None:
    """One more that may be in vain. A decision that is merely old is no suspicion that could be wrong."""
    if reason != "FreshnessExpired":
        put_check(draft, acted_on=reason, acted_at=format_time(draft.now), in_vain=check_of(draft).in_vain + 1)


def _make_due(draft: Draft, reason: str, trigger: str, *, avoid: str) -> None:
    """The claim of a run: the next pass starts it (``triggers``), and until then it counts as one that is under way."""
    _count(draft, reason)
    put_check(draft, due=trigger[:512], avoid=avoid)
    draft.takes_turn = True
    _say_due(draft)


def _say_due(draft: Draft) -> None:
    due = check_of(draft).due
    known = draft.findings.get(reasons.ANSWER_TRUE)
    if known is None or known.status != "False":
        draft.find(reasons.ANSWER_TRUE, "False", due.partition(":")[0], f"{due}; it is worked out anew")
    draft.look_again(SOON_SECONDS)


def _hold_back(draft: Draft, found: Suspicion, gate: Gate) -> None:
    """A shut gate: why and until when is in the condition, behind what the last check of the same said."""
    draft.look_again(gate.seconds(draft.now))
    verdict = check_of(draft).verdict
    if gate.reason == "Resting" and verdict is not None and verdict.reason == found.reason:
        draft.find(reasons.ANSWER_TRUE, SHOWN.get(verdict.verdict, "False"), verdict.verdict, f"{verdict.message}; {gate}")
    else:
        # What was noticed, not what is seen now: figures that move in each pass would be a write in each pass.
        draft.find(reasons.ANSWER_TRUE, "Unknown", found.reason, f"{_noticed(draft)}; {gate}")


def note_success(draft: Draft) -> None:
    """A run that changed the placement was not in vain."""
    check, placement = check_of(draft), draft.status.placement
    if check.in_vain and check.acted_at is not None and placement is not None and placement.applied_at > check.acted_at:
        put_check(draft, in_vain=0, acted_at=None, acted_on="")


def _noticed(draft: Draft) -> str:
    return draft.suspicion.message if draft.suspicion is not None else ""


def _be_at_peace(draft: Draft, scene: Scene) -> None:
    """Nothing is suspected: old verdicts fade, and the first check is made."""
    _forget(draft)
    draft.find(reasons.ANSWER_TRUE, "True", "NothingSuspected", "")
    served, recommendation, check = draft.status.served, draft.status.recommendation, check_of(draft)
    watched = served is not None and served.baseline is not None
    until = rests_until(draft.status)
    if not watched or recommendation is None or (until is not None and draft.now < until):
        return
    if check.baseline is None or check.baseline.decision_id != recommendation.decision_id:
        _claim(draft, scene, BASELINE, "", attempt=0)


def _forget(draft: Draft) -> None:
    """What came of earlier suspicions is forgotten after as long again as it was rested for."""
    until, check = rests_until(draft.status), check_of(draft)
    if until is None or check.acted_at is None:
        return
    rested = until - parse_time(check.acted_at)
    if draft.now >= until + rested:
        put_check(draft, in_vain=0, acted_at=None, acted_on="", verdict=None)


def _start(draft: Draft, scene: Scene, found: Suspicion, node: str) -> None:
    words = _claim(draft, scene, found.reason, node, attempt=0)
    draft.find(reasons.ANSWER_TRUE, "Unknown", found.reason, f"{found.message}; {words}")
    if check_of(draft).claim is not None:
        draft.act(EmitEvent("Normal", found.reason, f"{found.message}; {words}"[:1024]))


def _claim(draft: Draft, scene: Scene, reason: str, node: str, *, attempt: int) -> str:
    """Claim a check and start its Job; returns what is done, or what it waits for."""
    started = start_check(draft, scene, reason, node, attempt=attempt)
    if isinstance(started, str):
        return started
    put_check(draft, claim=started)
    draft.look_again(POLL_SECONDS)
    return f"being checked on node {started.node}"


def _is_shareable(draft: Draft, scene: Scene) -> bool:
    option = scene.option(draft.recommended)
    return option is not None and option.family.shareable
