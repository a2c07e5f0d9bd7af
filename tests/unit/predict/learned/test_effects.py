from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.learned.make_measured import make_measured

from metainfer.predict.learned.effects import EFFECTS, correct, likeness
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows, make_rows


def make_grid(**columns: object) -> Rows:
    """Two cards x two runtimes x two precisions x two batches of one model, each forecast at 1 ms."""
    rows = make_rows(16)
    rows["model"], rows["family"], rows["regime"], rows["base_us"] = "model", "family", "execution", 1000.0
    bits = (np.arange(16)[:, None] >> np.arange(4)) & 1
    rows["card"], rows["runtime"], rows["precision"] = (np.char.add(word, bits[:, place].astype(np.str_)) for place, word in enumerate(("c", "r", "p")))
    rows["batch"] = np.where(bits[:, 3] == 1, 8.0, 1.0)
    for name, value in columns.items():
        rows[name] = value
    return rows


def make_forecast(count: int = 16, sigma: float = 0.3) -> Forecast:
    return Forecast(np.full(count, np.log(1000.0)), np.full(count, sigma))


def measured(rows: Rows, *places: int, latency_us: float = 2000.0) -> tuple[Rows, Forecast]:
    seen = rows[list(places)].copy()
    seen["latency_us"] = latency_us
    return seen, make_forecast(len(seen))


def test_shares_add_up_to_one() -> None:
    """A row is wholly like itself."""
    assert sum(effect.share for effect in EFFECTS) == pytest.approx(1.0)
    rows = make_grid()
    assert np.diag(likeness(rows, rows)) == pytest.approx(1.0)


def test_a_measured_row_is_believed_and_what_is_like_it_follows() -> None:
    """Twice the forecast on one card, runtime and precision: there it is believed, elsewhere the less the less is shared."""
    rows = make_grid()
    moved = correct(rows, make_forecast(), *measured(rows, 0)).log_latency_us - np.log(1000.0)
    assert moved[0] == pytest.approx(np.log(2.0), rel=0.02)
    same_but_batch, other_precision, all_other = moved[8], moved[4], moved[15]
    assert moved[0] > same_but_batch > other_precision > all_other > 0


def test_doubt_shrinks_where_something_was_learned() -> None:
    """Sigma never grows by a measurement, and shrinks most where it was made."""
    rows = make_grid()
    sigma = correct(rows, make_forecast(), *measured(rows, 0)).sigma
    assert np.all(sigma <= 0.3)
    assert sigma[0] == sigma.min() < 0.05
    assert sigma[15] > 0.25


def test_another_regime_tells_nothing() -> None:
    """Prefill and decode err for different reasons."""
    rows = make_grid()
    seen, forecast = measured(rows, 0)
    seen["regime"] = "decode"
    assert correct(rows, make_forecast(), seen, forecast).log_latency_us == pytest.approx(np.log(1000.0))


def test_nothing_measured_changes_nothing() -> None:
    """No rows, or rows without a latency: the forecast comes back."""
    rows, forecast = make_grid(), make_forecast()
    assert correct(rows, forecast, rows[:0], make_forecast(0)) is forecast
    assert correct(rows, forecast, rows[:2], make_forecast(2)) is forecast


@settings(deadline=None)
@given(st.permutations(range(5)), st.lists(st.floats(1.0, 1e8), min_size=5, max_size=5))
def test_the_order_of_measurements_never_matters(order: list[int], latencies: list[float]) -> None:
    """What was measured is a set."""
    rows = make_grid()
    seen = rows[[0, 3, 5, 10, 15]].copy()
    seen["latency_us"] = latencies
    forward = correct(rows, make_forecast(), seen, make_forecast(5))
    backward = correct(rows, make_forecast(), seen[order], make_forecast(5))
    assert backward.log_latency_us == pytest.approx(forward.log_latency_us, abs=1e-6)
    assert backward.sigma == pytest.approx(forward.sigma, abs=1e-6)


@settings(deadline=None)
@given(sigma=st.sampled_from([0.0, 1e-9, np.nan, np.inf, 5.0]), latency_us=st.sampled_from([1e-300, 1.0, 3.6e9]), repeats=st.integers(1, 12))
def test_odd_figures_still_give_figures(sigma: float, latency_us: float, repeats: int) -> None:
    """Sigmas that are zero or missing, absurd latencies, one row many times: finite answers."""
    rows = make_grid()
    seen, _ = measured(rows, *[0] * repeats, latency_us=latency_us)
    found = correct(rows, make_forecast(sigma=sigma), seen, make_forecast(repeats, sigma))
    assert np.all(np.isfinite(found.log_latency_us))


def test_correcting_a_card_whose_forecasts_are_off_mends_the_rest_of_it() -> None:
    """Three measurements on a card that is 40 % slower than forecast leave less than half of the error on its other rows."""
    rows = make_measured(200, noise=0.01)
    rows = rows[rows["model"] == "model-1"]
    truth = np.log(rows["base_us"]) + np.where(rows["card"] == "large", 0.34, 0.0)
    forecast = Forecast(np.log(rows["base_us"]), np.full(len(rows), 0.2))
    seen = rows.copy()
    seen["latency_us"] = np.exp(truth)
    places = np.concatenate([np.flatnonzero(rows["card"] == "large")[:3], np.flatnonzero(rows["card"] == "small")[:1]])
    left = correct(rows, forecast, seen[places], forecast.take(places)).log_latency_us - truth
    assert np.abs(left[rows["card"] == "large"]).mean() < 0.17
