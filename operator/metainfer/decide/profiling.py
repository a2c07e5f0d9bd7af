"""The model portrait: is it there, is it on its way, or which Job makes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.caps import waiting_seconds, waiting_words
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import JobFacts, ProfileResult
from metainfer.decide.measuring import build_measuring_job, find_profile_site, profile_assignment
from metainfer.decide.names import PURPOSE_LABEL, RUN_LABEL
from metainfer.decide.plan import AdaptationPlan, DeleteJob
from metainfer.decide.scene import Scene
from metainfer_probe.contract import Failure, ProfileReport

POLL_SECONDS = 20.0
"""While our own Job runs; its events wake the pass anyway."""
TURN_SECONDS = 20.0
"""While another object's Job has the turn; its end wakes those who wait (``watch.routes``), so this is only the fallback."""
RETRY_SECONDS = 60.0
LINGER_SECONDS = 20.0
"""Between a container's end and the Job controller's verdict; an ordinary Job ends by itself meanwhile and is kept for its record."""
MAXIMUM_ATTEMPTS = 2
"""One retry, and only where the failure says that one can help: a broken file stays broken."""


def next_profile(draft: Draft, scene: Scene) -> ProfileReport | AdaptationPlan:
    """The portrait of this run's model, or the plan that waits for it."""
    result = draft.snapshot.profile
    active = unreported_jobs(draft, "profile", {result.job_uid: result.finished_at} if result is not None else {})
    if result is not None and result.report is not None and result.report.failure is None:
        draft.find(reasons.PROFILED, "True", "Profiled", f"{result.report.parameters:,} parameters, {result.report.architecture}, {result.report.bound} bound")
        return result.report
    if active:
        return wait_for_job(draft, active[0], "Profiling", "profiling the model")
    finished = [job for job in jobs_of_run(draft, "profile") if job.finished]
    failure = _failure(result)
    if failure is not None and (not failure.retryable or len(finished) >= MAXIMUM_ATTEMPTS):
        return _give_up(draft, failure)
    pause = _pause_seconds(draft, result) if failure is not None and result is not None else 0.0
    if failure is not None and pause > 0:
        draft.find(reasons.PROFILED, "False", failure.reason, failure.message)
        return draft.wait(failure.reason, f"the profile failed for a passing cause and is tried again: {failure.message}", seconds=pause)
    return _start(draft, scene, attempt=len(finished))


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
    return draft.stall(failure.reason, f"the model cannot be profiled: {failure.message}")


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
    if site is None:
        return draft.wait("Profiling", "waiting for a free card to profile the model on", seconds=TURN_SECONDS)
    draft.act(build_measuring_job(draft.snapshot, scene, site, profile_assignment(draft.snapshot, run.id, providers, attempt)))
    return draft.wait("Profiling", f"profiling the model on {site.node.name}", seconds=POLL_SECONDS)


def offered_providers(scene: Scene) -> tuple[str, ...]:
    """Providers that some family with nodes for the target offers, the present one included."""
    offered = [provider for option in scene.options if option.nodes for provider in option.family.execution_providers]
    if scene.current is not None:
        offered.append(scene.current.config.execution_provider)
    return tuple(dict.fromkeys(offered))[:8]


def jobs_of_run(draft: Draft, purpose: str) -> tuple[JobFacts, ...]:
    """This run's Jobs of one purpose."""
    run_id = draft.status.run.id if draft.status.run is not None else ""
    return tuple(job for job in draft.snapshot.jobs if job.labels.get(RUN_LABEL) == run_id and job.labels.get(PURPOSE_LABEL) == purpose)


def unreported_jobs(draft: Draft, purpose: str, reported: Mapping[str, datetime]) -> tuple[JobFacts, ...]:
    """Jobs of this run that are still to report; ``reported`` says when the others did, by UID.

    One that reported a while ago and lives on (kept by an injected sidecar, or never started) is removed: it would hold a card and a
    place under the caps until its deadline.
    """
    running = [job for job in jobs_of_run(draft, purpose) if not job.finished]
    overdue = [job for job in running if job.uid in reported and (draft.now - reported[job.uid]).total_seconds() > LINGER_SECONDS and not job.deleting]
    draft.act(*(DeleteJob(job.namespace, job.name, "it has reported", job.uid) for job in overdue))
    return tuple(job for job in running if job.uid not in reported)


def wait_for_job(draft: Draft, job: JobFacts, step: str, words: str) -> AdaptationPlan:
    """Wait for a Job that was started. One that never starts is reported as such in time, by ``observe``."""
    waited = waiting_seconds(job, draft.now)
    draft.step("Profiling" if step == "Profiling" else "Validating", words)
    message = words if waited is None else f"{words}: {waiting_words(job)}"
    return draft.wait(step, message, seconds=POLL_SECONDS)
