"""From a key to a pass: what comes back, and what counts as what."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from metainfer.app.passes import build_work
from metainfer.kube.errors import Conflict, Forbidden, ServerUnavailable
from metainfer.reconcile import Request, Result
from metainfer.watch.queue import Retry

REQUEST = Request("pool", "", "lab")


class OnePass:
    """A reconciler with one answer."""

    def __init__(self, answer: Result | Exception | None) -> None:
        self._answer = answer
        self.asked: list[tuple[Request, datetime]] = []

    async def reconcile(self, request: Request, now: datetime) -> Result:
        self.asked.append((request, now))
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is None:
            await asyncio.Event().wait()
        assert self._answer is not None
        return self._answer


def _count(result: str) -> float:
    return REGISTRY.get_sample_value("metainfer_reconcile_seconds_count", {"kind": "pool", "result": result}) or 0.0


async def test_a_pass_says_when_to_look_again() -> None:
    """Its time is now, in UTC, and its result is counted."""
    reconciler, before = OnePass(Result(requeue_after_seconds=7.5)), _count("done")
    assert await build_work(reconciler)(REQUEST) == 7.5
    request, now = reconciler.asked[0]
    assert request == REQUEST
    assert now.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - now) < timedelta(minutes=5)
    assert _count("done") == before + 1


@pytest.mark.parametrize(
    ("answer", "want_result", "want_words"),
    [
        (Conflict(409, "Conflict", "modified"), "dropped", "somebody else moved first"),
        (ServerUnavailable(503, "", "starting"), "retried", "starting"),
        (Forbidden(403, "Forbidden", "cannot patch"), "retried", "cannot patch"),
        (ConnectionError("store is locked"), "retried", "store is locked"),
        (None, "retried", "took longer than"),
    ],
    ids=["conflict", "server", "forbidden", "store", "stuck"],
)
async def test_a_pass_that_failed_for_a_reason_is_tried_again(answer: Exception | None, want_result: str, want_words: str) -> None:
    """As a sentence, without a trace."""
    before = _count(want_result)
    with pytest.raises(Retry, match=want_words):
        await build_work(OnePass(answer), pass_seconds=0.05)(REQUEST)
    assert _count(want_result) == before + 1


async def test_a_mistake_of_ours_keeps_its_trace() -> None:
    """It is counted as failed, and reaches the queue as it is."""
    before = _count("failed")
    with pytest.raises(KeyError):
        await build_work(OnePass(KeyError("bug")))(REQUEST)
    assert _count("failed") == before + 1
