"""``metainfer-probe node|profile|bench``: one measurement per process, always ending in a report; ``load`` sends requests to a server.

Whatever happens (a refusal, a defect of ours, SIGTERM when the Job's deadline comes) ends in a report with a reason:
the summary in the termination log, the whole report as the last line of standard output. Runtimes and numpy are
imported only after the number of threads is in the environment, because they read it once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from pydantic import ValidationError

from metainfer_probe.contract import (
    DETAIL_LIMIT_BYTES,
    EXIT_FAILED_WITH_REASON,
    EXIT_MEASURED,
    BenchReport,
    Failure,
    NodeReport,
    ProfileReport,
    Report,
    Request,
    decode_request,
    encode_line,
)

if TYPE_CHECKING:
    from metainfer_probe.contract import MicroProbe

MICRO_SECONDS = 2.0
MICRO_SHARE = 1 / 15
"""Two seconds of the usual thirty; a shorter measurement gets a shorter look."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_REPORTS: dict[str, type[NodeReport | ProfileReport | BenchReport]] = {"node": NodeReport, "profile": ProfileReport, "bench": BenchReport}


class Terminated(BaseException):
    """SIGTERM arrived: not an Exception, so that no ``except Exception`` of a measurement swallows it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code of the contract (2 for a wrong command line)."""
    options = _parser().parse_args(arguments)
    if options.command == "providers":
        return _print_providers()
    if options.command == "load":
        return _send_load(options)
    signal.signal(signal.SIGTERM, _terminate)
    report = _report(options)
    _write(report, options.termination_log)
    return EXIT_MEASURED if report.failure is None else EXIT_FAILED_WITH_REASON


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metainfer-probe", description="Measures a card, a model, or one way to serve it, and reports.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("node", "portrait of this card"), ("profile", "portrait of a model"), ("bench", "one candidate against its reference")):
        command = commands.add_parser(name, help=what)
        command.add_argument("--request", required=True, help="the request as JSON (see metainfer_probe.contract)")
        command.add_argument("--volume", type=Path, default=Path("/models"), help="where the model's volume is mounted")
        command.add_argument("--workdir", type=Path, default=None, help="writable folder for downloads and variants; default: a temporary one")
        command.add_argument("--termination-log", type=Path, default=Path("/dev/termination-log"), help="where the summary goes")
    commands.add_parser("providers", help="list the execution providers of this image")
    _add_load(commands.add_parser("load", help="send requests to a running server of this cluster, for a bounded time"))
    return parser


def _add_load(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", required=True, help="http://HOST:PORT/PATH; private and loopback addresses only")
    command.add_argument("--inputs", type=Path, required=True, help="calibration file (.npz, one array per INPUT/INDEX), or .json with one request's body")
    how = command.add_mutually_exclusive_group(required=True)
    how.add_argument("--clients", type=int, default=0, help="closed loop: so many callers with one request in flight each")
    how.add_argument("--rate", type=float, default=0.0, help="open loop: so many requests per second on average, whatever becomes of them")
    command.add_argument("--even", action="store_true", help="with --rate: at equal distances instead of random ones")
    command.add_argument("--reconnect", action="store_true", help="a connection of its own for each request, so that a Service's new pods get theirs at once")
    command.add_argument("--seconds", type=float, required=True, help="end after this time, at most an hour")
    command.add_argument("--timeout", type=float, default=10.0, help="seconds until a request counts as failed")
    command.add_argument("--report-seconds", type=float, default=5.0, help="time between two lines of figures")


def _report(options: argparse.Namespace) -> Report:
    """The measurement's report, or an empty one with the reason why there is none."""
    kind = _REPORTS[options.command]
    micro: list[MicroProbe] = []
    try:
        request = decode_request(options.request)
        if request.kind != options.command:
            return kind(failure=Failure(reason="RequestInvalid", message=f"the request is for {request.kind!r}, the command is {options.command!r}"))
        _pin_threads(request.threads)
        return _measure(request, options, micro)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return kind(failure=Failure(reason="RequestInvalid", message=f"request field {where}: {first['msg']}"[:512]))
    except Terminated:
        return kind(failure=Failure(reason="Terminated", message="the Job was ended (SIGTERM) before the measurement was done", retryable=True)).model_copy(
            update=_look(micro)
        )
    except Exception as error:  # noqa: BLE001 - the boundary of the process: everything becomes a reason
        return kind(failure=_explain(error)).model_copy(update=_look(micro))


def _measure(request: Request, options: argparse.Namespace, micro: list[MicroProbe]) -> Report:
    from metainfer_probe.micro import micro_probe

    micro.append(micro_probe(min(MICRO_SECONDS, MICRO_SHARE * _duration(request)), _providers(request)))
    with tempfile.TemporaryDirectory(prefix="metainfer-") as temporary:
        workdir = options.workdir or Path(temporary)
        workdir.mkdir(parents=True, exist_ok=True)
        report = _run(request, options.volume, workdir, micro[0])
    return report if report.micro is not None else report.model_copy(update={"micro": micro[0]})


def _run(request: Request, volume: Path, workdir: Path, micro: MicroProbe) -> Report:
    if request.kind == "node":
        from metainfer_probe.node import measure_node

        return measure_node(request, micro=micro)
    if request.kind == "profile":
        from metainfer_probe.profile import profile_model

        return profile_model(request, volume, workdir=workdir, micro=micro)
    from metainfer_probe.bench import bench_candidate

    return bench_candidate(request, volume, workdir, micro=micro)


def _providers(request: Request) -> tuple[str, ...]:
    return (request.candidate.execution_provider,) if request.kind == "bench" else request.providers


def _duration(request: Request) -> float:
    if request.kind == "node":
        return request.duration_seconds
    return request.budget_seconds if request.kind == "profile" else request.deadline_seconds


def _look(micro: list[MicroProbe]) -> dict[str, object]:
    return {"micro": micro[0]} if micro else {}


def _explain(error: Exception) -> Failure:
    from metainfer_probe.backends.base import ProbeError

    if isinstance(error, ProbeError):
        return error.failure()
    traceback.print_exception(error, file=sys.stderr)
    return Failure(reason="InternalError", message=f"{type(error).__name__}: {error}"[:512])


def _pin_threads(threads: int) -> None:
    """One thread per card is the rule; libraries that read these once must not be imported yet."""
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)


def _write(report: Report, termination_log: Path) -> None:
    from metainfer_probe.summary import fit_summary

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the report is on its way
    summary = fit_summary(report)
    try:
        termination_log.write_text(summary)
    except OSError as error:
        print(f"termination log {termination_log} cannot be written: {error.strerror}", file=sys.stderr)
    line = encode_line(report)
    if len(line.encode()) > DETAIL_LIMIT_BYTES:
        line = encode_line(report.model_copy(update={"detail": {"omitted": f"{len(line)} characters, limit {DETAIL_LIMIT_BYTES}"}}))
    sys.stdout.flush()
    print("\n" + line, flush=True)


def _print_providers() -> int:
    from metainfer_probe.backends import available_providers, find_backend

    for provider in available_providers():
        backend = find_backend(provider)
        print(f"{provider}\t{backend.runtime_version()}\t{','.join(backend.native_precisions())}")
    return EXIT_MEASURED


def _send_load(options: argparse.Namespace) -> int:
    """Exit code 3 with the reason when nothing was sent or nothing was answered."""
    from metainfer_probe.backends.base import ProbeError
    from metainfer_probe.offered_load import Offer, send_load

    offer = Offer(
        options.seconds,
        clients=options.clients,
        rate=options.rate,
        even=options.even,
        reconnect=options.reconnect,
        timeout_seconds=options.timeout,
        report_seconds=options.report_seconds,
    )
    try:
        tally = send_load(options.url, options.inputs, offer)
    except ProbeError as error:
        print(f"error: {error.reason}: {error.message}", file=sys.stderr)
        return EXIT_FAILED_WITH_REASON
    if not tally.latencies_us:
        print(f"error: NothingAnswered: {tally.first_error or 'no request was sent'}", file=sys.stderr)
        return EXIT_FAILED_WITH_REASON
    return EXIT_MEASURED


def _terminate(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
