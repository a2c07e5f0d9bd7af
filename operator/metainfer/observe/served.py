"""Served latency in the background: a pass takes what is known and goes on; what is due is read meanwhile, and wakes the next pass.

Windows end at fixed times by the adaptation's UID, so that a restarted operator reads the same ones and a fleet does not ask at one
moment. Prometheus remembers: windows that were missed are read later. Pods do not: after a restart their first window has to pass.
Nothing here is judged, and nothing is kept that cannot be read again or waited for.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import AdaptationFacts, PodFacts
from metainfer.decide.keeping.baselines import LONG_FACTOR
from metainfer.decide.keeping.before import count_compared
from metainfer.decide.latency.order import LatencyOrder, LatencyRules, choose_order
from metainfer.decide.latency.series import Scrape, ServedSeries, join_scrapes
from metainfer.decide.latency.served import LatencyProblem, ServedFacts, ServedWindow
from metainfer.decide.latency.target import ServedTarget
from metainfer.decide.names import hash_share
from metainfer.observe.latency_http import LatencySourceError
from metainfer.observe.served_reading import find_target, read_window

READS_AT_ONCE = 8
"""Adaptations whose sources are asked at the same time."""
LAG_SECONDS, LAG_SHARE = 15.0, 0.25
"""After a window's end, for its last scrape to arrive where it is read; less for short windows."""
RETRY_SECONDS = 60.0
"""After a source that did not answer."""
SCRAPES_PER_WINDOW = 4
"""Of the pods' pages: between two scrapes counters may go back unseen."""
FORGOTTEN_SECONDS = 7200.0
"""Besides two windows: for how long nobody has looked at what is then dropped."""

_log = logging.getLogger(__name__)
Wake = Callable[[str, str], None]
"""Asks for a pass over the adaptation of this namespace and name."""


class AsksLatency(Protocol):
    """The sources: ``served_sources.LatencySources``. Both raise LatencySourceError, within seconds."""

    async def read_window(self, url: str, target: ServedTarget, *, start_unix_seconds: float, end_unix_seconds: float) -> ServedSeries:
        """From a Prometheus; an empty URL is the operator's own."""
        ...

    async def scrape(self, target: ServedTarget) -> Scrape:
        """From the pods."""
        ...


@dataclass(slots=True)
class _Course:
    """What is known of one adaptation under one decision and order."""

    order: LatencyOrder
    decision_id: str
    offset_seconds: float
    windows: dict[float, ServedWindow] = field(default_factory=dict)
    """By their end."""
    scrapes: list[Scrape] = field(default_factory=list)
    problem: LatencyProblem | None = None
    task: asyncio.Task[None] | None = None
    looked_at: float = 0.0
    retry_at: float = 0.0

    @property
    def lag_seconds(self) -> float:
        return 0.0 if self.order.scrapes else min(LAG_SECONDS, LAG_SHARE * self.order.window_seconds)

    @property
    def step_seconds(self) -> float:
        """Between two readings of the source."""
        return self.order.window_seconds / (SCRAPES_PER_WINDOW if self.order.scrapes else 1)

    def last_step(self, now: float) -> float:
        """The newest time at which something could be read."""
        return math.floor((now - self.lag_seconds - self.offset_seconds) / self.step_seconds) * self.step_seconds + self.offset_seconds

    @property
    def kept(self) -> int:
        """Windows that are known at most."""
        return LONG_FACTOR * self.order.windows

    def keep(self, ends: float, window: ServedWindow) -> None:
        self.windows[ends] = window
        for old in sorted(self.windows)[: -self.kept]:
            del self.windows[old]


class ServedReader:
    """Keeps the last windows of every adaptation that somebody looks at. ``clock`` gives Unix seconds."""

    def __init__(self, sources: AsksLatency, rules: LatencyRules, wake: Wake, clock: Callable[[], float]) -> None:
        self._sources, self._rules, self._wake, self._clock = sources, rules, wake, clock
        self._courses: dict[str, _Course] = {}
        self._room = asyncio.Semaphore(READS_AT_ONCE)

    def look(self, adaptation: AdaptationFacts, pods: Sequence[PodFacts], group: str = "") -> ServedFacts:
        """What is known now; starts reading what is due. Never waits. ``group``: other pods than the target's, in the same windows."""
        now = self._clock()
        self._forget(now)
        order = choose_order(adaptation.spec, self._rules)
        if isinstance(order, LatencyProblem):
            self._drop(adaptation.uid + group)
            return ServedFacts(problem=order)
        course = self._course(adaptation, order, group)
        course.looked_at = now
        target = find_target(adaptation.namespace, pods, order)
        due = (*self._find_due(course, _began(adaptation), now), *_find_earlier(course, adaptation)) if target.pods else ()
        if due and course.task is None and now >= course.retry_at:
            read = partial(self._scrape, course, target, pods) if order.scrapes else partial(self._read, course, target, pods, due)
            course.task = asyncio.create_task(self._run(course, read, adaptation))
        next_at = max(course.last_step(now) + course.step_seconds + course.lag_seconds, course.retry_at)
        windows = tuple(course.windows[end] for end in sorted(course.windows))
        return ServedFacts(windows, course.problem, datetime.fromtimestamp(next_at, UTC))

    async def settle(self) -> None:
        """Wait until nothing is being read."""
        while tasks := [course.task for course in self._courses.values() if course.task is not None]:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stop reading."""
        for uid in tuple(self._courses):
            self._drop(uid)
        await asyncio.sleep(0)

    def _course(self, adaptation: AdaptationFacts, order: LatencyOrder, group: str) -> _Course:
        decided = adaptation.status.recommendation
        decision_id = decided.decision_id if decided is not None else ""
        known = self._courses.get(adaptation.uid + group)
        if known is not None and (known.order, known.decision_id) == (order, decision_id):
            return known
        self._drop(adaptation.uid + group)
        course = self._courses[adaptation.uid + group] = _Course(order, decision_id, hash_share(adaptation.uid, "served") * order.window_seconds)
        return course

    def _find_due(self, course: _Course, began: float, now: float) -> Iterator[float]:
        """Ends of the windows to read, newest first; of scrapes only whether one is due."""
        newest, order = course.last_step(now), course.order
        if began == math.inf:
            return
        if order.scrapes:
            if not course.scrapes or course.scrapes[-1].at_unix_seconds < newest:
                yield newest
            return
        for index in range(course.kept):
            ends = newest - index * order.window_seconds
            if ends not in course.windows and ends - order.window_seconds >= began:
                yield ends

    async def _run(self, course: _Course, read: Callable[[], Awaitable[bool]], adaptation: AdaptationFacts) -> None:
        news = True
        try:
            async with self._room:
                news = await read()
        except LatencySourceError as error:
            news = course.problem is None or course.problem.reason != error.reason
            course.problem = LatencyProblem(error.reason, error.message)
            course.retry_at = self._clock() + min(RETRY_SECONDS, course.order.window_seconds)
        except Exception:  # noqa: BLE001 - a defect of ours in reading what others answer must cost this reading only
            _log.exception("served latency could not be read", extra={"object": f"{adaptation.namespace}/{adaptation.name}"})
            course.problem = LatencyProblem("ReadingFailed", "the latency could not be read because of a defect in the operator; its log has the trace")
            course.retry_at = self._clock() + RETRY_SECONDS
        finally:
            course.task = None
        if news:
            self._wake(adaptation.namespace, adaptation.name)

    async def _read(self, course: _Course, target: ServedTarget, pods: Sequence[PodFacts], ends: Sequence[float]) -> bool:
        for end in ends:
            start = end - course.order.window_seconds
            series = await self._sources.read_window(course.order.url, target, start_unix_seconds=start, end_unix_seconds=end)
            course.keep(end, await asyncio.to_thread(read_window, course.order, series, pods))
            course.problem = None
        return True

    async def _scrape(self, course: _Course, target: ServedTarget, pods: Sequence[PodFacts]) -> bool:
        """One look at the pages; whether it completes a window."""
        course.scrapes = _still_useful(course, await self._sources.scrape(target))
        cleared, course.problem = course.problem is not None, None
        series = join_scrapes(course.scrapes)
        if series.seconds < course.order.window_seconds - course.step_seconds / 2:
            return cleared
        window = await asyncio.to_thread(read_window, course.order, series, pods)
        course.keep(series.end_unix_seconds, window)
        course.scrapes = course.scrapes[-1:]
        return True

    def _forget(self, now: float) -> None:
        gone = [uid for uid, course in self._courses.items() if now - course.looked_at > 2 * course.order.window_seconds + FORGOTTEN_SECONDS]
        for uid in gone:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        course = self._courses.pop(uid, None)
        if course is not None and course.task is not None:
            course.task.cancel()


def _began(adaptation: AdaptationFacts) -> float:
    """Unix time before which nothing was served under the decision."""
    status = adaptation.status
    known = status.served is not None and status.recommendation is not None and status.served.decision_id == status.recommendation.decision_id
    if known and status.served is not None:
        return parse_time(status.served.settled_at).timestamp()
    return math.inf if status.recommendation is None else parse_time(status.recommendation.decided_at).timestamp()


def _find_earlier(course: _Course, adaptation: AdaptationFacts) -> Iterator[float]:
    """Ends of the last windows before the run, asked for while its decision is not made: later the pods of then are gone."""
    run, window = adaptation.status.run, course.order.window_seconds
    if course.order.scrapes or run is None or adaptation.status.recommendation is not None:
        return
    newest = math.floor((parse_time(run.started_at).timestamp() - course.offset_seconds) / window) * window + course.offset_seconds
    yield from (ends for index in range(count_compared(adaptation.spec)) if (ends := newest - index * window) not in course.windows)


def _still_useful(course: _Course, newest: Scrape) -> list[Scrape]:
    """With the new one, as long as no gap is so long that restarts in it would not be seen."""
    kept = course.scrapes
    if kept and newest.at_unix_seconds - kept[-1].at_unix_seconds > course.order.window_seconds:
        kept = []
    return [*kept, newest]
