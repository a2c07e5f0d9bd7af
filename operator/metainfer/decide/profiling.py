"""The model portrait: is it there, is it on its way, or which Job makes it. Pure."""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import RunStatus
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.drivers import is_of_present_driver
from metainfer.decide.facts import AdaptationSnapshot, ProfileResult
from metainfer.decide.measurable import why_nowhere
from metainfer.decide.measuring import build_measuring_job, find_profile_site, profile_assignment, profile_job_name
from metainfer.decide.names import canonical_json, short_hash
from metainfer.decide.own_jobs import jobs_of_run, start_job, unreported_jobs, wait_for_job
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.scene import Scene
from metainfer_probe.contract import Failure, ProfileReport, RefusedModel

TURN_SECONDS = 20.0
"""While another object's Job has the turn; its end wakes those who wait (``watch.routes``), so this is only the fallback."""
RETRY_SECONDS = 60.0
GIVEN_UP_SECONDS = 600.0
FRESH_SECONDS = 86_400.0
"""A day: runtimes and cards do not change faster than images, and those are part of the question."""
MAXIMUM_ATTEMPTS = 2
"""One retry, and only where the failure says that one can help: a broken file stays broken."""


def next_profile(draft: Draft, scene: Scene) -> ProfileReport | AdaptationPlan:
    """The portrait of this run's model, its own or the one it has from an earlier run; or the plan that waits for it."""
    result = draft.snapshot.profile
    if result is not None and _looks_again(draft, result):
        return _start(draft, scene, attempt=0)
    active = unreported_jobs(draft, "profile", {result.job_uid: result.finished_at} if result is not None else {})
    if result is not None and result.report is not None and result.report.failure is None:
        source = "" if _is_own(draft, result) else f", as an earlier run measured it at {format_time(result.finished_at)}"
        words = f"{result.report.parameters:,} parameters, {result.report.architecture}, {result.report.bound} bound{source}"
        draft.find(reasons.PROFILED, "True", "Profiled", words)
        return result.report
    if active:
        return wait_for_job(draft, active[0], "Profiling", "profiling the model")
    made = _attempts_made(draft, result)
    failure = _failure(result) if made or result is None or not _is_own(draft, result) else None  # else of another probe image
    if failure is not None and (not failure.retryable or made >= MAXIMUM_ATTEMPTS):
        return _give_up(draft, failure)
    pause = _pause_seconds(draft, result) if failure is not None and result is not None else 0.0
    if failure is not None and pause > 0:
        draft.find(reasons.PROFILED, "False", failure.reason, failure.message)
        return draft.wait(failure.reason, f"the profile failed for a passing cause and is tried again: {failure.message}", seconds=pause)
    return _start(draft, scene, attempt=made)


def _attempts_made(draft: Draft, result: ProfileResult | None) -> int:
    """How many Jobs of this run and this probe image have failed, by the name of the last one: Jobs themselves are deleted after a while."""
    run = draft.status.run
    if result is None or run is None or not _is_own(draft, result):
        return 0
    names = [profile_job_name(draft.snapshot, run.id, attempt) for attempt in range(MAXIMUM_ATTEMPTS)]
    return names.index(result.job) + 1 if result.job in names else 0


def _is_own(draft: Draft, result: ProfileResult) -> bool:
    """Whether this run made it. A result without a run is one of this run's Jobs that was just read."""
    run = draft.status.run
    return run is None or not run.profile_run or result.run_id != run.profile_run


def _looks_again(draft: Draft, result: ProfileResult) -> bool:
    """A file that was refused before, and somebody has changed the adaptation since: it may have been replaced.

    The Job looks at its digest first and goes no further when it is the same: one attempt per content.
    """
    run = draft.status.run
    asked = run is not None and run.trigger.startswith("SpecChanged")
    return asked and not _is_own(draft, result) and _failure(result) is not None and not any(not job.finished for job in jobs_of_run(draft, "profile"))


def profile_key(snapshot: AdaptationSnapshot, scene: Scene) -> str:
    """Hash over what the model's portrait depends on but the file itself: what is asked for, of which image, in which container."""
    request = profile_assignment(snapshot, "", offered_providers(scene), 0).request
    container = scene.container
    room = {"requests": dict(container.requests), "limits": dict(container.limits), "image": snapshot.limits.probe_image}
    return short_hash(canonical_json({"request": request.model_dump(mode="json", exclude_defaults=True), **room}), length=16)


def may_inherit(draft: Draft, former: RunStatus, key: str) -> bool:
    """Whether a new run may use the former one's portrait: the same question, and an answer that is young or lasting.

    The file may have been replaced meanwhile: benchmarks are pinned to the digest, so that is seen (``ModelChanged``).
    """
    result = draft.snapshot.profile
    if result is None or former.profile_key != key or result.report is None or not result.report.digest:
        return False
    failure, portrait = _failure(result), draft.snapshot.portraits.get(result.node)
    if failure is not None:
        return not failure.retryable
    if not is_of_present_driver(portrait.status if portrait is not None else None, result.finished_at):
        return False
    return (draft.now - result.finished_at).total_seconds() <= FRESH_SECONDS


def _pause_seconds(draft: Draft, result: ProfileResult) -> float:
    """Until the next try: as long as the run had lasted when the last one failed, at least a minute.

    So tries grow apart geometrically without a counter, which a restart or a deleted Job could lose.
    """
    run = draft.status.run
    lasted = (result.finished_at - parse_time(run.started_at)).total_seconds() if run is not None else 0.0
    return max(RETRY_SECONDS, lasted) - (draft.now - result.finished_at).total_seconds()


def _failure(result: ProfileResult | None) -> Failure | None:
    if result is None:
        return None
    return (result.report.failure if result.report is not None else None) or result.failure


def _give_up(draft: Draft, failure: Failure) -> AdaptationPlan:
    draft.find(reasons.PROFILED, "False", failure.reason, failure.message)
    draft.step("Done", "")
    # What may pass by itself is looked at again: a new run is started long after (``triggers``).
    return draft.stall(failure.reason, f"the model cannot be profiled: {failure.message}", seconds=GIVEN_UP_SECONDS if failure.retryable else None)


def _start(draft: Draft, scene: Scene, *, attempt: int) -> AdaptationPlan:
    run = draft.status.run
    if run is None:
        msg = "a profile is started before the run is claimed"
        raise ValueError(msg)
    providers = offered_providers(scene)
    if not providers:
        return draft.stall("NoExecutionProvider", "the target's image serves no execution provider that a family of the pools offers", seconds=RETRY_SECONDS)
    draft.find(reasons.PROFILED, "False", "Profiling", "")
    draft.step("Profiling", "profiling the model")
    site = find_profile_site(draft.snapshot, scene.options)
    nowhere = why_nowhere(scene.options, [item.node for option in scene.options for item in option.portraits]) if site is None else None
    if nowhere is not None:
        draft.find(reasons.PROFILED, "False", nowhere.reason, nowhere.message)
        draft.findings.pop(reasons.RECONCILING, None)
        return draft.stall(nowhere.reason, f"the model can be profiled nowhere: {nowhere.message}", seconds=RETRY_SECONDS)
    if site is None:
        return draft.wait("Profiling", "waiting for a free card to profile the model on", seconds=TURN_SECONDS)
    assignment = profile_assignment(draft.snapshot, run.id, providers, attempt, _refused(draft))
    return start_job(draft, build_measuring_job(draft.snapshot, scene, site, assignment), "Profiling", f"profiling the model on {site.node.name}")


def _refused(draft: Draft) -> RefusedModel | None:
    """The file that cannot be profiled, as far as an earlier run found out."""
    result = draft.snapshot.profile
    failure = _failure(result)
    if result is None or failure is None or failure.retryable or _is_own(draft, result) or result.report is None:
        return None
    return RefusedModel(digest=result.report.digest, failure=failure)


def offered_providers(scene: Scene) -> tuple[str, ...]:
    """Providers that some family with nodes for the target offers, the present one included."""
    offered = [provider for option in scene.options if option.nodes for provider in option.family.execution_providers]
    if scene.current is not None:
        offered.append(scene.current.config.execution_provider)
    return tuple(dict.fromkeys(offered))[:8]
