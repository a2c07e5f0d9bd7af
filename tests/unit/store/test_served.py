"""Served windows in the store: once each, whole, and not for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.decide.keeping.make_windows import make_window, make_windows, spoiled
from tests.unit.store.make_results import ADAPTATION, DIGEST, OTHER_DIGEST, make_candidate

from metainfer.decide.latency.findings import LatencyFinding
from metainfer.decide.latency.served import ServedWindow
from metainfer.decide.plan import RecordServed
from metainfer.store.patient import PatientStore, open_patiently
from metainfer.store.retention import Retention
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.served import served_row

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def make_served(window: ServedWindow, *, digest: str = DIGEST) -> RecordServed:
    return RecordServed("decision-1", "run-1", make_candidate(), digest, window)


async def test_a_window_is_kept_once_and_comes_back_whole(store: SampleStore) -> None:
    """A pass that was killed after recording records again; the key is adaptation and end of the window."""
    window = make_window(0, nodes={"node-1": 10.0, "node-2": 12.0})
    assert await store.record_served(ADAPTATION, make_served(window))
    assert not await store.record_served(ADAPTATION, make_served(window))
    assert await store.record_served("another", make_served(window))
    assert await store.record_served(ADAPTATION, make_served(make_window(1)))
    first = (await store.served_samples())[0]
    assert (first.ended_at, first.candidate, first.digest, first.decision_id) == (window.ended_at, make_candidate(), DIGEST, "decision-1")
    assert (first.p99_us, first.mean_us, first.requests, first.requests_per_second) == (40_000, 11_000, 9000, 10.0)
    assert first.in_flight == pytest.approx(0.11)
    assert first.nodes == window.nodes
    assert len(await store.served_samples()) == 3


async def test_windows_of_one_model_file_are_found(store: SampleStore) -> None:
    """Another file is another question."""
    await store.record_served(ADAPTATION, make_served(make_window(0)))
    await store.record_served(ADAPTATION, make_served(make_window(1), digest=OTHER_DIGEST))
    assert [item.digest for item in await store.served_samples(OTHER_DIGEST)] == [OTHER_DIGEST]


def test_a_figure_that_may_not_be_compared_is_not_kept() -> None:
    """A percentile out of coarse buckets would teach their edges."""
    coarse = make_window(0, finding=LatencyFinding("LatencyUnresolvable", "coarse", ("p99",)))
    row = served_row(ADAPTATION, make_served(coarse))
    assert (row["p99_us"], row["mean_us"]) == (None, 11_000)
    row = served_row(ADAPTATION, make_served(make_window(0, finding=spoiled("CountersUnshared"))))
    assert (row["p99_us"], row["mean_us"]) == (None, None)


def test_no_payload_and_no_pod_is_in_a_row() -> None:
    """Aggregates only: figures, the configuration, and nodes."""
    row = served_row(ADAPTATION, make_served(make_window(0, nodes={"node-1": 10.0})))
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    assert texts.keys() == {
        *("adaptation_uid", "decision_id", "run_id", "digest", "pool", "family", "execution_provider", "precision", "metric", "nodes")
    }  # fmt: skip
    assert texts["nodes"] == '{"node-1":[9000,10000.0,null]}'


async def test_the_newest_windows_of_each_adaptation_stay(store: SampleStore) -> None:
    """And none that is too old."""
    for window in make_windows(4):
        await store.record_served(ADAPTATION, make_served(window))
    await store.record_served("another", make_served(make_window(0)))
    keep = Retention(samples=2, decisions=2, age=timedelta(days=400), detail_age=timedelta(days=30))
    assert (await store.compact(keep, [], NOW)).rows == 2
    assert [item.ended_at for item in await store.served_samples() if item.adaptation_uid == ADAPTATION] == [window.ended_at for window in make_windows(4)[2:]]
    assert (await store.compact(keep, [], NOW + timedelta(days=400))).rows == 3


async def test_a_window_waits_while_the_store_is_away(tmp_path: Path) -> None:
    """It is written when it is back."""
    url = f"sqlite:///{tmp_path}/samples.db"
    away = PatientStore(lambda: open_store(url), problem="the disk is gone")
    assert await away.record_served(ADAPTATION, make_served(make_window(0)))
    assert await away.record_served(ADAPTATION, make_served(make_window(0)))
    assert await away._come_back()
    await away.close()
    back = open_patiently(url)
    assert len(await back.ask(lambda store: store.served_samples())) == 1
    await back.close()
