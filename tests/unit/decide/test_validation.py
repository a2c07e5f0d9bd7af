from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.make_facts import OPENVINO_PROVIDER, make_family, make_node, make_portrait
from tests.unit.decide.make_runs import make_accuracy, make_candidate, make_measured, make_prediction, make_run

from metainfer.api.v1alpha1.model_adaptation import Slo
from metainfer.decide.facts import Candidate, Portrait, RunResult
from metainfer.decide.families import FamilyOption
from metainfer.decide.predictor import Prediction
from metainfer.decide.ranking import Objective
from metainfer.decide.validation import Decide, Measure, Situation, next_step, pick_node
from metainfer_probe.contract import Failure

FP32, INT8, BF16 = make_candidate(), make_candidate(precision="int8"), make_candidate(precision="bf16")
INT8_BATCHED, INT8_PARALLEL = make_candidate(precision="int8", batch_size=4), make_candidate(precision="int8", concurrency=2)
BATCHED = make_candidate(batch_size=4)
OPENVINO = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER)
CRASH = Failure(reason="RuntimeCrashed", message="signal 11")
PORTRAITS = {"node-1": make_portrait("node-1")}


def make_situation(predicted_us: dict[Candidate, float], *runs: RunResult, **fields: Any) -> Situation:
    """Candidates with their predicted P50; goal Latency, the first one is the present configuration."""
    defaults: dict[str, Any] = {"portraits": PORTRAITS, "objective": Objective("Latency"), "current": next(iter(predicted_us), None)}
    return Situation(predictions={item: make_prediction(value) for item, value in predicted_us.items()}, runs=runs, **(defaults | fields))


def candidate_of(step: Measure | Decide) -> Candidate:
    assert isinstance(step, Measure), step
    return step.candidate


THREE = {FP32: 10_000.0, BF16: 8_000.0, INT8: 5_000.0}


def test_the_present_configuration_is_measured_first() -> None:
    """Also when it is predicted to be the worst: it is the baseline of everything."""
    assert candidate_of(next_step(make_situation(THREE))) == FP32


def test_then_the_one_that_promises_most() -> None:
    """Equal doubt everywhere: the best prediction."""
    assert candidate_of(next_step(make_situation(THREE, make_run(FP32)))) == INT8


def test_of_two_equal_predictions_the_more_doubtful_one_promises_more() -> None:
    """It may be much better; the sure one cannot."""
    situation = make_situation({FP32: 5_000.0, BF16: 6_000.0, OPENVINO: 6_000.0}, make_run(FP32, 5_000.0), make_run(INT8, 5_000.0, number=2))
    doubtful = {**situation.predictions, OPENVINO: make_prediction(6_000.0, log_sigma=0.8), BF16: make_prediction(6_000.0, log_sigma=0.05)}
    assert candidate_of(next_step(replace(situation, predictions=doubtful))) == OPENVINO


def test_the_loop_ends_when_the_best_one_is_measured() -> None:
    """Nothing that is left is expected to gain 2 % over it."""
    situation = make_situation(THREE, make_run(FP32, 10_000.0), make_run(INT8, 2_000.0, number=2))
    assert next_step(situation) == Decide("the best one is already measured")


def test_something_else_than_the_present_configuration_is_measured_even_when_it_is_predicted_to_be_the_best() -> None:
    """A prediction alone never confirms what is there."""
    assert candidate_of(next_step(make_situation({FP32: 1_000.0, INT8: 9_000_000.0}, make_run(FP32, 1_000.0)))) == INT8


def test_a_failed_run_is_no_alternative() -> None:
    """The only other one crashed: the next one is tried, however unlikely."""
    situation = make_situation({FP32: 1_000.0, INT8: 9e6, OPENVINO: 9e7}, make_run(FP32, 1_000.0), make_run(INT8, failure=CRASH))
    assert candidate_of(next_step(situation)) == OPENVINO


def test_a_failed_candidate_is_not_picked_again_and_keeps_its_reason() -> None:
    """No retry can help; the fault is there for the verdict."""
    situation = make_situation(THREE, make_run(FP32), make_run(INT8, failure=CRASH))
    assert candidate_of(next_step(situation)) == BF16
    assert situation.faults[INT8].reason == "RuntimeCrashed"


def test_a_good_run_outweighs_a_failed_one() -> None:
    """The Job was evicted once and came through the second time."""
    situation = make_situation(THREE, make_run(INT8, failure=CRASH), make_run(INT8, number=2))
    assert situation.faults == {}


def test_a_good_run_does_not_outweigh_wrong_answers() -> None:
    """Answers that were wrong once are wrong."""
    situation = make_situation(THREE, make_run(INT8, accuracy=make_accuracy(difference_ppm=900_000)), make_run(INT8, number=2))
    assert situation.faults[INT8].verdict == "AccuracyExceeded"


@pytest.mark.parametrize(
    "failed",
    [
        pytest.param(make_run(INT8, failure=CRASH), id="crashed"),
        pytest.param(make_run(INT8, accuracy=make_accuracy(difference_ppm=900_000)), id="too far from fp32"),
    ],
)
def test_larger_ones_of_a_variant_that_failed_are_left_out(failed: RunResult) -> None:
    """The same precision on the same cards with a larger batch or more executions would fail likewise; runs are too dear for that."""
    predicted = {FP32: 10_000.0, INT8: 5_000.0, INT8_BATCHED: 4_000.0, INT8_PARALLEL: 4_500.0, OPENVINO: 9_000.0}
    assert candidate_of(next_step(make_situation(predicted, make_run(FP32), failed))) == OPENVINO


def test_a_smaller_one_of_a_variant_that_failed_is_still_tried() -> None:
    """Out of memory with a batch says nothing about single requests."""
    predicted = {FP32: 10_000.0, INT8: 5_000.0, INT8_BATCHED: 4_000.0}
    assert candidate_of(next_step(make_situation(predicted, make_run(FP32), make_run(INT8_BATCHED, failure=CRASH)))) == INT8


def test_a_passing_failure_says_nothing_about_others() -> None:
    """The Job's node went away: larger batches are tried as if nothing had happened."""
    evicted = make_run(INT8, failure=Failure(reason="Evicted", message="node-1 went away", retryable=True))
    predicted = {FP32: 10_000.0, INT8: 5_000.0, INT8_BATCHED: 4_000.0, OPENVINO: 30_000.0}
    assert candidate_of(next_step(make_situation(predicted, make_run(FP32), evicted))) == INT8_BATCHED


def test_when_joined_requests_are_wrong_no_other_batch_is_tried_on_that_provider() -> None:
    """In whatever precision."""
    wrong = make_run(INT8_BATCHED, accuracy=make_accuracy(batch_difference_ppm=500_000))
    predicted = {FP32: 10_000.0, INT8_BATCHED: 3_000.0, BATCHED: 4_000.0, INT8: 5_000.0}
    assert candidate_of(next_step(make_situation(predicted, make_run(FP32), wrong))) == INT8


def test_where_fp32_computes_something_else_nothing_more_is_tried() -> None:
    """The runtime is broken for this model on these cards, in every precision; its speed there makes nothing else look fast."""
    wrong = make_run(OPENVINO, 100.0, accuracy=make_accuracy(difference_ppm=999_000), number=2)
    broken = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER, precision="int8")
    situation = make_situation({FP32: 10_000.0, OPENVINO: 5_000.0, broken: 1_000.0, BATCHED: 9_000.0, INT8: 9_500.0}, make_run(FP32), wrong)
    assert situation.faults[OPENVINO].reason == "AnswersDiffer"
    step = next_step(situation)
    assert isinstance(step, Measure)
    assert step.candidate not in (OPENVINO, broken)
    assert situation.ranking[0].prediction.throughput_per_second < 10 * 4e6 / 1_000.0


def test_the_loop_ends_after_top_k_others() -> None:
    """Failed runs count: each took its time."""
    situation = make_situation(THREE, make_run(FP32), make_run(BF16, failure=CRASH), top_k=1)
    assert next_step(situation) == Decide("1 candidates are measured besides the current configuration")


def test_the_loop_ends_when_another_run_does_not_fit_into_the_budget() -> None:
    """Deciding late is worse than deciding on less."""
    step = next_step(make_situation(THREE, make_run(FP32), seconds_left=80.0, seconds_per_run=90.0))
    assert step == Decide("the budget leaves 80 s, one more run takes 90 s")


def test_the_loop_ends_when_everything_is_measured() -> None:
    """With few candidates there is nothing left."""
    assert isinstance(next_step(make_situation({FP32: 1.0, INT8: 1.0}, make_run(FP32), make_run(INT8))), Decide)
    assert isinstance(next_step(make_situation({})), Decide)


def test_without_a_present_configuration_the_best_prediction_is_first() -> None:
    """No pod runs on a card of the pools yet."""
    assert candidate_of(next_step(make_situation(THREE, current=None))) == INT8


def test_a_present_configuration_that_cannot_be_measured_is_not_waited_for() -> None:
    """It was rejected as impossible, so it is not among the predictions."""
    assert candidate_of(next_step(make_situation(THREE, current=make_candidate("gone")))) == INT8


def test_the_limit_decides_who_promises_most() -> None:
    """A throughput that surely breaks the SLO promises nothing."""
    objective = Objective("Throughput", Slo(p99="10ms"))
    predictions = {FP32: make_prediction(5_000.0), BATCHED: make_prediction(90_000.0, throughput_per_second=5_000.0), INT8: make_prediction(4_500.0)}
    situation = replace(make_situation(THREE, make_run(FP32, 5_000.0), objective=objective), predictions=predictions)
    assert candidate_of(next_step(situation)) == INT8


OUTCOMES: tuple[Callable[[Candidate, float, int], RunResult], ...] = (
    lambda candidate, p50_us, number: make_run(candidate, p50_us, number=number),
    lambda candidate, _, number: make_run(candidate, failure=CRASH, number=number),
    lambda candidate, p50_us, number: make_run(candidate, p50_us, number=number, accuracy=make_accuracy(difference_ppm=900_000)),
    lambda candidate, _, number: make_run(candidate, number=number, measured=make_measured(errors=1)),
)


@settings(max_examples=40)
@given(
    predicted=st.lists(st.floats(1.0, 1e7), min_size=1, max_size=12),
    outcomes=st.lists(st.tuples(st.integers(0, len(OUTCOMES) - 1), st.floats(1.0, 1e7)), min_size=8, max_size=8),
    top_k=st.integers(1, 5),
    has_current=st.booleans(),
)
def test_the_loop_always_ends_within_top_k_runs_besides_the_present_configuration(
    predicted: list[float], outcomes: list[tuple[int, float]], top_k: int, has_current: bool
) -> None:
    """Whatever the runs bring: no candidate twice, the present one first, at least one other when there is one."""
    candidates = [make_candidate(precision=precision, batch_size=batch) for precision in ("fp32", "bf16", "int8") for batch in (1, 4, 8, 16)][: len(predicted)]
    current = candidates[0] if has_current else None
    runs: list[RunResult] = []
    for number in range(top_k + 2):
        step = next_step(make_situation(dict(zip(candidates, predicted, strict=True)), *runs, top_k=top_k, current=current))
        if isinstance(step, Decide):
            break
        kind, p50_us = outcomes[number]
        runs.append(OUTCOMES[kind](step.candidate, p50_us, number))
    tried = [run.candidate for run in runs]
    assert isinstance(step, Decide)
    assert len(set(tried)) == len(tried) <= top_k + (1 if has_current else 0)
    assert not has_current or tried[0] == current
    assert len(tried) > (1 if has_current else 0) or step.because.startswith("every feasible candidate")


@given(st.permutations(sorted(THREE, key=lambda item: item.key)), st.permutations(range(2)))
def test_the_next_step_does_not_depend_on_any_order(order: list[Candidate], run_order: list[int]) -> None:
    """Same facts, same step: a crash in between changes nothing."""
    runs = [make_run(FP32, 10_000.0), make_run(BF16, 9_000.0, number=2)]
    want = next_step(make_situation(THREE, *runs))
    assert next_step(make_situation({item: THREE[item] for item in order}, *(runs[number] for number in run_order), current=FP32)) == want


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4))
def test_predictions_that_are_no_numbers_never_stop_the_loop(values: list[float]) -> None:
    """They are tried last."""
    p50, p99, throughput, log_sigma = values
    predictions = {INT8: Prediction(p50, p99, throughput, log_sigma, "test"), BF16: make_prediction(10_000.0)}
    situation = replace(make_situation(THREE, make_run(FP32)), predictions={FP32: make_prediction(), **predictions})
    assert candidate_of(next_step(situation)) in (INT8, BF16)


# Which node.


def make_option(*portraits: Portrait) -> FamilyOption:
    """A family of three nodes with these portraits, most typical first."""
    return FamilyOption("cards", make_family(), tuple(make_node(f"node-{number}") for number in (1, 2, 3)), portraits=portraits)


ONE, TWO = make_portrait("node-1"), make_portrait("node-2", correction_factor_permille=950)
DEGRADED = make_portrait("node-3", correction_factor_permille=600, health="Degraded")


@pytest.mark.parametrize(
    ("portraits", "busy", "avoid", "want"),
    [
        pytest.param((ONE, TWO, DEGRADED), (), (), "node-1", id="the most typical one"),
        pytest.param((ONE, TWO, DEGRADED), ("node-1",), (), "node-2", id="that is free"),
        pytest.param((ONE, TWO, DEGRADED), (), ("node-1",), "node-2", id="and on which nothing failed"),
        pytest.param((DEGRADED, ONE), (), (), "node-1", id="never a degraded one while there is another"),
        pytest.param((ONE, TWO, DEGRADED), (), ("node-1", "node-2"), "node-1", id="rather a healthy one with a failure than a degraded one"),
        pytest.param((ONE, TWO, DEGRADED), ("node-1", "node-2"), (), "node-3", id="a degraded one when there is no other"),
        pytest.param((ONE,), ("node-1",), (), "node-2", id="one without a portrait rather than none"),
        pytest.param((ONE, TWO, DEGRADED), ("node-1", "node-2", "node-3"), (), None, id="none: wait"),
    ],
)
def test_a_run_goes_to(portraits: tuple[Portrait, ...], busy: tuple[str, ...], avoid: tuple[str, ...], want: str | None) -> None:
    """The node whose figures stand for the family."""
    assert pick_node(make_option(*portraits), busy, avoid) == want


def test_a_portrait_of_a_node_that_the_target_may_not_use_is_not_picked() -> None:
    """Only the option's own nodes count."""
    assert pick_node(FamilyOption("cards", make_family(), (make_node("node-2"),), portraits=(ONE, TWO)), ()) == "node-2"
