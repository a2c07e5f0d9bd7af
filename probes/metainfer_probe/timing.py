"""Repeats a call for a while and keeps every time: quantiles need the tail, and a mean would hide it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

MIN_RUNS = 5
MAX_RUNS = 400
"""P99 of 400 runs has four runs beyond it; more would spend the budget on digits that the next run does not repeat."""


def time_calls(call: Callable[[int], object], seconds: float, *, min_runs: int = MIN_RUNS, max_runs: int = MAX_RUNS) -> list[float]:
    """Microseconds of ``call(0), call(1), …`` for about ``seconds``, at least ``min_runs`` of them."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < max_runs and (len(times) < min_runs or time.perf_counter() < end):
        start = time.perf_counter()
        call(len(times))
        times.append((time.perf_counter() - start) * 1e6)
    return times


BLOCK_SECONDS = 0.01
"""Longer than the period in which a CPU quota of a few milliseconds runs and stops, so that a block shows the quota; a
single short call would usually fall into the running part."""


def time_blocks(call: Callable[[], object], seconds: float, *, min_blocks: int = 3) -> list[float]:
    """Microseconds per call, averaged over blocks of at least ``BLOCK_SECONDS``, for about ``seconds``.

    The first call, which also finds out how many calls make a block, is not part of the answer.
    """
    start = time.perf_counter()
    call()
    per_block = max(1, round(BLOCK_SECONDS / max(time.perf_counter() - start, 1e-7)))
    blocks: list[float] = []
    end = time.perf_counter() + seconds
    while len(blocks) < min_blocks or time.perf_counter() < end:
        start = time.perf_counter()
        calls = 0
        while calls < per_block or time.perf_counter() - start < BLOCK_SECONDS:
            call()
            calls += 1
        blocks.append((time.perf_counter() - start) / calls * 1e6)
    return blocks


def time_parallel_calls(call: Callable[[int], object], callers: int, seconds: float) -> list[float]:
    """Microseconds per call while ``callers`` threads call at once; an exception of any of them is raised here."""
    times: list[float] = []
    problems: list[BaseException] = []
    barrier = threading.Barrier(callers)

    def loop(caller: int) -> None:
        try:
            barrier.wait()
            own = time_calls(lambda turn: call(caller + turn * callers), seconds)
            times.extend(own)
        except BaseException as problem:  # noqa: BLE001 - carried to the calling thread
            problems.append(problem)

    threads = [threading.Thread(target=loop, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return times


def quantile(times: list[float], percent: float) -> float:
    """A percentile, rounded to a tenth of a microsecond."""
    return round(float(np.percentile(times, percent)), 1)
