"""An hour of other people's services, as their Prometheus has it: each a way in which a query for the 99th percentile goes wrong.

Latencies are spread evenly over a log-normal distribution, without chance: what is right can be worked out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

STEP_SECONDS, STEPS, WINDOW_SECONDS = 15, 240, 900
FINE = (0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
DEFAULT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The Python client's."""
SCATTER = 617
"""A stride without a common divisor with the number of requests: neighbours in time are no neighbours in latency."""


def spread_latencies(count: int, median_seconds: float, sigma: float) -> list[float]:
    """So many latencies of the distribution, in scattered order."""
    sorted_ones = [median_seconds * math.exp(sigma * NormalDist().inv_cdf((index + 0.5) / count)) for index in range(count)]
    return [sorted_ones[index * SCATTER % count] for index in range(count)]


@dataclass(frozen=True)
class Service:
    """One histogram over the hour."""

    metric: str
    labels: str
    per_step: int
    median_seconds: float = 0.02
    sigma: float = 0.35
    edges: tuple[float, ...] = FINE
    dropped: frozenset[str] = frozenset()
    reset_before_end_seconds: int = 0
    empty_infinity: bool = False
    respelled_before_end_seconds: int = 0
    initial: int = field(default=4000)

    def write(self, end: int) -> Iterator[str]:
        """Lines of OpenMetrics, series by series."""
        requests = self._requests()
        for edge in (*self.edges, math.inf):
            if f"{edge:g}" not in self.dropped:
                counts = [sum(latency <= edge for latency in step) for step in requests]
                counted = [0] * len(counts) if self.empty_infinity and math.isinf(edge) else counts
                yield from self._write_bucket(edge, counted, end)
        yield from self._write_series("count", "", [float(len(step)) for step in requests], end)
        yield from self._write_series("sum", "", [sum(step) for step in requests], end, initial=500.0)

    def _requests(self) -> list[list[float]]:
        """What was served in each step; each window of fifteen minutes has the whole distribution."""
        in_window = spread_latencies(WINDOW_SECONDS // STEP_SECONDS * self.per_step, self.median_seconds, self.sigma)
        size = max(1, len(in_window))
        return [[in_window[(step * self.per_step + index) % size] for index in range(self.per_step)] for step in range(STEPS + 1)]

    def _write_bucket(self, edge: float, counts: Sequence[float], end: int) -> Iterator[str]:
        plain, precise = ("+Inf", "+Inf") if math.isinf(edge) else (f"{edge:g}", repr(edge))
        initial = 0.0 if self.empty_infinity and math.isinf(edge) else None
        lines = list(self._write_series("bucket", f',le="{plain}"', counts, end, initial=initial))
        changed = STEPS - self.respelled_before_end_seconds // STEP_SECONDS if self.respelled_before_end_seconds else STEPS
        renamed = [line.replace(f'le="{plain}"', f'le="{precise}"') for line in lines[changed + 1 :]]
        yield from (*lines[: changed + 1], *renamed)

    def _write_series(self, part: str, label: str, gained: Sequence[float], end: int, *, initial: float | None = None) -> Iterator[str]:
        value = float(self.initial) if initial is None else initial
        reset = STEPS - self.reset_before_end_seconds // STEP_SECONDS if self.reset_before_end_seconds else -1
        for step, gain in enumerate(gained):
            value = (0.0 if step == reset else value) + gain
            yield f"{self.metric}_{part}{{{self.labels}{label}}} {value:.6f} {end - (STEPS - step) * STEP_SECONDS}"


def pod(name: str, more: str = "") -> str:
    """Labels of one pod of a namespace of its own service."""
    return f'namespace="{name}",pod="{name}-7d9f-abcde"{more}'


SERVICES = (
    Service("demo_latency_seconds", pod("idle"), 0),
    Service("demo_latency_seconds", pod("no-inf"), 30, dropped=frozenset({"inf"})),
    Service("demo_latency_seconds", pod("inf-zero"), 30, empty_infinity=True),
    Service("demo_latency_seconds", pod("versions", ',version="1"'), 0),
    Service("demo_latency_seconds", pod("versions", ',version="2"'), 30, median_seconds=0.021),
    Service("demo_latency_seconds", pod("restarted"), 30, median_seconds=0.021, reset_before_end_seconds=420),
    Service("demo_latency_seconds", pod("replicated", ',prometheus_replica="a"'), 30, median_seconds=0.021),
    Service("demo_latency_seconds", pod("replicated", ',prometheus_replica="b"'), 30, median_seconds=0.021),
    Service("demo_request_seconds", pod("respelled"), 20, median_seconds=0.12, sigma=0.85, edges=DEFAULT, respelled_before_end_seconds=420),
    Service(":tensorflow:serving:request_latency", pod("colon", ',model_name="ocr"'), 30, median_seconds=21_000.0, edges=tuple(e * 1e6 for e in FINE)),
)


def write_history(end: int) -> str:
    """OpenMetrics of all services, and a summary whose server has been idle for twenty minutes."""
    lines = [line for service in SERVICES for line in service.write(end)]
    for step in range(STEPS + 1):
        value = f"{21_000 + step}" if step <= STEPS - 80 else "NaN"
        lines.append(f'nv_inference_request_summary_us{{{pod("summary")},model="m",quantile="0.99"}} {value} {end - (STEPS - step) * STEP_SECONDS}')
    return "\n".join((*lines, "# EOF\n"))
