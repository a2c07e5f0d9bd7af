"""Builders of measuring results: plain, complete, and all different by Job name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from metainfer.decide.facts import Candidate, CheckResult, ProbeResult, ProfileResult, RunResult
from metainfer_probe.contract import (
    Accuracy,
    BenchReport,
    Machine,
    Measured,
    MicroProbe,
    NodeReport,
    ProfileReport,
    ServingConfig,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32
ADAPTATION = "uid-of-ocr"
RUN = "run-1"
MICRO = MicroProbe(gflops=41.5, bandwidth_gigabytes_per_second=11.25, spread_permille=12)


def at(minutes: float) -> datetime:
    """A time, minutes after noon."""
    return NOON + timedelta(minutes=minutes)


def make_measured(p50_us: float = 4000.0) -> Measured:
    """Figures of a closed loop with four clients."""
    return Measured(
        requests=900, errors=0, seconds=1.0, mean_us=p50_us * 0.9, p50_us=p50_us, p99_us=p50_us * 2, throughput_per_second=4e6 / p50_us, mean_batch=1.0
    )


def make_bench_report(p50_us: float = 4000.0, **fields: Any) -> BenchReport:
    """A complete benchmark report."""
    accuracy = Accuracy(
        metric="RelativeL2", difference_ppm=1200, self_difference_ppm=0, batch_difference_ppm=3, inputs="calibration", samples=16, invalid_values=False
    )
    fields = {"digest": DIGEST, "load_clients": 4, "candidate": make_measured(p50_us), "rounds": 7, "latency_ratio_permille": 700, "micro": MICRO} | fields
    return BenchReport(**({"accuracy": accuracy} | fields))


def make_candidate(**config: Any) -> Candidate:
    """A candidate on the family ort-cpu."""
    return Candidate("lab", "ort-cpu", ServingConfig(**({"execution_provider": "CPUExecutionProvider"} | config)))


def make_run(job: str = "mi-bench-1", **fields: Any) -> RunResult:
    """A finished benchmark of RUN."""
    known: dict[str, Any] = {
        "run_id": RUN,
        "candidate": make_candidate(),
        "node": "node-1",
        "finished_at": NOON,
        "report": make_bench_report(),
        "job_uid": f"uid-{job}",
    }
    return RunResult(job=job, **({"job_uid": f"uid-{job}"} | known | fields))


def make_check(job: str = "mi-check-1", **fields: Any) -> CheckResult:
    """A finished check of what RUN decided."""
    run = make_run(job, **fields)
    return CheckResult(run.job, run.run_id, run.candidate, run.node, run.finished_at, run.report, run.failure, run.job_uid)


def make_profile(job: str = "mi-profile-1", **fields: Any) -> ProfileResult:
    """A finished profile of RUN."""
    report = ProfileReport(digest=DIGEST, parameters=82_915, weight_bytes=331_660, architecture="cnn", bound="memory")
    known: dict[str, Any] = {"finished_at": NOON, "report": report, "node": "node-1", "run_id": RUN, "job_uid": f"uid-{job}"}
    return ProfileResult(job=job, **(known | fields))


def make_probe(job: str = "mi-probe-1", **fields: Any) -> ProbeResult:
    """A finished node probe."""
    machine = Machine(card_model="Made-up CPU", architecture="x86_64", kernel="6.1", cores=2, memory_bytes=1 << 34, load_permille=15)
    report = NodeReport(machine=machine, micro=MICRO, measured_seconds=30.0)
    known: dict[str, Any] = {"node": "node-1", "finished_at": NOON, "report": report, "job_uid": f"uid-{job}"}
    return ProbeResult(job=job, **(known | fields))
