"""How far a candidate's answers are from fp32's on the same requests, at the batch that will serve.

Three numbers, all in ``accuracy``'s measure: fp32 against itself (a model that is not deterministic cannot be gated tighter
than that), fp32 joined against fp32 single (joining requests can be silently wrong), and the candidate, joined as it will
serve, against fp32 single (errors of dynamic int8 depend on the neighbours in the batch).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from metainfer_probe.accuracy import Comparison, join_outputs
from metainfer_probe.backends.base import Feeds, Inputs, ProbeError, Session
from metainfer_probe.batching import BATCH_TOLERANCE_PPM, compare_batch, take_samples
from metainfer_probe.contract import Accuracy
from metainfer_probe.inputs import batch_feeds
from metainfer_probe.model_file import ModelFile

COMPARED_REQUESTS = 32
SELF_COMPARED_REQUESTS = 4
TIME_SHARE = 0.25
"""Of the time left when it starts; at least one batch is compared all the same."""
_FATAL = ("BatchUnsupported", "BatchNotSeparable")
"""Reasons that leave nothing to measure; changed answers are a number, and the gate's business."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked for the comparison, in groups of ``batch_size``."""

    model: ModelFile
    inputs: Inputs
    batch_size: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """``per_output`` in graph order, parts of one."""

    accuracy: Accuracy
    per_output: tuple[float, ...]


@dataclass(slots=True)
class _Comparisons:
    itself: Comparison = field(default_factory=Comparison)
    batch: Comparison = field(default_factory=Comparison)
    candidate: Comparison = field(default_factory=Comparison)
    samples: int = 0


def assess_answers(truth: Session, candidate: Session, requests: Requests, left_seconds: float) -> Assessment:
    """Compare on up to ``COMPARED_REQUESTS`` requests, in groups of the serving batch (cycled to fill the last one).

    Raises ProbeError ``BatchUnsupported`` or ``BatchNotSeparable`` where a batch cannot be served, and what ``run`` raises.
    """
    stop = time.monotonic() + left_seconds * TIME_SHARE
    inputs, batch_size = requests.inputs, requests.batch_size
    if batch_size > 1:
        failure = compare_batch(truth, requests.model, take_samples(inputs.samples, batch_size), BATCH_TOLERANCE_PPM)
        if failure is not None and failure.reason in _FATAL:
            raise ProbeError(failure.reason, failure.message)
    sums = _Comparisons()
    for start in range(0, min(len(inputs.samples), COMPARED_REQUESTS), batch_size):
        group = take_samples(inputs.samples[start:] + inputs.samples[:start], batch_size)
        _compare_group(truth, candidate, group, sums)
        if time.monotonic() > stop:
            break
    difference = sums.candidate.difference()
    return Assessment(
        Accuracy(
            metric="RelativeL2",
            difference_ppm=difference.ppm,
            self_difference_ppm=sums.itself.difference().ppm,
            batch_difference_ppm=sums.batch.difference().ppm,
            inputs="calibration" if inputs.source == "calibration" else "generated",
            samples=sums.samples,
            invalid_values=difference.invalid_values,
        ),
        difference.per_output,
    )


def _compare_group(truth: Session, candidate: Session, group: Sequence[Feeds], sums: _Comparisons) -> None:
    singles = [truth.run(feeds) for feeds in group]
    for feeds, single in zip(group, singles, strict=True):
        if sums.samples < SELF_COMPARED_REQUESTS:
            sums.itself.add(truth.run(feeds), single)
        sums.samples += 1
    if len(group) == 1:
        sums.candidate.add(candidate.run(group[0]), singles[0])
        return
    joined, wanted = batch_feeds(group), join_outputs(singles)
    sums.batch.add(truth.run(joined), wanted)
    sums.candidate.add(candidate.run(joined), wanted)
