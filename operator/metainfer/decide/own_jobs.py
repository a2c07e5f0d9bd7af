"""A run's own Jobs: started if the API server takes them, waited for, and cleaned up after. Pure.

Which Job is next, and what its result means, is decided by ``profiling`` and ``validating``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import JobRefusal
from metainfer.decide.draft import Draft
from metainfer.decide.facts import JobFacts
from metainfer.decide.names import PURPOSE_LABEL, RUN_LABEL
from metainfer.decide.plan import AdaptationPlan, CreateJob, DeleteJob
from metainfer.decide.refusal import PASSING, refusal_words, retry_at, seconds_to_retry, standing_refusal
from metainfer.decide.waiting import find_waiting

POLL_SECONDS: Final = 20.0
"""While our own Job runs; its events wake the pass anyway."""
LINGER_SECONDS: Final = 20.0
"""Between a container's end and the Job controller's verdict; an ordinary Job ends by itself meanwhile and is kept for its record."""
Step = Literal["Profiling", "Validating"]
CONDITION_OF: Final[Mapping[Step, str]] = {"Profiling": reasons.PROFILED, "Validating": reasons.VALIDATED}
"""Which condition says how far a step is."""


def jobs_of_run(draft: Draft, purpose: str) -> tuple[JobFacts, ...]:
    """This run's Jobs of one purpose."""
    return tuple(job for job in _all_of_run(draft) if job.labels.get(PURPOSE_LABEL) == purpose)


def _all_of_run(draft: Draft) -> tuple[JobFacts, ...]:
    run_id = draft.status.run.id if draft.status.run is not None else ""
    return tuple(job for job in draft.snapshot.jobs if job.labels.get(RUN_LABEL) == run_id)


def unreported_jobs(draft: Draft, purpose: str, reported: Mapping[str, datetime]) -> tuple[JobFacts, ...]:
    """Jobs of this run that are still to report; ``reported`` says when the others did, by UID.

    One that reported a while ago and lives on (kept by an injected sidecar, or never started) is removed: it would hold a card and a
    place under the caps until its deadline.
    """
    running = [job for job in jobs_of_run(draft, purpose) if not job.finished]
    overdue = [job for job in running if job.uid in reported and (draft.now - reported[job.uid]).total_seconds() > LINGER_SECONDS and not job.deleting]
    draft.act(*(DeleteJob(job.namespace, job.name, "it has reported", job.uid) for job in overdue))
    return tuple(job for job in running if job.uid not in reported)


def wait_for_job(draft: Draft, job: JobFacts, step: Step, words: str) -> AdaptationPlan:
    """Wait for a Job that was started; one that does not begin gives its reason. One that never does is a failure in time, by ``observe``."""
    waiting = find_waiting(job, draft.now)
    draft.step(step, words)
    reason, message = (waiting.reason or step, f"{words}: {waiting.words}") if waiting is not None else (step, words)
    draft.find(CONDITION_OF[step], "False", reason, message)
    return draft.wait(reason, message, seconds=POLL_SECONDS)


def start_job(draft: Draft, job: CreateJob, step: Step, words: str) -> AdaptationPlan:
    """Start the Job; while the API server takes none, say why, and try again only when it is time."""
    run = draft.status.run
    refusal = standing_refusal(run.refusal if run is not None else None, _all_of_run(draft))
    if refusal is not None:
        return _hold_back(draft, job, refusal, step)
    draft.find(CONDITION_OF[step], "False", step, words)
    draft.step(step, words)
    draft.act(job)
    return draft.wait(step, words, seconds=POLL_SECONDS)


def _hold_back(draft: Draft, job: CreateJob, refusal: JobRefusal, step: Step) -> AdaptationPlan:
    words = refusal_words(refusal)
    draft.find(CONDITION_OF[step], "False", refusal.reason, words)
    draft.step(step, "the API server takes no Job")  # nothing that changes with time: it would be a write each minute
    if refusal.reason == "QuotaExceeded":
        # Finished Jobs count against a quota too. What they reported is recorded.
        read = {item.job_uid for item in (draft.snapshot.profile, *draft.snapshot.runs) if item is not None}
        draft.act(*(DeleteJob(item.namespace, item.name, "it has reported", item.uid) for item in _all_of_run(draft) if item.uid in read and _is_done(item)))
    if draft.now >= retry_at(refusal):
        draft.act(job)
    pause = seconds_to_retry(refusal, draft.now)
    if refusal.reason not in PASSING:
        draft.findings.pop(reasons.RECONCILING, None)  # nothing is under way
        return draft.stall(refusal.reason, words, seconds=pause)
    draft.announce("Warning", refusal.reason, words)
    return draft.wait(refusal.reason, words, seconds=pause)


def _is_done(job: JobFacts) -> bool:
    return job.finished and not job.deleting


def forget_refusal(draft: Draft) -> None:
    """A refusal that is over leaves the status: a Job was taken since, or none is wanted any more."""
    run = draft.status.run
    if run is not None and run.refusal is not None and standing_refusal(run.refusal, _all_of_run(draft)) is None:
        draft.put(run=run.model_copy(update={"refusal": None}))
