from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import OPENVINO_PROVIDER, make_portrait
from tests.unit.decide.make_runs import make_accuracy, make_candidate, make_measured, make_prediction, make_run

from metainfer.api.v1alpha1.model_adaptation import Accuracy, Slo
from metainfer.decide.estimation import Estimate, level_of
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.ranking import Objective
from metainfer.decide.validation import Situation
from metainfer.decide.verdicts import Decision, dead_band, is_tie, judge
from metainfer_probe.contract import Failure

FP32, INT8, BF16 = make_candidate(), make_candidate(precision="int8"), make_candidate(precision="bf16")
BATCHED = make_candidate(batch_size=4)
OPENVINO = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER)
CRASH = Failure(reason="RuntimeCrashed", message="signal 11 while loading")
EVERYTHING = (FP32, INT8, BF16, BATCHED, OPENVINO)


def make_situation(*runs: RunResult, **fields: Any) -> Situation:
    """Goal Latency; fp32 on ort-cpu is the present configuration; every candidate is predicted alike, and worse than what is measured below."""
    candidates = fields.pop("candidates", EVERYTHING)
    defaults: dict[str, Any] = {
        "predictions": {item: make_prediction(20_000.0, log_sigma=0.05) for item in candidates},
        "portraits": {"node-1": make_portrait("node-1"), "node-2": make_portrait("node-2", "openvino-cpu")},
        "objective": Objective("Latency"),
        "current": FP32,
    }
    return Situation(runs=runs, **(defaults | fields))


def verdict_of(decision: Decision, candidate: Candidate) -> str:
    return decision.verdicts[candidate].verdict


def make_slo_objective(**fields: Any) -> Objective:
    return Objective("Throughput", Slo.model_validate(fields))


def test_a_clear_gain_is_selected() -> None:
    """Twice as fast on the same node, answers within the budget."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 5_000.0)), minimum_gain_percent=5)
    assert (decision.selected, decision.gain_percent) == (INT8, 100)
    assert (verdict_of(decision, INT8), verdict_of(decision, FP32)) == ("Selected", "Slower")
    assert (decision.low_confidence, decision.infeasible) == (None, None)


@pytest.mark.parametrize(
    ("slowdown", "want", "want_gain"),
    [
        pytest.param(1.0, FP32, 0, id="it can move to a good card"),
        pytest.param(1.25, FP32, 0, id="slower, and still as good"),
        pytest.param(2.6, OPENVINO, 100, id="slower than the other family"),
    ],
)
def test_a_current_configuration_that_has_to_stay_on_a_slow_card_counts_as_it_serves(slowdown: float, want: Candidate, want_gain: int) -> None:
    """Its benchmark ran on a good card; the gain is against what is served."""
    runs = (make_run(FP32, 10_000.0), make_run(OPENVINO, 13_000.0, node="node-2"))
    decision = judge(make_situation(*runs, current_slowdown=slowdown))
    assert (decision.selected, decision.gain_percent) == (want, want_gain)
    shown = decision.verdicts[FP32]
    assert shown.measured is not None
    assert shown.measured.p50_us == pytest.approx(10_000.0)
    assert ("times slower than measured: on a slow card" in shown.message) is (slowdown > 1)


def test_a_slow_card_says_nothing_of_the_other_configurations_of_its_family() -> None:
    """What is predicted for them is for a good card: only the current one's place in the order moves."""
    at_home, away = (make_situation(make_run(FP32, 10_000.0), current_slowdown=value) for value in (1.0, 3.0))
    scores = [{item.candidate: item.prediction.p50_us for item in situation.ranking} for situation in (at_home, away)]
    assert scores[1] == scores[0] | {FP32: pytest.approx(3 * scores[0][FP32])}
    assert away.measured == at_home.measured, "what is recorded is what was measured"


def test_every_candidate_gets_a_verdict() -> None:
    """What was not measured says what was predicted."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 5_000.0)))
    assert set(decision.verdicts) == set(EVERYTHING)
    assert verdict_of(decision, BF16) == "NotMeasured"
    assert decision.verdicts[BF16].message.startswith("predicted at 0.")
    assert decision.verdicts[FP32].measured is not None


@pytest.mark.parametrize("faster", [1.0, 1.03, 1.049])
def test_a_difference_inside_the_dead_band_is_a_tie_and_the_present_configuration_stays(faster: float) -> None:
    """A rollout for less than the noise is a loss."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 10_000.0 / faster)))
    assert (decision.selected, decision.gain_percent) == (FP32, 0)
    assert (verdict_of(decision, FP32), verdict_of(decision, INT8)) == ("Selected", "Tie")


@pytest.mark.parametrize(
    ("objective", "want"),
    [
        pytest.param(Objective("Latency"), FP32, id="nobody said how long the tail may be: not longer than today"),
        pytest.param(make_slo_objective(p99="60ms"), INT8, id="the SLO says it"),
        pytest.param(Objective("Throughput"), INT8, id="throughput alone was asked for"),
    ],
)
def test_latency_never_buys_a_shorter_mean_with_a_much_longer_tail(objective: Objective, want: Candidate) -> None:
    """Two parallel executions on one core: a third more requests, P99 three times as long."""
    eager = make_run(INT8, measured=make_measured(7_500.0, p99_us=40_000.0))
    decision = judge(make_situation(make_run(FP32, 10_000.0), eager, objective=objective))
    assert decision.selected == want
    if want == FP32:
        assert (verdict_of(decision, INT8), decision.verdicts[INT8].message[:9]) == ("Slower", "P99 40ms,")


def test_a_noisy_measurement_widens_the_dead_band() -> None:
    """9 % faster, but the rounds differ by as much."""
    clear = make_situation(make_run(FP32, 10_000.0), make_run(INT8, 9_150.0))
    noisy = make_situation(make_run(FP32, 10_000.0, latency_ratio_spread_permille=200), make_run(INT8, 9_150.0, latency_ratio_spread_permille=200))
    assert judge(clear).selected == INT8
    assert judge(noisy).selected == FP32


def test_across_families_the_dead_band_is_wider_than_within_one() -> None:
    """There the levels' own errors do not cancel."""
    within = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 9_400.0)))
    across = judge(make_situation(make_run(FP32, 10_000.0), make_run(OPENVINO, 9_400.0, reference_us=9_400.0, node="node-2")))
    assert (within.selected, across.selected) == (INT8, FP32)


def test_a_gain_below_the_policys_minimum_is_not_worth_a_rollout() -> None:
    """updatePolicy.minimumGainPercent; the message says so."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 9_000.0)), minimum_gain_percent=20)
    assert (decision.selected, verdict_of(decision, INT8)) == (FP32, "Tie")
    assert "minimumGainPercent is 20" in decision.verdicts[INT8].message


def test_a_lossy_one_that_gains_nothing_over_an_exact_one_gives_way() -> None:
    """int8 is 2 % faster than fp32 with batches: the difference in its answers buys nothing."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(INT8, 4_900.0), make_run(BATCHED, 5_000.0)))
    assert (decision.selected, verdict_of(decision, INT8)) == (BATCHED, "Tie")


BAD_INT8 = (
    ("Failed", make_run(INT8, failure=CRASH)),
    ("Failed", make_run(INT8, 1_000.0, measured=make_measured(1_000.0, errors=1))),
    ("Failed", make_run(INT8, 1_000.0, partial=True, rounds=2)),
    ("AccuracyExceeded", make_run(INT8, 1_000.0, accuracy=make_accuracy(difference_ppm=20_000))),
    ("AccuracyExceeded", make_run(INT8, 1_000.0, accuracy=make_accuracy(invalid_values=True))),
    ("Unverified", make_run(INT8, 1_000.0, accuracy=make_accuracy(inputs="generated"))),
)


@pytest.mark.parametrize(("want", "run"), BAD_INT8, ids=[f"{number}-{case[0]}" for number, case in enumerate(BAD_INT8)])
def test_the_fastest_is_not_selected_when_its_run_or_its_answers_are_no_good(want: str, run: RunResult) -> None:
    """However fast it was."""
    decision = judge(make_situation(make_run(FP32, 10_000.0), make_run(BATCHED, 8_000.0), run))
    assert decision.selected == BATCHED
    assert verdict_of(decision, INT8) == want
    assert decision.verdicts[INT8].message


def test_unverified_is_selected_where_the_owner_allows_it() -> None:
    """accuracy.allowUnverified."""
    run = make_run(INT8, 1_000.0, accuracy=make_accuracy(inputs="generated"))
    assert judge(make_situation(make_run(FP32), run, accuracy=Accuracy(allow_unverified=True))).selected == INT8


def test_wrong_batches_are_rejected_and_single_requests_are_not() -> None:
    """The batch is what is wrong, not the precision."""
    wrong = make_run(BATCHED, 1_000.0, accuracy=make_accuracy(batch_difference_ppm=300_000))
    decision = judge(make_situation(make_run(FP32, 10_000.0), wrong, make_run(INT8, 8_000.0)))
    assert (decision.selected, verdict_of(decision, BATCHED)) == (INT8, "AccuracyExceeded")


def test_a_limit_beats_a_better_figure() -> None:
    """More throughput with a P99 over the SLO is no choice."""
    runs = (make_run(FP32, 5_000.0), make_run(BATCHED, 20_000.0, measured=make_measured(20_000.0, throughput_per_second=3_000.0)))
    decision = judge(make_situation(*runs, objective=make_slo_objective(p99="10ms")))
    assert (decision.selected, verdict_of(decision, BATCHED)) == (FP32, "SloMissed")
    assert decision.verdicts[BATCHED].message == "P99 24ms, at most 10ms allowed"


def test_a_present_configuration_that_breaks_the_limit_is_left_also_for_less() -> None:
    """Keeping the SLO comes before the goal, and before the minimum gain."""
    runs = (make_run(FP32, 20_000.0, measured=make_measured(20_000.0, throughput_per_second=3_000.0)), make_run(INT8, 5_000.0))
    decision = judge(make_situation(*runs, objective=make_slo_objective(p99="10ms")), minimum_gain_percent=50)
    assert (decision.selected, verdict_of(decision, FP32)) == (INT8, "SloMissed")
    assert decision.infeasible is None
    assert decision.gain_percent < 0


def test_limits_that_nothing_keeps_are_said_and_the_nearest_is_recommended() -> None:
    """Nothing is coerced silently."""
    decision = judge(make_situation(make_run(FP32, 40_000.0), make_run(INT8, 20_000.0), objective=make_slo_objective(p99="10ms")))
    assert (decision.selected, decision.gain_percent) == (INT8, 100)
    assert decision.infeasible == "no measured candidate keeps the SLO: the nearest has P99 24ms, at most 10ms allowed"


def test_when_nothing_is_nearer_to_the_limit_the_present_configuration_stays() -> None:
    """A rollout that does not reach the SLO either must at least be a clear gain."""
    runs = (make_run(FP32, 20_000.0), make_run(INT8, 19_500.0))
    decision = judge(make_situation(*runs, objective=make_slo_objective(min_throughput_per_second=9_000)))
    assert decision.selected == FP32
    assert decision.infeasible is not None
    assert "requests per second, at least 9000 needed" in decision.infeasible


def test_nothing_measured_keeps_what_is_there_and_says_so() -> None:
    """Budget spent, or every run failed."""
    decision = judge(make_situation(make_run(FP32, failure=CRASH), make_run(INT8, failure=CRASH)))
    assert (decision.selected, decision.gain_percent) == (FP32, 0)
    assert decision.infeasible == "no candidate has a valid measurement"
    assert decision.low_confidence is not None
    assert "signal 11" in decision.low_confidence
    assert "signal 11" in decision.verdicts[FP32].message


def test_without_a_present_configuration_the_best_measured_is_selected() -> None:
    """There is nothing to gain over, so the gain is 0."""
    decision = judge(make_situation(make_run(INT8, 5_000.0), make_run(BATCHED, 9_000.0), current=None), minimum_gain_percent=30)
    assert (decision.selected, decision.gain_percent) == (INT8, 0)


def test_a_present_configuration_that_failed_is_left_with_doubt() -> None:
    """Its benchmark crashed, although it runs: something differs between Job and Deployment."""
    decision = judge(make_situation(make_run(FP32, failure=CRASH), make_run(INT8, 5_000.0)))
    assert decision.selected == INT8
    assert decision.low_confidence == "the current configuration has no valid measurement: RuntimeCrashed: signal 11 while loading"


def test_a_lossy_present_configuration_beyond_the_budget_is_left_for_an_exact_one() -> None:
    """The budget holds for what is there as well."""
    runs = (make_run(INT8, 5_000.0, accuracy=make_accuracy(difference_ppm=90_000)), make_run(FP32, 9_000.0))
    decision = judge(make_situation(*runs, current=INT8))
    assert (decision.selected, verdict_of(decision, INT8)) == (FP32, "AccuracyExceeded")


def test_the_best_prediction_left_unmeasured_is_a_doubt() -> None:
    """The budget ended before the one that promised most."""
    situation = make_situation(make_run(FP32, 10_000.0), make_run(INT8, 9_000.0))
    better = {**situation.predictions, OPENVINO: make_prediction(1_000.0, log_sigma=0.05)}
    decision = judge(replace(situation, predictions=better))
    assert decision.low_confidence is not None
    assert OPENVINO.key in decision.low_confidence


@pytest.mark.parametrize(
    ("runs", "fields", "want"),
    [
        ((make_run(FP32),), {}, "no other candidate"),
        ((make_run(INT8),), {}, "it was not run"),
        ((make_run(FP32, 9_000.0), make_run(INT8, 9_000.0)), {"objective": make_slo_objective(p99="11ms")}, "nearer to a limit"),
        ((make_run(FP32, micro=None, latency_ratio_spread_permille=600), make_run(INT8, 1_000.0, micro=None, latency_ratio_spread_permille=600)), {}, "noisy"),
    ],
)
def test_other_doubts(runs: tuple[RunResult, ...], fields: dict[str, Any], want: str) -> None:
    """LowConfidence says why."""
    decision = judge(make_situation(*runs, **fields))
    assert decision.low_confidence is not None
    assert want in decision.low_confidence


def test_a_goal_without_a_cost_judges_what_has_one() -> None:
    """The other one was measured, but nobody said what it costs."""
    situation = make_situation(
        make_run(FP32, 10_000.0), make_run(OPENVINO, 1_000.0, reference_us=2_000.0, node="node-2"), objective=Objective("Cost"), costs={("cards", "ort-cpu"): 5}
    )
    decision = judge(situation)
    assert (decision.selected, verdict_of(decision, OPENVINO)) == (FP32, "Failed")
    assert "cost is unknown" in decision.verdicts[OPENVINO].message


# Properties.


@given(st.floats(-0.5, 0.5), st.floats(0.001, 0.5), st.floats(0.001, 0.5), st.booleans())
def test_a_tie_is_symmetric_and_never_narrower_than_five_percent(difference: float, one: float, two: float, same_level: bool) -> None:
    """A against B is what B against A is."""
    left = Estimate(1.0, 1.0, 1.0, one, 0.04, level_of(FP32))
    right = Estimate(1.0, 1.0, 1.0, two, 0.04, level_of(FP32 if same_level else OPENVINO))
    assert is_tie(left, right, difference) == is_tie(right, left, -difference)
    assert dead_band(left, right) == dead_band(right, left) >= 0.048


def make_any_run(candidate: Candidate, p50_us: float, kind: str) -> RunResult:
    """A good run, a crashed one, one with wrong answers, one that was compared on generated inputs."""
    if kind == "crashed":
        return make_run(candidate, failure=CRASH)
    accuracy = make_accuracy(difference_ppm=10**6 if kind == "wrong" else 5, inputs="generated" if kind == "unverified" else "calibration")
    return make_run(candidate, p50_us, accuracy=accuracy)


RUNS = st.lists(
    st.builds(make_any_run, st.sampled_from(EVERYTHING), st.floats(500.0, 50_000.0), st.sampled_from(["good", "crashed", "wrong", "unverified"])), max_size=6
)
OBJECTIVES = st.sampled_from([Objective("Latency"), Objective("Throughput"), make_slo_objective(p99="9ms"), make_slo_objective(min_throughput_per_second=700)])


@given(RUNS, OBJECTIVES, st.integers(0, 100), st.randoms(use_true_random=False))
def test_a_decision_is_sound_and_does_not_depend_on_the_order_of_runs(runs: list[RunResult], objective: Objective, minimum: int, random: Any) -> None:
    """What is selected is measured and without fault, or it is what was there; a move pays, or keeps a limit that was broken."""
    situation = make_situation(*runs, objective=objective)
    decision = judge(situation, minimum_gain_percent=minimum)
    selected = decision.selected
    assert selected is not None
    assert verdict_of(decision, selected) == "Selected"
    assert sum(item.verdict == "Selected" for item in decision.verdicts.values()) == 1
    if selected != FP32:
        assert selected in situation.measured
        assert selected not in situation.faults
        sound_baseline = FP32 in situation.measured and FP32 not in situation.faults
        assert not sound_baseline or decision.infeasible or decision.gain_percent >= minimum or verdict_of(decision, FP32) == "SloMissed"
    shuffled = list(runs)
    random.shuffle(shuffled)
    again = judge(make_situation(*shuffled, objective=objective), minimum_gain_percent=minimum)
    if len({run.candidate for run in runs}) == len(runs):  # of several runs of one candidate the last fault counts
        assert (again.selected, again.gain_percent, again.infeasible) == (decision.selected, decision.gain_percent, decision.infeasible)
    assert judge(situation, minimum_gain_percent=minimum) == decision
