from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.latency.make_served import BASE, START, STEP, make_points

from metainfer.decide.latency.growth import sum_growth
from metainfer.decide.latency.series import ServedSeries
from metainfer.decide.latency.sources import histogram
from metainfer.decide.latency.streams import build_streams

STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=2, max_size=40)
"""Fast and slow requests of each step, and whether the process restarted before it."""


@given(STEPS, st.integers(1, 10_000))
def test_restarts_lose_and_invent_nothing(steps: list[tuple[int, int, bool]], initial: int) -> None:
    """Whatever the counters stood at: what was counted in the window is the sum of what was served, as far as a restart shows."""
    fast, slow, total = [initial], [initial], [2 * initial]
    for few, many, restarted in steps:
        begin = (0, 0) if restarted else (fast[-1], slow[-1])
        fast.append(begin[0] + few)
        slow.append(begin[1] + many)
        total.append(fast[-1] + slow[-1])
    # A restart after which a process serves more within one step than in all its life before leaves no trace in any counter.
    traced = [restarted and (fast[place + 1] < fast[place] or total[place + 1] < total[place]) for place, (_, _, restarted) in enumerate(steps)]
    series = [make_points(f"{BASE}_bucket", *fast, le="0.1"), make_points(f"{BASE}_bucket", *total, le="+Inf"), make_points(f"{BASE}_count", *total)]
    served = ServedSeries(START, START + len(steps) * STEP)
    growth = sum_growth(build_streams(series, histogram(BASE)), served, unit_us=1e6)
    want = sum(after if seen else after - before for (before, after), seen in zip(itertools.pairwise(total), traced, strict=True))
    want_fast = sum(after if seen else after - before for (before, after), seen in zip(itertools.pairwise(fast), traced, strict=True))
    assert growth.requests == want
    assert growth.resets == ({"p-0": sum(traced)} if any(traced) else {})
    if growth.requests:
        assert growth.buckets[100_000.0] == want_fast


def test_what_was_counted_before_the_window_is_not_in_it() -> None:
    """The last sample before the start is where the counter stood; older ones do not matter, nor do later ones than the end."""
    series = [make_points(f"{BASE}_count", 5, 10, 30, 70, 150)]
    served = ServedSeries(START + 1.5 * STEP, START + 3 * STEP)
    assert sum_growth(build_streams(series, histogram(BASE)), served, unit_us=1e6).requests == 70 - 10
