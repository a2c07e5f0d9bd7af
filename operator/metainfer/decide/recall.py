"""What a model did in earlier runs, brought into the next ranking. Pure.

Figures of another day, another adaptation or other container limits correct predictions and narrow their doubt; they never stand in for
a measurement: what is decided rests on this run's benchmarks alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from metainfer.decide.correction import correct
from metainfer.decide.estimation import Estimate, estimates
from metainfer.decide.facts import Candidate, Portrait, RunResult
from metainfer.decide.predictor import Prediction

EARLIER_LOG_SIGMA = 0.15
"""Added in square to an earlier estimate: the same thing differs by 5-15 % between days, processes and containers."""


def recall(
    predictions: Mapping[Candidate, Prediction], earlier: Sequence[RunResult], portraits: Mapping[str, Portrait], *, load_clients: int
) -> Mapping[Candidate, Prediction]:
    """The same candidates, moved by earlier runs of the same file under the same load; as they are where there were none."""
    alike = [run for run in earlier if run.report is not None and run.report.load_clients == load_clients]
    known = {candidate: _doubt(estimate) for candidate, estimate in estimates(alike, portraits).items() if candidate in predictions}
    if not known:
        return predictions
    moved = correct(predictions, known)
    return {candidate: replace(moved[candidate], source="measured in an earlier run") if candidate in known else moved[candidate] for candidate in predictions}


def _doubt(estimate: Estimate) -> Estimate:
    return replace(estimate, log_sigma=math.hypot(estimate.log_sigma, EARLIER_LOG_SIGMA))
