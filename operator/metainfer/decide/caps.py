"""May another measuring Job start? Counted from labelled Jobs on the API server, never from memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from metainfer.api.v1alpha1.accelerator_pool import Limits
from metainfer.decide.facts import JobFacts
from metainfer.decide.names import NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL


def running_jobs(jobs: Sequence[JobFacts], pool: str) -> tuple[JobFacts, ...]:
    """Measuring Jobs of the pool that hold or want a card. A Job that a queue has suspended does not: it may wait for days."""
    return tuple(job for job in jobs if job.annotations.get(POOL_ANNOTATION) == pool and not job.finished and not job.suspended)


def measured_nodes(jobs: Sequence[JobFacts]) -> Collection[str]:
    """Nodes on which a measuring Job runs or waits: a second one would measure the first."""
    nodes = {job.annotations.get(NODE_ANNOTATION, "") for job in jobs if not job.finished}
    nodes |= {pod.node for job in jobs if not job.finished for pod in job.pods if pod.node}
    return nodes - {""}


def free_measurements(limits: Limits, running: Sequence[JobFacts]) -> int:
    """How many more measuring Jobs of any purpose the pool allows now."""
    return max(0, limits.max_concurrent_measurements - len(running))


def free_probes(limits: Limits, running: Sequence[JobFacts]) -> int:
    """How many more probe Jobs the pool allows now."""
    probes = sum(job.labels.get(PURPOSE_LABEL) == "probe" for job in running)
    return max(0, min(limits.max_concurrent_probes - probes, free_measurements(limits, running)))


def waiting_seconds(job: JobFacts, now: datetime) -> float | None:
    """For how long a Job has had no running pod; None once one was started (or the Job is done)."""
    started = any(pod.phase in ("Running", "Succeeded", "Failed") for pod in job.pods)
    if job.finished or started or job.created_at is None:
        return None
    return (now - job.created_at).total_seconds()


def waiting_words(job: JobFacts) -> str:
    """What the cluster says about a Job that does not start: the queue, the quota, the scheduler or the kubelet."""
    if job.suspended:
        return "the Job is suspended by a queue"
    words = [pod.unschedulable for pod in job.pods if pod.unschedulable]
    words += [f"{state.waiting_reason}: {state.waiting_message}" for pod in job.pods for state in pod.states if state.waiting_reason]
    return words[0] if words else job.condition_message or "no pod was started yet"
