"""What can be wrong with a window's figures, each by name, in order. Pure: ``reading`` asks, and nobody acts on it here.

A finding says which figures it spoils. None of them means that a service is slow: no data is not bad data. ``DATA_RULES`` look at
what was answered, ``FIGURE_RULES`` at what came out of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from metainfer.decide.latency.quantiles import Quantile, find_coarse_bucket
from metainfer.decide.latency.selection import LatencyQuestion, Selection
from metainfer.decide.latency.series import ServedSeries

Figure = Literal["p99", "mean"]
BOTH: Final[tuple[Figure, ...]] = ("p99", "mean")
COUNT_ALLOWANCE: Final = 0.01
"""Share by which a histogram's count may differ from its +Inf bucket: scrapers that sum processes read them one after the other."""
BELIEVED_RESTARTS: Final = 1
"""Of a pod whose restarts are not known: a second one within minutes is more likely worker processes that answer in turn."""
NAMED: Final = 5
"""Pods, models or edges that a message lists."""


@dataclass(frozen=True, slots=True)
class LatencyFinding:
    """One thing to know about a window's figures."""

    reason: str
    message: str
    spoils: tuple[Figure, ...] = ()
    """Figures that must not be compared; none = it was put right, or is only worth knowing."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at."""

    question: LatencyQuestion
    served: ServedSeries
    selection: Selection
    p99: Quantile | None = None

    @property
    def base(self) -> str:
        """The metric, as a message names it."""
        metric = self.selection.metric
        return metric.quantile or metric.bucket.removesuffix("_bucket") or metric.sum

    @property
    def is_summary(self) -> bool:
        """Whether quantiles were found, expected or in place of buckets."""
        streams = self.selection.streams
        return self.selection.metric.shape == "Summary" or (any(stream.quantiles for stream in streams) and not any(stream.buckets for stream in streams))

    def not_numbers(self) -> frozenset[str]:
        """Counters with samples that are no numbers. A quantile is none whenever a server is idle."""
        return frozenset(part for stream in self.selection.streams for part in stream.not_numbers) - {"quantile"}


Rule = Callable[[Evidence], LatencyFinding | None]


def find_all(rules: tuple[Rule, ...], evidence: Evidence) -> tuple[LatencyFinding, ...]:
    """Every finding, in the rules' order."""
    return tuple(finding for rule in rules if (finding := rule(evidence)) is not None)


def _find_no_series(evidence: Evidence) -> LatencyFinding | None:
    if evidence.selection.streams:
        return None
    if evidence.selection.other_models:
        names = _listed(evidence.selection.other_models)
        return LatencyFinding("ModelNotServed", f"{evidence.base} tells nothing about model {evidence.question.model}, only about {names}", BOTH)
    switch = evidence.question.source.switch
    words = f"; the server tells latency only with {switch}" if switch else ""
    return LatencyFinding("NoLatencyData", f"none of {_listed(evidence.question.source.names)} has a sample in the window{words}", BOTH)


def _find_no_requests(evidence: Evidence) -> LatencyFinding | None:
    selection, start = evidence.selection, evidence.served.start_unix_seconds
    told = any(point.at_unix_seconds > start for stream in selection.streams for points in stream.quantiles for point in points)
    if not selection.streams or selection.growth.requests > 0 or told:
        return None
    return LatencyFinding("NoRequests", f"{evidence.base}: no request in {evidence.served.seconds:.0f} s, so its latency is unknown", BOTH)


def _find_several_models(evidence: Evidence) -> LatencyFinding | None:
    models = evidence.selection.models
    if len(models) < 2:
        return None
    words = f"{evidence.base} is of {len(models)} models ({_listed(models)}) that share the server: name the one that is meant"
    return LatencyFinding("SeveralModels", words, BOTH)


def _find_unshared_counters(evidence: Evidence) -> LatencyFinding | None:
    restarts = evidence.question.restarts or {}
    excess = {pod: count for pod, count in evidence.selection.growth.resets.items() if count > restarts.get(pod, BELIEVED_RESTARTS)}
    if not excess:
        return None
    pods = _listed(f"{pod or 'the server'} {count} times" for pod, count in excess.items())
    words = f"counters went back without a restart ({pods}): processes behind one port count for themselves. Let them share their metrics, or scrape each"
    return LatencyFinding("CountersUnshared", words, BOTH)


def _find_reset(evidence: Evidence) -> LatencyFinding | None:
    resets = evidence.selection.growth.resets
    if not resets or _find_unshared_counters(evidence) is not None:
        return None
    return LatencyFinding("CountersReset", f"counters began at 0 again where pods restarted: {_listed(resets)}")


def _find_not_a_number(evidence: Evidence) -> LatencyFinding | None:
    parts = evidence.not_numbers()
    spoiled: tuple[Figure, ...] = BOTH if parts & {"bucket", "count"} else ("mean",) if "sum" in parts else ()
    if not parts:
        return None
    return LatencyFinding("NotANumber", f"{evidence.base} has samples that are no numbers ({_listed(sorted(parts))}); they are left out", spoiled)


def _find_no_histogram(evidence: Evidence) -> LatencyFinding | None:
    counters, switch = evidence.selection.metric.shape == "Counters", evidence.question.source.switch
    if not evidence.selection.streams or not (counters or evidence.is_summary):
        return None
    words = f"; a histogram needs {switch}" if switch else ""
    if counters:
        return LatencyFinding("NoHistogram", f"{evidence.base} is a counter of time: it has a mean and no percentile{words}", ("p99",))
    return LatencyFinding("SummaryNotHistogram", f"{evidence.base} is a summary: percentiles of several processes cannot be joined{words}", ("p99",))


def _find_no_infinity(evidence: Evidence) -> LatencyFinding | None:
    growth = evidence.selection.growth
    histogram = evidence.selection.metric.shape == "Histogram" and not evidence.is_summary
    if not histogram or growth.requests <= 0 or math.inf in growth.buckets:
        return None
    words = f'the bucket le="+Inf" of {evidence.base} is missing, so no percentile can be had from it: look for a rule that drops it while scraping'
    return LatencyFinding("InfBucketMissing", words, ("p99",))


def _find_malformed(evidence: Evidence) -> LatencyFinding | None:
    growth = evidence.selection.growth
    for (edge, count), (wider, fewer) in itertools.pairwise(growth.buckets.items()):
        if fewer < count - 0.5:
            words = f"{fewer:.0f} requests within {_shown(wider)}, but {count:.0f} within {_shown(edge)}"
            return LatencyFinding("BucketsMalformed", f"{evidence.base} contradicts itself: {words}", BOTH)
    infinite = growth.buckets.get(math.inf)
    if infinite is not None and abs(infinite - growth.requests) > max(1.0, COUNT_ALLOWANCE * growth.requests):
        words = f'{infinite:.0f} requests in le="+Inf", {growth.requests:.0f} in {evidence.selection.metric.count}'
        return LatencyFinding("BucketsMalformed", f"{evidence.base} contradicts itself: {words}", BOTH)
    return None


def _find_no_total(evidence: Evidence) -> LatencyFinding | None:
    if evidence.selection.growth.requests <= 0 or evidence.selection.growth.total_us is not None:
        return None
    return LatencyFinding("SumMissing", f"{evidence.base} does not tell the time spent, so there is no mean to check its percentile with", ("mean",))


def _find_spelled_twice(evidence: Evidence) -> LatencyFinding | None:
    edges = sorted({edge for stream in evidence.selection.streams for edge in stream.spelled_twice})
    if not edges:
        return None
    words = f"buckets of {evidence.base} are spelled in two ways ({_listed(f'{edge:g} and {float(edge)}' for edge in edges)}); they were joined"
    return LatencyFinding("BucketSpelledTwice", words)


def _find_doubled(evidence: Evidence) -> LatencyFinding | None:
    doubled = evidence.selection.doubled
    words = f"{doubled} copies of {evidence.base} (replicated Prometheus, or two scrape jobs for one port) were left out"
    return LatencyFinding("SeriesDoubled", words) if doubled else None


def _find_other_versions(evidence: Evidence) -> LatencyFinding | None:
    others: Mapping[str, float] = evidence.selection.other_versions or {}
    if not others:
        return None
    words = _listed(f"{name or 'unnamed'} with {requests:.0f} requests" for name, requests in others.items())
    return LatencyFinding("OtherVersions", f"version {evidence.selection.version} serves; left out: {words}")


def _find_partial(evidence: Evidence) -> LatencyFinding | None:
    warnings = evidence.served.warnings
    return LatencyFinding("AnswerPartial", f"the source says that its answer is not whole: {_listed(warnings)}") if warnings else None


def _find_too_few(evidence: Evidence) -> LatencyFinding | None:
    requests, wanted = evidence.selection.growth.requests, evidence.question.min_requests
    if requests <= 0 or requests >= wanted:
        return None
    return LatencyFinding("TooFewRequests", f"{requests:.0f} requests in the window, {wanted} are needed: make the window longer", BOTH)


def _find_beyond(evidence: Evidence) -> LatencyFinding | None:
    if evidence.p99 is None or math.isfinite(evidence.p99.upper_us):
        return None
    words = f"the 99th percentile is above the highest bucket of {evidence.base} ({_shown(evidence.p99.lower_us)}): add higher buckets"
    return LatencyFinding("P99BeyondBuckets", words, ("p99",))


def _find_unresolvable(evidence: Evidence) -> LatencyFinding | None:
    if evidence.p99 is None:
        return None
    percent = evidence.question.detectable_increase_percent
    coarse = find_coarse_bucket(evidence.selection.growth.buckets, evidence.p99, percent)
    if coarse is None:
        return None
    bucket = f"{_shown(coarse[0])} and {_shown(coarse[1])}"
    words = f"{evidence.base} has no bucket edge between {bucket}, so {percent} % more cannot be told from no change: add edges there"
    return LatencyFinding("LatencyUnresolvable", words, ("p99",))


def _shown(microseconds: float) -> str:
    if math.isinf(microseconds):
        return "+Inf"
    return f"{microseconds / 1e6:g} s" if microseconds >= 1e6 else f"{microseconds / 1e3:g} ms"


def _listed(names: Iterable[str]) -> str:
    words = list(names)
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")


DATA_RULES: Final[tuple[Rule, ...]] = (
    _find_no_series,
    _find_no_requests,
    _find_several_models,
    _find_unshared_counters,
    _find_not_a_number,
    _find_no_histogram,
    _find_no_infinity,
    _find_malformed,
    _find_no_total,
    _find_reset,
    _find_spelled_twice,
    _find_doubled,
    _find_other_versions,
    _find_partial,
)
"""What makes a figure impossible first, then what was put right."""
FIGURE_RULES: Final[tuple[Rule, ...]] = (_find_too_few, _find_beyond, _find_unresolvable)
"""What makes a figure useless although it can be had."""
