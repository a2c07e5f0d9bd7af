"""The second pair of eyes: complete lists, at start and every few minutes, against which the cache is put right.

kopf reports no deletion that fell into a gap of its watch, and repeats nothing. What the list does not show is gone,
what it shows otherwise is news. Reads only; one list at a time, in pages.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from metainfer.api.v1alpha1.common import GROUP
from metainfer.decide.names import PURPOSE_LABEL
from metainfer.kube.client import Page, Selection
from metainfer.kube.errors import ApiError, NotFound
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, POOL, WATCHED, Kind
from metainfer.metrics import RESYNC_LAST, RESYNC_REPAIRS
from metainfer.watch.intake import Intake
from metainfer.watch.queue import Backoff, Retry, WorkQueue
from metainfer.watch.routes import Audience, find_members

_log = logging.getLogger(__name__)

JITTER = 0.2
"""Share by which the period varies, so that the kinds drift apart and several operators do not list together."""
SELECTORS = {JOB: PURPOSE_LABEL}
"""Kinds of which only labelled objects are watched and listed, by the server's own selection."""

AUDIENCES: Mapping[Kind, tuple[Audience, ...]] = {POOL: ("pools", "orphans"), ADAPTATION: ("adaptations",), DEPLOYMENT: ("marked",)}
"""Who gets a pass after a list of the kind."""


class Lister(Protocol):
    """The part of ``KubeClient`` that lists."""

    def list_pages(self, kind: Kind, selection: Selection = ...) -> AsyncIterator[Page]:
        """All pages of one list; raises Expired when it has to be started again."""
        ...


@dataclass(frozen=True, slots=True)
class Sweep:
    """One list: a whole kind, or the part of it in a namespace where something matters only now."""

    kind: Kind
    namespace: str | None = None

    def __str__(self) -> str:
        """As it stands in the log."""
        return f"list of {self.kind.plural}" + (f" in {self.namespace}" if self.namespace else "")


class Resync:
    """Lists each kind at start, in order, and again every ``period_seconds``."""

    def __init__(self, lister: Lister, intake: Intake, *, period_seconds: float, chance: Callable[[], float] = random.random) -> None:
        self._lister = lister
        self._intake = intake
        self._cluster = intake.cluster
        self._queue = intake.queue
        self._period = period_seconds
        self._chance = chance
        # A failed list is repeated soon: without the first ones nothing starts, and a missing CRD may be installed any moment.
        self._sweeps: WorkQueue[Sweep] = WorkQueue(Backoff(base_seconds=1.0, limit_seconds=15.0))
        self._listed: set[Kind] = set()
        self.synced = asyncio.Event()
        """Set once every kind was listed: before that, absence of an object means nothing."""
        self.waiting_for: dict[Kind, str] = dict.fromkeys(WATCHED, "not listed yet")
        """Why ``synced`` is not set, by kind."""
        intake.fill = self.fill

    async def run(self) -> None:
        """List until ``stop``. One worker: lists are large, and the order at the start matters."""
        for kind in WATCHED:
            self._sweeps.add(Sweep(kind))
        await self._sweeps.run(self._sweep, workers=1)

    async def stop(self) -> None:
        """End at once; a list cut off leaves the cache as true as it was."""
        await self._sweeps.stop(grace_seconds=0.0)

    def poke(self, kind: Kind) -> None:
        """The watch of the kind had a gap: list it soon."""
        self._sweeps.add_after(Sweep(kind), 2.0)

    def fill(self, kind: Kind, namespace: str) -> None:
        """Objects there were dropped before they mattered: list them now."""
        self._sweeps.add(Sweep(kind, namespace))

    async def _sweep(self, sweep: Sweep) -> float | None:
        kind, namespace = sweep.kind, sweep.namespace
        gaps = self._cluster.interest.gaps_in(kind, namespace)
        if namespace is not None and not gaps:
            return None  # a list of the whole kind came first
        try:
            changed, removed = await self._list(kind, namespace)
        except ApiError as error:
            if kind in self.waiting_for:
                self.waiting_for[kind] = _words(kind, error)
            raise Retry(_words(kind, error)) from error
        self._cluster.interest.close_gaps(gaps)
        if namespace is not None:
            return None
        self._finish_kind(kind, changed, removed)
        return self._period * (1.0 - JITTER + 2.0 * JITTER * self._chance())

    def _finish_kind(self, kind: Kind, changed: int, removed: int) -> None:
        RESYNC_LAST.labels(kind=kind.kind).set(time.time())
        if kind in self._listed:
            RESYNC_REPAIRS.labels(kind=kind.kind, sort="changed").inc(changed)
            RESYNC_REPAIRS.labels(kind=kind.kind, sort="removed").inc(removed)
        self._wake_all(kind)
        self._listed.add(kind)
        self.waiting_for.pop(kind, None)
        if not self.waiting_for and not self.synced.is_set():
            _log.info("first lists done", extra={"objects": {found.kind: self._cluster.count(found) for found in WATCHED}})
            self.synced.set()

    async def _list(self, kind: Kind, namespace: str | None) -> tuple[int, int]:
        """One complete list into the cache; returns how many objects it changed and removed."""
        known = self._cluster.highest_version(kind)
        listed: set[str] = set()
        changed, version = 0, 0
        async for page in self._lister.list_pages(kind, Selection(namespace, SELECTORS.get(kind, ""))):
            version = int(page.resource_version) if page.resource_version.isdecimal() else 0
            if version < known:
                _log.warning("the API server went back in time, believing it", extra={"kind": kind.kind, "version": version, "known": known})
                self._cluster.forget_versions(kind)
                known = 0
            changed += self._intake.take_page(kind, page.items)
            listed |= {raw["metadata"]["uid"] for raw in page.items}
        return changed, self._intake.take_end(kind, listed, version, namespace)

    def _wake_all(self, kind: Kind) -> None:
        """Every object of ours gets a pass per period, even if nothing seems to have happened: the net below the net."""
        for audience in AUDIENCES.get(kind, ()):
            for request in find_members(audience, self._cluster):
                self._queue.add_after(request, self._period * self._chance() if kind in self._listed else 0.0)


def _words(kind: Kind, error: ApiError) -> str:
    if kind.group == GROUP and isinstance(error, NotFound):
        return f"{kind.kind} is not known to the API server: install the CRDs of this version"
    return str(error)
