"""What a table of ``hack/bench/collect`` knows of each model: every candidate's question, the run that answers it, and what is true of it.

*True* is independent of the operator's own estimates: all runs of a model alternated with the same reference (ONNX Runtime, fp32, one
request at a time), so each figure is its run's ratio to that reference, times the reference's median over all of the model's runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec
from metainfer.decide.evidence import find_broken, is_another_computation
from metainfer.decide.facts import Candidate, Portrait, ProbeResult, ProfileResult, RunResult
from metainfer.decide.learning import Sample
from metainfer.decide.portraits import portray
from metainfer.decide.predictor import Question
from metainfer.predict.training_lines import Material, read_lines
from metainfer_probe.contract import BenchReport

TRUE_LOG_SIGMA = 0.01


@dataclass(frozen=True, slots=True)
class Truth:
    """What a candidate does; ``decide.ranking.Figures``."""

    p50_us: float
    p99_us: float
    throughput_per_second: float
    log_sigma: float = TRUE_LOG_SIGMA


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model with all that was measured of it."""

    name: str
    digest: str
    questions: Mapping[Candidate, Question]
    runs: Mapping[Candidate, tuple[RunResult, ...]]
    """Repetitions, oldest first; the first one answers where the operator asks."""
    truths: Mapping[Candidate, Truth]
    """Of every candidate with a result, also where its answers are not good enough."""
    reference_log_spread: float
    """Standard deviation of the reference's log latency over all runs: what one measurement without its reference is worth."""


@dataclass(frozen=True, slots=True)
class OnnxRuns:
    """One table."""

    models: tuple[MeasuredModel, ...]
    portraits: Mapping[str, Portrait]
    """By node."""
    samples: tuple[Sample, ...]
    """All of them, as the operator would learn from them."""

    def without(self, model: MeasuredModel) -> tuple[Sample, ...]:
        """What may be learned from where this model is asked about."""
        return tuple(sample for sample in self.samples if sample.digest != model.digest)


def read_onnx_runs(lines: Sequence[str], name: str) -> OnnxRuns:
    """A table by its lines. Raises TableUnreadable naming ``name`` and the line."""
    return build_onnx_runs(read_lines(lines, name), _names(lines))


def build_onnx_runs(material: Material, names: Mapping[str, str]) -> OnnxRuns:
    """From what a table holds; ``names`` of models by digest, the digest itself where there is none."""
    homes = {run.node: run.candidate for _, run in material.runs}
    portraits = {probe.node: _as_portrait(probe, homes[probe.node]) for probe in material.probes if probe.report is not None and probe.node in homes}
    profiles = {item.report.digest: item for item in material.profiles if item.report is not None and item.report.failure is None}
    by_model: dict[str, list[RunResult]] = {}
    for digest, run in material.runs:
        by_model.setdefault(digest, []).append(run)
    found = (_build_model(names.get(digest, digest), profiles[digest], runs, portraits) for digest, runs in by_model.items() if digest in profiles)
    return OnnxRuns(tuple(sorted(found, key=lambda item: item.name)), portraits, material.join())


def _names(lines: Iterable[str]) -> dict[str, str]:
    keys = [json.loads(line)["key"] for line in lines if line.strip()]
    return {key["sha256"]: str(key["model"]) for key in keys if key.get("kind") == "profile" and {"sha256", "model"} <= key.keys()}


def _as_portrait(probe: ProbeResult, home: Candidate) -> Portrait:
    if probe.report is None:
        msg = f"probe {probe.job} has no report"
        raise ValueError(msg)
    return Portrait(probe.node, NodePortraitSpec(node_uid=probe.node, pool=home.pool, family=home.family), portray(probe.report))


def _build_model(name: str, profile: ProfileResult, runs: Iterable[RunResult], portraits: Mapping[str, Portrait]) -> MeasuredModel:
    report = profile.report
    if report is None:
        msg = f"profile {profile.job} has no report"
        raise ValueError(msg)
    by_candidate: dict[Candidate, list[RunResult]] = {}
    for run in sorted(runs, key=lambda item: item.finished_at):
        by_candidate.setdefault(run.candidate, []).append(run)
    good = [run.report for items in by_candidate.values() for run in items if run.report is not None and _is_result(run)]
    levels = [math.log(item.reference.mean_us) for item in good if item.reference is not None and item.reference.mean_us > 0]
    level_us = math.exp(median(levels)) if levels else 0.0
    questions = {}
    for candidate, items in by_candidate.items():
        run = items[0]
        home = portraits.get(profile.node)
        knows = home is not None and any(figure.execution_provider == candidate.config.execution_provider for figure in home.status.figures)
        clients = max(1, run.report.load_clients) if run.report is not None else 1
        questions[candidate] = Question(candidate, report, portraits.get(run.node), clients, home if knows else None)
    truths = {candidate: truth for candidate, items in by_candidate.items() if (truth := _truth(items, level_us)) is not None}
    return MeasuredModel(name, report.digest, questions, {key: tuple(items) for key, items in by_candidate.items()}, truths, _deviation(levels))


def _is_result(run: RunResult) -> bool:
    return find_broken(run) is None and not is_another_computation(run)


def _truth(runs: Sequence[RunResult], level_us: float) -> Truth | None:
    """Geometric mean over repetitions; None without a result or without its reference."""
    found = [truth for run in runs if run.report is not None and _is_result(run) and (truth := _one_truth(run.report, level_us)) is not None]
    if not found:
        return None
    return Truth(*(math.exp(fmean(math.log(getattr(item, name)) for item in found)) for name in ("p50_us", "p99_us", "throughput_per_second")))


def _one_truth(report: BenchReport, level_us: float) -> Truth | None:
    measured = report.candidate
    if measured is None or report.latency_ratio_permille <= 0 or level_us <= 0:
        return None
    scale = report.latency_ratio_permille / 1000 * level_us / measured.mean_us
    return Truth(measured.p50_us * scale, measured.p99_us * scale, measured.throughput_per_second / scale)


def _deviation(values: Sequence[float]) -> float:
    middle = fmean(values) if values else 0.0
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
