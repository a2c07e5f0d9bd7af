"""What a model says about rows: a latency and how far to believe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metainfer.predict.workload import Floats


@dataclass(frozen=True, slots=True)
class Forecast:
    """One entry per row, in the rows' order."""

    log_latency_us: Floats
    """Natural logarithm of the latency in microseconds."""
    sigma: Floats
    """Standard deviation of log(true / stated)."""

    def take(self, where: npt.NDArray[Any]) -> Forecast:
        """The rows of a mask or of indices."""
        return Forecast(self.log_latency_us[where], self.sigma[where])

    @property
    def latency_us(self) -> Floats:
        """Microseconds."""
        return np.asarray(np.exp(self.log_latency_us), dtype=np.float64)
