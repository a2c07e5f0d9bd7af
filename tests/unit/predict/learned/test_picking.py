from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.learned.test_effects import make_grid

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.picking import Aspect, Contest, ranked_scores
from metainfer.predict.workload import Floats


def make_contest(latencies_us: list[float] | Floats, sigmas: list[float] | float = 0.2, limit_us: float = np.inf) -> Contest:
    """Candidates of ``make_grid`` that are worth the inverse of their latency."""
    count = len(latencies_us)
    forecast = Forecast(np.log(np.array(latencies_us, dtype=np.float64)), np.broadcast_to(np.array(sigmas, dtype=np.float64), count).copy())
    return Contest((Aspect(make_grid()[:count], forecast, float(np.log(limit_us))),), lambda logs, _: -logs[0])


def test_without_limits_the_fastest_scores_best() -> None:
    """The score is then the log utility."""
    assert make_contest([300.0, 100.0, 200.0]).scores == pytest.approx(-np.log([300.0, 100.0, 200.0]))


def test_of_equal_ones_the_surer_one_scores_better_below_a_limit() -> None:
    """A candidate that is doubtful about its limit loses smoothly."""
    scores = make_contest([900.0, 900.0], [0.05, 0.5], limit_us=1000.0).scores
    assert scores[0] > scores[1] > -np.log(900.0) - 1


@settings(deadline=None)
@given(st.floats(10.0, 10_000.0), st.floats(1.0, 3.0), st.floats(0.01, 1.0))
def test_slower_never_scores_better(latency_us: float, factor: float, sigma: float) -> None:
    """Monotone in the latency, with and without a limit."""
    for limit_us in (np.inf, 1000.0):
        fast, slow = make_contest([latency_us, latency_us * factor], sigma, limit_us).scores
        assert slow <= fast


def test_a_shortlist_hedges() -> None:
    """Of two that are about as good, the one that errs for other reasons adds more to the best of both."""
    rows = make_grid()
    same = int(np.flatnonzero((rows["card"] == "c0") & (rows["runtime"] == "r0") & (rows["precision"] == "p0"))[1])
    latencies = np.full(16, 5000.0)
    latencies[0], latencies[same], latencies[15] = 100.0, 101.0, 104.0
    contest = make_contest(latencies, 0.3)
    assert contest.scores.argsort()[::-1][:2].tolist() == [0, same]
    assert contest.shortlist(2) == [0, 15]


def test_the_first_of_a_shortlist_is_the_best_by_itself() -> None:
    """With sure forecasts a shortlist is the order of scores."""
    contest = make_contest([400.0, 100.0, 300.0, 200.0], 0.01)
    assert contest.shortlist(4)[0] == 1
    assert np.argsort(-ranked_scores(contest)).tolist()[0] == 1


def test_a_shortlist_of_few_candidates_has_all_of_them() -> None:
    """Fewer candidates than places."""
    assert sorted(make_contest([100.0, 200.0]).shortlist(4)) == [0, 1]


def test_candidates_that_all_break_the_limit_are_still_ordered() -> None:
    """Where nothing is feasible, the ones closest to the limit come first."""
    contest = make_contest([5e6, 4e6, 6e6], 0.1, limit_us=1.0)
    assert np.all(np.isfinite(contest.scores))
    assert len(set(contest.shortlist(3))) == 3


def test_what_cannot_be_better_promises_nothing_and_what_may_be_promises_more_the_more_doubtful_it_is() -> None:
    """Expected improvement over a measured one at 100 us."""
    sure, doubtful, hopeless = make_contest([110.0, 110.0, 100_000.0], [0.02, 0.4, 0.1]).expected_gains(float(-np.log(100.0)))
    assert doubtful > 0.05 > sure >= 0
    assert hopeless == pytest.approx(0.0, abs=1e-6)


def test_a_gain_below_a_limit_counts_by_its_chance() -> None:
    """Half as slow, but as likely as not too slow for the limit: half the gain."""
    free = make_contest([100.0], 0.05)
    limited = replace(free, aspects=(replace(free.aspects[0], log_limit_us=float(np.log(100.0))),))
    best = float(-np.log(200.0))
    assert limited.expected_gains(best)[0] == pytest.approx(free.expected_gains(best)[0] / 2)


def test_measurements_move_scores() -> None:
    """After the favourite proved three times slower, another one leads."""
    contest = make_contest([100.0, 110.0], 0.3)
    seen = contest.aspects[0].rows[[0]].copy()
    seen["latency_us"] = 300.0
    after = contest.after([seen], [contest.aspects[0].forecast.take(np.array([0]))])
    assert after.scores.argmax() == 1
