"""The fourth pool of ``metainfer evaluate``: every model left out once, all methods on all of its cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metainfer.decide.facts import Candidate
from metainfer.predict.onnx_runs.cases import Case, make_cases
from metainfer.predict.onnx_runs.measured import OnnxRuns
from metainfer.predict.onnx_runs.playing import Rivals, pick_randomly, pick_scores, play, predict_without, ranked_scores, shortlist_scores
from metainfer.predict.public.evaluation import Say, Verdict
from metainfer.predict.public.metrics import Quality, judge
from metainfer.predict.workload import Floats

OURS, BASE, PLAIN = "ours", "probe roofline", "plain LightGBM"
Answer = tuple[str, str, Quality]
"""Method, way of using it, how good it was."""


def evaluate_onnx_runs(pool: str, runs: OnnxRuns, say: Say) -> Iterator[Verdict]:
    """One-shot: the four best by the order. Sequential: what the operator's validation measures, the present configuration and at most four others."""
    for case, rivals in ask_all(runs, say):
        for method, way, quality in _answer(case, rivals, runs):
            yield Verdict(pool, method, way, quality)


def ask_all(runs: OnnxRuns, say: Say) -> Iterator[tuple[Case, Rivals]]:
    """Every case with the predictions of those who do not know its model."""
    by_model: dict[str, list[Case]] = {}
    for case in make_cases(runs):
        by_model.setdefault(case.model.digest, []).append(case)
    for number, cases in enumerate(by_model.values(), 1):
        model = cases[0].model
        say(f"own runs: {model.name} left out ({number} of {len(by_model)}), {len(runs.without(model))} samples to learn from, {len(cases)} cases")
        rivals = predict_without(runs, model)
        yield from ((case, rivals) for case in cases)


def _answer(case: Case, rivals: Rivals, runs: OnnxRuns) -> Iterator[Answer]:
    yield OURS, "one-shot", _judge(case, shortlist_scores(case, rivals.ours))
    for method, predictions in ((BASE, rivals.base), (PLAIN, rivals.plain)):
        yield method, "one-shot", _judge(case, ranked_scores(case, predictions))
    picks = {"current default": [case.current], "biggest batch on the nominally fastest": [case.nominal], "random 5": pick_randomly(case)}
    for method, chosen in picks.items():
        yield method, "one-shot", _judge(case, pick_scores(case, chosen), chosen)
    for method, predictions in ((OURS, rivals.ours), (BASE, rivals.base)):
        yield method, "sequential", _judge(case, ranked_scores(case, predictions), play(case, predictions, runs).candidates)


def _judge(case: Case, scores: Floats, picks: Sequence[Candidate] | None = None) -> Quality:
    return judge(case.model.name, case.utilities, scores, None if picks is None else [case.place(item) for item in picks])
