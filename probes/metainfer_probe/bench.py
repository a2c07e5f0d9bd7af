"""One candidate, really run beside the configuration that serves today: the benchmark Job.

This module fetches and reads the model, keeps the clock and the report; everything that touches a runtime happens in
child processes (``pair``), so that a crash, a hang or a memory shortage ends as a reason. Copies in other precisions are made
in a child of their own: quantising would otherwise count into the candidate's peak memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.contract import BenchReport, BenchRequest, MicroProbe
from metainfer_probe.isolate import resident_bytes, run_in_child
from metainfer_probe.micro import micro_probe
from metainfer_probe.model_file import ModelFile, fetch_model, find_memory_shortage, read_model
from metainfer_probe.nvidia import NVIDIA_PROVIDERS, read_card
from metainfer_probe.pair import PairCall, Progress, measure_pair, prepare_pair

MICRO_SECONDS = 2.0
GRACE_SECONDS = 3.0
"""A child stops by itself between windows; past this much more it hangs in one call and is ended."""
MEMORY_RESERVE_BYTES = 64 << 20
"""Room for this process's own growth, so that the child's limit is reached before the container's."""

ChildFunction = Callable[..., object] | str
"""An importable function, or ``"module:name"`` (see ``isolate``)."""


def bench_candidate(
    request: BenchRequest, volume: Path, workdir: Path, *, micro: MicroProbe | None = None, measure: ChildFunction = measure_pair
) -> BenchReport:
    """Measure ``request.candidate`` against ``request.reference``; always returns a report, failures are part of it.

    Partial (``report.partial``) when the deadline came after at least one finished round, ``TimedOut`` when it came before.
    """
    bench = _Bench(request, workdir, time.monotonic() + request.deadline_seconds, measure)
    try:
        bench.update(micro=micro or micro_probe(MICRO_SECONDS), driver_version=_driver_version(request))
        bench.run(volume)
    except ProbeError as error:
        bench.fail(error)
    return bench.report


def _driver_version(request: BenchRequest) -> str:
    card = read_card() if request.candidate.execution_provider in NVIDIA_PROVIDERS else None
    return card.driver_version if card is not None else ""


@dataclass(slots=True)
class _Bench:
    """The report as it grows."""

    request: BenchRequest
    workdir: Path
    deadline: float
    measure: ChildFunction
    step: str = "starting"
    report: BenchReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = BenchReport(config=self.request.candidate, load_clients=self.request.load_clients)

    def update(self, **fields: object) -> None:
        self.report = self.report.model_copy(update=fields)

    def run(self, volume: Path) -> None:
        self.step = "fetching the model"
        path = fetch_model(self.request.model, volume, self.workdir)
        calibration = fetch_model(self.request.calibration, volume, self.workdir) if self.request.calibration else None
        self.step = "reading the model"
        model = self._child(read_model, path)
        if not isinstance(model, ModelFile):
            raise ProbeError("InternalError", "reading the model gave something else")
        self.update(digest=model.digest)
        shortage = find_memory_shortage(model, self._memory_limit())
        if shortage is not None:
            raise shortage
        call = PairCall(self.request, model, calibration, self.workdir, self.deadline)
        if {self.request.candidate.precision, self.request.reference.precision} != {"fp32"}:
            self._child(prepare_pair, call)
        self._take(self._child(self.measure, call))

    def fail(self, error: ProbeError) -> None:
        if error.reason == "TimedOut" and self.report.rounds > 0:
            self.update(partial=True)
            return
        shown = error
        if error.reason in ("TimedOut", "RuntimeCrashed", "OutOfMemory", "InternalError"):
            shown = ProbeError(error.reason, f"while {self.step}: {error.message}", retryable=error.retryable)
        self.update(failure=shown.failure())

    def _child(self, function: ChildFunction, argument: object) -> object:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise ProbeError("TimedOut", f"the deadline of {self.request.deadline_seconds:.0f} s was over", retryable=True)
        return run_in_child(function, (argument,), timeout_seconds=left + GRACE_SECONDS, memory_limit_bytes=self._memory_limit(), on_partial=self._take)

    def _take(self, answer: object) -> None:
        """A step's name with the figures so far, on the way or at the end."""
        if not isinstance(answer, Progress):
            raise ProbeError("InternalError", f"the measuring process answered a {type(answer).__name__}")
        self.step = answer.step
        self.update(**answer.figures)

    def _memory_limit(self) -> int:
        return memory_limit_bytes() - resident_bytes(os.getpid()) - MEMORY_RESERVE_BYTES
