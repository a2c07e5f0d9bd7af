"""Events for users: one object per (object, reason, message), its count raised when the same is said again.

Events are no interface: one that cannot be written is dropped and logged, never a reason to fail a pass. The API server forgets them
an hour after the last time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from metainfer import metrics
from metainfer.act.ports import Clock, ClusterWriter, Raw
from metainfer.decide.names import short_hash
from metainfer.decide.plan import EmitEvent
from metainfer.kube.errors import ApiError, NotFound
from metainfer.kube.kinds import EVENT

COMPONENT = "metainfer"
CLUSTER_SCOPED_NAMESPACE = "default"
"""Where the API server wants Events about objects without a namespace."""
BURST = 10
REFILL = timedelta(minutes=1)
"""Writes about one object: ten at once, then one a minute. Decisions come a few an hour; anything faster is a loop."""
REMEMBERED_OBJECTS = 4096
NAME_LIMIT = 200
MESSAGE_LIMIT = 1024
"""The API server's own limit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object an Event is about, and whose pass it is."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


@dataclass(slots=True)
class _Budget:
    """Token bucket of one object, and what was said meanwhile without being written."""

    tokens: float
    refilled_at: datetime
    unwritten: dict[str, int]
    written_at: dict[str, datetime]


class EventRecorder:
    """Writes Events. Its memory is only a brake: losing it costs a few writes, never an Event."""

    def __init__(self, client: ClusterWriter, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    async def emit(self, action: EmitEvent, involved: ObjectRef) -> bool:
        """Write the Event, or raise the count of the one that says the same; returns whether it was written now."""
        _count(action, involved)
        now = self._clock()
        budget = self._budget(involved.uid, now)
        name = event_name(action, involved)
        times = budget.unwritten.pop(name, 0) + 1
        quiet_until = budget.written_at.get(name, now) + timedelta(seconds=action.quiet_seconds)
        if budget.tokens < 1 or (name in budget.written_at and now < quiet_until):
            budget.unwritten[name] = times
            return False
        budget.tokens -= 1
        budget.written_at = {name: now} if len(budget.written_at) > BURST else budget.written_at | {name: now}
        try:
            await self._write(build_event(action, involved, now), times)
        except ApiError as error:
            _log.warning("event dropped", extra={"object": f"{involved.namespace}/{involved.name}", "reason": action.reason, "error": str(error)})
            return False
        return True

    async def _write(self, event: dict[str, Any], times: int) -> None:
        name, namespace = event["metadata"]["name"], event["metadata"]["namespace"]
        try:
            found: Raw = await self._client.get(EVENT, name, namespace)
        except NotFound:
            await self._client.create(EVENT, event | {"count": times})
            return
        operations = [
            {"op": "add", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/count", "value": int(found.get("count") or 1) + times},
            {"op": "add", "path": "/lastTimestamp", "value": event["lastTimestamp"]},
        ]
        await self._client.patch_json(EVENT, name, namespace, operations)

    def _budget(self, uid: str, now: datetime) -> _Budget:
        budget = self._budgets.pop(uid, None) or _Budget(float(BURST), now, {}, {})
        budget.tokens = min(float(BURST), budget.tokens + (now - budget.refilled_at) / REFILL)
        budget.refilled_at = now
        self._budgets[uid] = budget
        if len(self._budgets) > REMEMBERED_OBJECTS:
            self._budgets.popitem(last=False)
        return budget


def _count(action: EmitEvent, involved: ObjectRef) -> None:
    """As a metric too, also what the brake keeps from being written: alerts cannot see Events."""
    metrics.EVENTS.labels(involved.kind, action.kind, action.reason).inc()
    if action.reason == "AdaptationStarted":
        metrics.RUNS_STARTED.labels(action.message.partition(":")[0]).inc()


def event_name(action: EmitEvent, involved: ObjectRef) -> str:
    """The same for the same words about the same object."""
    return f"{involved.name[:NAME_LIMIT].rstrip('.-')}.{short_hash(involved.uid, action.kind, action.reason, action.message, length=16)}"


def build_event(action: EmitEvent, involved: ObjectRef, now: datetime) -> dict[str, Any]:
    """The Event as it is first written. Pure."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = involved.namespace or CLUSTER_SCOPED_NAMESPACE
    about = {"apiVersion": involved.api_version, "kind": involved.kind, "name": involved.name, "uid": involved.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(action, involved), "namespace": namespace},
        "involvedObject": about | ({"namespace": involved.namespace} if involved.namespace else {}),
        "type": action.kind,
        "reason": action.reason,
        "message": action.message[:MESSAGE_LIMIT],
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }
