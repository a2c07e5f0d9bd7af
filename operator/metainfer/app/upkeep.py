"""Compacts the store now and then. Tells it which adaptations there are, because the store knows nothing of Kubernetes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Protocol

from metainfer.store.retention import Compacted, Retention

FIRST_SECONDS = 600.0
"""After a start, so that an operator that is restarted often compacts too, but not while it has a queue of work."""

_log = logging.getLogger(__name__)


class Compacts(Protocol):
    """``store.PatientStore``."""

    async def compact(self, retention: Retention, living: Collection[str], now: datetime) -> Compacted:
        """Raises ConnectionError while it is away."""
        ...


async def keep_compact(
    store: Compacts, retention: Retention, living: Callable[[], Collection[str]], *, every_seconds: float, first_seconds: float = FIRST_SECONDS
) -> None:
    """Compact for ever. ``living`` gives the UIDs of all adaptations and is asked each time."""
    pause = min(first_seconds, every_seconds)
    while True:
        await asyncio.sleep(pause)
        pause = every_seconds
        try:
            done = await store.compact(retention, living(), datetime.now(UTC))
        except ConnectionError as error:
            _log.info("the store is away, compacted later", extra={"error": str(error)})
        else:
            _log.info("store compacted", extra={"rows": done.rows, "details": done.details})
