"""What Events say about Jobs that have not begun: the only place where the Job controller and the kubelet tell why. Reads little.

Events are read for Jobs of which nothing else says what they wait for, and for no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from metainfer.decide.facts import JobFacts, Told
from metainfer.decide.waiting import find_waiting, waits_for_kubelet
from metainfer.kube.errors import ApiError
from metainfer.kube.kinds import EVENT, Kind

PATIENCE = timedelta(seconds=10)
"""Before Events are read about a Job without a container: most have one by then."""


class EventReader(Protocol):
    """``KubeClient`` has it."""

    async def list(self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = "") -> tuple[list[dict[str, Any]], str]:
        """Objects of a kind, and the version of the list."""
        ...


async def tell(jobs: Sequence[JobFacts], own: Sequence[JobFacts], reader: EventReader, now: datetime) -> tuple[tuple[JobFacts, ...], tuple[JobFacts, ...]]:
    """All Jobs and our own among them, the latter with what Events say."""
    known = {job.uid: await with_told(job, reader, now) for job in own}
    return tuple(known.get(job.uid, job) for job in jobs), tuple(known.values())


async def with_told(job: JobFacts, reader: EventReader, now: datetime) -> JobFacts:
    """The Job with what the newest Event says about it, or about its pod, while nothing else says why it does not start."""
    waiting = find_waiting(job, now)
    if waiting is None or waiting.reason or job.suspended or job.created_at is None or now - job.created_at < PATIENCE:
        return job
    pod = next(filter(waits_for_kubelet, job.pods), None)
    if job.pods and pod is None:
        return job
    return replace(job, told=await read_told(job.namespace, pod.uid if pod is not None else job.uid, reader))


async def read_told(namespace: str, uid: str, reader: EventReader) -> Told | None:
    """The newest Event about the object, if it is a complaint."""
    try:
        events, _ = await reader.list(EVENT, namespace=namespace, field_selector=f"involvedObject.uid={uid}")
    except ApiError:
        return None
    latest: dict[str, Any] = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default={})
    return Told(str(latest.get("reason") or ""), str(latest.get("message") or "")) if latest.get("type") == "Warning" else None
