"""Builders of measuring Jobs and what their pods left behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from metainfer.decide.facts import Candidate, ContainerFacts, ContainerState, JobFacts, PodFacts
from metainfer.decide.names import (
    ADAPTATION_UID_LABEL,
    CANDIDATE_ANNOTATION,
    NODE_ANNOTATION,
    POOL_ANNOTATION,
    PURPOSE_LABEL,
    RUN_LABEL,
    candidate_json,
)
from metainfer_probe.contract import BenchReport, Machine, MicroProbe, NodeReport, ProfileReport, Report, ServingConfig, encode_summary

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMESPACE = "models"
CANDIDATE = Candidate("lab", "ort-cpu", ServingConfig(execution_provider="CPUExecutionProvider", precision="int8", batch_size=4))


def at(seconds: float) -> datetime:
    """A time, seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def make_report(purpose: str = "bench", **fields: Any) -> Report:
    """A small report of the kind that a Job of this purpose makes."""
    match purpose:
        case "probe":
            machine = Machine(card_model="Made-up CPU", architecture="x86_64", kernel="6.1", cores=2, memory_bytes=1 << 34, load_permille=5)
            micro = MicroProbe(gflops=40, bandwidth_gigabytes_per_second=11, spread_permille=3)
            return NodeReport(**({"machine": machine, "micro": micro, "measured_seconds": 30.0} | fields))
        case "profile":
            return ProfileReport(**({"digest": "ab" * 32, "parameters": 82_915, "notes": ("one", "two")} | fields))
        case _:
            return BenchReport(**({"digest": "ab" * 32, "load_clients": 4, "rounds": 7, "latency_ratio_permille": 700} | fields))


def make_state(**fields: Any) -> ContainerState:
    """The probe container, still running unless something else is said."""
    return ContainerState(**({"name": "probe"} | fields))


def make_ended(purpose: str = "bench", **fields: Any) -> ContainerState:
    """The probe container after it left its summary, at 60 s."""
    report = fields.pop("report", None) or make_report(purpose)
    known: dict[str, Any] = {"exit_code": 0, "terminated_reason": "Completed", "termination_message": encode_summary(report), "finished_at": at(60)}
    return make_state(**(known | fields))


def make_pod(state: ContainerState | None = None, **fields: Any) -> PodFacts:
    """A pod of the Job on node-1."""
    container = ContainerFacts("probe", limits={"memory": 512 << 20})
    known: dict[str, Any] = {"namespace": NAMESPACE, "name": "job-abcde", "uid": "uid-pod", "node": "node-1", "phase": "Running", "containers": (container,)}
    return PodFacts(**(known | {"states": () if state is None else (state,), "created_at": NOON} | fields))


def make_job(*pods: PodFacts, purpose: str = "bench", **fields: Any) -> JobFacts:
    """A Job that was started at noon and runs."""
    labels = {PURPOSE_LABEL: purpose, ADAPTATION_UID_LABEL: "uid-ocr", RUN_LABEL: "run-1"} | fields.pop("labels", {})
    annotations = {NODE_ANNOTATION: "node-1", POOL_ANNOTATION: "lab"} | fields.pop("annotations", {})
    if purpose in ("bench", "check"):
        annotations = {CANDIDATE_ANNOTATION: candidate_json(CANDIDATE)} | annotations
    known: dict[str, Any] = {"namespace": NAMESPACE, "name": f"mi-{purpose}-1", "uid": f"uid-{purpose}", "created_at": NOON, "started_at": NOON, "active": 1}
    return JobFacts(**(known | {"labels": labels, "annotations": annotations, "pods": pods} | fields))


def make_failed_job(*pods: PodFacts, reason: str = "BackoffLimitExceeded", **fields: Any) -> JobFacts:
    """A Job that its controller gave up, at 90 s."""
    known: dict[str, Any] = {"condition": "Failed", "condition_reason": reason, "condition_message": f"words about {reason}", "finished_at": at(90)}
    return make_job(*pods, **({"active": 0} | known | fields))
