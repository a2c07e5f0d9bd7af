"""What counts as slower, and when it is the load: every rule on windows that are made up."""

from __future__ import annotations

import pytest
from tests.unit.decide.keeping.make_windows import make_window, make_windows, spoiled

from metainfer.api.v1alpha1.served import Drift, ServedBaseline
from metainfer.decide.keeping.baselines import build_baseline, grow_baseline, show_latency, widen_baseline
from metainfer.decide.keeping.served import find_drift, find_long_drift, find_shift, find_slowest_node
from metainfer.decide.latency.findings import LatencyFinding
from metainfer.decide.latency.served import ServedWindow

DRIFT = Drift()
SLOWER = {"p99_ms": 52.0, "mean_ms": 14.0}
"""By 30 %: all of it, not only the slow ones."""
CLIENTS = 4


def make_baseline(**fields: object) -> ServedBaseline:
    """40 ms at five requests a second for each of two replicas."""
    built = build_baseline(make_windows(3, **fields), 3)
    assert built is not None
    return built


def judge(*windows: ServedWindow, baseline: ServedBaseline | None = None) -> tuple[str | None, str | None]:
    """Reasons of drift and of shift."""
    known = baseline or make_baseline()
    drift, shift = find_drift(windows, known, DRIFT), find_shift(windows, known, DRIFT, clients=CLIENTS)
    return drift.reason if drift else None, shift.reason if shift else None


# --- Drift ----------------------------------------------------------------------------------------------------------


def test_slower_in_every_window_at_the_same_load_is_a_drift() -> None:
    """The message has figures that somebody can check, and it wants a look before anything is done."""
    found = find_drift(make_windows(3, first=3, **SLOWER), make_baseline(), DRIFT)
    assert found is not None
    assert (found.reason, found.wants) == ("P99Drift", "Check")
    assert "+30 %, +30 %, +30 % against 40ms, the mean +27 % against 11ms" in found.message


@pytest.mark.parametrize(
    "windows",
    [
        (*make_windows(2, first=3, **SLOWER), make_window(5)),
        (make_window(3), *make_windows(2, first=4, **SLOWER)),
        make_windows(2, first=3, **SLOWER),
        make_windows(3, first=3, p99_ms=47.0, mean_ms=14.0),
        (),
    ],
    ids=["the last one is fine again", "the first one was fine", "too few windows", "less than the threshold", "nothing at all"],
)
def test_less_than_every_window_above_the_threshold_is_none(windows: tuple[ServedWindow, ...]) -> None:
    """One slow window is a moment; three are a state."""
    assert judge(*windows) == (None, None)


@pytest.mark.parametrize(
    ("windows", "stands", "want"),
    [
        pytest.param(make_windows(12, first=3, p99_ms=46.5, mean_ms=12.5), False, True, id="a little, for hours"),
        pytest.param(make_windows(11, first=3, p99_ms=46.5, mean_ms=12.5), False, False, id="not for long enough"),
        pytest.param(make_windows(12, first=3, p99_ms=45.5, mean_ms=12.5), False, False, id="less than three quarters of the threshold"),
        pytest.param(make_windows(12, first=3, p99_ms=46.5), False, False, id="but not the mean"),
        pytest.param(make_windows(12, first=3, p99_ms=46.5, mean_ms=12.5, per_second=20.0), False, False, id="under more load"),
        pytest.param((*make_windows(2, first=3, **SLOWER), make_window(5)), False, False, id="one good window among three"),
        pytest.param((*make_windows(2, first=3, **SLOWER), make_window(5)), True, True, id="one good window among three, suspected already"),
        pytest.param((*make_windows(1, first=3, **SLOWER), *make_windows(2, first=4)), True, False, id="two good windows end a suspicion"),
    ],
)
def test_a_small_increase_shows_in_the_average_of_many_windows(windows: tuple[ServedWindow, ...], *, stands: bool, want: bool) -> None:
    """At 15 % noise three windows in a row are seldom all above a threshold that the card has just reached."""
    found = find_long_drift(windows, make_baseline(), DRIFT, stands=stands)
    assert (found is not None) == want
    if found is not None:
        assert (found.reason, found.wants) == ("P99Drift", "Check")
        assert f"on average over {12 if len(windows) == 12 else 3} windows" in found.message


def test_an_average_is_told_with_the_threshold_that_it_passed() -> None:
    """Fifteen of the twenty percent that single windows need: "+16 % (threshold 20 %)" would look like a mistake."""
    found = find_long_drift(make_windows(12, first=3, p99_ms=46.5, mean_ms=12.5), make_baseline(), DRIFT, stands=False)
    assert found is not None
    want = "the 99th percentile is +16 % against 40ms, the mean +14 % against 11ms, on average over 12 windows at a comparable load (threshold 15 %)"
    assert found.message == want


def test_another_node_in_each_window_confirms_no_small_increase() -> None:
    """Of ten nodes always one is slowest; the one that is named is slow on average."""
    nodes = [f"n{number}" for number in range(4)]
    chance = [make_window(3 + at, p99_ms=46.5, nodes={node: 14.0 if node == nodes[at % 4] else 10.0 for node in nodes}) for at in range(12)]
    assert find_long_drift(chance, make_baseline(), DRIFT, stands=False) is None
    slow = [make_window(3 + at, p99_ms=46.5, nodes={node: 14.0 if node == "n1" or (node, at) == ("n3", 11) else 10.0 for node in nodes}) for at in range(12)]
    found = find_long_drift(slow, make_baseline(), DRIFT, stands=False)
    assert found is not None
    assert found.node == "n1"


def test_a_mean_that_did_not_move_contradicts_the_percentile() -> None:
    """Buckets can misread a percentile by their width; the mean has no such error."""
    assert judge(*make_windows(3, first=3, p99_ms=52.0)) == (None, None)
    assert judge(*make_windows(3, first=3, p99_ms=52.0, mean_ms=12.2)) == ("P99Drift", None)


def test_one_slow_card_among_many_is_confirmed_by_its_own_node() -> None:
    """It moves the mean of all by a tenth of what it lost; the suspicion names where to look."""
    nodes = {f"n{index}": 11.0 for index in range(9)} | {"slow": 18.0}
    windows = make_windows(3, first=3, p99_ms=52.0, mean_ms=11.7, replicas=10.0, per_second=50.0, nodes=nodes)
    found = find_drift(windows, make_baseline(replicas=10.0, per_second=50.0), DRIFT)
    assert found is not None
    assert found.node == "slow"
    assert "slowest on node slow" in found.message


@pytest.mark.parametrize("reason", ["LatencyUnresolvable", "TooFewRequests", "CountersUnshared", "NotANumber", "NoRequests"])
def test_a_window_that_may_not_be_compared_breaks_the_row(reason: str) -> None:
    """No data is not bad, whatever the figures beside it look like: counters that go back give a wild and plausible percentile."""
    assert judge(*make_windows(2, first=3, **SLOWER), make_window(5, p99_ms=900.0, mean_ms=400.0, finding=spoiled(reason))) == (None, None)


def test_what_was_put_right_is_compared() -> None:
    """A restart that is accounted for, and copies that were left out, spoil nothing."""
    restarted = LatencyFinding("CountersReset", "a pod restarted")
    assert judge(*make_windows(3, first=3, finding=restarted, **SLOWER)) == ("P99Drift", None)


def test_another_metric_is_not_compared() -> None:
    """The time to the first token is not the time to the last."""
    assert judge(*make_windows(3, first=3, metric="vllm:e2e_request_latency_seconds", **SLOWER)) == (None, None)


def test_windows_of_the_baseline_are_not_compared_with_it() -> None:
    """They are what it is made of."""
    assert judge(*make_windows(3, **SLOWER)) == (None, None)


def test_the_threshold_and_the_number_of_windows_are_the_users() -> None:
    """+30 % is none where 40 % was asked for; five windows are needed where five were asked for."""
    windows, baseline = make_windows(3, first=3, **SLOWER), make_baseline()
    assert find_drift(windows, baseline, Drift(p99_increase_percent=40)) is None
    assert find_drift(windows, baseline, Drift(windows=5)) is None
    assert find_drift(make_windows(5, first=3, **SLOWER), baseline, Drift(windows=5)) is not None


# --- Load -----------------------------------------------------------------------------------------------------------


def test_a_busier_service_is_not_a_slower_card() -> None:
    """The same +30 % at twice the rate: the load is looked at, the card is not accused."""
    found = find_shift(make_windows(3, first=3, per_second=20.0, **SLOWER), make_baseline(), DRIFT, clients=CLIENTS)
    assert judge(*make_windows(3, first=3, per_second=20.0, **SLOWER)) == (None, "LoadShifted")
    assert found is not None
    assert found.wants == "Check"
    assert "600 requests per minute" in found.message
    assert "up to 300 were served as before" in found.message


def test_more_load_over_more_replicas_is_the_same_load() -> None:
    """An autoscaler answered it: what counts is what each replica gets."""
    assert judge(*make_windows(3, first=3, per_second=20.0, replicas=4.0, **SLOWER)) == ("P99Drift", None)


def test_more_in_flight_at_the_same_rate_is_no_excuse() -> None:
    """Requests stay longer in a slower server, so more of them are in it (Little's law)."""
    assert judge(*make_windows(3, first=3, p99_ms=400.0, mean_ms=110.0)) == ("P99Drift", None)


def test_callers_that_wait_for_a_slow_server_ask_less_and_it_is_still_a_drift() -> None:
    """A fixed number of callers: latency up, rate down."""
    assert judge(*make_windows(3, first=3, per_second=7.7, **SLOWER)) == ("P99Drift", None)


def test_a_service_that_is_seldom_asked_is_not_busier_than_itself() -> None:
    """Less than one request in two minutes for each replica, in windows of a day: whole numbers of requests per minute must not make it none."""
    assert judge(*make_windows(3, first=3, per_second=0.015, **SLOWER), baseline=make_baseline(per_second=0.015)) == ("P99Drift", None)
    known = widen_baseline(make_baseline(per_second=0.01), make_window(3, per_second=0.04), DRIFT)
    assert (known.requests_per_minute_low, known.requests_per_minute_high) == (0, 2)


def test_more_load_that_is_served_as_fast_is_nothing() -> None:
    """It was validated with four in flight; two are none of anybody's business."""
    assert judge(*make_windows(3, first=3, per_second=300.0)) == (None, None)


def test_a_load_beyond_what_was_validated_wants_a_run_after_a_while() -> None:
    """Twelve in flight per replica where four were measured: another configuration may be right; rush hours pass."""
    windows = make_windows(3, first=3, per_second=400.0, mean_ms=60.0, p99_ms=200.0)
    found = find_shift(windows, make_baseline(), DRIFT, clients=CLIENTS)
    assert judge(*windows) == (None, "LoadShifted")
    assert found is not None
    assert (found.wants, found.settle_seconds) == ("Run", 8 * 3 * 900)


def test_in_flight_without_a_higher_rate_is_no_shift_of_load() -> None:
    """The rate is what callers offer; that it takes longer is the server's."""
    windows = make_windows(3, first=3, mean_ms=3000.0, p99_ms=9000.0)
    assert judge(*windows) == ("P99Drift", None)


def test_less_load_is_no_shift() -> None:
    """Nights come every day; the decision was made for when it matters."""
    assert judge(*make_windows(3, first=3, per_second=1.2)) == (None, None)


# --- Baseline -------------------------------------------------------------------------------------------------------


def test_the_baseline_is_the_median_of_the_first_good_windows() -> None:
    """Windows with too few requests are left out, and later ones do not count."""
    night = make_window(0, p99_ms=90.0, finding=spoiled("TooFewRequests"))
    windows = (night, make_window(1), make_window(2, p99_ms=44.0, per_second=14.0), make_window(3, p99_ms=41.0), make_window(4, p99_ms=99.0))
    built = build_baseline(windows, 3)
    assert built is not None
    assert (built.p99, built.mean, built.windows) == ("41ms", "11ms", 3)
    assert (built.per_replica, built.requests_per_minute_low, built.requests_per_minute_high) == (True, 300, 420)
    assert built.at == "2026-03-01T13:00:00Z"


def test_too_few_good_windows_make_no_baseline() -> None:
    """Then nothing is compared."""
    assert build_baseline((*make_windows(2), make_window(2, finding=spoiled("NoRequests"))), 3) is None
    assert build_baseline((), 3) is None


def test_without_percentiles_the_mean_is_kept_alone() -> None:
    """A server that only counts requests and time: the status shows it, no drift is read from it."""
    counters = LatencyFinding("NoHistogram", "a counter of time", ("p99",))
    built = build_baseline(make_windows(3, finding=counters), 3)
    assert built is not None
    assert (built.p99, built.mean) == (None, "11ms")
    assert judge(*make_windows(3, first=3, **SLOWER), baseline=built) == (None, None)


def test_the_load_is_total_where_pods_are_not_told_apart() -> None:
    """An own query has no pods."""
    built = build_baseline(make_windows(3, replicas=None), 3)
    assert built is not None
    assert (built.per_replica, built.requests_per_minute_high) == (False, 600)
    assert judge(*make_windows(3, first=3, replicas=None, **SLOWER), baseline=built) == ("P99Drift", None)


def test_a_fast_window_vouches_for_its_load() -> None:
    """Placed at night: the day's rate becomes known while all is well, and a slow day is a drift and not the load."""
    night = make_baseline(per_second=2.0)
    assert judge(*make_windows(3, first=3, **SLOWER), baseline=night) == (None, "LoadShifted")
    known = widen_baseline(night, make_window(3), DRIFT)
    assert (known.requests_per_minute_low, known.requests_per_minute_high, known.p99) == (60, 300, night.p99)
    assert judge(*make_windows(3, first=4, **SLOWER), baseline=known) == ("P99Drift", None)


def test_a_baseline_grows_until_it_is_of_many_windows() -> None:
    """Three slow ones at the beginning would hide a small increase for ever; each further one moves it by its share, on a logarithmic scale."""
    grown = grow_baseline(make_baseline(), make_window(3, p99_ms=30.0, mean_ms=9.0), DRIFT)
    assert (grown.p99, grown.mean, grown.windows, grown.at) == ("37ms200us", "10ms500us", 4, make_baseline().at)
    for number in range(4, 16):
        grown = grow_baseline(grown, make_window(number, p99_ms=30.0, mean_ms=9.0), DRIFT)
    assert (grown.p99, grown.windows) == ("32ms200us", 12)


@pytest.mark.parametrize(
    "window",
    [make_window(3, **SLOWER), make_window(3, per_second=20.0), make_window(3, finding=spoiled("NoRequests")), make_window(28, p99_ms=44.0)],
    ids=["slower by the increase", "busier", "says nothing", "long after"],
)
def test_a_window_that_may_be_another_state_has_no_part_in_the_baseline(window: ServedWindow) -> None:
    """Else a card that becomes slower in the first hours would be the measure of itself."""
    assert grow_baseline(make_baseline(), window, DRIFT) == make_baseline()


def test_a_slow_window_vouches_for_nothing() -> None:
    """Else the load would excuse itself."""
    night = make_baseline(per_second=2.0)
    assert widen_baseline(night, make_window(3, p99_ms=44.5), DRIFT) == night
    assert widen_baseline(night, make_window(3, finding=spoiled("NoRequests")), DRIFT) == night


@pytest.mark.parametrize(
    ("nodes", "want"), [({}, ""), ({"only": 11.0}, "only"), ({"b": 12.0, "a": 12.0, "c": 11.0}, "a")], ids=["not told", "one", "two alike"]
)
def test_the_slowest_node_is_named(nodes: dict[str, float], want: str) -> None:
    """By the mean, the first by name of those alike."""
    assert find_slowest_node(make_window(0, nodes=nodes)) == want


@pytest.mark.parametrize(
    ("microseconds", "want"),
    [(0.0, "0us"), (310.4, "310us"), (9999.0, "10ms"), (10_440.0, "10ms400us"), (12_345_678.0, "12s300ms")],
)
def test_latencies_are_kept_to_better_than_the_threshold(microseconds: float, want: str) -> None:
    """A baseline of 10.4 s that came back as 10 s would be a drift of 4 % after each restart."""
    assert show_latency(microseconds) == want
