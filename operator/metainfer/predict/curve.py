"""The measured curve of a model portrait, as corrections to the roofline. Knows nothing of questions or candidates.

The profile really ran the model at fp32 on one card: measured / predicted there is the efficiency that no peak shows. It carries
over to other cards of the same runtime, to neighbouring batch sizes, and with less confidence to other precisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from metainfer.decide.evidence import is_figure
from metainfer.predict.peaks import Peaks
from metainfer.predict.roofline import Execution, class_times_us, launch_times_us
from metainfer.predict.workload import CLASSES, Floats, Workload
from metainfer_probe.contract import CurvePoint, Precision

SHARE_LIMIT = 1000.0
"""Element-wise operators may take hundreds of times their traffic (erf, exp, one thread); beyond a thousand they were counted wrongly."""
SERIAL_LIMIT = 1.5
"""Parallel callers may get in each other's way, but not more than that beyond running one after the other."""
TAIL_LIMIT = 5.0
ONE_RUN_TAIL = 1.10
"""P99 over P50 of a card at rest that nobody measured."""
LOAD_TAIL = 0.5
"""Added per fully loaded neighbour: what shares a processor is delayed by time slices."""


@dataclass(frozen=True, slots=True)
class Home:
    """The card on which the profile ran."""

    peaks: Peaks
    """Of the provider in question."""
    work_peaks: Peaks
    """Of the provider on which the work was counted."""
    speed: float
    """Its speed then over its speed when the peaks were measured."""
    is_known: bool
    """False: the peaks are those of the card in question, related by micro-probes only."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What the curve adds to the roofline."""

    class_factors: Floats
    """Per operator class, so that the shares of time are those that were measured."""
    batches: tuple[float, ...] = ()
    log_ratios: tuple[float, ...] = ()
    """log(measured / predicted) at ``batches``; empty = no curve."""
    callers: tuple[float, ...] = (1.0,)
    slowdowns: tuple[float, ...] = (1.0,)
    """Latency with that many parallel callers over that of one."""
    tail: float | None = None
    """Median over the curve of P99 over the mean."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a curve at all."""
        return bool(self.batches)

    def ratio(self, batch: float) -> float:
        """Straight lines between measured batch sizes in log-log, level outside them."""
        if not self.batches:
            return 1.0
        return math.exp(float(np.interp(math.log(batch), np.log(self.batches), self.log_ratios)))

    def covers(self, batch: float) -> bool:
        """Whether the batch lies within what was measured."""
        return bool(self.batches) and self.batches[0] <= batch <= self.batches[-1]

    def slowdown(self, workers: int) -> float:
        """Of one execution while ``workers`` run on one card: as measured, and one after the other beyond the last measured point."""
        last = self.callers[-1]
        if workers > last:
            return self.slowdowns[-1] * workers / last
        return math.exp(float(np.interp(math.log(workers), np.log(self.callers), np.log(self.slowdowns))))


def build_correction(work: Workload, stored: Precision, curve: Sequence[CurvePoint], home: Home) -> Correction:
    """Correction by the fp32 points of one provider's curve; points without a usable time are left out."""
    points = [point for point in curve if is_figure(point.mean_us) and point.batch_size >= 1 and point.concurrency >= 1]
    factors = _class_factors(work, stored, home)
    single = _medians({(point.batch_size, point.mean_us) for point in points if point.concurrency == 1})
    batches = tuple(sorted(single))
    predicted = _predict(work, stored, home, factors, batches) if batches else ()
    callers, slowdowns = _slowdowns(points, single)
    return Correction(
        class_factors=factors,
        batches=tuple(float(batch) for batch in batches),
        log_ratios=tuple(math.log(single[batch] * home.speed / value) for batch, value in zip(batches, predicted, strict=True)),
        callers=callers,
        slowdowns=slowdowns,
        tail=_tail(points),
    )


def _class_factors(work: Workload, stored: Precision, home: Home) -> Floats:
    """Measured share over predicted share, per class; ones where the shares or the card are not known.

    They move time between classes, not the sum: what is memory-bound in truth does not become faster by int8 products.
    """
    ones = np.ones(len(CLASSES))
    if not home.is_known or work.time_share.sum() <= 0:
        return ones
    times = class_times_us([Execution(work, home.work_peaks, "fp32", stored, 1.0)])[0]
    share = np.divide(times, times.sum(), out=np.zeros_like(times), where=times.sum() > 0)
    factors = np.divide(work.time_share, share, out=ones, where=(share > 0) & (work.time_share > 0))
    return np.asarray(np.clip(factors, 1 / SHARE_LIMIT, SHARE_LIMIT), dtype=np.float64)


def _predict(work: Workload, stored: Precision, home: Home, factors: Floats, batches: Sequence[int]) -> tuple[float, ...]:
    executions = [Execution(work, home.peaks, "fp32", stored, float(batch)) for batch in batches]
    return tuple((class_times_us(executions) @ factors + launch_times_us(executions)).tolist())


def _slowdowns(points: Sequence[CurvePoint], single: Mapping[int, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parallel callers, each point against the single caller at the same batch; without points: one after the other."""
    parallel = [point for point in points if point.concurrency > 1 and point.batch_size in single]
    found = _medians({(point.concurrency, point.mean_us / single[point.batch_size]) for point in parallel})
    callers = (1, *sorted(found))
    slowdowns = [1.0]
    for index in range(1, len(callers)):
        serial = SERIAL_LIMIT * callers[index]
        slowdowns.append(max(slowdowns[-1], min(serial, found[callers[index]])))
    return tuple(float(count) for count in callers), tuple(slowdowns)


def _tail(points: Sequence[CurvePoint]) -> float | None:
    ratios = [point.p99_us / point.mean_us for point in points if is_figure(point.p99_us)]
    return max(1.0, min(TAIL_LIMIT, median(ratios))) if ratios else None


def _medians(pairs: set[tuple[int, float]]) -> Mapping[int, float]:
    keys = {key for key, _ in pairs}
    return {key: median(value for other, value in pairs if other == key) for key in keys}
