"""Results and decisions as rows, and back. Pure; a stored report that today's contract cannot read is a failure, not a crash."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import RowMapping

from metainfer.decide.facts import Candidate, CheckResult, ProbeResult, ProfileResult, RunResult
from metainfer.decide.names import canonical_json
from metainfer.decide.plan import RecordDecision
from metainfer_probe.contract import BenchReport, Failure, NodeReport, ProfileReport, ServingConfig

Row = dict[str, Any]
AnyResult = ProbeResult | ProfileResult | RunResult | CheckResult
ReportT = TypeVar("ReportT", NodeReport, ProfileReport, BenchReport)
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision with everything it was based on."""

    adaptation_uid: str
    decision_id: str
    run_id: str
    decided_at: datetime
    document: Mapping[str, Any]


def probe_row(pool: str, result: ProbeResult) -> Row:
    """One row of ``probes``."""
    report = result.report
    machine, micro = (report.machine, report.micro) if report else (None, None)
    return _result_row(result) | {
        "pool": pool,
        "node": result.node,
        "card_model": machine.card_model if machine else "",
        "micro_gflops": micro.gflops if micro else None,
        "micro_gigabytes_per_second": micro.bandwidth_gigabytes_per_second if micro else None,
        "load_permille": machine.load_permille if machine else None,
    }


def profile_row(adaptation_uid: str, result: ProfileResult) -> Row:
    """One row of ``profiles``."""
    report = result.report
    return _result_row(result) | {
        "adaptation_uid": adaptation_uid,
        "run_id": result.run_id,
        "node": result.node,
        "digest": report.digest if report else "",
        "architecture": report.architecture if report else "",
        "parameters": report.parameters if report else None,
        "weight_bytes": report.weight_bytes if report else None,
    }


def run_row(adaptation_uid: str, result: RunResult | CheckResult) -> Row:
    """One row of ``runs``, or of ``checks``."""
    report, candidate = result.report, result.candidate
    measured = report.candidate if report else None
    return _result_row(result) | candidate.config.model_dump() | {
        "adaptation_uid": adaptation_uid,
        "run_id": result.run_id,
        "digest": report.digest if report else "",
        "node": result.node,
        "pool": candidate.pool,
        "family": candidate.family,
        "load_clients": report.load_clients if report else None,
        "p50_us": measured.p50_us if measured else None,
        "p99_us": measured.p99_us if measured else None,
        "throughput_per_second": measured.throughput_per_second if measured else None,
        "latency_ratio_permille": report.latency_ratio_permille if report else None,
        "difference_ppm": report.accuracy.difference_ppm if report and report.accuracy else None,
        "micro_gflops": report.micro.gflops if report and report.micro else None,
        "partial": report.partial if report else None,
    }  # fmt: skip


def decision_row(adaptation_uid: str, decision: RecordDecision) -> Row:
    """One row of ``decisions``."""
    return {
        "adaptation_uid": adaptation_uid,
        "decision_id": decision.decision_id,
        "run_id": decision.run_id,
        "decided_at": decision.decided_at,
        "document": canonical_json(decision.document),
    }


def _result_row(result: AnyResult) -> Row:
    report = result.report
    failure = result.failure or (report.failure if report else None)
    return {
        # Results made by hand have no Job UID; a name is as good a key where nothing can be recreated.
        "job_uid": result.job_uid or result.job,
        "job": result.job,
        "finished_at": result.finished_at,
        "failure_reason": failure.reason if failure else None,
        "failure": result.failure.model_dump_json() if result.failure else None,
        "report": report.model_dump_json(exclude={"detail"}) if report else None,
        "detail": json.dumps(report.detail, separators=(",", ":")) if report and report.detail else None,
    }


def read_all(rows: Iterable[RowMapping], read: Callable[[RowMapping], T]) -> tuple[T, ...]:
    """Every row that can be read: one that is damaged must not hide its neighbours. It counts as never recorded."""
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except (ValueError, TypeError) as error:
            _log.warning("a row of the store is damaged and left out", extra={"key": str(row.get("job_uid") or row.get("decision_id")), "error": str(error)})
    return tuple(found)


def read_probe(row: RowMapping) -> ProbeResult:
    """A row of ``probes``, without detail."""
    report, failure = _read_report(NodeReport, row)
    return ProbeResult(row["job"], row["node"], row["finished_at"], report, failure, job_uid=row["job_uid"])


def read_profile(row: RowMapping) -> ProfileResult:
    """A row of ``profiles``, without detail."""
    report, failure = _read_report(ProfileReport, row)
    return ProfileResult(
        job=row["job"],
        finished_at=row["finished_at"],
        report=report,
        failure=failure,
        node=row["node"],
        run_id=row["run_id"],
        job_uid=row["job_uid"],
    )


def read_run(row: RowMapping) -> RunResult:
    """A row of ``runs``, without detail."""
    report, failure = _read_report(BenchReport, row)
    config = ServingConfig(**{name: row[name] for name in ServingConfig.model_fields})
    return RunResult(
        job=row["job"],
        run_id=row["run_id"],
        candidate=Candidate(row["pool"], row["family"], config),
        node=row["node"],
        finished_at=row["finished_at"],
        report=report,
        failure=failure,
        job_uid=row["job_uid"],
    )


def read_check(row: RowMapping) -> CheckResult:
    """A row of ``checks``, without detail."""
    run = read_run(row)
    return CheckResult(run.job, run.run_id, run.candidate, run.node, run.finished_at, run.report, run.failure, run.job_uid)


def read_decision(row: RowMapping) -> DecisionRecord:
    """A row of ``decisions``."""
    return DecisionRecord(row["adaptation_uid"], row["decision_id"], row["run_id"], row["decided_at"], json.loads(row["document"]))


def _read_report(model: type[ReportT], row: RowMapping) -> tuple[ReportT | None, Failure | None]:
    failure = Failure.model_validate_json(row["failure"]) if row["failure"] else None
    if row["report"] is None:
        return None, failure
    try:
        return model.model_validate_json(row["report"]), failure
    except ValidationError:
        words = f"the stored report of Job {row['job']} is of another contract version: it must be measured again"
        return None, failure or Failure(reason="ReportVersion", message=words, retryable=True)
