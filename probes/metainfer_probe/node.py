"""The hardware portrait of one card: what this instance does now, through the runtimes that will serve on it.

Peaks in data sheets say nothing about a throttled, shared or badly seated card. The time asked for is divided over
bandwidth and every provider x native precision x shape; each provider is measured in a child process, so that a driver
that crashes becomes a problem in the report.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Backend, Feeds, ProbeError, Session, SessionOptions
from metainfer_probe.bandwidth import CopyFigure, measure_bandwidth
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.contract import Failure, MatmulShape, MicroProbe, NodeReport, NodeRequest, Precision, ProviderFigures, ProviderProblem
from metainfer_probe.isolate import run_in_child, send_partial
from metainfer_probe.machine import watch_machine
from metainfer_probe.reference_graphs import MATMUL_SHAPES, write_launch, write_matmul
from metainfer_probe.timing import quantile, time_blocks, time_calls

BANDWIDTH_SHARE = 0.1
LAUNCH_SHARE = 0.25
"""Of a provider's time: P99 of the launch needs thousands of repetitions, and bad hosts show only there."""
WARM_UP_RUNS = 2
CHILD_GRACE_SECONDS = 60.0
"""Importing a runtime and compiling the graphs is not measured time; past this much of it something hangs."""
_LAUNCH_PERCENTILES = (50, 90, 99, 99.9, 100)


def measure_node(request: NodeRequest, *, micro: MicroProbe | None = None) -> NodeReport:
    """Measure bandwidth and each provider for ``request.duration_seconds`` in all (start-up and compilation come on top).

    Providers that the image lacks, and precisions that fail, are ``problems``; with no figure at all the report has a
    ``failure``.
    """
    watch = watch_machine()
    copies = measure_bandwidth(request.duration_seconds * BANDWIDTH_SHARE, memory_limit_bytes())
    cells, problems = _plan(request)
    figures: list[ProviderFigures] = []
    detail: dict[str, object] = {}
    measured = request.duration_seconds * BANDWIDTH_SHARE
    per_cell = request.duration_seconds * (1 - BANDWIDTH_SHARE) / max(1, sum(len(cell.precisions) for cell in cells))
    for cell in cells:
        answer = _measure_isolated(cell, per_cell, request.threads)
        figures += answer.figures
        problems += answer.problems
        measured += answer.measured_seconds
        detail[cell.provider] = answer.detail
    return NodeReport(
        machine=watch.finish(),
        micro=micro,
        bandwidth_gigabytes_per_second={figure.level: figure.gigabytes_per_second for figure in copies},
        figures=tuple(figures),
        problems=tuple(problems),
        measured_seconds=round(measured, 3),
        failure=_failure(figures, problems),
        detail={"copies": _copy_detail(copies), "providers": detail, "shapes": {name: list(sizes) for name, sizes in MATMUL_SHAPES.items()}},
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One provider and the precisions to measure on it."""

    provider: str
    precisions: tuple[Precision, ...]


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What a child measured so far."""

    figures: tuple[ProviderFigures, ...] = ()
    problems: tuple[ProviderProblem, ...] = ()
    measured_seconds: float = 0.0
    detail: tuple[dict[str, object], ...] = ()


def measure_cell(cell: Cell, seconds_per_precision: float, threads: int) -> ProviderAnswer:
    """In a child: launch latency once, then every precision; sends what it has after each."""
    backend = find_backend(cell.provider)
    seconds = seconds_per_precision * len(cell.precisions)
    with tempfile.TemporaryDirectory(prefix="metainfer-node-") as name:
        folder = Path(name)
        launch = _measure_launch(backend, folder, seconds * LAUNCH_SHARE, threads)
        answer = ProviderAnswer(measured_seconds=sum(launch) / 1e6, detail=({"launch_us": _launch_detail(launch)},))
        for precision in cell.precisions:
            try:
                answer = _add_precision(answer, backend, precision, _Measuring(folder, seconds_per_precision * (1 - LAUNCH_SHARE), threads, launch))
            except ProbeError as error:
                problem = ProviderProblem(provider=cell.provider, precision=precision, failure=error.failure())
                answer = ProviderAnswer(answer.figures, (*answer.problems, problem), answer.measured_seconds, answer.detail)
            send_partial(answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Measuring:
    folder: Path
    seconds: float
    threads: int
    launch_us: list[float]


def _plan(request: NodeRequest) -> tuple[list[Cell], list[ProviderProblem]]:
    cells, problems = [], []
    for provider in dict.fromkeys(request.providers):
        try:
            cells.append(Cell(provider, find_backend(provider).native_precisions()))
        except ProbeError as error:
            problems.append(ProviderProblem(provider=provider, failure=error.failure()))
    return cells, problems


def _measure_isolated(cell: Cell, per_cell: float, threads: int) -> ProviderAnswer:
    latest = [ProviderAnswer()]
    try:
        answer = run_in_child(
            measure_cell,
            (cell, per_cell, threads),
            timeout_seconds=3 * per_cell * len(cell.precisions) + CHILD_GRACE_SECONDS,
            memory_limit_bytes=0,
            on_partial=lambda value: latest.append(value) if isinstance(value, ProviderAnswer) else None,
        )
    except ProbeError as error:
        kept = latest[-1]
        problem = ProviderProblem(provider=cell.provider, failure=error.failure())
        return ProviderAnswer(kept.figures, (*kept.problems, problem), kept.measured_seconds, kept.detail)
    if not isinstance(answer, ProviderAnswer):
        raise ProbeError("InternalError", f"the child answered a {type(answer).__name__}")
    return answer


def _measure_launch(backend: Backend, folder: Path, seconds: float, threads: int) -> list[float]:
    path, feeds = write_launch(folder)
    session = backend.open(path, SessionOptions(threads=threads))
    time_calls(lambda _: session.run(feeds), 0, min_runs=50, max_runs=50)
    times = time_calls(lambda _: session.run(feeds), seconds, min_runs=200, max_runs=1_000_000)
    session.close()
    return times


def _add_precision(answer: ProviderAnswer, backend: Backend, precision: Precision, measuring: _Measuring) -> ProviderAnswer:
    gflops: dict[MatmulShape, float] = {}
    detail: dict[str, object] = {"precision": precision}
    measured, compile_ms, effective = 0.0, 0.0, precision
    for shape, (rows, columns, inner) in MATMUL_SHAPES.items():
        path, feeds = write_matmul(measuring.folder, shape, backend.file_precision(precision))
        start = time.perf_counter()
        session = backend.open(path, SessionOptions(precision=precision, threads=measuring.threads))
        compile_ms = (time.perf_counter() - start) * 1e3  # the last one, "big", is reported
        effective = session.readback().precision
        start = time.perf_counter()
        blocks = _time_session(session, feeds, measuring.seconds / len(MATMUL_SHAPES))
        measured += time.perf_counter() - start
        session.close()
        path.unlink()
        gflops[shape] = round(2 * rows * columns * inner / (quantile(blocks, 50) * 1e3), 3)
        detail[shape] = {"blocks": len(blocks)} | {f"p{percent}_us": quantile(blocks, percent) for percent in (0, 25, 50, 75, 100)}
    figures = ProviderFigures(
        provider=backend.provider,
        runtime_version=backend.runtime_version(),
        precision=precision,
        matmul_gflops=gflops,
        launch_p50_us=quantile(measuring.launch_us, 50),
        launch_p99_us=quantile(measuring.launch_us, 99),
        compile_ms=round(compile_ms, 3),
        effective_precision=effective,
    )
    return ProviderAnswer((*answer.figures, figures), answer.problems, answer.measured_seconds + measured, (*answer.detail, detail))


def _time_session(session: Session, feeds: Feeds, seconds: float) -> list[float]:
    for _ in range(WARM_UP_RUNS):
        session.run(feeds)
    return time_blocks(lambda: session.run(feeds), seconds)


def _failure(figures: Sequence[ProviderFigures], problems: Sequence[ProviderProblem]) -> Failure | None:
    if figures:
        return None
    if problems:
        return problems[0].failure
    return Failure(reason="ProviderMissing", message="the request names no provider")


def _launch_detail(times: list[float]) -> dict[str, object]:
    return {"runs": len(times)} | {f"p{percent}": quantile(times, percent) for percent in _LAUNCH_PERCENTILES}


def _copy_detail(copies: Sequence[CopyFigure]) -> dict[str, object]:
    return {figure.level: {"working_set_bytes": figure.working_set_bytes, "best": figure.best_gigabytes_per_second} for figure in copies}
