from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import make_adaptation
from tests.unit.decide.make_runs import make_candidate, make_prediction

from metainfer.api.v1alpha1.model_adaptation import Slo
from metainfer.decide.facts import Candidate
from metainfer.decide.predictor import Prediction
from metainfer.decide.ranking import IMPOSSIBLE, Objective, log_utility, rank, resolve_objective, slo_probability

LATENCY, THROUGHPUT, COST = Objective("Latency"), Objective("Throughput"), Objective("Cost")
COSTS = {("cards", "ort-cpu"): 1_000_000, ("cards", "gpu"): 4_000_000}
FIGURE = st.floats(1.0, 1e9)
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def predictions(draw: st.DrawFn, figure: st.SearchStrategy[float] = FIGURE) -> Prediction:
    return Prediction(draw(figure), draw(figure), draw(figure), draw(st.floats(0.0, 2.0)), "test")


def make_slo(**fields: Any) -> Slo:
    return Slo.model_validate(fields)


def order_of(candidates: list[Candidate], figures: list[Prediction], objective: Objective) -> list[Candidate]:
    return [item.candidate for item in rank(candidates, figures, objective, COSTS)]


FAST, SLOW = make_prediction(1_000.0), make_prediction(9_000.0)


@pytest.mark.parametrize("objective", [LATENCY, THROUGHPUT, COST], ids=lambda objective: objective.goal)
def test_the_faster_one_is_first_under_every_goal(objective: Objective) -> None:
    """On the same family, at the same cost."""
    slow, fast = make_candidate(), make_candidate(precision="int8")
    assert order_of([slow, fast], [SLOW, FAST], objective) == [fast, slow]


def test_latency_counts_the_mean_and_neither_median_nor_tail() -> None:
    """Half the requests in half the time and the others late is no gain; P99 of one short window is noise."""
    candidate = make_candidate()
    same = make_prediction(1_000.0, throughput_per_second=4_000.0)
    bimodal = make_prediction(500.0, p99_us=9e9, throughput_per_second=4_000.0)
    assert log_utility(candidate, same, "Latency", {}) == log_utility(candidate, bimodal, "Latency", {}) == pytest.approx(math.log(4_000.0))


def test_cost_prefers_the_cheaper_card_when_it_is_not_that_much_slower() -> None:
    """Requests for the money: three times as fast at four times the price is worse."""
    cheap, dear = make_candidate(), make_candidate("gpu")
    figures = [make_prediction(9_000.0), make_prediction(3_000.0)]
    assert order_of([cheap, dear], figures, COST) == [cheap, dear]
    assert order_of([cheap, dear], figures, THROUGHPUT) == [dear, cheap]


def test_a_family_of_unknown_cost_is_last() -> None:
    """It has no utility under goal Cost, and does not stop the others from being ranked."""
    known, unknown = make_candidate(), make_candidate("nobody-knows")
    ranked = rank([unknown, known], [FAST, SLOW], COST, COSTS)
    assert [item.candidate for item in ranked] == [known, unknown]
    assert ranked[1].score == IMPOSSIBLE


def test_free_cards_are_ranked_by_their_throughput() -> None:
    """A cost of zero is a cost, not a missing one."""
    slow, fast = make_candidate(), make_candidate(precision="int8")
    assert [item.candidate for item in rank([slow, fast], [SLOW, FAST], COST, {("cards", "ort-cpu"): 0})] == [fast, slow]


def test_a_doubtful_limit_costs_the_fast_one_its_place() -> None:
    """score = log utility + log P(SLO): twice the throughput does not make up for a limit that is surely broken."""
    objective = Objective("Throughput", make_slo(p99="10ms"))
    safe, risky = make_candidate(), make_candidate(batch_size=8)
    figures = [make_prediction(5_000.0, p99_us=6_000.0), make_prediction(2_500.0, p99_us=40_000.0)]
    assert order_of([safe, risky], figures, objective) == [safe, risky]
    assert order_of([safe, risky], figures, THROUGHPUT) == [risky, safe]


@pytest.mark.parametrize(
    ("slo", "figures", "want"),
    [
        (make_slo(), make_prediction(), 1.0),
        (make_slo(p99="12ms"), make_prediction(10_000.0, p99_us=12_000.0), 0.5),
        (make_slo(min_throughput_per_second=400), make_prediction(throughput_per_second=400.0), 0.5),
        (make_slo(p99="12ms", min_throughput_per_second=400), make_prediction(10_000.0, p99_us=12_000.0, throughput_per_second=400.0), 0.25),
        (make_slo(p99="10h"), make_prediction(), 1.0),
        (make_slo(p99="1us"), make_prediction(), 0.0),
        (make_slo(p99="10ms"), make_prediction(p99_us=math.nan), 0.0),
        (make_slo(min_throughput_per_second=1), make_prediction(throughput_per_second=0.0), 0.0),
    ],
)
def test_the_chance_to_keep_the_limits(slo: Slo, figures: Prediction, want: float) -> None:
    """Half on the limit, limits multiply, a missing figure keeps none."""
    assert slo_probability(figures, Objective("Throughput", slo)) == pytest.approx(want, abs=1e-6)


def test_the_score_is_relative_to_the_present_configuration() -> None:
    """1000 permille = equal; twice as fast is 2000."""
    current, other = make_candidate(), make_candidate(precision="int8")
    ranked = rank([current, other], [make_prediction(2_000.0), make_prediction(1_000.0)], LATENCY, COSTS, current=current)
    assert [(item.candidate, item.score_permille) for item in ranked] == [(other, 2000), (current, 1000)]


def test_without_a_present_configuration_the_best_is_the_measure() -> None:
    """Then nothing is above 1000."""
    ranked = rank([make_candidate(), make_candidate(precision="int8")], [FAST, SLOW], LATENCY, COSTS)
    assert [item.score_permille for item in ranked] == [1000, 111]


@given(st.permutations(range(6)), st.data())
def test_the_order_of_the_input_never_matters(order: list[int], data: st.DataObject) -> None:
    """Also with equal scores: they go by the candidates' keys."""
    candidates = [make_candidate(batch_size=2**number) for number in range(6)]
    figures = [data.draw(predictions(st.sampled_from([1e3, 2e3]))) for _ in candidates]
    want = rank(candidates, figures, THROUGHPUT, COSTS)
    assert rank([candidates[k] for k in order], [figures[k] for k in order], THROUGHPUT, COSTS) == want


@given(st.lists(predictions(), min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(figures: list[Prediction], factor: float) -> None:
    """All figures in another unit: the same relative scores."""
    candidates = [make_candidate(batch_size=2**number) for number in range(len(figures))]
    scaled = [Prediction(item.p50_us * factor, item.p99_us * factor, item.throughput_per_second / factor, item.log_sigma, "") for item in figures]
    for objective in (LATENCY, THROUGHPUT, COST):
        one, two = (rank(candidates, items, objective, COSTS, current=candidates[0]) for items in (figures, scaled))
        assert {item.candidate: item.score - one[0].score for item in one} == pytest.approx(
            {item.candidate: item.score - two[0].score for item in two}, abs=1e-6
        )


@given(st.lists(predictions(ANY_FLOAT), min_size=1, max_size=6), st.sampled_from(["Latency", "Throughput", "Cost"]), ANY_FLOAT)
def test_figures_that_are_no_numbers_never_stop_the_ranking(figures: list[Prediction], goal: Any, log_sigma: float) -> None:
    """NaN, infinite, zero and negative figures rank last with a finite score."""
    candidates = [make_candidate(batch_size=2**number) for number in range(len(figures) + 1)]
    broken = [Prediction(item.p50_us, item.p99_us, item.throughput_per_second, log_sigma, "") for item in figures]
    objective = Objective(goal, make_slo(p99="10ms", min_throughput_per_second=5))
    ranked = rank(candidates, [*broken, make_prediction(1_000.0)], objective, COSTS, current=candidates[0])
    assert all(math.isfinite(item.score) and 0 <= item.score_permille <= 1_000_000 and 0 < item.slo_probability <= 1 for item in ranked)
    good = next(item for item in ranked if item.candidate == candidates[-1])
    assert all(item.score > IMPOSSIBLE for item in ranked[: ranked.index(good)])


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({}, "Latency"),
        ({"slo": {"p99": "10ms"}}, "Throughput"),
        ({"objective": {"goal": "Cost"}, "slo": {"p99": "10ms"}}, "Cost"),
    ],
)
def test_the_goal_defaults_by_whether_there_is_an_slo(spec: dict[str, Any], want: str) -> None:
    """With a limit on latency, more of it is not better: throughput is."""
    assert resolve_objective(make_adaptation(spec=spec).spec).goal == want
