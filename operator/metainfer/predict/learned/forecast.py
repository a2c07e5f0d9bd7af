"""What a model says about rows: a latency and how far to believe it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metainfer.predict.workload import Floats


@dataclass(frozen=True, slots=True)
class Forecast:
    """One entry per row, in the rows' order."""

    log_latency_us: Floats
    """Natural logarithm of the latency in microseconds."""
    sigma: Floats
    """Standard deviation of log(true / stated)."""

    @property
    def latency_us(self) -> Floats:
        """Microseconds."""
        return np.asarray(np.exp(self.log_latency_us), dtype=np.float64)
