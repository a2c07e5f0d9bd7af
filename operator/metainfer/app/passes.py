"""From a key of the queue to a pass of the reconciler: deadline, metrics, and which failures are worth a trace. No rule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

from metainfer.kube.errors import ApiError, Conflict
from metainfer.metrics import RECONCILE_SECONDS
from metainfer.reconcile import Request, Result
from metainfer.watch.queue import Retry

PASS_SECONDS = 300.0
"""A pass waits for the API server and the store, each with its own deadline; one that takes longer is stuck."""


class Reconciles(Protocol):
    """``reconcile.Reconciler``."""

    async def reconcile(self, request: Request, now: datetime) -> Result:
        """One pass."""
        ...


def build_work(reconciler: Reconciles, *, pass_seconds: float = PASS_SECONDS) -> Callable[[Request], Awaitable[float | None]]:
    """The queue's work: one pass, timed and counted by its result (done, dropped, retried, failed)."""

    async def serve(request: Request) -> float | None:
        started, result = time.monotonic(), "failed"
        try:
            async with asyncio.timeout(pass_seconds):
                ended = await reconciler.reconcile(request, datetime.now(UTC))
        except Conflict as error:
            result = "dropped"
            raise Retry(f"somebody else moved first: {error}") from error
        except (ApiError, ConnectionError) as error:
            result = "retried"
            raise Retry(str(error)) from error
        except TimeoutError as error:
            result = "retried"
            raise Retry(f"the pass took longer than {pass_seconds:.0f} s") from error
        else:
            result = "done"
            return ended.requeue_after_seconds
        finally:
            RECONCILE_SECONDS.labels(kind=request.kind, result=result).observe(time.monotonic() - started)

    return serve
