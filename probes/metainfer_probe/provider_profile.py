"""One model on one provider, measured inside a child process: the part of the model portrait that can crash.

Steps in the order of their worth, each sent to the parent when done, so that a crash or the end of the budget costs
only what comes later: kernel times and coverage, load time and determinism, latency of single requests, batches,
parallel callers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from metainfer_probe.accuracy import compare_answers
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Backend, Inputs, KernelTime, ProbeError, Session, SessionOptions
from metainfer_probe.batching import BATCH_TOLERANCE_PPM, UNVERIFIED, compare_batch, refuse_batch, take_samples
from metainfer_probe.contract import CurvePoint, Failure, Precision, PrecisionSupport, ProviderProfile
from metainfer_probe.inputs import batch_feeds, make_inputs
from metainfer_probe.isolate import send_partial
from metainfer_probe.memory import peak_resident_bytes, reset_peak
from metainfer_probe.model_file import ModelFile
from metainfer_probe.timing import quantile, time_calls, time_parallel_calls

CONCURRENCIES = (2, 4)
POINT_SECONDS = 2.0
"""A point of the curve steers predictions, it decides nothing: candidates are benchmarked for longer later."""
MIN_SAMPLES = 4
PROFILED_RUNS = 6
"""The first one allocates and is left out; five show the tail of a kernel without filling the trace."""
TOLERANCE_OVER_SELF = 10
"""A model that differs from itself by x may differ by 10x when batched before batching is to blame."""


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """What a child is asked; everything in it can be pickled."""

    model: ModelFile
    provider: str
    calibration: Path | None
    precisions: tuple[Precision, ...]
    batch_sizes: tuple[int, ...]
    threads: int
    budget_seconds: float


@dataclass(frozen=True, slots=True)
class ProviderMeasurement:
    """What a child answers; ``step`` is the one under way when this was sent."""

    profile: ProviderProfile
    step: str = "load"
    kernel_times: tuple[KernelTime, ...] = ()
    activation_bytes: int = 0
    inputs_source: str = "generated"
    ragged: bool = False
    notes: tuple[str, ...] = ()
    runtime_version: str = ""


def measure_provider(call: ProviderCall) -> ProviderMeasurement:
    """Run all steps; raises ProbeError when the model cannot be loaded or run at all on this provider."""
    deadline = time.monotonic() + call.budget_seconds
    backend = find_backend(call.provider)
    profile = ProviderProfile(provider=call.provider, precisions=support_precisions(backend, call.model, call.precisions), batch_failure=UNVERIFIED)
    measurement = ProviderMeasurement(profile, runtime_version=backend.runtime_version())
    send_partial(measurement)
    inputs = make_inputs(call.model, backend, call.calibration, max((MIN_SAMPLES, *call.batch_sizes)))
    measurement = replace(measurement, inputs_source=inputs.source, ragged=inputs.ragged, notes=inputs.notes, step="profile")
    send_partial(measurement)
    measurement = _profile_kernels(call, backend, inputs, measurement)
    send_partial(measurement)
    reset_peak()
    start = time.perf_counter()
    session = backend.open(call.model.path, SessionOptions(threads=call.threads, parallel_runs=max(CONCURRENCIES)))
    load_ms = round((time.perf_counter() - start) * 1e3, 3)
    measurement = _with(replace(measurement, step="single"), load_ms=load_ms)
    runner = _Runner(call, session, inputs, deadline)
    for step in (runner.measure_single, runner.measure_parallel, runner.measure_batches):
        measurement = step(measurement)
        send_partial(measurement)
    session.close()
    return replace(measurement, step="done")


def support_precisions(backend: Backend, model: ModelFile, precisions: Iterable[Precision]) -> tuple[PrecisionSupport, ...]:
    """Per precision: native or not, or why this runtime cannot make it from this file."""
    native = backend.native_precisions()
    return tuple(
        PrecisionSupport(precision=precision, native=precision in native, failure=_refuse_precision(backend, model, precision)) for precision in precisions
    )


def _refuse_precision(backend: Backend, model: ModelFile, precision: Precision) -> Failure | None:
    try:
        backend.file_precision(precision)
    except ProbeError as error:
        return error.failure()
    if model.is_quantized and precision != "fp32":
        said = "the file computes in int8 as it is; it is measured as given (fp32 stands for that) and not converted again"
        return Failure(reason="AlreadyQuantised", message=said)
    return None


def _profile_kernels(call: ProviderCall, backend: Backend, inputs: Inputs, measurement: ProviderMeasurement) -> ProviderMeasurement:
    session = backend.open(call.model.path, SessionOptions(threads=call.threads, profiling=True))
    try:
        readback = session.readback()
        session.run(inputs.samples[0])
        time_calls(lambda _: session.run(inputs.samples[0]), min(call.budget_seconds * 0.15, POINT_SECONDS), min_runs=1, max_runs=PROFILED_RUNS - 1)
        times = tuple(session.kernel_times())
        activation_bytes = session.activation_bytes()
    finally:
        session.close()
    total = sum(kernel.duration_us for kernel in times)
    own = sum(kernel.duration_us for kernel in times if kernel.provider == call.provider)
    coverage = round(1000 * own / total) if total > 0 else readback.coverage_permille
    measurement = replace(measurement, kernel_times=times, activation_bytes=activation_bytes, step="open")
    return _with(measurement, coverage_permille=coverage, assigned_nodes=readback.assigned_nodes)


@dataclass(frozen=True, slots=True)
class _Runner:
    """The steps that need the ordinary (not profiled) session."""

    call: ProviderCall
    session: Session
    inputs: Inputs
    deadline: float

    def measure_single(self, measurement: ProviderMeasurement) -> ProviderMeasurement:
        """Self difference, latency at batch 1 over all samples in turn, peak memory."""
        samples = self.inputs.samples
        twice = [(self.session.run(sample), self.session.run(sample)) for sample in samples[:2]]
        difference = compare_answers(twice)
        for sample in samples:
            self.session.run(sample)  # every new shape pays its set-up once
        times = time_calls(lambda turn: self.session.run(samples[turn % len(samples)]), self._share(0.25))
        point = _point(times)
        measurement = replace(measurement, step="parallel")
        return _with(measurement, self_difference_ppm=difference.ppm, curve=(point,), peak_memory_bytes=peak_resident_bytes())

    def measure_batches(self, measurement: ProviderMeasurement) -> ProviderMeasurement:
        """Correctness first, then latency, of each batch size; stops at the first that fails."""
        refused = refuse_batch(self.call.model, self.inputs)
        sizes = sorted(size for size in set(self.call.batch_sizes) if size > 1)
        if refused is not None or not sizes:
            return _with(measurement, batch_failure=refused)
        for position, size in enumerate(sizes):
            if self._left() < self._needed(measurement, size):
                break
            failure = compare_batch(self.session, self.call.model, take_samples(self.inputs.samples, size), self._tolerance(measurement))
            if failure is not None and position == 0:
                return _with(measurement, batch_failure=failure)
            if failure is not None:
                note = f"{self.call.provider}: batches up to {sizes[position - 1]} only: {failure.message}"[:512]
                return replace(measurement, notes=(*measurement.notes, note))
            measurement = self._time_batch(measurement, size, 0.3 / len(sizes))
            send_partial(measurement)
        return measurement

    def _time_batch(self, measurement: ProviderMeasurement, size: int, share: float) -> ProviderMeasurement:
        feeds = batch_feeds(take_samples(self.inputs.samples, size))
        times = time_calls(lambda _: self.session.run(feeds), self._share(share))
        point = _point(times, batch_size=size)
        return _with(measurement, curve=(*measurement.profile.curve, point), batch_failure=None, peak_memory_bytes=peak_resident_bytes())

    def _tolerance(self, measurement: ProviderMeasurement) -> int:
        return max(BATCH_TOLERANCE_PPM, TOLERANCE_OVER_SELF * measurement.profile.self_difference_ppm)

    def measure_parallel(self, measurement: ProviderMeasurement) -> ProviderMeasurement:
        """Latency per call at batch 1 with several callers inside the session at once."""
        samples = self.inputs.samples
        for callers in CONCURRENCIES:
            if self._left() < self._needed(measurement, callers):
                break
            times = time_parallel_calls(lambda turn: self.session.run(samples[turn % len(samples)]), callers, self._share(0.1))
            point = _point(times, concurrency=callers)
            measurement = _with(measurement, curve=(*measurement.profile.curve, point))
            send_partial(measurement)
        return replace(measurement, step="batch")

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _share(self, part: float) -> float:
        return max(0.0, min(self.call.budget_seconds * part, POINT_SECONDS, self._left()))

    def _needed(self, measurement: ProviderMeasurement, factor: int) -> float:
        """Seconds that a comparison and five timed calls of ``factor`` requests at once take at least."""
        return measurement.profile.curve[0].p50_us * 1e-6 * factor * 7


def _point(times: list[float], *, batch_size: int = 1, concurrency: int = 1) -> CurvePoint:
    mean_us = round(sum(times) / len(times), 1)
    return CurvePoint(batch_size=batch_size, concurrency=concurrency, p50_us=quantile(times, 50), p99_us=quantile(times, 99), mean_us=mean_us)


def _with(measurement: ProviderMeasurement, **changes: object) -> ProviderMeasurement:
    return replace(measurement, profile=measurement.profile.model_copy(update=changes))
