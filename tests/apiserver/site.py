"""An HTTP server of a test, of which nothing is left when it ends: not even connections whose clients answer nothing any more.

aiohttp closes connections politely: one whose client was killed or frozen keeps what it still has to send, one with TLS waits for half a
minute for the client's good-bye. Both would outlive the test's event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

GRACE_SECONDS = 0.1
"""For requests in hand at the end."""


@asynccontextmanager
async def run_site(site: web.Application, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The site on loopback until the end, at the port given."""
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    address = runner.addresses[0]
    try:
        yield address[1]
    finally:
        await runner.cleanup()
        await abort_connections(address)


async def abort_connections(address: tuple[str, int]) -> None:
    """Drop every connection to this address of ours, whatever state it is in."""
    await asyncio.sleep(0)  # one that was accepted just now has its transport in the next round
    # Python 3.13 has Server.abort_clients(); up to then only the event loop knows those that are closing or in a TLS handshake.
    for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
        if transport.get_extra_info("sockname") == address:
            transport.abort()
    await asyncio.sleep(0)
