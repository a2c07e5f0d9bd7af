"""From raw latencies to the figures of a report."""

from __future__ import annotations

import numpy as np

from metainfer_probe.figures import Run, summarise_pair
from metainfer_probe.load import Execution, LoadWindow


def make_window(*latencies_us: float) -> LoadWindow:
    """Four clients that are answered in turn, one execution per request."""
    latencies = np.array(latencies_us, np.float64)
    executions = tuple(Execution(requests=1, service_us=float(value), new_shape=False) for value in latencies)
    return LoadWindow(latencies, float(latencies.sum()) / 4e6, 0.1, executions, 0, None)


def test_a_bimodal_candidate_is_no_faster_than_its_throughput() -> None:
    """Every second request in half the time and the others late: a median would call it twice as fast."""
    even, bimodal = (10_000.0,) * 8, (5_000.0, 15_000.0) * 4
    candidate, reference = (Run(make_window(*first), 1 << 20, [make_window(*first)] * 3) for first in (bimodal, even))
    figures = summarise_pair(candidate, reference, ragged=False)
    assert (figures["latency_ratio_permille"], figures["latency_ratio_spread_permille"]) == (1000, 0)
