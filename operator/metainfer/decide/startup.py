"""How long the target's pods may take until they serve, by what their owner declares. Pure."""

from __future__ import annotations

from datetime import datetime

from metainfer.decide.facts import ContainerFacts, PodFacts, TargetFacts
from metainfer.decide.target import serving_containers


def start_up_seconds(target: TargetFacts) -> float:
    """From a container's start until its pod counts as available: the slowest container's probes, then ``minReadySeconds``."""
    return float(max(map(_until_ready, serving_containers(target.template)), default=0) + target.min_ready_seconds)


def rollout_seconds(target: TargetFacts) -> float:
    """From the start of a rollout until its first pod may be expected; with ``Recreate`` the old pod may take its time to end first."""
    ending = target.template.termination_grace_seconds if target.strategy == "Recreate" else 0
    return start_up_seconds(target) + ending


def is_starting(target: TargetFacts, pod: PodFacts, now: datetime) -> bool:
    """Whether the pod is within its start-up time: counted from the start of its containers, before that from its creation."""
    started = max((state.started_at for state in pod.states if state.started_at is not None), default=pod.created_at)
    return started is not None and (now - started).total_seconds() < start_up_seconds(target)


def _until_ready(container: ContainerFacts) -> int:
    """A startup probe holds the readiness probe back; without one, the readiness probe's own patience counts.

    https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/: a container has
    ``failureThreshold * periodSeconds`` to start.
    """
    startup, readiness = container.startup_probe, container.readiness_probe
    seconds = startup.initial_delay_seconds + startup.period_seconds * startup.failure_threshold if startup is not None else 0
    if readiness is None:
        return seconds
    tries = readiness.success_threshold if startup is not None else max(readiness.failure_threshold, readiness.success_threshold)
    return max(seconds, readiness.initial_delay_seconds) + readiness.period_seconds * tries
