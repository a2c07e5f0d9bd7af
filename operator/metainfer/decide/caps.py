"""May another measuring Job start? Counted from labelled Jobs on the API server, never from memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metainfer.api.v1alpha1.accelerator_pool import Limits
from metainfer.decide.facts import JobFacts
from metainfer.decide.names import NODE_ANNOTATION, POOL_ANNOTATION, PURPOSE_LABEL


def running_jobs(jobs: Sequence[JobFacts], pool: str) -> tuple[JobFacts, ...]:
    """Measuring Jobs of the pool that hold or want a card. A Job that a queue has suspended does not: it may wait for days."""
    return tuple(job for job in jobs if job.annotations.get(POOL_ANNOTATION) == pool and not job.finished and not job.suspended)


def measured_nodes(jobs: Sequence[JobFacts]) -> Collection[str]:
    """Nodes on which a measuring Job runs or waits: a second one would measure the first. One that is suspended holds no node up."""
    going = [job for job in jobs if not job.finished and not job.suspended]
    nodes = {job.annotations.get(NODE_ANNOTATION, "") for job in going}
    nodes |= {pod.node for job in going for pod in job.pods if pod.node}
    return nodes - {""}


def free_measurements(limits: Limits, running: Sequence[JobFacts]) -> int:
    """How many more measuring Jobs of any purpose the pool allows now."""
    return max(0, limits.max_concurrent_measurements - len(running))


def free_probes(limits: Limits, running: Sequence[JobFacts]) -> int:
    """How many more probe Jobs the pool allows now."""
    probes = sum(job.labels.get(PURPOSE_LABEL) == "probe" for job in running)
    return max(0, min(limits.max_concurrent_probes - probes, free_measurements(limits, running)))
