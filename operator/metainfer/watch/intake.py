"""What comes from the cluster goes through here: watch events, list pages, and the answers to our own writes.

Each becomes facts in the cache and keys in the queue. No I/O, no rule; nothing that one object contains can raise out of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal, Protocol

from metainfer.kube.kinds import ADAPTATION, NODE, POOL, WATCHED, Kind
from metainfer.metrics import CACHED_OBJECTS, UNREADABLE_OBJECTS, WATCH_EVENTS, WATCH_LAST_EVENT
from metainfer.observe.projections import ProjectionError
from metainfer.reconcile import Request
from metainfer.watch.cluster import Change, ClusterCache
from metainfer.watch.routes import Audience, adaptation_request, find_members, find_wakes, pool_request

Raw = Mapping[str, Any]
_log = logging.getLogger(__name__)

SOON_SECONDS = 1.0
"""How long changes that concern many are collected: a drain of a rack changes a hundred nodes within seconds."""
SOON_SECONDS_PER_OBJECT = 0.002
"""And how much longer for each node or adaptation there is: about what one costs in the passes that are woken, so that a large
cluster where something changes all the time does not spend all its time on looking."""


Later = Callable[[float, Callable[[], None]], object]
"""Calls something after a number of seconds."""


def _on_the_event_loop(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)


class Wakeable(Protocol):
    """Where keys go: the work queue."""

    def add(self, key: Request) -> None:
        """Serve it as soon as possible."""
        ...

    def add_behind(self, key: Request) -> None:
        """The same, after those that have news of their own."""
        ...

    def add_after(self, key: Request, delay_seconds: float) -> None:
        """Serve it in a while."""
        ...


class Intake:
    """The way into the cache and the queue."""

    def __init__(
        self, cluster: ClusterCache, queue: Wakeable, *, fill: Callable[[Kind, str], None] = lambda _kind, _namespace: None, later: Later | None = None
    ) -> None:
        self.cluster = cluster
        self.queue = queue
        self._later = later or _on_the_event_loop
        self._collecting: set[Audience] = set()
        self.fill = fill
        """Called for a kind and namespace that have to be listed again, because something there matters only now."""

    def watch(self, kind: Kind, event_type: str | None, raw: Raw) -> None:
        """One watch event; type None is an object of the first list of a watch, or of a list after a gap."""
        WATCH_LAST_EVENT.labels(kind=kind.kind).set(time.time())
        outcome = self._take(kind, raw) if event_type != "DELETED" else self._settle(self.cluster.remove(kind, raw))
        WATCH_EVENTS.labels(kind=kind.kind, outcome=outcome).inc()
        self._count(kind)

    def take_page(self, kind: Kind, items: Collection[Raw]) -> int:
        """A page of a list; returns how many objects were news to us."""
        return sum(self._take(kind, raw) == "changed" for raw in items)

    def take_end(self, kind: Kind, listed: Collection[str], version: int, namespace: str | None = None) -> int:
        """The list is complete: what it did not show (``listed``: uids) is gone. Returns how many that were."""
        gone = self.cluster.remove_missing(kind, listed, version, namespace)
        for change in gone:
            self._settle(change)
        self._count(kind)
        return len(gone)

    def remember(self, raw: Raw) -> None:
        """The API server's answer to a write of ours: true at once, not only when the watch tells."""
        kind = next((kind for kind in WATCHED if (kind.api_version, kind.kind) == (raw.get("apiVersion"), raw.get("kind"))), None)
        if kind is not None:
            self._take(kind, raw)

    def forget(self, kind: Kind, namespace: str, name: str) -> None:
        """The API server says that there is no such object."""
        self._settle(self.cluster.forget(kind, namespace, name))

    def _take(self, kind: Kind, raw: Raw) -> Literal["changed", "same", "unreadable"]:
        try:
            return self._settle(self.cluster.take(kind, raw))
        except ProjectionError as problem:
            _log.error("object cannot be read, ignoring it until it changes", extra={"kind": problem.kind, "error": str(problem)})
            self._wake_itself(kind, problem)
            return "unreadable"

    def _settle(self, change: Change | None) -> Literal["changed", "same"]:
        if change is None:
            return "same"
        wakes = find_wakes(change, self.cluster)
        for request in wakes.now:
            self.queue.add(request)
        for request in wakes.soon - wakes.now:
            self.queue.add_after(request, SOON_SECONDS)
        for audience in wakes.audiences - self._collecting:
            self._collecting.add(audience)
            objects = self.cluster.count(NODE) + self.cluster.count(ADAPTATION)
            self._later(SOON_SECONDS + SOON_SECONDS_PER_OBJECT * objects, partial(self._wake_audience, audience))
        for kind, namespace in self.cluster.interest.take_fresh_gaps():
            self.fill(kind, namespace)
        return "changed"

    def _wake_audience(self, audience: Audience) -> None:
        self._collecting.discard(audience)
        for request in find_members(audience, self.cluster):
            self.queue.add_behind(request)

    def _count(self, kind: Kind) -> None:
        CACHED_OBJECTS.labels(kind=kind.kind).set(self.cluster.count(kind))
        UNREADABLE_OBJECTS.labels(kind=kind.kind).set(len(self.cluster.problems(kind)))

    def _wake_itself(self, kind: Kind, problem: ProjectionError) -> None:
        if kind == POOL:
            self.queue.add(pool_request(problem.name))
        elif kind == ADAPTATION:
            self.queue.add(adaptation_request((problem.namespace, problem.name)))
