"""Methods that answer a case: the operator's own ranking and validation on known answers, and what it is compared with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from metainfer.decide.accuracy_odds import read_odds
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.learning import Sample, family_key
from metainfer.decide.predictor import Prediction, Predictor
from metainfer.decide.ranking import rank
from metainfer.decide.validation import Measure, Situation, next_step
from metainfer.decide.verdicts import Decision, judge
from metainfer.predict.learned.boosting import fit_plain
from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.learned.rows import Rows
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.onnx_runs.cases import ACCURACY, Case
from metainfer.predict.onnx_runs.measured import MeasuredModel, OnnxRuns
from metainfer.predict.physics import PhysicsPredictor, answer, take_apart
from metainfer.predict.question_rows import build_rows
from metainfer.predict.registry import Registry
from metainfer.predict.training import Curriculum, train_challenger
from metainfer.predict.training_rows import build_training_rows
from metainfer.predict.workload import Floats

MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN_SIGMA = 0.3
PLAIN_TAIL = 1.3
"""P99 over mean where nothing tells it."""
RANDOM_RUNS = 5
Predictions = Mapping[Candidate, Prediction]


@dataclass(frozen=True, slots=True)
class Played:
    """A validation from its first run to its decision."""

    runs: tuple[RunResult, ...]
    decision: Decision

    @property
    def candidates(self) -> list[Candidate]:
        """In the order in which they were measured, each once."""
        return list(dict.fromkeys(run.candidate for run in self.runs))


@dataclass(frozen=True, slots=True)
class Rivals:
    """Predictions of one model's candidates by those who do not know it."""

    ours: Predictions
    base: Predictions
    plain: Predictions = field(default_factory=dict)


def predict_without(runs: OnnxRuns, model: MeasuredModel, *, seed: int = 0) -> Rivals:
    """All learners taught by the other models' runs. Ours serves as in operation: only in families where it won on models held out of those."""
    samples = runs.without(model)
    return Rivals(
        ours=_ask(learn(samples, seed=seed), model),
        base=_ask(PhysicsPredictor(), model),
        plain=_ask_plain(build_training_rows(samples), model, seed=seed),
    )


def learn(samples: Sequence[Sample], *, seed: int = 0) -> Predictor:
    """What the operator would rank with after these samples; the bare base where they teach nothing."""
    try:
        record = train_challenger(Curriculum(samples, seed=seed), MADE_AT)
    except Untrainable:
        return PhysicsPredictor()
    return LearnedPredictor(Registry(record))


def play(case: Case, predictions: Predictions, runs: OnnxRuns) -> Played:
    """Ask for the next run, answer it from the table, until the operator has enough; then let it judge."""
    situation = Situation(
        predictions={item: predictions[item] for item in case.candidates},
        runs=(),
        portraits=runs.portraits,
        objective=case.objective,
        accuracy=ACCURACY,
        costs=case.costs,
        current=case.current,
    )
    while isinstance(step := next_step(situation), Measure):
        situation = replace(situation, runs=(*situation.runs, case.model.runs[step.candidate][0]))
    return Played(situation.runs, judge(situation))


def ranked_scores(case: Case, predictions: Predictions) -> Floats:
    """The order of predictions before anything is measured, as scores by candidate."""
    order = rank(case.candidates, [predictions[item] for item in case.candidates], case.objective, case.costs, current=case.current)
    return _scores(case, [item.candidate for item in order])


def shortlist_scores(case: Case, predictions: Predictions) -> Floats:
    """The same, each weighed by the odds that its answers are good enough, as the operator's next run is chosen."""
    odds = read_odds((), ACCURACY)
    order = rank(case.candidates, [predictions[item] for item in case.candidates], case.objective, case.costs, current=case.current)
    return _scores(case, [item.candidate for item in sorted(order, key=lambda item: -(item.score + math.log(odds.chance(item.candidate))))])


def pick_scores(case: Case, picks: Sequence[Candidate]) -> Floats:
    """Of a method that names its picks and nothing else."""
    return _scores(case, picks)


def pick_randomly(case: Case) -> list[Candidate]:
    """Five different candidates, the same ones for the same case each time."""
    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:8], "big")
    places = np.random.default_rng(seed).permutation(len(case.candidates))[:RANDOM_RUNS]
    return [case.candidates[place] for place in places]


def _scores(case: Case, order: Sequence[Candidate]) -> Floats:
    scores = np.zeros(len(case.candidates))
    for place, candidate in enumerate(order):
        scores[case.place(candidate)] = len(order) - place
    return scores


def _ask(predictor: Predictor, model: MeasuredModel) -> Predictions:
    return dict(zip(model.questions, predictor.predict(list(model.questions.values())), strict=True))


def _ask_plain(teaching: Rows, model: MeasuredModel, *, seed: int) -> Predictions:
    """LightGBM on names, batch and sizes, target log latency: no physics, no probes, no measured curve."""
    parts = take_apart(list(model.questions.values()))
    asked = build_rows(parts, answer(parts))
    words = {name: np.unique(np.concatenate([teaching[name], asked[name]])) for name in ("family", "runtime", "precision")}
    values = fit_plain(_raw(teaching, words), np.log(teaching["latency_us"]), _raw(asked, words), seed=seed)
    found = {}
    for (candidate, question), value in zip(model.questions.items(), np.exp(values).tolist(), strict=True):
        found[candidate] = Prediction(value, PLAIN_TAIL * value, question.load_clients / value * 1e6, PLAIN_SIGMA, f"plain trees, {family_key(candidate)}")
    return found


def _raw(rows: Rows, words: Mapping[str, Floats]) -> Floats:
    codes = [np.searchsorted(known, rows[name]).astype(np.float64) for name, known in words.items()]
    sizes = [rows[name].sum(axis=1) for name in ("macs", "weight_bytes", "activation_bytes")]
    return np.stack([*codes, *sizes, rows["launches"], rows["batch"], rows["concurrency"]], axis=1)
