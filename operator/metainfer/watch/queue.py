"""The work queue: which key is looked at next, and when. Knows neither the keys' meaning nor the cluster.

``Schedule`` is the rules alone, without clock or tasks, so that properties can be tested in virtual time; ``WorkQueue`` runs
it on the event loop. Rules: a waiting key is there once; a key is never in two workers' hands; one that is added
meanwhile runs once more afterwards; nothing sleeps inside a worker; failures come back later and later; a key with news of its own
goes before those that are woken with everybody else, or by a timer: with 200 adaptations that wait for a card, the one whose Job has just
ended would otherwise wait behind all of them, its card idle.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from metainfer.metrics import QUEUE_AGE_SECONDS, QUEUE_DELAYED, QUEUE_DEPTH, QUEUE_RUNNING

K = TypeVar("K", bound=Hashable)
FAIR_TURN = 4
"""Every so many-th key is one of those behind, however much news there is."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pause after the n-th failure in a row: ``base * 2^(n-1)``, at most ``limit``, less up to ``jitter`` of it by chance."""

    base_seconds: float = 0.5
    """Long enough for a conflict or a restart of the API server's process to pass."""
    limit_seconds: float = 120.0
    """Short enough that a repaired cluster is noticed within minutes."""
    jitter: float = 0.5
    """So that thousands of keys that failed together do not come back together."""

    def delay_seconds(self, failures: int, chance: float) -> float:
        """The pause after ``failures`` >= 1 failures; ``chance`` is uniform in [0, 1)."""
        whole = min(self.limit_seconds, self.base_seconds * 2.0 ** min(failures - 1, 60))
        return whole * (1.0 - self.jitter * chance)


class Schedule(Generic[K]):
    """Keys that wait, are delayed, or run. Pure: time and chance come in as arguments."""

    def __init__(self, backoff: Backoff = Backoff()) -> None:
        self._backoff = backoff
        self._waiting: dict[K, float] = {}  # key -> when it became due; in the order of arrival
        self._behind: dict[K, float] = {}  # the same for keys without news of their own
        self._taken = 0
        self._due: dict[K, float] = {}  # delayed keys
        self._heap: list[tuple[float, int, K]] = []  # entries that no longer agree with _due are skipped
        self._order = itertools.count()
        self._running: set[K] = set()
        self._again: dict[K, bool] = {}  # added while running; whether with news of its own
        self._failures: dict[K, int] = {}

    def add(self, key: K, now: float) -> None:
        """Look at the key as soon as a worker is free; a delay it was waiting for is forgotten."""
        self._due.pop(key, None)
        if key in self._running:
            self._again[key] = True
        else:
            self._waiting.setdefault(key, self._behind.pop(key, now))

    def add_behind(self, key: K, now: float) -> None:
        """The same, after the keys that have news of their own."""
        self._due.pop(key, None)
        if key in self._running:
            self._again.setdefault(key, False)
        elif key not in self._waiting:
            self._behind.setdefault(key, now)

    def add_after(self, key: K, delay_seconds: float, now: float) -> None:
        """Look at the key in a while, unless it is to be looked at earlier anyway."""
        if delay_seconds <= 0:
            self.add_behind(key, now)
            return
        due = now + delay_seconds
        if key in self._waiting or key in self._behind or key in self._again or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))

    def take(self, now: float) -> tuple[K, float] | None:
        """The next key and how many seconds it waited; it runs from here until ``finish``. None = nothing is due."""
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add_behind(key, due)
        line = self._next_line()
        if not line:
            return None
        key = next(iter(line))
        self._taken += 1
        self._running.add(key)
        return key, now - line.pop(key)

    def _next_line(self) -> dict[K, float]:
        """Where the next key stands."""
        fair = self._behind and self._taken % FAIR_TURN == FAIR_TURN - 1
        return self._behind if fair or not self._waiting else self._waiting

    def finish(self, key: K, now: float) -> None:
        """The worker is done with the key; if it was added meanwhile, it waits again."""
        self._running.remove(key)
        has_news = self._again.pop(key, None)
        if has_news is not None:
            (self.add if has_news else self.add_behind)(key, now)

    def succeed(self, key: K) -> None:
        """Forget earlier failures of the key."""
        self._failures.pop(key, None)

    def fail(self, key: K, now: float, chance: float) -> float:
        """Count a failure and look again after the backoff; returns that pause in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay_seconds(failures, chance)
        self.add_after(key, delay, now)
        return delay

    def next_due(self) -> float | None:
        """When the earliest delayed key becomes due; None = no key is delayed."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    @property
    def counts(self) -> tuple[int, int, int]:
        """Keys that wait, are delayed, run."""
        return len(self._waiting) + len(self._behind), len(self._due), len(self._running)


class Retry(Exception):
    """Raised by work that wants to be tried again after the backoff; its text says why."""


Work = Callable[[K], Awaitable[float | None]]
"""One look at a key; returns after how many seconds to look again without being asked. What it raises counts as a failure."""


class WorkQueue(Generic[K]):
    """A Schedule on the event loop. ``add`` never blocks; ``run`` serves up to ``workers`` keys at the same time."""

    def __init__(
        self,
        backoff: Backoff = Backoff(),
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        idle_seconds: float = 5.0,
        measured: bool = False,
    ) -> None:
        self._schedule: Schedule[K] = Schedule(backoff)
        self._clock = clock
        self._chance = chance
        self._idle_seconds = idle_seconds
        self._measured = measured
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.served_at = clock()
        """When the dispatcher last looked for work: old only when the event loop or the dispatcher is stuck."""

    def add(self, key: K) -> None:
        """See ``Schedule.add``."""
        self._schedule.add(key, self._clock())
        self._wake.set()

    def add_behind(self, key: K) -> None:
        """See ``Schedule.add_behind``."""
        self._schedule.add_behind(key, self._clock())
        self._wake.set()

    def add_after(self, key: K, delay_seconds: float) -> None:
        """See ``Schedule.add_after``."""
        self._schedule.add_after(key, delay_seconds, self._clock())
        self._wake.set()

    async def run(self, work: Work[K], workers: int) -> None:
        """Serve keys until ``stop``. A slow key holds one worker and no other key."""
        while not self._stopping:
            while len(self._tasks) < workers and (taken := self._schedule.take(self._clock())) is not None:
                key, age = taken
                if self._measured:
                    QUEUE_AGE_SECONDS.observe(age)
                task = asyncio.create_task(self._serve(key, work))
                self._tasks.add(task)
                task.add_done_callback(self._release)
            await self._sleep(full=len(self._tasks) >= workers)

    async def stop(self, grace_seconds: float) -> None:
        """Take no more keys, let those in hand finish for that long, then cancel them. Safe: every pass may be cut off."""
        self._stopping = True
        self._wake.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _serve(self, key: K, work: Work[K]) -> None:
        try:
            again_after = await work(key)
        except Retry as why:
            self._fail(key, logging.WARNING, why)
        except Exception as error:  # noqa: BLE001 - a worker's boundary: one key's mistake must not end the others
            self._fail(key, logging.ERROR, error)
        else:
            self._schedule.succeed(key)
            if again_after is not None:
                self._schedule.add_after(key, again_after, self._clock())
        finally:
            self._schedule.finish(key, self._clock())

    def _release(self, task: asyncio.Task[None]) -> None:
        """A worker is free only now: waking the dispatcher any earlier would show it all workers busy."""
        self._tasks.discard(task)
        self._wake.set()

    def _fail(self, key: K, level: int, error: Exception) -> None:
        delay = self._schedule.fail(key, self._clock(), self._chance())
        # The trace is for mistakes of ours; an expected reason is a sentence.
        trace = error if level == logging.ERROR else None
        _log.log(level, "trying again", exc_info=trace, extra={"key": str(key), "again_after_seconds": round(delay, 1), "error": str(error)})

    async def _sleep(self, *, full: bool) -> None:
        """Until something was added or finished, or a delayed key is due; waking now and then anyway keeps ``served_at`` fresh."""
        now = self.served_at = self._clock()
        if self._measured:
            for gauge, value in zip((QUEUE_DEPTH, QUEUE_DELAYED, QUEUE_RUNNING), self._schedule.counts, strict=True):
                gauge.set(value)
        due = self._schedule.next_due()
        pause = self._idle_seconds if full or due is None else min(self._idle_seconds, max(0.0, due - now))
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
