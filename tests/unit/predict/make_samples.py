"""A made-up fleet whose cards follow physics up to factors that only measurements show: what a learner has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import numpy as np

from metainfer.decide.facts import Candidate, ProbeResult, ProfileResult, RunResult
from metainfer.predict.physics import PhysicsPredictor
from metainfer.predict.training_lines import Material
from metainfer_probe.contract import (
    BenchReport,
    Machine,
    Measured,
    MicroProbe,
    NodeReport,
    OpWork,
    Precision,
    ProfileReport,
    ProviderFigures,
    ProviderProfile,
    Readback,
    ServingConfig,
)  # fmt: skip

ORT, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
PROVIDERS = (ORT, OPENVINO)
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MICRO = MicroProbe(gflops=50.0, bandwidth_gigabytes_per_second=10.0, spread_permille=10)
SPEED = {"fast": 2.0, "slow": 1.0, "other": 1.5, "native": 2.0, "avx2": 1.0}
Factor = Callable[[Candidate], float]


def hidden_factor(candidate: Candidate) -> float:
    """int8 is four times slower than its products promise on ONNX Runtime, and OpenVINO is a third faster than its peaks."""
    config = candidate.config
    return (4.0 if (config.execution_provider, config.precision) == (ORT, "int8") else 1.0) * (0.67 if config.execution_provider == OPENVINO else 1.0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """How a material is made."""

    models: int = 8
    families: Sequence[str] = ("fast", "slow")
    nodes: int = 1
    factor: Factor = hidden_factor
    noise: float = 0.02
    seed: int = 0
    first_model: int = 0
    start: datetime = NOON

    def configs(self) -> list[ServingConfig]:
        """Eight per family."""
        return [make_config(provider, precision, batch) for provider, precision, batch in product(PROVIDERS, PRECISIONS, (1, 4))]

    def build(self) -> Material:
        """Every model on every node in every configuration, an hour after its probe."""
        draw = np.random.default_rng(self.seed)
        nodes = [(family, f"{family}-{index}") for family in self.families for index in range(self.nodes)]
        probes = [make_probe(node, SPEED[family], finished_at=self.start - timedelta(hours=1)) for family, node in nodes]
        profiles = [make_profile(self.first_model + index, nodes[0][1], finished_at=self.start) for index in range(self.models)]
        runs = []
        for number, (profile, (family, node), config) in enumerate(product(profiles, nodes, self.configs())):
            candidate = Candidate("lab", family, config)
            factor = self.factor(candidate) * float(np.exp(draw.normal(0, self.noise)))
            runs.append(make_run(profile, probes, candidate=candidate, node=node, factor=factor, number=number))
        return Material([(run.report.digest, run) for run in runs if run.report is not None], profiles, probes)


def make_config(provider: str = ORT, precision: Precision = "fp32", batch: int = 1, **fields: Any) -> ServingConfig:
    """Batching where the batch is above one."""
    return ServingConfig(
        execution_provider=provider, precision=precision, batch_size=batch, dynamic_batching=batch > 1, max_batch_delay_us=2000 if batch > 1 else 0, **fields
    )


def make_probe(node: str, speed: float = 1.0, *, finished_at: datetime = NOON) -> ProbeResult:
    """Both providers; int8 four times as fast as fp32 in bare products."""
    rates = {"tiny": 2.0, "gemv": 4.0, "m32": 40.0, "m256": 60.0, "big": 70.0}
    figures = tuple(
        ProviderFigures(
            provider=provider,
            runtime_version="made up 1.0",
            precision=precision,
            matmul_gflops={shape: rate * speed * (4.0 if precision == "int8" else 1.0) for shape, rate in rates.items()},  # type: ignore[misc]
            launch_p50_us=5.0,
            launch_p99_us=9.0,
            compile_ms=10.0,
            effective_precision=precision,
        )
        for provider, precision in product(PROVIDERS, PRECISIONS)
    )
    report = NodeReport(
        machine=Machine(card_model="Made-up CPU", architecture="x86_64", kernel="6.1", cores=2, memory_bytes=1 << 34, load_permille=0),
        micro=MICRO.model_copy(update={"gflops": MICRO.gflops * speed}),
        bandwidth_gigabytes_per_second={"l2": 60.0 * speed, "l3": 30.0 * speed, "main": 10.0 * speed},
        figures=figures,
    )
    return ProbeResult(f"probe-{node}", node, finished_at, report, job_uid=f"uid-probe-{node}")


def make_profile(number: int, node: str, *, finished_at: datetime = NOON) -> ProfileResult:
    """A convolutional or MatMul net of 50 to 5,000 million multiply-accumulates, without a curve."""
    draw = np.random.default_rng(1000 + number)
    macs = int(np.exp(draw.uniform(np.log(5e7), np.log(5e9))))
    op_class = "convolution" if number % 2 else "matmul"
    report = ProfileReport(
        digest=f"{number:064x}",
        weight_bytes=macs // 50,
        nodes=100,
        architecture="cnn" if number % 2 else "transformer",
        work=(
            OpWork(op_class=op_class, count=60, macs=macs, bytes_moved=macs // 20, time_permille=900),
            OpWork(op_class="elementwise", count=40, macs=0, bytes_moved=macs // 40, time_permille=100),
        ),
        providers=tuple(ProviderProfile(provider=provider, coverage_permille=1000) for provider in PROVIDERS),
        micro=MICRO,
    )
    return ProfileResult(f"profile-{number}", finished_at, report, node=node, job_uid=f"uid-profile-{number}")


def make_run(
    profile: ProfileResult, probes: Sequence[ProbeResult], *, candidate: Candidate, node: str, factor: float, number: int
) -> RunResult:  # budget: a builder, all by keyword
    """What physics says, times the factor; the reference as physics says."""
    digest = profile.report.digest if profile.report is not None else ""
    gflops = MICRO.gflops * SPEED[candidate.family]
    report = make_report(digest, 1.0, candidate.config, gflops=gflops)
    job, finished_at = f"bench-{digest[-4:]}-{number}", profile.finished_at + timedelta(minutes=number)
    run = RunResult(job, "run", candidate, node, finished_at, report, job_uid=f"uid-{job}")
    (sample,) = Material([(digest, run)], [profile], probes).join()
    (base,) = PhysicsPredictor().predict([sample.question])
    return replace(run, report=make_report(digest, base.p50_us * factor, candidate.config, gflops=gflops))


def make_report(digest: str, latency_us: float, config: ServingConfig, *, gflops: float = MICRO.gflops, **fields: Any) -> BenchReport:
    """Seven rounds under four clients; the card as fast as the micro-probe says."""
    known: dict[str, Any] = {
        "digest": digest,
        "config": config,
        "load_clients": 4,
        "candidate": make_measured(latency_us),
        "reference": make_measured(10_000.0),
        "rounds": 7,
        "latency_ratio_permille": 1000,
        "readback": Readback(provider=config.execution_provider, precision=config.precision, coverage_permille=1000, assigned_nodes=100),
        "micro": MICRO.model_copy(update={"gflops": gflops}),
    }
    return BenchReport(**(known | fields))


def make_measured(latency_us: float) -> Measured:
    """Four clients in a closed loop."""
    times = {"mean_us": latency_us, "p50_us": latency_us, "p99_us": 1.2 * latency_us}
    return Measured(requests=400, errors=0, seconds=1.0, throughput_per_second=4e6 / latency_us, mean_batch=1.0, **times)
