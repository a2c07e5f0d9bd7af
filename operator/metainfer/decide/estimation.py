"""From benchmark runs to figures that compare across runs, nodes and families. Pure.

Within a run, candidate and reference alternate, so their ratio is free of whatever the node did meanwhile. What the ratio is
multiplied with, the *reference level*, is the median over all runs that share the reference (the family's fp32, one request at a
time, on the same provider), each first freed of the card's state at that moment (micro-probe against the one in the portrait) and
of what makes the instance untypical (correction factor).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from metainfer.decide.evidence import find_broken, is_another_computation, is_figure
from metainfer.decide.facts import Candidate, Portrait, RunResult
from metainfer_probe.contract import BenchReport, Measured

PROCESS_LOG_SIGMA = 0.02
"""What a fresh process adds to an interleaved ratio (memory layout, thread placement): rounds do not average it away."""
LEVEL_LOG_SIGMA = 0.06
"""Latency between fresh processes after correction by the micro-probe: 2-10 % were measured, over 18 models 7 % on average."""
STATE_TRUST = 0.5
"""Exponent of the card's state: the micro-probe has an error of its own, so the state behind it is nearer to typical than it says. On 370
runs of one reference that differed by 7.2 %, division by a micro-probe of 0.3 s (which differed by 9.4 %) left 9.3 %, by its root 6.9 %;
the best exponent, 0.3, left 6.6 %. Jobs probe for 2 s, which is steadier."""
UNANCHORED_LOG_SIGMA = 0.10
"""Added where the instance has no portrait or the run no micro-probe: its state is then part of the figure."""
UNPAIRED_LOG_SIGMA = 0.08
"""Instead of a ratio's spread where the reference has no figures: latencies of fresh processes differ 4-9 %."""
STATE_LIMIT = 1.5
"""A card that seems more than half again as fast or slow as in its portrait was not measured well: the correction stops there."""
SPREAD_LIMIT_PERMILLE = 10_000
"""Rounds that differ tenfold say nothing; more doubt than that makes no difference."""
FACTOR_LIMIT = 4.0
"""Bound of a correction factor; beyond it the card is not of this family."""
_IQR_OF_NORMAL = 1.349
_MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median over that of a mean."""

Level = tuple[str, str, str]
"""Pool, family, provider: runs that share a reference."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one candidate does on its family's typical card."""

    p50_us: float
    p99_us: float
    throughput_per_second: float
    log_sigma: float
    """Of the figures against others of the same level."""
    level_log_sigma: float
    """Of the level itself: counts only against figures of another level."""
    level: Level

    @property
    def total_log_sigma(self) -> float:
        """Against the truth."""
        return math.hypot(self.log_sigma, self.level_log_sigma)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A usable run with the reference's latency on the family's typical card, in its portrait's state."""

    run: RunResult
    report: BenchReport
    measured: Measured
    level_mean_us: float
    is_anchored: bool

    @property
    def level(self) -> Level:
        return level_of(self.run.candidate)


@dataclass(frozen=True, slots=True)
class _ReferenceLevel:
    mean_us: float
    log_sigma: float


def level_of(candidate: Candidate) -> Level:
    """The reference that the candidate's runs are measured against."""
    return (candidate.pool, candidate.family, candidate.config.execution_provider)


def difference_log_sigma(left: Estimate, right: Estimate) -> float:
    """Standard deviation of log(left / right): the level's own error cancels where they share it."""
    if left.level == right.level:
        return math.hypot(left.log_sigma, right.log_sigma)
    return math.hypot(left.total_log_sigma, right.total_log_sigma)


def estimates(runs: Sequence[RunResult], portraits: Mapping[str, Portrait]) -> Mapping[Candidate, Estimate]:
    """Figures per candidate with at least one run that is a result; several runs of one are averaged by their precision."""
    anchored = [_anchor(run, run.report, run.report.candidate, portraits) for run in runs if _is_result(run) and run.report and run.report.candidate]
    levels = {key: _reference_level([item for item in anchored if item.level == key]) for key in {item.level for item in anchored}}
    parts: dict[Candidate, list[Estimate]] = {}
    for item in anchored:
        parts.setdefault(item.run.candidate, []).append(_estimate(item, levels[item.level]))
    return {candidate: _average(items) for candidate, items in parts.items()}


def _is_result(run: RunResult) -> bool:
    return find_broken(run) is None and not is_another_computation(run)


def _anchor(run: RunResult, report: BenchReport, measured: Measured, portraits: Mapping[str, Portrait]) -> _Anchored:
    own = _mean_us(report.reference)
    if own is None:
        own = measured.mean_us
    speed, is_anchored = _instance_speed(report, portraits.get(run.node))
    return _Anchored(run, report, measured, own * speed, is_anchored)


def _instance_speed(report: BenchReport, portrait: Portrait | None) -> tuple[float, bool]:
    """The card's speed at that moment against the family's typical card (state x correction factor), and whether both are known."""
    factor = 1.0
    if portrait is not None and portrait.status.correction_factor_permille > 0:
        factor = _clip(portrait.status.correction_factor_permille / 1000, FACTOR_LIMIT)
    gflops = report.micro.gflops if report.micro is not None else 0.0
    if portrait is None or portrait.status.micro_megaflops <= 0 or not is_figure(gflops):
        return factor, False
    return factor * _clip(gflops * 1000 / portrait.status.micro_megaflops, STATE_LIMIT) ** STATE_TRUST, True


def _reference_level(items: Sequence[_Anchored]) -> _ReferenceLevel:
    """Median over runs; its error from the runs' own spread, never below what fresh processes differ by."""
    paired = [item for item in items if _mean_us(item.report.reference) is not None] or list(items)
    logs = [math.log(item.level_mean_us) for item in paired]
    middle = median(logs)
    spread = max(LEVEL_LOG_SIGMA, 1.4826 * median(abs(value - middle) for value in logs)) / math.sqrt(len(logs))
    blind = 0.0 if all(item.is_anchored for item in paired) else UNANCHORED_LOG_SIGMA
    return _ReferenceLevel(math.exp(middle), math.hypot(spread, blind))


def _estimate(item: _Anchored, level: _ReferenceLevel) -> Estimate:
    """The candidate's own quantiles, moved so that its mean is ratio x level; throughput moves the other way (Little's law)."""
    reference_mean_us = _mean_us(item.report.reference)
    if reference_mean_us is None:
        scale, sigma = item.level_mean_us / item.measured.mean_us, UNPAIRED_LOG_SIGMA
    else:
        permille = item.report.latency_ratio_permille
        ratio = permille / 1000 if is_figure(permille) else item.measured.mean_us / reference_mean_us
        scale, sigma = ratio * level.mean_us / item.measured.mean_us, _ratio_log_sigma(item.report)
    return Estimate(
        p50_us=item.measured.p50_us * scale,
        p99_us=item.measured.p99_us * scale,
        throughput_per_second=item.measured.throughput_per_second / scale,
        log_sigma=sigma,
        level_log_sigma=level.log_sigma,
        level=item.level,
    )


def _ratio_log_sigma(report: BenchReport) -> float:
    """Standard error of the median ratio over rounds, from its interquartile range, and what a fresh process adds."""
    spread = min(report.latency_ratio_spread_permille, SPREAD_LIMIT_PERMILLE) / 1000
    return math.hypot(PROCESS_LOG_SIGMA, _MEDIAN_EFFICIENCY * spread / _IQR_OF_NORMAL / math.sqrt(max(1, report.rounds)))


def _average(items: Sequence[Estimate]) -> Estimate:
    """Mean of the logs, weighted by 1 / sigma^2."""
    weights = [1 / item.log_sigma**2 for item in items]
    return Estimate(
        p50_us=_log_mean((item.p50_us for item in items), weights),
        p99_us=_log_mean((item.p99_us for item in items), weights),
        throughput_per_second=_log_mean((item.throughput_per_second for item in items), weights),
        log_sigma=math.sqrt(1 / sum(weights)),
        level_log_sigma=items[0].level_log_sigma,
        level=items[0].level,
    )


def _log_mean(values: Iterable[float], weights: Sequence[float]) -> float:
    return math.exp(math.fsum(weight * math.log(value) for value, weight in zip(values, weights, strict=True)) / math.fsum(weights))


def _mean_us(measured: Measured | None) -> float | None:
    return measured.mean_us if measured is not None and is_figure(measured.mean_us) else None


def _clip(value: float, limit: float) -> float:
    return max(1 / limit, min(limit, value))
