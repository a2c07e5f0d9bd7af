from __future__ import annotations

import pytest
from tests.unit.decide.make_facts import make_portrait
from tests.unit.decide.make_runs import make_candidate, make_prediction, make_run

from metainfer.decide.predictor import Prediction
from metainfer.decide.recall import EARLIER_LOG_SIGMA, recall

FP32, INT8, INT8_BATCH = make_candidate(), make_candidate(precision="int8"), make_candidate(precision="int8", batch_size=4)
PREDICTIONS = {FP32: make_prediction(10_000.0), INT8: make_prediction(4_000.0), INT8_BATCH: make_prediction(3_000.0)}
PORTRAITS = {"node-1": make_portrait("node-1")}


def log_distance(left: Prediction, right: float) -> float:
    return abs(left.p50_us / right - 1)


def test_without_earlier_runs_predictions_stay_as_they_are() -> None:
    """A model that was never measured."""
    assert recall(PREDICTIONS, (), PORTRAITS, load_clients=4) is PREDICTIONS


def test_an_earlier_run_moves_its_candidate_and_those_like_it() -> None:
    """int8 turned out to be five times slower than predicted: so it will be with a batch, and fp32 hardly moves."""
    moved = recall(PREDICTIONS, (make_run(INT8, 20_000.0),), PORTRAITS, load_clients=4)
    assert moved[INT8].p50_us == pytest.approx(20_000.0, rel=0.2)
    assert moved[INT8].source == "measured in an earlier run"
    assert moved[INT8_BATCH].p50_us > 1.5 * PREDICTIONS[INT8_BATCH].p50_us
    assert moved[INT8_BATCH].p50_us / PREDICTIONS[INT8_BATCH].p50_us > moved[FP32].p50_us / PREDICTIONS[FP32].p50_us
    assert set(moved) == set(PREDICTIONS)


def test_an_earlier_figure_keeps_a_doubt() -> None:
    """Another day, another process: it narrows the doubt and does not end it."""
    moved = recall(PREDICTIONS, (make_run(INT8, 20_000.0),), PORTRAITS, load_clients=4)
    assert EARLIER_LOG_SIGMA <= moved[INT8].log_sigma < PREDICTIONS[INT8].log_sigma


def test_runs_under_another_load_say_nothing() -> None:
    """Latency under eight clients is another quantity."""
    assert recall(PREDICTIONS, (make_run(INT8, 20_000.0, load_clients=8),), PORTRAITS, load_clients=4) is PREDICTIONS


def test_what_is_no_choice_any_more_is_left_out() -> None:
    """A family that went away must not come back as a candidate."""
    gone = make_candidate("gone")
    assert recall(PREDICTIONS, (make_run(gone, 20_000.0),), PORTRAITS, load_clients=4) is PREDICTIONS
