"""Builders of benchmark runs, model portraits and predictions for tests of the choice: only what the test is about is spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.unit.decide.make_facts import CPU_PROVIDER, LONG_AGO, OPENVINO_PROVIDER, make_config

from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.predictor import Prediction
from metainfer_probe.contract import Accuracy, BenchReport, Failure, Measured, MicroProbe, ProfileReport, ProviderProfile, Readback

MICRO_GFLOPS = 60.0
"""Of the portraits that ``make_portrait`` makes."""


def make_candidate(family: str = "ort-cpu", pool: str = "cards", **config: Any) -> Candidate:
    """A candidate; a batch above 1 brings dynamic batching and a delay."""
    if config.get("batch_size", 1) > 1:
        config = {"dynamic_batching": True, "max_batch_delay_us": 2000} | config
    return Candidate(pool, family, make_config(**config))


def make_prediction(p50_us: float = 10_000.0, **fields: Any) -> Prediction:
    """A prediction for four requests in flight: throughput by Little's law, P99 a fifth above P50."""
    defaults: dict[str, Any] = {"p99_us": 1.2 * p50_us, "throughput_per_second": 4e6 / p50_us, "log_sigma": 0.3, "source": "test"}
    return Prediction(p50_us=p50_us, **(defaults | fields))


def make_measured(p50_us: float = 10_000.0, **fields: Any) -> Measured:
    """What four clients saw in ten seconds."""
    throughput = fields.get("throughput_per_second", 4e6 / p50_us)
    defaults: dict[str, Any] = {
        "requests": round(throughput * 10),
        "errors": 0,
        "seconds": 10.0,
        "mean_us": 0.98 * p50_us,
        "p50_us": p50_us,
        "p99_us": 1.2 * p50_us,
        "throughput_per_second": throughput,
        "mean_batch": 1.0,
    }
    return Measured(**(defaults | fields))


def make_accuracy(**fields: Any) -> Accuracy:
    """A good answer on calibration inputs."""
    defaults: dict[str, Any] = {
        "metric": "RelativeL2",
        "difference_ppm": 500,
        "self_difference_ppm": 0,
        "batch_difference_ppm": 10,
        "inputs": "calibration",
        "samples": 16,
        "invalid_values": False,
    }
    return Accuracy(**(defaults | fields))


def make_report(candidate: Candidate, p50_us: float = 10_000.0, *, reference_us: float = 20_000.0, **fields: Any) -> BenchReport:
    """A complete report in which the card was in the state of its portrait."""
    measured = fields.pop("measured", make_measured(p50_us))
    reference = fields.pop("reference", make_measured(reference_us))
    ratio = measured.mean_us / reference.mean_us if measured is not None and reference is not None else 1.0
    defaults: dict[str, Any] = {
        "config": candidate.config,
        "load_clients": 4,
        "rounds": 7,
        "latency_ratio_permille": round(1000 * ratio),
        "latency_ratio_spread_permille": 20,
        "accuracy": make_accuracy(),
        "readback": Readback(provider=candidate.config.execution_provider, precision=candidate.config.precision, coverage_permille=1000, assigned_nodes=90),
        "micro": MicroProbe(gflops=MICRO_GFLOPS, bandwidth_gigabytes_per_second=10.0, spread_permille=20),
    }
    return BenchReport(candidate=measured, reference=reference, **(defaults | fields))


def make_run(
    candidate: Candidate, p50_us: float = 10_000.0, *, node: str = "node-1", number: int = 1, failure: Failure | None = None, **fields: Any
) -> RunResult:
    """One finished benchmark; ``fields`` are those of its report."""
    report = None if failure is not None else make_report(candidate, p50_us, **fields)
    return RunResult(f"bench-{number}", "run-1", candidate, node, LONG_AGO + timedelta(minutes=number), report, failure)


def make_profile(providers: Mapping[str, Mapping[str, Any]] | None = None, **fields: Any) -> ProfileReport:
    """A small CNN that both CPU runtimes run completely; ``providers`` holds what differs per provider."""
    given = providers if providers is not None else {CPU_PROVIDER: {}, OPENVINO_PROVIDER: {}}
    profiles = tuple(ProviderProfile(**({"provider": name, "coverage_permille": 1000, "assigned_nodes": 90} | dict(extra))) for name, extra in given.items())
    defaults: dict[str, Any] = {"weight_bytes": 20_000_000, "parameters": 5_000_000, "nodes": 90, "activation_bytes_per_sample": 4_000_000}
    return ProfileReport(providers=profiles, **(defaults | fields))
