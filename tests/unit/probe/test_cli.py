"""The command line as a Job runs it: a subprocess that always ends in a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.data import models

from metainfer_probe import cli
from metainfer_probe.contract import (
    EXIT_FAILED_WITH_REASON,
    EXIT_MEASURED,
    SUMMARY_LIMIT_BYTES,
    BenchReport,
    NodeReport,
    ProfileReport,
    Report,
    decode_line,
    decode_summary,
)

ROOT = Path(__file__).parents[3]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "probes")}
    return subprocess.Popen(
        [sys.executable, "-m", "metainfer_probe.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run(command: str, request: object, folder: Path) -> tuple[int, Report, Report, str]:
    """Exit code, the report from the log, the one from the termination message, and standard error."""
    arguments = [command, "--request", request if isinstance(request, str) else json.dumps(request), "--volume", str(folder)]
    child = start([*arguments, "--termination-log", str(folder / "termination")])
    out, error = child.communicate(timeout=300)
    summary = (folder / "termination").read_text()
    assert len(summary.encode()) <= SUMMARY_LIMIT_BYTES
    return child.returncode, decode_line(out.splitlines()[-1]), decode_summary(summary), error


def profile_request(path: str) -> dict[str, object]:
    return {"kind": "profile", "model": {"path": path}, "providers": ["CPUExecutionProvider"], "budget_seconds": 120, "batch_sizes": [1, 2]}


def test_a_profile_ends_in_both_reports_and_zero(tmp_path: Path) -> None:
    """Summary and log agree but for the detail, and the micro-probe opened the measurement."""
    models.dense(tmp_path)
    code, full, summary, _ = run("profile", profile_request("dense.onnx"), tmp_path)
    assert code == EXIT_MEASURED
    assert isinstance(full, ProfileReport)
    assert full.micro is not None
    assert full.bound != "unknown"
    assert full.detail
    assert summary == full.model_copy(update={"detail": {}})


def test_a_node_probe_ends_in_both_reports_and_zero(tmp_path: Path) -> None:
    """Short, but with every part."""
    code, full, summary, _ = run("node", {"kind": "node", "providers": ["CPUExecutionProvider"], "duration_seconds": 1}, tmp_path)
    assert code == EXIT_MEASURED
    assert isinstance(full, NodeReport)
    assert full.figures
    assert isinstance(summary, NodeReport)
    assert summary.micro is not None


def test_a_broken_file_ends_in_its_reason_without_a_traceback(tmp_path: Path) -> None:
    """Exit code 3 says that a report with a reason is there."""
    models.not_models(tmp_path)
    code, full, summary, error = run("profile", profile_request("GitLfsPointer.onnx"), tmp_path)
    assert code == EXIT_FAILED_WITH_REASON
    assert full.failure is not None
    assert full.failure.reason == "GitLfsPointer"
    assert summary.failure == full.failure
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "request_json", "names"),
    [
        ("node", {"kind": "profile", "model": {"path": "x"}, "providers": []}, "profile"),
        ("profile", {"kind": "profile", "model": {"path": "x"}, "providers": [], "threads": 0}, "threads"),
        ("bench", "no json", "JSON"),
    ],
    ids=["another kind", "a field out of bounds", "no JSON at all"],
)
def test_a_request_that_is_wrong_ends_in_a_report_of_the_command_s_kind(command: str, request_json: object, names: str, tmp_path: Path) -> None:
    """The operator can read it even if it asked nonsense."""
    code, full, _, _ = run(command, request_json, tmp_path)
    assert code == EXIT_FAILED_WITH_REASON
    assert full.kind == command
    assert full.failure is not None
    assert full.failure.reason == "RequestInvalid"
    assert names in full.failure.message


def test_an_ended_job_still_reports(tmp_path: Path) -> None:
    """SIGTERM at the Job's deadline: a reason that may be tried again, and the card's state if it was known."""
    request = json.dumps({"kind": "node", "providers": ["CPUExecutionProvider"], "duration_seconds": 120})
    child = start(["node", "--request", request, "--termination-log", str(tmp_path / "termination")])
    time.sleep(6)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=120)
    report = decode_summary((tmp_path / "termination").read_text())
    assert child.returncode == EXIT_FAILED_WITH_REASON
    assert report.failure is not None
    assert (report.failure.reason, report.failure.retryable) == ("Terminated", True)
    assert decode_line(out.splitlines()[-1]).failure == report.failure


def test_the_providers_of_an_image_can_be_listed() -> None:
    """One line each: name, version, native precisions."""
    out, _ = (child := start(["providers"])).communicate(timeout=120)
    assert child.returncode == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["CPUExecutionProvider", "OpenVINOExecutionProvider"]


def test_a_defect_of_ours_is_reported_by_type_and_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback goes to standard error only; the process does not die of it."""

    def broken(*_: object) -> Report:
        raise KeyError("lost")

    monkeypatch.setattr(cli, "_measure", broken)
    monkeypatch.setattr(cli, "_pin_threads", lambda _: None)
    code = cli.main(["profile", "--request", json.dumps(profile_request("x")), "--termination-log", str(tmp_path / "t")])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    captured = capsys.readouterr()
    report = decode_line(captured.out.splitlines()[-1])
    assert code == EXIT_FAILED_WITH_REASON
    assert report.failure is not None
    assert report.failure.reason == "InternalError"
    assert "KeyError" in report.failure.message
    assert "Traceback" in captured.err


def test_threads_are_pinned_before_any_library_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS and OpenMP read these once, at import."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "16")
    cli._pin_threads(3)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "3"
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, metainfer_probe.cli; print('numpy' in sys.modules)"],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "probes")},
    )  # fmt: skip
    assert loaded.stdout.strip() == "False"


def test_a_termination_log_that_cannot_be_written_does_not_lose_the_log_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of the two ways is enough."""
    report = BenchReport(rounds=3)
    cli._write(report, tmp_path / "no" / "folder")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert decode_line(capsys.readouterr().out.splitlines()[-1]) == report
