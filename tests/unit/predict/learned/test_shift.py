from __future__ import annotations

import numpy as np
import pytest
from tests.unit.predict.learned.make_measured import make_measured

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.shift import PRIOR_ROWS, Shifts, learn_shifts


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_a_shift_is_believed_as_far_as_its_rows_go(count: int) -> None:
    """n rows that are all 50 % slow move the card by n / (n + 2.5) of that."""
    rows = make_measured(count)
    rows["card"], rows["latency_us"] = "new", rows["base_us"] * 1.5
    shifts = learn_shifts(rows, Forecast(np.log(rows["base_us"]), np.full(count, 0.2)))
    assert shifts.by_card == {("new", "execution"): pytest.approx(np.log(1.5) * count / (count + PRIOR_ROWS))}


def test_one_outlier_of_three_does_not_carry_the_shift() -> None:
    """From three rows on the middle one decides."""
    rows = make_measured(3)
    rows["card"], rows["latency_us"] = "new", rows["base_us"] * np.array([1.0, 1.0, 1e4])
    assert learn_shifts(rows, Forecast(np.log(rows["base_us"]), np.full(3, 0.2))).by_card["new", "execution"] == pytest.approx(0.0)


def test_rows_without_a_latency_teach_no_shift() -> None:
    """Nothing measured, nothing moved."""
    rows = make_measured(3)
    rows["latency_us"] = np.nan
    shifts = learn_shifts(rows, Forecast(np.log(rows["base_us"]), np.full(3, 0.2)))
    assert shifts == Shifts()
    assert shifts.of(rows) == pytest.approx(0.0)
