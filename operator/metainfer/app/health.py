"""/healthz, /readyz and /metrics. Asks the parts how they are; kopf's own liveness only proves that its own task runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from metainfer.metrics import EVENT_LOOP_LAG_SECONDS

LAG_EVERY_SECONDS = 1.0

Check = Callable[[], Mapping[str, str]]
"""What is not well, by name of the part; empty = all is well."""


class HealthServer:
    """Serves the three paths, on all addresses of the pod unless one is given. ``before_scrape`` counts what is only counted when asked for."""

    def __init__(self, alive: Check, ready: Check, port: int, *, host: str | None = None, before_scrape: Callable[[], None] = lambda: None) -> None:
        self._checks = {"/healthz": alive, "/readyz": ready}
        self._before_scrape = before_scrape
        self._port = port
        self._host = host
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; returns the port (for port 0, the one that was free)."""
        site = web.Application()
        site.router.add_get("/metrics", self._metrics)
        for path in self._checks:
            site.router.add_get(path, self._check)
        self._runner = web.AppRunner(site, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _check(self, request: web.Request) -> web.Response:
        troubles = self._checks[request.path]()
        lines = [f"{part}: {words}" for part, words in troubles.items()]
        return web.Response(status=503 if troubles else 200, text="\n".join(lines or ["ok"]) + "\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        self._before_scrape()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


class LagWatch:
    """How late the event loop wakes a sleeper: the sign of code that blocks it."""

    def __init__(self) -> None:
        self.lag_seconds = 0.0

    async def run(self) -> None:
        """Look once a second, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self.lag_seconds = loop.time() - wanted
            EVENT_LOOP_LAG_SECONDS.set(self.lag_seconds)
