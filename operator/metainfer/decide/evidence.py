"""What one benchmark run is worth: whether it is a result at all, and whether its answers are good enough. Pure.

The rules are ordered tuples, first hit wins. A run that is broken says nothing about speed; one whose answers are not good enough
still does, so it corrects predictions but is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.candidates import joins_requests
from metainfer.decide.facts import RunResult
from metainfer.decide.filters import COVERAGE_FLOOR_PERMILLE
from metainfer_probe.contract import Measured

Verdict = Literal["Selected", "Tie", "Slower", "SloMissed", "AccuracyExceeded", "Unverified", "Failed", "NotMeasured"]

LEAST_ROUNDS = 3
"""A median of fewer rounds is one window's luck."""
BATCH_TOLERANCE_PPM = 1_000
"""fp32 batched against fp32 single: other kernels for another batch round differently (1-100 ppm); a wrong join differs by percents."""
WRONG_ANSWERS_PPM = 100_000
"""fp32 of one runtime differs from another's by some ppm; ten percent is another answer (seen: empty ones, from a runtime on an old processor)."""
FIGURE_BOUNDS = (1e-6, 1e12)
"""A report is not trusted: what no request can take is no figure."""
SERVED_AS_STORED = frozenset({"fp16", "int8"})
"""fp32 means the file as given: one that is stored narrower reads back as what it is. bf16 is not among them: no file is bf16 by
itself on these runtimes, so reading it back under fp32 means that the runtime chose it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a run cannot be chosen."""

    verdict: Verdict
    reason: str
    message: str
    is_lasting: bool = True
    """False: another run of the same might well succeed, so nothing follows for similar candidates."""


RunRule = Callable[[RunResult], Fault | None]
AnswerRule = Callable[[RunResult, Accuracy], Fault | None]


def run_failed(run: RunResult) -> Fault | None:
    """The Job ended without a report, or with a failure in it."""
    if run.failure is not None:
        return _failed(run.failure.reason, run.failure.message, is_lasting=not run.failure.retryable)
    if run.report is None:
        return _failed("ReportMissing", f"Job {run.job} left no report", is_lasting=False)
    if run.report.failure is not None:
        return _failed(run.report.failure.reason, run.report.failure.message, is_lasting=not run.report.failure.retryable)
    return None


def figures_missing(run: RunResult) -> Fault | None:
    """No window of the candidate was finished, or its figures are no numbers."""
    measured = measured_of(run)
    if measured is not None and all(is_figure(value) for value in _figures(measured)):
        return None
    return _failed("NoFigures", f"Job {run.job} measured no request of the candidate")


def requests_failed(run: RunResult) -> Fault | None:
    """Requests were answered with errors: the rest was measured under another load than the one that counts."""
    measured = measured_of(run)
    if measured is None or measured.errors == 0:
        return None
    return _failed("RequestsFailed", f"{measured.errors} of {measured.requests + measured.errors} requests failed")


def rounds_missing(run: RunResult) -> Fault | None:
    """The deadline came before enough rounds."""
    report = run.report
    if report is None or not report.partial or report.rounds >= LEAST_ROUNDS:
        return None
    return _failed("TooFewRounds", f"{report.rounds} rounds before the deadline, at least {LEAST_ROUNDS} are needed", is_lasting=False)


def other_session_ran(run: RunResult) -> Fault | None:
    """What the session says it runs is not what was asked for."""
    readback, config = (run.report.readback if run.report is not None else None), run.candidate.config
    if readback is None:
        return _failed("ReadbackMissing", "the session did not say what it runs")
    if readback.provider != config.execution_provider:
        return _failed("ProviderDiffers", f"ran on {readback.provider}, not on {config.execution_provider}")
    stored = config.precision == "fp32" and readback.precision in SERVED_AS_STORED
    if readback.precision != config.precision and not stored:
        return _failed("PrecisionDiffers", f"ran in {readback.precision}, not in {config.precision}")
    return None


def fell_back(run: RunResult) -> Fault | None:
    """Most of the model ran somewhere else than on the provider."""
    readback = run.report.readback if run.report is not None else None
    if readback is None or readback.coverage_permille >= COVERAGE_FLOOR_PERMILLE:
        return None
    return _failed("LowCoverage", f"only {readback.coverage_permille / 10:.0f} % of the model ran on {readback.provider}")


def answers_are_others(run: RunResult, _: Accuracy) -> Fault | None:
    """An fp32 that does not compute this model: a failure under any budget."""
    if not is_another_computation(run):
        return None
    found = f"fp32 on {run.candidate.config.execution_provider} answers something else than the model"
    return Fault("AccuracyExceeded", "AnswersDiffer", f"{found}: {_describe_difference(run)}")


def values_invalid(run: RunResult, accuracy: Accuracy) -> Fault | None:
    """NaN or Inf where fp32 has none: a failure under any budget, never an average."""
    difference = run.report.accuracy if run.report is not None else None
    if difference is None or not difference.invalid_values:
        return None
    return Fault("AccuracyExceeded", "InvalidValues", f"answers hold NaN or Inf where fp32's have none (budget {accuracy.budget_permille} permille)")


def batch_differs(run: RunResult, accuracy: Accuracy) -> Fault | None:
    """Joined requests are answered differently from single ones, beyond rounding and beyond what the model differs from itself."""
    difference = run.report.accuracy if run.report is not None else None
    if difference is None or not joins_requests(run.candidate.config):
        return None
    allowed_ppm = max(BATCH_TOLERANCE_PPM, difference.self_difference_ppm)
    if difference.batch_difference_ppm <= allowed_ppm:
        return None
    found = f"{_percent(difference.batch_difference_ppm)} apart by {accuracy.metric}, {_percent(allowed_ppm)} allowed"
    return Fault("AccuracyExceeded", "BatchDiffers", f"joined requests are answered differently from single ones: {found}")


def difference_exceeds(run: RunResult, accuracy: Accuracy) -> Fault | None:
    """Further from fp32 than the budget; a model that is not deterministic cannot be gated tighter than it differs from itself."""
    difference = run.report.accuracy if run.report is not None else None
    if difference is None:
        return None
    allowed_ppm = max(accuracy.budget_permille * 1000, difference.self_difference_ppm)
    if difference.difference_ppm <= allowed_ppm:
        return None
    found = f"{_percent(difference.difference_ppm)} from fp32 by {difference.metric}, {_percent(allowed_ppm)} allowed"
    return Fault("AccuracyExceeded", "AccuracyExceeded", found)


def unverified(run: RunResult, accuracy: Accuracy) -> Fault | None:
    """A lossy precision that was compared on generated inputs, or not at all."""
    difference = run.report.accuracy if run.report is not None else None
    if run.candidate.config.precision == "fp32" or accuracy.allow_unverified:
        return None
    if difference is None:
        return Fault("Unverified", "NotCompared", f"{run.candidate.config.precision} was not compared with fp32")
    if difference.inputs == "calibration" and difference.samples > 0:
        return None
    return Fault("Unverified", "GeneratedInputs", "compared on generated inputs only: set accuracy.calibration or accuracy.allowUnverified")


RUN_RULES: tuple[RunRule, ...] = (run_failed, requests_failed, figures_missing, rounds_missing, other_session_ran, fell_back)
ANSWER_RULES: tuple[AnswerRule, ...] = (answers_are_others, values_invalid, batch_differs, difference_exceeds, unverified)
ANSWER_RULES_FOR_CURRENT: tuple[AnswerRule, ...] = (answers_are_others, values_invalid, batch_differs, difference_exceeds)
"""The owner serves it already: we do not approve it by leaving it, so it need not be verified."""


def find_broken(run: RunResult) -> Fault | None:
    """Why this run is no result, or None."""
    return next((fault for rule in RUN_RULES if (fault := rule(run)) is not None), None)


def is_another_computation(run: RunResult) -> bool:
    """Whether an fp32 answers something else than the model does: its speed, too, is that of something else."""
    difference = run.report.accuracy if run.report is not None else None
    if difference is None or run.candidate.config.precision != "fp32":
        return False
    return difference.difference_ppm > max(WRONG_ANSWERS_PPM, difference.self_difference_ppm)


def find_fault(run: RunResult, accuracy: Accuracy, *, is_current: bool) -> Fault | None:
    """Why this run cannot be chosen, or None: broken, or its answers are not good enough."""
    rules = ANSWER_RULES_FOR_CURRENT if is_current else ANSWER_RULES
    return find_broken(run) or next((fault for rule in rules if (fault := rule(run, accuracy)) is not None), None)


def measured_of(run: RunResult) -> Measured | None:
    """The candidate's figures."""
    return run.report.candidate if run.report is not None else None


def is_figure(value: float) -> bool:
    """Whether a latency in microseconds or a rate per second can be meant: a positive number between a millionth and a million million."""
    return math.isfinite(value) and FIGURE_BOUNDS[0] <= value <= FIGURE_BOUNDS[1]


def _figures(measured: Measured) -> tuple[float, ...]:
    return (measured.mean_us, measured.p50_us, measured.p99_us, measured.throughput_per_second)


def _failed(reason: str, message: str, *, is_lasting: bool = True) -> Fault:
    return Fault("Failed", reason, f"{reason}: {message}", is_lasting)


def _describe_difference(run: RunResult) -> str:
    difference = run.report.accuracy if run.report is not None else None
    return f"{_percent(difference.difference_ppm)} apart by {difference.metric}" if difference is not None else "not compared"


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:.2g} %"
