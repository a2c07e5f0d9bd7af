"""The hardware portrait of one card: what this instance does now, through the runtimes that will serve on it.

Peaks in data sheets say nothing about a throttled, shared or badly seated card. The time asked for is divided over
bandwidth and every provider x native precision x shape; each provider is measured in a child process, so that a driver
that crashes becomes a problem in the report.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metainfer_probe.backends import find_backend, is_registered
from metainfer_probe.backends.base import Backend, Feeds, ProbeError, Session, SessionOptions
from metainfer_probe.bandwidth import CopyFigure, measure_bandwidth, measure_card_bandwidth
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.contract import Failure, MatmulShape, MicroProbe, NodeReport, NodeRequest, Precision, ProviderFigures, ProviderProblem
from metainfer_probe.isolate import run_in_child, send_partial
from metainfer_probe.machine import watch_machine, with_card
from metainfer_probe.nvidia import NVIDIA_PROVIDERS, read_card, uses_card
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
    providers = tuple(dict.fromkeys(request.providers))
    copy_seconds = request.duration_seconds * BANDWIDTH_SHARE
    on_card = uses_card(providers)
    copies = measure_card_bandwidth(copy_seconds) if on_card else measure_bandwidth(copy_seconds, memory_limit_bytes())
    able = [provider for provider in providers if is_registered(provider) and (on_card or provider not in NVIDIA_PROVIDERS)]
    share = (request.duration_seconds - copy_seconds) / max(1, len(able))  # the others need no time
    answers = {provider: _measure_isolated(provider, share if provider in able else 0.0, request.threads) for provider in providers}
    figures = tuple(figure for answer in answers.values() for figure in answer.figures)
    problems = tuple(problem for answer in answers.values() for problem in answer.problems)
    return NodeReport(
        machine=with_card(watch.finish(), read_card()) if on_card else watch.finish(),
        micro=micro,
        bandwidth_gigabytes_per_second={figure.level: figure.gigabytes_per_second for figure in copies},
        figures=figures,
        problems=problems,
        purpose=request.purpose,
        measured_seconds=round(copy_seconds + sum(answer.measured_seconds for answer in answers.values()), 3),
        failure=_failure(figures, problems),
        detail={
            "copies": _copy_detail(copies),
            "providers": {provider: list(answer.detail) for provider, answer in answers.items()},
            "shapes": {name: list(sizes) for name, sizes in MATMUL_SHAPES.items()},
        },
    )


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What a child measured so far."""

    figures: tuple[ProviderFigures, ...] = ()
    problems: tuple[ProviderProblem, ...] = ()
    measured_seconds: float = 0.0
    detail: tuple[dict[str, object], ...] = ()


def measure_provider_figures(provider: str, seconds: float, threads: int) -> ProviderAnswer:
    """In a child: launch latency once, then every native precision; sends what it has after each."""
    backend = find_backend(provider)
    precisions = backend.native_precisions()
    with tempfile.TemporaryDirectory(prefix="metainfer-node-") as name:
        launch = _measure_launch(backend, Path(name), seconds * LAUNCH_SHARE, threads)
        answer = ProviderAnswer(measured_seconds=sum(launch) / 1e6, detail=({"launch_us": _launch_detail(launch)},))
        measuring = _Measuring(Path(name), seconds * (1 - LAUNCH_SHARE) / len(precisions), threads, launch)
        for precision in precisions:
            try:
                answer = _add_precision(answer, backend, precision, measuring)
            except ProbeError as error:
                problem = ProviderProblem(provider=provider, precision=precision, failure=error.failure())
                answer = replace(answer, problems=(*answer.problems, problem))
            send_partial(answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Measuring:
    folder: Path
    seconds: float
    threads: int
    launch_us: list[float]


def _measure_isolated(provider: str, seconds: float, threads: int) -> ProviderAnswer:
    latest = [ProviderAnswer()]
    try:
        answer = run_in_child(
            measure_provider_figures,
            (provider, seconds, threads),
            timeout_seconds=3 * seconds + CHILD_GRACE_SECONDS,
            memory_limit_bytes=0,
            on_partial=lambda value: latest.append(value) if isinstance(value, ProviderAnswer) else None,
        )
    except ProbeError as error:
        problem = ProviderProblem(provider=provider, failure=error.failure())
        return replace(latest[-1], problems=(*latest[-1].problems, problem))
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
    return replace(answer, figures=(*answer.figures, figures), measured_seconds=answer.measured_seconds + measured, detail=(*answer.detail, detail))


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
