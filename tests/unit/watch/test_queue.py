"""The queue's rules, in virtual time, and its driver on a real event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metainfer.watch.queue import Backoff, Retry, Schedule, WorkQueue

KEYS = st.sampled_from("abc")
SECONDS = st.sampled_from([0.0, 0.1, 1.0, 5.0, 60.0])


class ScheduleMachine(RuleBasedStateMachine):
    """Workers, adders and a clock in any order, against a model that knows the latest time by which each key must run."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.schedule: Schedule[str] = Schedule(Backoff(base_seconds=1.0, limit_seconds=10.0))
        self.owed: dict[str, float] = {}  # key -> when it has to be due at the latest
        self.running: set[str] = set()
        self.failures: Counter[str] = Counter()

    def _owe(self, key: str, due: float) -> None:
        self.owed[key] = min(due, self.owed.get(key, due))

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.schedule.add(key, self.now)
        self._owe(key, self.now)

    @rule(key=KEYS)
    def add_behind(self, key: str) -> None:
        self.schedule.add_behind(key, self.now)
        self._owe(key, self.now)

    @rule(key=KEYS, delay=SECONDS)
    def add_after(self, key: str, delay: float) -> None:
        self.schedule.add_after(key, delay, self.now)
        self._owe(key, self.now + delay)

    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        taken = self.schedule.take(self.now)
        due = {key for key, at in self.owed.items() if at <= self.now and key not in self.running}
        if taken is None:
            assert not due
            return
        key, age = taken
        assert key in due
        assert age >= 0
        self.running.add(key)
        del self.owed[key]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.schedule.succeed(key)
        self._finish(key)
        self.failures[key] = 0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), chance=st.floats(0, 0.999))
    def fail(self, data: st.DataObject, chance: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.failures[key] += 1
        want = min(10.0, 2.0 ** (self.failures[key] - 1))
        delay = self.schedule.fail(key, self.now, chance)
        assert want / 2 <= delay <= want
        self._owe(key, self.now + delay)
        self._finish(key)

    def _finish(self, key: str) -> None:
        self.running.discard(key)
        self.schedule.finish(key, self.now)

    @invariant()
    def counts_what_runs(self) -> None:
        assert self.schedule.counts[2] == len(self.running)

    @invariant()
    def wakes_in_time(self) -> None:
        """A dispatcher that sleeps until the next due time misses nothing: what is owed later is delayed, not lost."""
        later = [at for key, at in self.owed.items() if at > self.now and key not in self.running]
        if later:
            due = self.schedule.next_due()
            assert due is not None
            assert due <= min(later)

    def teardown(self) -> None:
        """When adding ends, every key that is owed runs exactly once more, and then nothing is left."""
        for key in sorted(self.running):
            self.schedule.succeed(key)
            self._finish(key)
        self.now += 1000.0
        served: Counter[str] = Counter()
        while (taken := self.schedule.take(self.now)) is not None:
            served[taken[0]] += 1
            self.schedule.finish(taken[0], self.now)
        assert served == Counter(self.owed.keys())
        assert self.schedule.counts == (0, 0, 0)
        assert self.schedule.next_due() is None


ScheduleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedule = ScheduleMachine.TestCase


@given(st.integers(1, 5000), st.floats(0, 0.999))
def test_backoff_doubles_within_bounds(failures: int, chance: float) -> None:
    """A pause is at least half of its nominal one, and never above the limit, after any number of failures."""
    backoff = Backoff()
    nominal = min(backoff.limit_seconds, backoff.base_seconds * 2 ** min(failures - 1, 40))
    assert nominal / 2 <= backoff.delay_seconds(failures, chance) <= nominal
    assert backoff.delay_seconds(failures, 0.0) == nominal > backoff.delay_seconds(failures, 0.9)


def test_keys_are_served_in_the_order_in_which_they_became_due() -> None:
    """First due, first served; a delayed key takes its place when its time comes."""
    schedule: Schedule[str] = Schedule()
    schedule.add_after("later", 5.0, 0.0)
    schedule.add("first", 1.0)
    schedule.add("second", 2.0)
    schedule.add("first", 3.0)
    assert [schedule.take(10.0) for _ in range(4)] == [("first", 9.0), ("second", 8.0), ("later", 5.0), None]


def test_news_of_its_own_goes_before_everybody_and_one_in_four_is_of_the_others() -> None:
    """A key whose Job has ended does not wait behind all that wait for a card; neither line can hold up the other."""
    schedule: Schedule[str] = Schedule()
    for number in range(3):
        schedule.add_behind(f"crowd-{number}", 0.0)
    for number in range(5):
        schedule.add(f"news-{number}", 1.0)
    schedule.add("crowd-1", 2.0)
    order = ["news-0", "news-1", "news-2", "crowd-0", "news-3", "news-4", "crowd-1", "crowd-2"]
    assert [schedule.take(2.0) for _ in order] == [(name, 2.0 if name.startswith("crowd") else 1.0) for name in order]


def test_what_was_added_while_it_ran_keeps_the_better_place() -> None:
    """News of its own, then everybody's: it is still the first afterwards."""
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0.0)
    assert schedule.take(0.0) == ("a", 0.0)
    schedule.add("a", 1.0)
    schedule.add_behind("a", 1.0)
    schedule.add_behind("b", 1.0)
    schedule.finish("a", 2.0)
    assert [schedule.take(2.0) for _ in range(2)] == [("a", 0.0), ("b", 1.0)]


def test_an_earlier_time_wins_over_a_later_one() -> None:
    """A key with two due times runs at the earlier one, once."""
    schedule: Schedule[str] = Schedule()
    schedule.add_after("a", 60.0, 0.0)
    schedule.add_after("a", 5.0, 0.0)
    schedule.add_after("a", 30.0, 0.0)
    assert (schedule.take(4.9), schedule.take(5.0)) == (None, ("a", 0.0))
    schedule.finish("a", 5.0)
    assert schedule.take(1000.0) is None


@asynccontextmanager
async def _running(work: Callable[[str], Coroutine[Any, Any, float | None]], workers: int) -> AsyncIterator[WorkQueue[str]]:
    """A queue that never wakes by itself: a lost wake-up is a test that hangs, and the guard ends it."""
    queue: WorkQueue[str] = WorkQueue(Backoff(base_seconds=0.001, limit_seconds=0.002), idle_seconds=3600.0)
    async with asyncio.timeout(60.0):
        task = asyncio.create_task(queue.run(work, workers))
        yield queue
        await queue.stop(grace_seconds=30.0)
        await task


async def test_a_slow_key_does_not_hold_the_others() -> None:
    """While one key is stuck, other keys are served, and as many at a time as there are other workers."""
    release, served, together = asyncio.Event(), asyncio.Queue[str](), Counter[str]()

    async def work(key: str) -> None:
        together["now"] += 1
        together["most"] = max(together["most"], together["now"])
        if key == "slow":
            await release.wait()
        await asyncio.sleep(0)
        together["now"] -= 1
        served.put_nowait(key)

    async with _running(work, workers=3) as queue:
        queue.add("slow")
        for number in range(20):
            queue.add(f"fast-{number}")
        have = {await served.get() for _ in range(20)}
        release.set()
        assert await served.get() == "slow"
    assert have == {f"fast-{number}" for number in range(20)}
    assert together["most"] == 3


async def test_a_key_added_while_it_runs_runs_once_more() -> None:
    """However often it was added meanwhile, and never twice at the same time."""
    runs, active, started, again, release = 0, 0, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        nonlocal runs, active
        active += 1
        assert active == 1
        runs += 1
        (started if runs == 1 else again).set()
        await release.wait()
        active -= 1

    async with _running(work, workers=4) as queue:
        queue.add("a")
        await started.wait()
        for _ in range(10):
            queue.add("a")
        release.set()
        await again.wait()
    assert runs == 2


@pytest.mark.parametrize(("error", "want_level"), [(Retry("conflict"), "WARNING"), (KeyError("bug"), "ERROR")], ids=["asked for", "mistake"])
async def test_a_failure_is_tried_again_and_said_once(error: Exception, want_level: str, caplog: pytest.LogCaptureFixture) -> None:
    """The key comes back after the backoff; a reason is a sentence, a mistake of ours has its trace."""
    tries, done = 0, asyncio.Event()

    async def work(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise error
        done.set()

    with caplog.at_level(logging.WARNING):
        async with _running(work, workers=1) as queue:
            queue.add("a")
            await done.wait()
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [(want_level, want_level == "ERROR")]


async def test_a_result_schedules_the_next_look() -> None:
    """The number of seconds that work returns is when the key comes back without being added."""
    looks, done = 0, asyncio.Event()

    async def work(_: str) -> float | None:
        nonlocal looks
        looks += 1
        if looks == 3:
            done.set()
            return None
        return 0.001

    async with _running(work, workers=1) as queue:
        queue.add("a")
        await done.wait()
    assert looks == 3


async def test_stop_lets_work_in_hand_finish_and_takes_no_more() -> None:
    """What is in hand ends by itself within the grace, what waits is not begun."""
    began, finished = asyncio.Event(), []

    async def work(key: str) -> None:
        began.set()
        await asyncio.sleep(0.02)
        finished.append(key)

    queue: WorkQueue[str] = WorkQueue()
    task = asyncio.create_task(queue.run(work, workers=1))
    queue.add("a")
    queue.add("b")
    await began.wait()
    await queue.stop(grace_seconds=5.0)
    await task
    assert finished == ["a"]


async def test_stop_cuts_off_what_does_not_finish() -> None:
    """Past the grace the pass is cancelled: it may be killed at any line."""
    cancelled, began = asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    queue: WorkQueue[str] = WorkQueue()
    task = asyncio.create_task(queue.run(work, workers=1))
    queue.add("a")
    await began.wait()
    await queue.stop(grace_seconds=0.0)
    await task
    assert cancelled.is_set()
