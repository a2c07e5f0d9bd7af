from __future__ import annotations

from prometheus_client import REGISTRY

from metainfer.act.quality import count_decision
from metainfer.decide.plan import PredictionQuality


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_decision_is_counted_with_what_its_predictions_were_worth() -> None:
    """By families, which are few; once per decision."""
    count_decision(PredictionQuality("quality-a", "Decided", 2, (("quality-a", 0.9), ("quality-b", 3.0))))
    count_decision(PredictionQuality("quality-a", "Decided", None))
    assert sample("metainfer_decisions_total", family="quality-a", reason="Decided") == 2
    assert sample("metainfer_predicted_rank_of_best_bucket", family="quality-a", le="1.0") == 0
    assert sample("metainfer_predicted_rank_of_best_bucket", family="quality-a", le="2.0") == 1
    assert sample("metainfer_predicted_rank_of_best_count", family="quality-a") == 1
    assert sample("metainfer_prediction_error_ratio_sum", family="quality-b") == 3.0
