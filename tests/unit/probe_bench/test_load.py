"""The load generator: batches, limits and latencies as the server would have them. Only lower bounds of times are asserted."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.unit.probe_bench.sessions import FakeSession, requests

from metainfer_probe.backends.base import Feeds, ProbeError
from metainfer_probe.contract import ServingConfig
from metainfer_probe.inputs import batch_feeds
from metainfer_probe.load import GIVE_UP_AFTER_ERRORS, InProcessServer, LoadWindow, joins_requests, run_window

LONG_US = 10_000_000
PATIENCE_SECONDS = 60.0


def config(*, batch: int = 1, delay_us: int = 0, concurrency: int = 1, joins: bool | None = None) -> ServingConfig:
    dynamic = batch > 1 if joins is None else joins
    return ServingConfig(
        execution_provider="CPUExecutionProvider", batch_size=batch, max_batch_delay_us=delay_us, concurrency=concurrency, dynamic_batching=dynamic
    )


def load(session: FakeSession, settings: ServingConfig, *, clients: int, limit: int | None = None, seconds: float = PATIENCE_SECONDS) -> LoadWindow:
    with InProcessServer(session, settings, batch_feeds) as server:
        return run_window(server, requests(8), clients=clients, seconds=seconds, limit=limit)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param(config(batch=4, delay_us=1000), True, id="size above one and a delay"),
        pytest.param(config(batch=4, delay_us=0), False, id="no delay"),
        pytest.param(config(batch=1, delay_us=1000, joins=True), False, id="size one"),
        pytest.param(config(batch=4, delay_us=1000, joins=False), False, id="not asked for"),
    ],
)
def test_requests_are_joined_only_where_mlserver_would(settings: ServingConfig, want: bool) -> None:
    """Size above 1, delay above 0 and dynamic batching: any of them missing switches it off."""
    assert joins_requests(settings) is want
    session = FakeSession()
    window = load(session, settings, clients=4, limit=20)
    assert (max(session.batches) > 1) is want
    assert window.latencies_us.size == 20


def test_a_batch_is_never_larger_than_its_size() -> None:
    """Eight clients wait at once, three at most are joined."""
    session = FakeSession(service_seconds=0.002)
    window = load(session, config(batch=3, delay_us=LONG_US), clients=8, limit=60)
    assert session.batches == [3] * 20
    assert sum(session.batches) == sum(done.requests for done in window.executions) == 60


def test_a_full_batch_does_not_wait() -> None:
    """With a delay of ten seconds, ten batches of two are done long before one delay is over."""
    window = load(FakeSession(), config(batch=2, delay_us=LONG_US), clients=2, limit=20)
    assert window.latencies_us.size == 20
    assert window.seconds < LONG_US / 1e6
    assert window.mean_batch == 2


def test_a_batch_that_does_not_fill_waits_for_its_delay() -> None:
    """One client alone: every request waits out the delay in vain."""
    window = load(FakeSession(), config(batch=8, delay_us=15_000), clients=1, limit=5)
    assert window.mean_batch == 1
    assert window.latencies_us.min() >= 15_000


def test_batches_are_formed_while_all_workers_are_busy() -> None:
    """As MLServer's: the collector does not wait for a free worker, so two waiting requests are joined although more will come."""
    session = FakeSession(service_seconds=0.02)
    load(session, config(batch=2, delay_us=LONG_US), clients=6, limit=30)
    assert max(session.batches) == 2
    assert session.most_at_once == 1


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_concurrency_is_reached_and_never_passed(concurrency: int) -> None:
    """Runs wait for each other at a barrier of that size, so they must overlap; more than that never do."""
    barrier = threading.Barrier(concurrency)

    def together(feeds: Feeds) -> list[object]:
        barrier.wait(PATIENCE_SECONDS)
        return [feeds["x"]]

    session = FakeSession(answer=together)
    window = load(session, config(concurrency=concurrency), clients=concurrency * 2, limit=concurrency * 6)
    assert session.most_at_once == concurrency
    assert window.errors == 0


def test_latency_includes_waiting_for_others() -> None:
    """One worker, three clients, 20 ms each: a request waits for the two before it; nobody is served faster than the service."""
    window = load(FakeSession(service_seconds=0.02), config(), clients=3, limit=21)
    assert window.latencies_us.min() >= 20_000
    assert np.median(window.latencies_us) >= 3 * 20_000 * 0.95
    assert window.throughput_per_second <= 1 / 0.02
    assert all(done.service_us >= 20_000 for done in window.executions)


def test_samples_are_sent_in_order_round_and_round() -> None:
    """The given mix is the measured mix."""
    session = FakeSession()
    load(session, config(), clients=1, limit=20)
    assert session.first_values == [float(index % 8) for index in range(20)]


def test_every_client_gets_an_answer_in_the_shortest_window() -> None:
    """A window shorter than one run still has one request per client, and says how long it really took."""
    window = load(FakeSession(service_seconds=0.03), config(concurrency=2), clients=4, seconds=0.0)
    assert window.latencies_us.size == 4
    assert window.seconds >= 2 * 0.03


def test_errors_are_counted_and_a_client_gives_up() -> None:
    """A candidate that refuses everything ends the window early, with its own words."""
    session = FakeSession(refuse_above=0)
    window = load(session, config(), clients=2)
    assert window.errors == 2 * GIVE_UP_AFTER_ERRORS
    assert window.latencies_us.size == 0
    assert window.throughput_per_second == 0
    assert window.first_error is not None
    assert window.first_error.reason == "RunFailed"


def test_a_refused_batch_is_an_error_of_each_of_its_requests() -> None:
    """Nobody is left waiting when joined requests fail."""
    session = FakeSession(refuse_above=1)
    window = load(session, config(batch=2, delay_us=LONG_US), clients=2)
    assert window.errors == 2 * GIVE_UP_AFTER_ERRORS


def test_a_defect_becomes_an_error_too() -> None:
    """An exception that is no ProbeError answers the client as well."""

    def broken(_: Feeds) -> list[object]:
        raise ZeroDivisionError("by nothing")

    window = load(FakeSession(answer=broken), config(), clients=1)
    assert window.first_error is not None
    assert (window.first_error.reason, window.first_error.message) == ("RequestFailed", "ZeroDivisionError: by nothing")


def test_the_first_execution_of_each_shape_is_marked() -> None:
    """Also over windows: a shape is new once per server."""
    samples = [{"x": np.zeros((1, width), np.float32)} for width in (4, 8, 4, 16)]
    with InProcessServer(FakeSession(), config(), batch_feeds) as server:
        first = run_window(server, samples, clients=1, seconds=PATIENCE_SECONDS, limit=4)
        second = run_window(server, samples, clients=1, seconds=PATIENCE_SECONDS, limit=4)
    assert [done.new_shape for done in first.executions] == [True, True, False, True]
    assert not any(done.new_shape for done in second.executions)


def test_requests_of_different_sizes_are_an_error_when_joined() -> None:
    """With the name of the input."""
    samples = [{"x": np.zeros((1, width), np.float32)} for width in (4, 8)]
    with InProcessServer(FakeSession(), config(batch=2, delay_us=LONG_US), batch_feeds) as server:
        window = run_window(server, samples, clients=2, seconds=PATIENCE_SECONDS, limit=2)
    assert isinstance(window.first_error, ProbeError)
    assert window.first_error.reason == "RaggedInputs"
    assert "'x'" in window.first_error.message
