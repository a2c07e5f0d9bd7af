"""Which questions are asked of the table: one model, the families of cards that are there, and an objective each.

A case's utilities are the true ones; a candidate that may not be chosen has 0: it failed, its answers are not good enough for the default
budget, it breaks the SLO, or (goal Latency) its tail is longer than the rule of ``decide.verdicts`` allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metainfer.api.v1alpha1.model_adaptation import Accuracy, Slo
from metainfer.decide.evidence import find_fault
from metainfer.decide.facts import Candidate
from metainfer.decide.ranking import Costs, Objective, log_utility
from metainfer.decide.verdicts import TAIL_ALLOWANCE
from metainfer.predict.onnx_runs.measured import MeasuredModel, OnnxRuns, Truth
from metainfer.predict.workload import Floats

NEWEST_FIRST = ("native", "avx512", "avx2", "sse41")
"""Families of ``hack/bench/collect`` by their nominal speed, which is what their instruction sets promise."""
CARD_POOLS: Mapping[str, tuple[str, ...]] = {
    "newest": ("native",),
    "two generations": ("native", "avx2"),
    "older": ("avx512", "avx2", "sse41"),
    "all": NEWEST_FIRST,
}
HOURLY_COST_MICROS: Mapping[str, int] = {"native": 50_000, "avx512": 37_500, "avx2": 25_000, "sse41": 15_000}
"""Made up so that there is a choice: per core and hour, older cards cheaper by about as much as they are slower."""
TIGHT, LOOSE = 0.75, 1.5
"""P99 limits of the SLO cases, as shares of the present configuration's P99: one that it misses, one that it keeps."""
LEAST_CANDIDATES, LEAST_USABLE = 6, 2
"""With five candidates five runs are all of them; with one that may be chosen there is no choice."""
ACCURACY = Accuracy()
DEFAULT_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")
"""What an unconfigured server runs on: ONNX Runtime's own kernels where the family has them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its true answer."""

    name: str
    model: MeasuredModel
    goal: str
    """Objective in words, for tables by goal."""
    objective: Objective
    costs: Costs
    candidates: tuple[Candidate, ...]
    current: Candidate
    utilities: Floats
    """By candidate; throughput, or throughput per cost."""

    @property
    def nominal(self) -> Candidate:
        """What a person without measurements takes: of the newest family the biggest batch, then the most executions, of the plain precision."""
        best = self.current.family
        mine = [item for item in self.candidates if item.family == best and _is_plain(item, self.current.config.execution_provider)]
        return max(mine, key=lambda item: (item.config.batch_size, item.config.concurrency))

    def place(self, candidate: Candidate) -> int:
        """Of a candidate among the candidates."""
        return self.candidates.index(candidate)


def make_cases(runs: OnnxRuns) -> Iterator[Case]:
    """All cases of all models, the same ones in the same order each time."""
    for model in runs.models:
        for pool in sorted({candidate.pool for candidate in model.runs}):
            for name, families in CARD_POOLS.items():
                candidates = tuple(sorted((item for item in model.runs if item.pool == pool and item.family in families), key=lambda item: item.key))
                current = find_current(candidates)
                if current is None or len(candidates) < LEAST_CANDIDATES:
                    continue
                yield from _with_objectives(f"{model.name}/{name}", model, candidates, current)


def find_current(candidates: Sequence[Candidate]) -> Candidate | None:
    """What runs before anybody adapts anything: fp32, single requests, one at a time, on the newest family that is there."""
    plain = [item for item in candidates if _is_plain(item) and item.config.batch_size == 1 and item.config.concurrency == 1]
    return min(plain, key=lambda item: (NEWEST_FIRST.index(item.family), DEFAULT_PROVIDERS.index(item.config.execution_provider)), default=None)


def _is_plain(candidate: Candidate, provider: str | None = None) -> bool:
    config = candidate.config
    known = config.execution_provider in DEFAULT_PROVIDERS if provider is None else config.execution_provider == provider
    return config.precision == "fp32" and known


def _with_objectives(name: str, model: MeasuredModel, candidates: tuple[Candidate, ...], current: Candidate) -> Iterator[Case]:
    today = model.truths.get(current)
    goals: list[tuple[str, Objective]] = [("latency", Objective("Latency"))]
    if today is not None:
        goals += [(f"throughput, P99 {words}", Objective("Throughput", _limit(today, share))) for words, share in (("tight", TIGHT), ("loose", LOOSE))]
    if len({item.family for item in candidates}) > 1:  # of one family the cheapest is the fastest
        goals.append(("cost", Objective("Cost")))
    costs = {(item.pool, item.family): HOURLY_COST_MICROS[item.family] for item in candidates}
    for goal, objective in goals:
        utilities = np.array([_utility(item, model, objective, costs, current=current) for item in candidates])
        if np.count_nonzero(utilities) >= LEAST_USABLE:
            yield Case(f"{name}/{goal}", model, goal, objective, costs, candidates, current, utilities)


def _limit(today: Truth, share: float) -> Slo:
    return Slo(p99=f"{max(1, round(today.p99_us * share))}us")


def _utility(candidate: Candidate, model: MeasuredModel, objective: Objective, costs: Costs, *, current: Candidate) -> float:
    truth = model.truths.get(candidate)
    if truth is None or find_fault(model.runs[candidate][0], ACCURACY, is_current=candidate == current) is not None:
        return 0.0
    if objective.p99_limit_us is not None and truth.p99_us > objective.p99_limit_us:
        return 0.0
    today = model.truths.get(current)
    if objective.goal == "Latency" and today is not None and math.log(truth.p99_us / today.p99_us) > TAIL_ALLOWANCE:
        return 0.0
    value = log_utility(candidate, truth, objective.goal, costs)
    return 0.0 if value is None else math.exp(value)
