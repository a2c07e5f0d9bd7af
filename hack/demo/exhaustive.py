#!/usr/bin/env python3
"""Every candidate of the demo's models, really measured on this machine: what the operator's decisions are judged by.

At most 24 points per model (provider, precision, batch, concurrency), each through the same benchmark as in the cluster, beside the
same reference (ONNX Runtime, fp32, one request at a time). Finished points are kept as lines of JSON and not measured again, so
the run may be interrupted. Takes minutes and a quiet machine; it is no part of the tests.

    python hack/demo/models.py build/models
    python hack/demo/exhaustive.py build/models

With ``--decisions build/demo.json`` (what ``hack/demo/run --exhaustive`` does) each decision of the demo is held against the best point
that its adaptation allowed: best, tied with it within the noise, or worse, which is the exit status.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "probes"))

THREADS = 1
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, str(THREADS))  # before numpy is imported: one thread per card, as in the Jobs

from metainfer_probe.backends import available_providers, find_backend  # noqa: E402 - after the variables
from metainfer_probe.backends.base import ProbeError  # noqa: E402
from metainfer_probe.bench import bench_candidate  # noqa: E402
from metainfer_probe.contract import BenchReport, BenchRequest, ModelSource, Precision, ServingConfig  # noqa: E402
from metainfer_probe.micro import micro_probe  # noqa: E402
from metainfer_probe.model_file import digest_files  # noqa: E402

BATCHES, CONCURRENCIES = (1, 4), (1, 2)
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
MAX_POINTS = 24
BATCH_DELAY_US = 2_000
"""What the operator sets where nobody declared a delay."""
LOAD_CLIENTS = 4
MICRO_SECONDS = 0.5
NOISE = 0.05
"""Differences below 5 % repeat in either direction: a tie."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each point is measured."""

    rounds: int
    window_seconds: float
    deadline_seconds: float


def points() -> list[ServingConfig]:
    """All configurations that this machine can be asked for, the reference first."""
    found = [
        ServingConfig(
            execution_provider=provider,
            precision=precision,
            batch_size=batch,
            concurrency=concurrency,
            dynamic_batching=batch > 1,
            max_batch_delay_us=BATCH_DELAY_US if batch > 1 else 0,
        )
        for provider in available_providers()
        for precision in PRECISIONS
        if _is_native(provider, precision)
        for batch, concurrency in itertools.product(BATCHES, CONCURRENCIES)
    ]
    return found[:MAX_POINTS]


def _is_native(provider: str, precision: Precision) -> bool:
    backend = find_backend(provider)
    try:
        backend.file_precision(precision)
    except ProbeError:
        return False
    return precision in backend.native_precisions()


def measure(model: Path, plan: Plan, results: Path, more: Sequence[ServingConfig] = ()) -> Iterator[dict[str, Any]]:
    """The line of every point and of the configurations in ``more``, measured now or found in ``results``."""
    known = _read_lines(results)
    candidates, digest = points(), digest_files((model,))
    candidates += [config for config in more if config not in candidates]
    for position, candidate in enumerate(candidates, 1):
        key = {"model": model.stem, "digest": digest, "config": json.loads(candidate.model_dump_json()), "plan": [plan.rounds, plan.window_seconds]}
        line = next((line for line in known if line["key"] == key), None)
        if line is None:
            start = time.monotonic()
            report = _bench(model, candidate, candidates[0], plan)
            line = {"key": key, "report": json.loads(report.model_dump_json()), "seconds": round(time.monotonic() - start, 1)}
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
        print(f"[{position}/{len(candidates)}] {_row(line)}", flush=True)
        yield line


def _bench(model: Path, candidate: ServingConfig, reference: ServingConfig, plan: Plan) -> BenchReport:
    calibration = model.with_suffix(".npz")
    request = BenchRequest(
        model=ModelSource(path=model.name),
        candidate=candidate,
        reference=reference,
        load_clients=LOAD_CLIENTS,
        calibration=ModelSource(path=calibration.name) if calibration.is_file() else None,
        rounds=plan.rounds,
        window_seconds=plan.window_seconds,
        deadline_seconds=plan.deadline_seconds,
        threads=THREADS,
    )
    return bench_candidate(request, model.parent, model.parent / "work", micro=micro_probe(MICRO_SECONDS))


def _read_lines(results: Path) -> list[dict[str, Any]]:
    if not results.is_file():
        return []
    return [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]  # a cut line is measured again


def print_table(name: str, lines: Sequence[dict[str, Any]], budget_permille: int) -> None:
    """All points, fastest first, and the best one among those whose answers stay within the budget."""
    print(f"\n{name}: throughput relative to {_title(lines[0])}, {LOAD_CLIENTS} requests in flight; budget {budget_permille} permille")
    for line in sorted(lines, key=_gain, reverse=True):
        print(f"  {_row(line)}{'' if _fits(line, budget_permille) else '  over the budget' if _gain(line) else ''}")
    fitting = [line for line in lines if _fits(line, budget_permille)]
    best = max(fitting, key=_gain, default=None)
    if best is None:
        print("  nothing fits")
        return
    tied = [_title(line) for line in fitting if line is not best and _gain(line) >= _gain(best) * (1 - NOISE)]
    print(f"  best: {_title(best)}, {_gain(best):.2f}x{'; tied with ' + '; '.join(tied) if tied else ''}")


@dataclass(frozen=True, slots=True)
class Decision:
    """What the demo decided for one model, and among what it was allowed to choose."""

    name: str
    model: str
    config: ServingConfig
    precisions: tuple[str, ...]
    budget_permille: int

    def judge(self, lines: Sequence[dict[str, Any]]) -> tuple[str, bool]:
        """One line of text, and whether the decision is the exhaustive best or a tie with it."""
        allowed = [line for line in lines if line["key"]["config"]["precision"] in self.precisions and _fits(line, self.budget_permille)]
        own = next((line for line in lines if ServingConfig.model_validate(line["key"]["config"]) == self.config), None)
        if own is None or not allowed:
            return f"{self.name}: nothing measured to hold the decision against", False
        best = max(allowed, key=_gain)
        share = _gain(own) / _gain(best)
        verdict = "the exhaustive best" if own is best else "a tie with the best" if share >= 1 - NOISE else "WORSE than the best"
        return f"{self.name}: decided {_title(own)} ({_gain(own):.2f}x), best {_title(best)} ({_gain(best):.2f}x): {verdict}", share >= 1 - NOISE


def read_decisions(file: Path) -> list[Decision]:
    """The decisions of a finished demo."""
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return [_read_decision(name, facts) for name, facts in cases.items() if facts]


def _read_decision(name: str, facts: dict[str, Any]) -> Decision:
    decided = facts["decision"]["config"]
    config = ServingConfig(
        execution_provider=decided["executionProvider"],
        precision=decided["precision"],
        batch_size=decided["batchSize"],
        concurrency=decided["concurrency"],
        dynamic_batching=decided["dynamicBatching"],
        max_batch_delay_us=BATCH_DELAY_US if decided["dynamicBatching"] else 0,
    )
    return Decision(name, facts["model"], config, tuple(facts["allowed"]["precisions"] or PRECISIONS), facts["allowed"]["budgetPermille"])


def _gain(line: dict[str, Any]) -> float:
    """Median over the rounds of the candidate's throughput over that of the reference beside it; 0 where the point failed."""
    report = line["report"]
    if report["failure"] or not report["candidate"]:
        return 0.0
    windows = [report["detail"][side]["window_throughput_per_second"] for side in ("candidate", "reference")]
    return float(statistics.median(candidate / reference for candidate, reference in zip(*windows, strict=True)))


def _fits(line: dict[str, Any], budget_permille: int) -> bool:
    accuracy = line["report"]["accuracy"]
    return _gain(line) > 0 and accuracy is not None and not accuracy["invalid_values"] and accuracy["difference_ppm"] <= 1000 * budget_permille


def _title(line: dict[str, Any]) -> str:
    config = line["key"]["config"]
    return f"{config['execution_provider'].removesuffix('ExecutionProvider')} {config['precision']} b{config['batch_size']} c{config['concurrency']}"


def _row(line: dict[str, Any]) -> str:
    report = line["report"]
    if report["failure"]:
        return f"{_title(line):22} {report['failure']['reason']}: {report['failure']['message'][:100]}"
    measured, accuracy = report["candidate"], report["accuracy"]
    return (
        f"{_title(line):22} {_gain(line):5.2f}x  mean {report['latency_ratio_permille'] / 1000:5.2f} (±{report['latency_ratio_spread_permille'] / 20:4.1f} %)"
        f"  p50 {measured['p50_us'] / 1000:7.1f} ms  p99 {measured['p99_us'] / 1000:7.1f} ms  {measured['throughput_per_second']:7.1f}/s"
        f"  batch {measured['mean_batch']:4.2f}  diff {accuracy['difference_ppm'] / 1e4:8.4f} %  {report['peak_memory_bytes'] >> 20} MiB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure every candidate of the demo's models on this machine.")
    parser.add_argument("models", type=Path, help="folder with NAME.onnx and NAME.npz (see models.py)")
    parser.add_argument("--only", nargs="+", default=["ocr-rec", "orientation"], metavar="NAME")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "exhaustive.jsonl")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--deadline-seconds", type=float, default=120.0, help="per point")
    parser.add_argument("--budget-permille", type=int, default=10)
    parser.add_argument("--decisions", type=Path, help="build/demo.json: hold the demo's decisions against the tables; exit status 1 when one is worse")
    options = parser.parse_args(arguments)
    missing = [name for name in options.only if not (options.models / f"{name}.onnx").is_file()]
    if missing:
        print(f"error: {options.models} has no {', '.join(missing)}; run hack/demo/models.py {options.models} first", file=sys.stderr)
        return 1
    options.results.parent.mkdir(parents=True, exist_ok=True)
    # One processor for server and load generator together, like a card of the local cluster.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    plan = Plan(options.rounds, options.window_seconds, options.deadline_seconds)
    decisions = read_decisions(options.decisions) if options.decisions else []
    tables = {
        name: list(measure(options.models / f"{name}.onnx", plan, options.results, [d.config for d in decisions if d.model == name])) for name in options.only
    }
    for name, lines in tables.items():
        print_table(name, lines, options.budget_permille)
    verdicts = [decision.judge(tables[decision.model]) for decision in decisions if decision.model in tables]
    for text, _ in verdicts:
        print(text)
    return 0 if all(good for _, good in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
