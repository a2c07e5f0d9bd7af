from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import OPENVINO_PROVIDER
from tests.unit.decide.make_runs import make_accuracy, make_candidate, make_run

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.accuracy_odds import LEAST_CHANCE, read_odds
from metainfer.decide.facts import Candidate, RunResult

FP32, BF16, INT8 = make_candidate(), make_candidate(precision="bf16"), make_candidate(precision="int8")
INT8_BATCHED, INT8_ELSEWHERE = make_candidate(precision="int8", batch_size=4), make_candidate("openvino-cpu", "cards", precision="int8")
DEFAULT = Accuracy()


def compared(candidate: Candidate, difference_ppm: int, **fields: int | bool) -> RunResult:
    return make_run(candidate, accuracy=make_accuracy(difference_ppm=difference_ppm, **fields))


def chance(candidate: Candidate, *runs: RunResult, accuracy: Accuracy = DEFAULT) -> float:
    return read_odds(runs, accuracy).chance(candidate)


def test_before_anything_is_compared_the_precision_decides() -> None:
    """The fewer digits, the fewer models keep the budget; the file as it is always does."""
    fp16 = make_candidate(precision="fp16")
    assert chance(FP32) == 1.0 > chance(fp16) > chance(BF16) > chance(INT8) > 0.1


def test_a_wider_budget_is_kept_by_more() -> None:
    """Whatever else is known."""
    wide = Accuracy(budget_permille=100)
    assert chance(INT8, accuracy=wide) > chance(INT8)
    assert chance(INT8, compared(BF16, 20_000), accuracy=wide) > chance(INT8, compared(BF16, 20_000))


def test_a_model_that_is_touchy_in_one_precision_is_so_in_another() -> None:
    """bf16 over the budget leaves little hope for int8, and far within it leaves more than before."""
    assert chance(INT8, compared(BF16, 12_000)) < chance(INT8) < chance(INT8, compared(BF16, 100))


def test_int8_a_little_over_the_budget_still_leaves_bf16_a_chance() -> None:
    """It keeps more digits: what int8 just missed it may well keep; what int8 missed by far it does not."""
    assert chance(BF16, compared(INT8, 15_000)) > 0.5 > chance(BF16, compared(INT8, 900_000))


def test_the_same_variant_in_another_batch_answers_alike_and_on_other_cards_perhaps() -> None:
    """int8 without its own instructions saturates: what passed here need not pass there."""
    passed, failed = compared(INT8, 2_000), compared(INT8, 50_000)
    assert chance(INT8_BATCHED, passed) > chance(INT8_ELSEWHERE, passed) > chance(INT8)
    assert chance(INT8_BATCHED, failed) < chance(INT8_ELSEWHERE, failed) < chance(INT8)


def test_invalid_values_count_as_far_off() -> None:
    """NaN is no small difference."""
    assert chance(INT8_BATCHED, compared(INT8, 0, invalid_values=True)) == LEAST_CHANCE


def test_what_the_model_differs_from_itself_widens_the_budget() -> None:
    """As in the verdict."""
    unsteady = compared(BF16, 30_000, self_difference_ppm=100_000)
    assert chance(make_candidate(precision="bf16", batch_size=4), unsteady) > 0.9


@pytest.mark.parametrize("runs", [[make_run(FP32)], [make_run(INT8, accuracy=None)]], ids=["fp32", "not compared"])
def test_runs_that_compared_nothing_say_nothing(runs: list[RunResult]) -> None:
    """Their own answers are the yardstick, or there are none."""
    assert chance(BF16, *runs) == chance(BF16)


@given(st.lists(st.tuples(st.sampled_from([BF16, INT8, INT8_BATCHED, INT8_ELSEWHERE]), st.integers(0, 2**31)), max_size=6), st.integers(0, 1000))
def test_a_chance_is_one_whatever_was_compared(differences: list[tuple[Candidate, int]], budget: int) -> None:
    """Never zero, never above one, in any order."""
    runs = [compared(candidate, ppm) for candidate, ppm in {candidate: (candidate, ppm) for candidate, ppm in differences}.values()]
    for candidate in (FP32, BF16, INT8, make_candidate("x", execution_provider=OPENVINO_PROVIDER, precision="int8")):
        found = chance(candidate, *runs, accuracy=Accuracy(budget_permille=budget))
        assert LEAST_CHANCE <= found <= 1.0
        assert found == chance(candidate, *reversed(runs), accuracy=Accuracy(budget_permille=budget))
