from __future__ import annotations

import math

import pytest
from tests.unit.decide.make_facts import make_portrait
from tests.unit.decide.make_runs import make_accuracy, make_candidate, make_prediction, make_run

from metainfer.decide.quality import judge_predictions
from metainfer.decide.ranking import Objective
from metainfer.decide.validation import Situation

FP32, INT8, BF16 = make_candidate(), make_candidate(precision="int8"), make_candidate(precision="bf16")


def make_situation(*runs: object) -> Situation:
    """int8 promises most, then bf16, then fp32."""
    predictions = {FP32: make_prediction(10_000.0), INT8: make_prediction(3_000.0), BF16: make_prediction(5_000.0)}
    return Situation(predictions=predictions, runs=tuple(runs), portraits={"node-1": make_portrait("node-1")}, objective=Objective("Latency"))  # type: ignore[arg-type]


def test_the_place_of_what_measured_best_is_told() -> None:
    """bf16 was predicted second and measured first."""
    situation = make_situation(make_run(FP32, 10_000.0), make_run(INT8, 9_000.0, number=2), make_run(BF16, 5_000.0, number=3))
    quality = judge_predictions(situation, BF16, "Decided")
    assert (quality.family, quality.reason, quality.predicted_rank) == ("ort-cpu", "Decided", 2)


def test_an_error_is_measured_over_predicted_as_the_others_correct_it() -> None:
    """A family that is twice as slow as predicted altogether is no error of one candidate: the others say so."""
    slow = [make_run(FP32, 20_000.0, reference_us=20_000.0), make_run(INT8, 6_000.0, number=2), make_run(BF16, 10_000.0, number=3)]
    quality = judge_predictions(make_situation(*slow), INT8, "Decided")
    ratios = [ratio for _, ratio in quality.error_ratios]
    assert len(ratios) == 3
    assert all(1.0 < ratio < 2.0 for ratio in ratios)
    alone = judge_predictions(make_situation(slow[0]), FP32, "Decided")
    assert alone.error_ratios == (("ort-cpu", pytest.approx(2.0, rel=0.01)),)


def test_what_failed_is_no_measure_of_predictions() -> None:
    """An int8 with wrong answers was not the best, however fast."""
    wrong = make_run(INT8, 1_000.0, number=2, accuracy=make_accuracy(difference_ppm=500_000))
    quality = judge_predictions(make_situation(make_run(FP32, 10_000.0), wrong), FP32, "Decided")
    assert quality.predicted_rank == 3
    assert [family for family, _ in quality.error_ratios] == ["ort-cpu"]
    assert all(math.isfinite(ratio) for _, ratio in quality.error_ratios)
