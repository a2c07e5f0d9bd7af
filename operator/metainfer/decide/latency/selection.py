"""Which of the answered series are the requests in question: one metric, one model, one version, each process once. Pure.

A version that is loaded and idle is never averaged with the one that serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metainfer.decide.latency.growth import Growth, sum_growth
from metainfer.decide.latency.series import ServedSeries
from metainfer.decide.latency.sources import LatencyMetric, LatencySource
from metainfer.decide.latency.streams import Stream, build_streams, drop_doubled

MIN_REQUESTS = 1000
"""The 99th percentile of 1000 requests has a standard error of 3 to 6 %: enough below a drift of 20 %. With 100 it has 9 to 19 %."""
DETECTABLE_INCREASE_PERCENT = 20
"""The drift that has to be seen."""


@dataclass(frozen=True, slots=True)
class LatencyQuestion:
    """Whose latency, and how sure it has to be."""

    source: LatencySource
    model: str = ""
    """By the server's own name; empty = the only one there is."""
    min_requests: int = MIN_REQUESTS
    detectable_increase_percent: int = DETECTABLE_INCREASE_PERCENT
    restarts: Mapping[str, int] | None = None
    """Pod -> containers that were restarted in the window; None or left out = not known, one is believed."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The series that count, and what was left out."""

    metric: LatencyMetric
    streams: tuple[Stream, ...]
    growth: Growth
    doubled: int = 0
    """Series left out because another one tells the same process."""
    models: tuple[str, ...] = ()
    """Models that the streams are of; more than one = it is not known whose requests these are."""
    other_models: tuple[str, ...] = ()
    version: str = ""
    other_versions: Mapping[str, float] | None = None
    """Version -> requests, of those that were left out."""


def select_streams(question: LatencyQuestion, served: ServedSeries) -> Selection:
    """Of the source's metrics the first with requests, else the first with series, else the first."""
    selections = [_select(question, served, metric) for metric in question.source.metrics]
    with_requests = (selection for selection in selections if selection.growth.requests > 0 or any(stream.quantiles for stream in selection.streams))
    with_series = (selection for selection in selections if selection.streams or selection.other_models)
    return next(with_requests, None) or next(with_series, None) or selections[0]


def _select(question: LatencyQuestion, served: ServedSeries, metric: LatencyMetric) -> Selection:
    counted = [stream for stream in build_streams(served.series, metric) if _counts(stream, question.source)]
    once = drop_doubled(counted)
    of_model, others = _split_models(question, once)
    versions = _by_version(question.source, of_model)
    growths = {version: sum_growth(streams, served, metric.unit_us) for version, streams in versions.items()}
    version = max(growths, key=lambda name: growths[name].requests, default="")
    streams = tuple(versions.get(version, ()))
    return Selection(
        metric=metric,
        streams=streams,
        growth=growths.get(version, Growth()),
        doubled=len(counted) - len(once),
        models=_busy_models(question.source, streams, served),
        other_models=others,
        version=version,
        other_versions={name: growth.requests for name, growth in growths.items() if name != version},
    )


def _counts(stream: Stream, source: LatencySource) -> bool:
    return all(stream.labels.get(label, "") in ("", *values) for label, values in source.only.items())


def _split_models(question: LatencyQuestion, streams: Sequence[Stream]) -> tuple[list[Stream], tuple[str, ...]]:
    """Streams of the model asked for, and the names of the others."""
    label = question.source.model_label
    if not label or not question.model:
        return list(streams), ()
    wanted = [stream for stream in streams if stream.labels.get(label, question.model) == question.model]
    return wanted, tuple(sorted({stream.labels[label] for stream in streams if stream.labels.get(label, question.model) != question.model}))


def _by_version(source: LatencySource, streams: Sequence[Stream]) -> dict[str, list[Stream]]:
    versions: dict[str, list[Stream]] = {}
    for stream in streams:
        versions.setdefault(stream.labels.get(source.version_label, "") if source.version_label else "", []).append(stream)
    return versions


def _busy_models(source: LatencySource, streams: Sequence[Stream], served: ServedSeries) -> tuple[str, ...]:
    busy = (stream for stream in streams if sum_growth([stream], served, 1.0).requests > 0)
    return tuple(sorted({stream.labels[source.model_label] for stream in busy if source.model_label in stream.labels}))
