from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CPU_PROVIDER, OPENVINO_PROVIDER, make_portrait
from tests.unit.decide.make_runs import MICRO_GFLOPS, make_accuracy, make_candidate, make_measured, make_prediction, make_run

from metainfer.decide.correction import SHARES, correct
from metainfer.decide.estimation import Estimate, difference_log_sigma, level_of
from metainfer.decide.facts import Portrait
from metainfer.decide.predictor import Prediction
from metainfer.decide.validation import estimates
from metainfer_probe.contract import MicroProbe

FP32 = make_candidate()
INT8 = make_candidate(precision="int8")
BATCHED = make_candidate(batch_size=4)
OPENVINO = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER)
PORTRAITS = {"node-1": make_portrait("node-1"), "node-2": make_portrait("node-2")}


def make_micro(gflops: float = MICRO_GFLOPS) -> MicroProbe:
    return MicroProbe(gflops=gflops, bandwidth_gigabytes_per_second=10.0, spread_permille=10)


def make_estimate(p50_us: float = 10_000.0, candidate: Any = FP32, **fields: Any) -> Estimate:
    defaults: dict[str, Any] = {
        "p99_us": 1.2 * p50_us,
        "throughput_per_second": 4e6 / p50_us,
        "log_sigma": 0.02,
        "level_log_sigma": 0.04,
        "level": level_of(candidate),
    }
    return Estimate(p50_us=p50_us, **(defaults | fields))


def test_one_undisturbed_run_is_taken_as_it_is() -> None:
    """Card in the state of its portrait, typical instance: the estimate is the measurement."""
    found = estimates([make_run(FP32, 10_000.0)], PORTRAITS)[FP32]
    assert (found.p50_us, found.p99_us, found.throughput_per_second) == pytest.approx((10_000.0, 12_000.0, 400.0))


def test_within_a_family_the_interleaved_ratio_counts_and_not_the_raw_figure() -> None:
    """The node was half as fast during the second run, which its reference shows: the ratio stays 0.5."""
    calm = make_run(FP32, 20_000.0, reference_us=20_000.0)
    disturbed = make_run(INT8, 20_000.0, reference_us=40_000.0, number=2)
    third = make_run(BATCHED, 20_000.0, reference_us=20_000.0, number=3)
    found = estimates([calm, disturbed, third], PORTRAITS)
    assert found[INT8].p50_us / found[FP32].p50_us == pytest.approx(0.5)
    assert found[INT8].throughput_per_second / found[FP32].throughput_per_second == pytest.approx(2.0)


def test_the_state_of_the_card_is_divided_out_as_far_as_the_micro_probe_is_believed() -> None:
    """A card that the micro-probe found a fifth slower than in its portrait: half of that (in logs) was the probe's own luck."""
    slow = make_run(FP32, 12_500.0, reference_us=25_000.0, micro=make_micro(0.8 * MICRO_GFLOPS))
    assert estimates([slow], PORTRAITS)[FP32].p50_us == pytest.approx(12_500.0 * 0.8**0.5)


def test_an_untypical_instance_is_projected_to_its_family() -> None:
    """Measured on a card at 70 % of the family's speed."""
    portraits = {"node-1": make_portrait("node-1", correction_factor_permille=700)}
    assert estimates([make_run(FP32, 10_000.0)], portraits)[FP32].p50_us == pytest.approx(7_000.0)


def test_an_absurd_micro_probe_is_not_followed() -> None:
    """Ten times slower than its portrait: the micro-probe was disturbed, not the card."""
    run = make_run(FP32, 10_000.0, micro=make_micro(0.1 * MICRO_GFLOPS))
    assert estimates([run], PORTRAITS)[FP32].p50_us == pytest.approx(10_000.0 / 1.5**0.5)


@pytest.mark.parametrize(
    ("portraits", "fields"),
    [
        pytest.param({}, {}, id="no portrait"),
        pytest.param(PORTRAITS, {"micro": None}, id="no micro-probe"),
        pytest.param(PORTRAITS, {"micro": make_micro(0.0)}, id="zero"),
    ],
)
def test_a_run_without_an_anchor_counts_with_more_doubt(portraits: dict[str, Portrait], fields: dict[str, Any]) -> None:
    """Its level may be off; its ratio to the reference is as good as ever."""
    anchored = estimates([make_run(FP32)], PORTRAITS)[FP32]
    found = estimates([make_run(FP32, **fields)], portraits)[FP32]
    assert found.level_log_sigma > 1.5 * anchored.level_log_sigma
    assert found.log_sigma == anchored.log_sigma


def test_without_a_reference_the_raw_figure_counts_with_more_doubt() -> None:
    """The Job's reference had no figures."""
    found = estimates([make_run(FP32, 10_000.0, reference=None)], PORTRAITS)[FP32]
    assert found.p50_us == pytest.approx(10_000.0)
    assert found.log_sigma > 0.05


def test_two_runs_of_one_candidate_are_averaged_and_surer_than_one() -> None:
    """Geometric mean of equally good runs."""
    runs = [make_run(INT8, 8_000.0), make_run(INT8, 12_500.0, number=2)]
    found = estimates(runs, PORTRAITS)
    assert found[INT8].p50_us == pytest.approx(10_000.0)
    assert found[INT8].log_sigma < estimates(runs[:1], PORTRAITS)[INT8].log_sigma


def test_a_broken_run_gives_no_estimate() -> None:
    """Requests failed: the others ran under another load."""
    assert estimates([make_run(FP32, measured=make_measured(errors=3))], PORTRAITS) == {}


def test_the_speed_of_another_computation_is_none_of_the_models() -> None:
    """An fp32 that answers something else: it would make everything like it look fast."""
    assert FP32 not in estimates([make_run(FP32, 100.0, accuracy=make_accuracy(difference_ppm=999_000))], PORTRAITS)
    unsteady = make_accuracy(difference_ppm=200_000, self_difference_ppm=300_000)
    assert FP32 in estimates([make_run(FP32, accuracy=unsteady)], PORTRAITS)


def test_providers_of_one_family_have_levels_of_their_own() -> None:
    """Each is measured against fp32 on the same provider."""
    other = make_candidate(execution_provider=OPENVINO_PROVIDER)
    found = estimates([make_run(FP32, 10_000.0), make_run(other, 5_000.0, reference_us=5_000.0, number=2)], PORTRAITS)
    assert found[other].p50_us == pytest.approx(5_000.0)
    assert found[FP32].level != found[other].level


def test_the_spread_of_rounds_becomes_doubt() -> None:
    """And more rounds take it away again."""
    quiet, noisy, longer = (
        estimates([make_run(FP32, latency_ratio_spread_permille=spread, rounds=rounds)], PORTRAITS)[FP32].log_sigma
        for spread, rounds in ((0, 7), (200, 7), (200, 28))
    )
    assert quiet < longer < noisy


@given(factor=st.floats(0.01, 100.0), order=st.permutations(range(4)))
def test_estimates_scale_with_the_unit_and_do_not_depend_on_the_order(factor: float, order: list[int]) -> None:
    """Everything twice as slow: every estimate twice as slow, whichever run came first."""
    plan = [(FP32, 10_000.0, 20_000.0), (INT8, 7_000.0, 21_000.0), (BATCHED, 9_000.0, 19_000.0), (INT8, 7_700.0, 20_500.0)]
    want = estimates([make_run(candidate, p50, reference_us=level, number=number) for number, (candidate, p50, level) in enumerate(plan)], PORTRAITS)
    scaled = [make_run(candidate, p50 * factor, reference_us=level * factor, number=number) for number, (candidate, p50, level) in enumerate(plan)]
    found = estimates([scaled[number] for number in order], PORTRAITS)
    assert {item: value.p50_us / factor for item, value in found.items()} == pytest.approx({item: value.p50_us for item, value in want.items()})
    assert {item: value.throughput_per_second * factor for item, value in found.items()} == pytest.approx(
        {item: value.throughput_per_second for item, value in want.items()}
    )


@given(st.lists(st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, 10.0]), min_size=5, max_size=5), st.integers(0, 10**9), st.integers(0, 10**6))
def test_figures_that_are_no_numbers_never_crash_an_estimate(values: list[float], ratio: int, spread: int) -> None:
    """What a Job reports is not trusted."""
    mean, p50, p99, reference, gflops = values
    run = make_run(FP32)
    assert run.report is not None
    changes = {
        "candidate": make_measured().model_copy(update={"mean_us": mean, "p50_us": p50, "p99_us": p99}),
        "reference": make_measured().model_copy(update={"mean_us": reference}),
        "micro": make_micro().model_copy(update={"gflops": gflops}),
        "latency_ratio_permille": ratio,
        "latency_ratio_spread_permille": spread,
    }
    run = replace(run, report=run.report.model_copy(update=changes))
    for found in estimates([run, make_run(INT8, number=2)], PORTRAITS).values():
        assert math.isfinite(found.log_sigma)


def test_the_levels_own_error_cancels_only_where_it_is_shared() -> None:
    """Two candidates of one family are compared more sharply than two of different families."""
    one, two, far = make_estimate(), make_estimate(9_000.0), make_estimate(9_000.0, OPENVINO)
    assert difference_log_sigma(one, two) < difference_log_sigma(one, far)
    assert difference_log_sigma(one, far) == difference_log_sigma(far, one)


# Correction of predictions.


def test_the_shares_add_up_to_one() -> None:
    """They are parts of one variance."""
    assert math.fsum(share for share, _ in SHARES) == pytest.approx(1.0)


def test_without_measurements_predictions_stay_as_they_are() -> None:
    """Ridge with zero rows is the identity."""
    predictions = {FP32: make_prediction(), INT8: make_prediction(5_000.0)}
    assert correct(predictions, {}) == predictions


def test_what_was_measured_replaces_its_prediction() -> None:
    """A measurement is not averaged with a guess."""
    found = correct({FP32: make_prediction(99_000.0)}, {FP32: make_estimate(10_000.0)})[FP32]
    assert (found.p50_us, found.source) == (10_000.0, "measured")


def test_a_surprise_moves_what_is_alike_more_than_what_is_not() -> None:
    """int8 on this provider was four times slower than predicted: other int8 there is doubted most, fp32 elsewhere least."""
    same_provider = make_candidate("other", precision="int8")
    elsewhere = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER, precision="int8")
    unlike = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER, batch_size=8, concurrency=2)
    everything = {item: make_prediction(10_000.0) for item in (INT8, same_provider, elsewhere, unlike)}
    found = correct(everything, {INT8: make_estimate(40_000.0)})
    assert 40_000.0 > found[same_provider].p50_us > found[elsewhere].p50_us > found[unlike].p50_us > 10_000.0
    assert found[same_provider].log_sigma < found[unlike].log_sigma


@pytest.mark.parametrize(("factor", "grows"), [(1.05, False), (4.0, True)], ids=["as promised", "five sigma off"])
def test_predictions_that_were_worse_than_they_promised_make_the_others_doubtful(factor: float, grows: bool) -> None:
    """A sigma that was wrong once is not believed for what is not measured yet; one that was right is."""
    unlike = make_candidate("openvino-cpu", execution_provider=OPENVINO_PROVIDER, batch_size=8, concurrency=2)
    found = correct({INT8: make_prediction(10_000.0), unlike: make_prediction(10_000.0)}, {INT8: make_estimate(10_000.0 * factor)})
    assert (found[unlike].log_sigma > 0.3) is grows


def test_latency_and_throughput_are_corrected_each_by_its_own_residual() -> None:
    """Batching may miss the latency and hit the throughput."""
    measured = make_estimate(20_000.0, throughput_per_second=400.0)
    found = correct({INT8: make_prediction(10_000.0), FP32: make_prediction(10_000.0)}, {INT8: measured})[FP32]
    assert found.p50_us > 10_500.0
    assert found.throughput_per_second == pytest.approx(400.0)


@given(
    st.dictionaries(st.integers(0, 7), st.floats(1e-300, 1e300), max_size=6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=8, max_size=8),
    st.permutations(range(8)),
)
def test_a_correction_is_finite_and_does_not_depend_on_the_order(measured: dict[int, float], predicted: list[float], order: list[int]) -> None:
    """Whatever was predicted or measured, a good prediction stays a number."""
    candidates = [make_candidate(precision=precision, batch_size=batch) for precision in ("fp32", "bf16", "fp16", "int8") for batch in (1, 4)]
    predictions = {item: Prediction(value, value, value, 0.3, "test") for item, value in zip(candidates, predicted, strict=True)}
    predictions[OPENVINO] = make_prediction()
    found = correct(predictions, {candidates[key]: make_estimate(value, p99_us=value, throughput_per_second=value) for key, value in measured.items()})
    assert math.isfinite(found[OPENVINO].p50_us)
    assert 0 < found[OPENVINO].log_sigma <= 2.0
    turned = correct(
        {candidates[key]: predictions[candidates[key]] for key in order} | {OPENVINO: predictions[OPENVINO]},
        {candidates[key]: make_estimate(measured[key], p99_us=measured[key], throughput_per_second=measured[key]) for key in order if key in measured},
    )
    assert turned[OPENVINO] == found[OPENVINO]


@given(st.floats(0.02, 2.0), st.floats(0.01, 100.0))
def test_a_correction_is_a_shrinkage(log_sigma: float, factor: float) -> None:
    """What is alike moves in the direction of the residual, and never further than it."""
    predictions = {INT8: make_prediction(10_000.0, log_sigma=log_sigma), BATCHED: make_prediction(10_000.0, log_sigma=log_sigma)}
    moved = math.log(correct(predictions, {INT8: make_estimate(10_000.0 * factor)})[BATCHED].p50_us / 10_000.0)
    residual = math.log(factor)
    assert abs(moved) <= abs(residual) + 1e-9
    assert moved * residual >= 0


def test_a_measured_candidate_without_a_prediction_is_added() -> None:
    """The present configuration may be outside what was predicted."""
    assert set(correct({FP32: make_prediction()}, {INT8: make_estimate()})) == {FP32, INT8}


def test_a_prediction_that_is_surer_is_moved_less() -> None:
    """Effects are scaled by the prediction's own sigma."""
    sure = replace(make_prediction(10_000.0), log_sigma=0.05)
    found = correct({INT8: make_prediction(10_000.0), FP32: sure, BATCHED: make_prediction(10_000.0)}, {INT8: make_estimate(20_000.0)})
    assert found[FP32].p50_us < found[BATCHED].p50_us
    assert CPU_PROVIDER == FP32.config.execution_provider == BATCHED.config.execution_provider
