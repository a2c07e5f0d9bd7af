"""The sequential loop against a hidden truth: what it costs to measure a handful of candidates instead of all.

The truth is a seeded table: base cost times log-normal effects of model, family, provider, precision on that provider, batch,
concurrency and the candidate itself; and per provider and precision, whether the answers stay within the budget. Predictions know the
base only. Benchmarks are noisy by 5 %, on cards whose state drifts. Regret is against the best whose answers are good enough.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import mean, median

from tests.unit.decide.make_facts import CPU_PROVIDER, OPENVINO_PROVIDER, make_portrait
from tests.unit.decide.make_runs import MICRO_GFLOPS, make_accuracy, make_candidate, make_measured, make_prediction, make_run

from metainfer.decide.accuracy_odds import MEAN_LOG_PPM, MODEL_VARIANCE, PLACE_VARIANCE, PRECISION_VARIANCE
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.ranking import Objective
from metainfer.decide.validation import Decide, Situation, next_step
from metainfer.decide.verdicts import judge
from metainfer_probe.contract import MicroProbe, Precision

FAMILIES = {
    "old-cpu": (1.3, (CPU_PROVIDER,)),
    "cpu": (1.0, (CPU_PROVIDER,)),
    "vino": (1.0, (OPENVINO_PROVIDER, CPU_PROVIDER)),
    "gpu": (0.4, ("CUDAExecutionProvider", "TensorrtExecutionProvider")),
}
PRECISIONS: dict[Precision, float] = {"fp32": 1.0, "bf16": 0.6, "fp16": 0.6, "int8": 0.5}
SHAPES = {(1, 1): 1.0, (1, 2): 0.95, (4, 1): 0.8, (8, 1): 0.75}
CLIENTS = 8
NOISE_LOG_SIGMA = 0.05
CARD_STATE_LOG_SIGMA = 0.05
CURRENT = make_candidate("old-cpu")
SEEDS = 40


class World:
    """One model on four families: 96 candidates."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation, nothing secret
        self._effects: dict[object, float] = {}
        self.predicted_us: dict[Candidate, float] = {}
        self.true_us: dict[Candidate, float] = {}
        for family, (speed, providers) in FAMILIES.items():
            for provider in providers:
                for precision, precision_factor in PRECISIONS.items():
                    for (batch, concurrency), shape_factor in SHAPES.items():
                        candidate = make_candidate(family, execution_provider=provider, precision=precision, batch_size=batch, concurrency=concurrency)
                        self.predicted_us[candidate] = 80_000.0 * speed * precision_factor * shape_factor
                        self.true_us[candidate] = self.predicted_us[candidate] * math.exp(self._surprise(candidate))

    def _surprise(self, candidate: Candidate) -> float:
        config = candidate.config
        effects = (
            ("model", 0.25),
            (("family", candidate.family), 0.2),
            (("provider", config.execution_provider), 0.2),
            (("variant", config.execution_provider, config.precision), 0.05 if config.precision == "fp32" else 0.35),
            (("batch", config.batch_size), 0.12),
            (("concurrency", config.concurrency), 0.08),
            (candidate, 0.06),
        )
        return math.fsum(self._effect(key, sigma) for key, sigma in effects)

    def _effect(self, key: object, sigma: float) -> float:
        if key not in self._effects:
            self._effects[key] = self.random.gauss(0.0, sigma)
        return self._effects[key]

    def log_difference_ppm(self, candidate: Candidate) -> float:
        """How far from fp32, with effects as measured ones have them: touchy models are touchy in every lossy precision."""
        config = candidate.config
        effects = (
            ("touchy", math.sqrt(MODEL_VARIANCE)),
            (("touchy", config.precision), math.sqrt(PRECISION_VARIANCE)),
            (("touchy", config.precision, candidate.family, config.execution_provider), math.sqrt(PLACE_VARIANCE)),
        )
        return MEAN_LOG_PPM[config.precision] + math.fsum(self._effect(key, sigma) for key, sigma in effects)

    def is_valid(self, candidate: Candidate) -> bool:
        """Whether the answers stay within the default budget of 1 %: fp32 always."""
        return candidate.config.precision == "fp32" or self.log_difference_ppm(candidate) <= math.log(10_000)

    def bench(self, candidate: Candidate, number: int) -> RunResult:
        """One noisy run: the card's state moves candidate, reference and micro-probe alike; a fresh process adds its own luck."""
        reference_us = self.true_us[make_candidate(candidate.family, execution_provider=candidate.config.execution_provider)]
        state = math.exp(self.random.gauss(0.0, CARD_STATE_LOG_SIGMA))
        level_us = reference_us * state * math.exp(self.random.gauss(0.0, 0.03))
        p50_us = level_us * self.true_us[candidate] / reference_us * math.exp(self.random.gauss(0.0, NOISE_LOG_SIGMA))
        return make_run(
            candidate,
            node=f"{candidate.family}-1",
            number=number,
            measured=make_measured(p50_us, throughput_per_second=CLIENTS * 1e6 / p50_us),
            reference=make_measured(level_us),
            micro=MicroProbe(gflops=MICRO_GFLOPS / state, bandwidth_gigabytes_per_second=10.0, spread_permille=10),
            latency_ratio_spread_permille=60,
            accuracy=make_accuracy(difference_ppm=0 if candidate.config.precision == "fp32" else math.floor(math.exp(self.log_difference_ppm(candidate)))),
        )

    def regret(self, candidate: Candidate | None) -> float:
        """How much slower than the best of the valid ones."""
        assert candidate is not None
        return self.true_us[candidate] / min(value for item, value in self.true_us.items() if self.is_valid(item)) - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    loop: float
    prediction_alone: float
    random_picks: float
    runs: int


def play(seed: int) -> Outcome:
    """The loop from the first run to the decision, and what two simpler ways would have chosen.

    Without a benchmark only fp32 can be approved; random picks are benchmarked as often as the loop may.
    """
    world = World(seed)
    predictions = {item: make_prediction(value, log_sigma=0.45, throughput_per_second=CLIENTS * 1e6 / value) for item, value in world.predicted_us.items()}
    situation = Situation(
        predictions=predictions,
        runs=(),
        portraits={f"{family}-1": make_portrait(f"{family}-1", family) for family in FAMILIES},
        objective=Objective("Latency"),
        current=CURRENT,
    )
    step = next_step(situation)
    while not isinstance(step, Decide):
        run = world.bench(step.candidate, len(situation.runs))
        situation = Situation(predictions, (*situation.runs, run), situation.portraits, situation.objective, current=CURRENT)
        step = next_step(situation)
    selected = judge(situation, minimum_gain_percent=5).selected
    best_guess = min((item for item in predictions if item.config.precision == "fp32"), key=lambda item: (world.predicted_us[item], item.key))
    picks = [CURRENT, *(item for item in world.random.sample(sorted(predictions, key=lambda item: item.key), 4) if world.is_valid(item))]
    return Outcome(world.regret(selected), world.regret(best_guess), min(world.regret(item) for item in picks), len(situation.runs))


def test_five_runs_find_a_configuration_near_the_best() -> None:
    """Mean regret below 25 %, where fp32 by prediction alone leaves more than 110 % and as many random benchmarks more than 150 %.

    Over 100 other seeds the three were 15, 157 and 249 % with 4.9 runs (median of the loop: 2 %). Without correction by what was
    measured the loop left 24 %; with the precision's own odds, whatever the model's other answers were, 21 %; without odds 570 %.
    """
    outcomes = [play(seed) for seed in range(SEEDS)]
    loop, alone, at_random = (mean(getattr(item, name) for item in outcomes) for name in ("loop", "prediction_alone", "random_picks"))
    assert max(item.runs for item in outcomes) <= 5
    assert loop < 0.25
    assert alone > 1.1
    assert at_random > 1.5
    assert median(item.loop for item in outcomes) < 0.1


def test_the_same_seed_gives_the_same_outcome() -> None:
    """Nothing in the loop depends on anything but its arguments."""
    assert play(7) == play(7)
