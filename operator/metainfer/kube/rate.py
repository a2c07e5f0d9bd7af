"""How fast we may ask: a token bucket, and the pauses that the server asks for. Waits, and knows nothing of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """At most ``burst`` requests at once and ``per_second`` on average, first come first served.

    A pause (Retry-After) holds everybody back: the server speaks of its own load, not of one request.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(burst)
        self._filled_at = clock()
        self._paused_until = self._filled_at

    async def take(self) -> None:
        """Wait for one token. A token is reserved at once, so waiting requests keep their order."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        self._tokens -= 1
        wait = max(-self._tokens / self._per_second, self._paused_until - now)
        if wait > 0:
            await self._sleep(wait)

    def pause(self, seconds: float) -> None:
        """Let nobody start for that long."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
