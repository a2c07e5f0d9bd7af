"""Our own runs as a test of the choice: what is true, what is asked, and that nobody sees the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.load_script import load_script
from tests.unit.decide.make_runs import make_accuracy
from tests.unit.predict.make_samples import Fleet

from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.predictor import Prediction
from metainfer.predict.learned.errors import TableUnreadable
from metainfer.predict.onnx_runs.cases import Case, make_cases
from metainfer.predict.onnx_runs.evaluation import evaluate_onnx_runs
from metainfer.predict.onnx_runs.measured import OnnxRuns, build_onnx_runs
from metainfer.predict.onnx_runs.playing import pick_randomly, play, predict_without, ranked_scores
from metainfer.predict.public.report import read_own_runs
from metainfer.predict.training_lines import Material, write_lines

FAMILIES = ("native", "avx2")
GOOD = {"accuracy": make_accuracy()}


def make_material(models: int = 5, **fleet: Any) -> Material:
    """A made-up fleet of the two families, every run beside its reference and compared with fp32."""
    made = Fleet(models=models, families=FAMILIES, **fleet).build()
    return Material([(digest, _in_order(run)) for digest, run in made.runs], made.profiles, made.probes)


def _in_order(run: RunResult, **fields: Any) -> RunResult:
    """With its ratio to a reference of 10 ms."""
    assert run.report is not None
    assert run.report.candidate is not None
    ratio = round(run.report.candidate.mean_us / 10_000.0 * 1000)
    return replace(run, report=run.report.model_copy(update={"latency_ratio_permille": ratio} | GOOD | fields))


def make_runs(material: Material | None = None) -> OnnxRuns:
    return build_onnx_runs(material or make_material(), {})


def cases_of(runs: OnnxRuns, *words: str) -> list[Case]:
    """Cases whose names hold all of the words."""
    found = [case for case in make_cases(runs) if all(word in case.name for word in words)]
    assert found
    return found


def truths_as_predictions(case: Case) -> dict[Candidate, Prediction]:
    """Somebody who knows everything."""
    known = {item: case.model.truths[item] for item in case.candidates}
    return {item: Prediction(truth.p50_us, truth.p99_us, truth.throughput_per_second, 0.05, "the truth") for item, truth in known.items()}


def test_what_is_true_does_not_depend_on_the_moment_of_a_run() -> None:
    """Run and reference were both half as fast: the ratio is the same, and so is the truth."""
    material = make_material()
    digest, run = material.runs[3]
    assert run.report is not None
    assert run.report.candidate is not None
    assert run.report.reference is not None
    slow = {
        name: item.model_copy(
            update={"mean_us": 2 * item.mean_us, "p50_us": 2 * item.p50_us, "p99_us": 2 * item.p99_us, "throughput_per_second": item.throughput_per_second / 2}
        )
        for name, item in (("candidate", run.report.candidate), ("reference", run.report.reference))
    }
    disturbed = replace(run, report=run.report.model_copy(update=slow))
    calm, other = make_runs(material), make_runs(replace(material, runs=[(digest, disturbed) if item is run else (key, item) for key, item in material.runs]))
    (before, after) = (next(model.truths[run.candidate] for model in runs.models if model.digest == digest) for runs in (calm, other))
    assert (after.p50_us, after.throughput_per_second) == pytest.approx((before.p50_us, before.throughput_per_second))


def test_repetitions_are_averaged_and_the_first_one_answers() -> None:
    """The operator sees one run; what it is judged by knows both."""
    material = make_material()
    digest, run = material.runs[0]
    assert run.report is not None
    again = replace(_in_order(run, latency_ratio_permille=4 * run.report.latency_ratio_permille), job="again", job_uid="again")
    runs = make_runs(replace(material, runs=[*material.runs, (digest, again)]))
    once = next(model for model in make_runs(material).models if model.digest == digest)
    twice = next(model for model in runs.models if model.digest == digest)
    assert twice.truths[run.candidate].p50_us == pytest.approx(2 * once.truths[run.candidate].p50_us)
    assert twice.runs[run.candidate][0] == run


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"accuracy": make_accuracy(difference_ppm=20_000)}, id="answers too far from fp32"),
        pytest.param({"accuracy": make_accuracy(difference_ppm=999_000)}, id="another computation"),
        pytest.param({"candidate": None, "latency_ratio_permille": 0}, id="no figures"),
    ],
)
def test_what_may_not_be_chosen_is_worth_nothing(fields: dict[str, Any]) -> None:
    """However fast it was."""
    material = make_material()
    spoiled = material.runs[1][1].candidate

    def spoil(run: RunResult) -> RunResult:
        return replace(run, report=run.report.model_copy(update=fields)) if run.candidate == spoiled and run.report is not None else run

    for case in cases_of(make_runs(replace(material, runs=[(digest, spoil(run)) for digest, run in material.runs])), "two generations/cost"):
        assert case.utilities[case.place(spoiled)] == 0
        assert np.count_nonzero(case.utilities) == len(case.candidates) - 1


def test_a_case_says_what_runs_today_and_what_a_person_would_take() -> None:
    """fp32, single requests, ONNX Runtime on the newest family; the biggest batch there."""
    for case in cases_of(make_runs(), "two generations"):
        today, nominal = case.current.config, case.nominal.config
        assert (case.current.family, today.execution_provider, today.precision, today.batch_size) == ("native", "CPUExecutionProvider", "fp32", 1)
        assert (case.nominal.family, nominal.execution_provider, nominal.precision, nominal.batch_size) == ("native", "CPUExecutionProvider", "fp32", 4)


def test_limits_and_costs_change_what_is_best() -> None:
    """A tight limit leaves less than a loose one; costs favour the old family."""
    runs = make_runs()
    for tight, loose in zip(cases_of(runs, "two generations", "P99 tight"), cases_of(runs, "two generations", "P99 loose"), strict=False):
        assert np.count_nonzero(tight.utilities) < np.count_nonzero(loose.utilities)
    costs, speeds = cases_of(runs, "two generations", "cost"), cases_of(runs, "two generations", "latency")
    ratio = {item.model.name: item.utilities for item in costs}
    for speed in speeds:
        cheap = np.array([item.family == "avx2" for item in speed.candidates])
        gain = np.divide(ratio[speed.model.name], speed.utilities, out=np.zeros(len(cheap)), where=speed.utilities > 0)
        assert gain[cheap & (gain > 0)].min() > gain[~cheap].max()


def test_who_knows_everything_finds_the_best_in_few_runs() -> None:
    """The operator's own validation, answered from the table: no more than the present configuration and four others, and the best among them."""
    runs = make_runs()
    for case in make_cases(runs):
        predictions = truths_as_predictions(case)
        played = play(case, predictions, runs)
        assert len(played.candidates) <= 5
        assert played.candidates[0] == case.current
        assert played.decision.selected is not None
        assert case.utilities[case.place(played.decision.selected)] >= 0.9 * case.utilities.max(), case.name
        assert int(np.argmax(ranked_scores(case, predictions))) in np.flatnonzero(case.utilities > 0.9 * case.utilities.max())


def test_random_picks_are_the_same_every_time() -> None:
    """Figures must repeat."""
    first, second = (cases_of(make_runs(), "two generations/latency")[0] for _ in range(2))
    assert pick_randomly(first) == pick_randomly(second)
    assert len(set(pick_randomly(first))) == 5


def test_predictions_of_a_model_never_rest_on_its_own_runs() -> None:
    """All of its measurements ten times slower: what is predicted of it stays, to the last digit; what is true of it moves."""
    material = make_material(models=8)
    digest = material.profiles[0].report.digest if material.profiles[0].report is not None else ""

    def slower(run: RunResult) -> RunResult:
        assert run.report is not None
        return _in_order(run, candidate=run.report.candidate.model_copy(update={"mean_us": 1e6, "p50_us": 1e6}) if run.report.candidate else None)

    changed = replace(material, runs=[(key, slower(run) if key == digest else run) for key, run in material.runs])
    answers, truths = [], []
    for runs in (make_runs(material), make_runs(changed)):
        model = next(item for item in runs.models if item.digest == digest)
        assert all(sample.digest != digest for sample in runs.without(model))
        answers.append(predict_without(runs, model))
        truths.append(model.truths)
    assert answers[0] == answers[1]
    assert answers[0].ours != answers[0].base
    assert truths[0] != truths[1]


def test_every_method_answers_every_case() -> None:
    """So that their means are over the same cases."""
    runs, said = make_runs(), list[str]()
    verdicts = list(evaluate_onnx_runs("own", runs, said.append))
    count = len(list(make_cases(runs)))
    by_method: dict[tuple[str, str], int] = {}
    for item in verdicts:
        by_method[item.method, item.way] = by_method.get((item.method, item.way), 0) + 1
        assert 0 <= item.quality.top4_regret <= 1
    assert set(by_method.values()) == {count}
    assert {("ours", "one-shot"), ("ours", "sequential"), ("probe roofline", "sequential"), ("current default", "one-shot"), ("random 5", "one-shot")} <= set(
        by_method
    )
    assert len(said) == len(runs.models)


def write_table(folder: Path, material: Material) -> Path:
    path = folder / "own.jsonl"
    path.write_text("\n".join(write_lines(material)) + "\n")
    return path


def test_a_folder_without_a_table_is_named(tmp_path: Path) -> None:
    """Instead of a report about nothing."""
    with pytest.raises(TableUnreadable, match=str(tmp_path)):
        read_own_runs(tmp_path)
    write_table(tmp_path, make_material())
    assert len(read_own_runs(tmp_path).models) == 5


@pytest.fixture(scope="module")
def decision() -> ModuleType:
    return load_script("decision")


def run_decision(decision: ModuleType, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert decision.main([*arguments]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def test_the_bench_ends_with_one_line_of_figures(decision: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every method on the same cases; where nothing was measured twice, the noise says so."""
    found = run_decision(decision, [str(write_table(tmp_path, make_material()))], capsys)
    assert len({figures["cases"] for figures in found["methods"].values()}) == 1
    assert found["models"] == 5
    assert found["noise"]["repeated_points"] == 0
    assert found["methods"]["operator"]["runs"] <= 5


def test_points_that_were_measured_twice_give_the_noise_floor(decision: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs that differ by 10 %: a sigma of 10 % over the root of two each."""
    material = make_material()
    digest, run = material.runs[0]
    assert run.report is not None
    again = replace(_in_order(run, latency_ratio_permille=round(1.1 * run.report.latency_ratio_permille)), job="again", job_uid="again")
    found = run_decision(decision, [str(write_table(tmp_path, replace(material, runs=[*material.runs, (digest, again)])))], capsys)
    assert found["noise"]["repeated_points"] == 1
    assert found["noise"]["ratio_sigma_percent"] == pytest.approx(7.0, abs=0.5)


def test_a_table_that_is_none_is_an_error(decision: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, without a traceback."""
    assert decision.main([str(tmp_path / "absent.jsonl")]) == 1
    assert "absent.jsonl" in capsys.readouterr().err
