"""Says in an object's own status that it cannot be read. The only status that is written from a raw object."""

from __future__ import annotations

from datetime import datetime

from metainfer.act.ports import ClusterWriter
from metainfer.decide.unreadable import mark_unreadable
from metainfer.kube.errors import NotFound
from metainfer.kube.kinds import Kind


async def report_unreadable(  # budget: which object, what is wrong with it, and when that was seen
    client: ClusterWriter, kind: Kind, name: str, namespace: str | None, *, problem: str, now: datetime
) -> None:
    """Compare-and-swap, only when it is news. Raises Conflict and other ApiErrors; an object that is gone needs no status."""
    try:
        raw = await client.get(kind, name, namespace)
    except NotFound:
        return
    status = mark_unreadable(raw, problem, now)
    if status != (raw.get("status") or {}):
        await client.replace_status(kind, name, namespace, dict(status), raw["metadata"]["resourceVersion"])
