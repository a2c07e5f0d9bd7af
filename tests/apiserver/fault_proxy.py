"""A proxy in front of the real API server that can misbehave as API servers and networks do. Speaks plain HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from metainfer.kube.credentials import read_credentials

_HOP = {"host", "transfer-encoding", "content-length", "content-encoding", "connection", "authorization"}


@dataclass
class FaultProxy:
    """Faults are switched on from the outside; ``journal`` has method and path of every request."""

    port: int = 0
    refuse: int = 0
    """HTTP status to answer everything with; 0 = forward."""
    hide: frozenset[str] = frozenset()
    """Plurals of kinds that do not exist."""
    stall: frozenset[str] = frozenset()
    """Plurals of kinds whose watches get no answer at all."""
    inject: dict[str, Any] = field(default_factory=dict)
    """Plural -> object of an ERROR event to put into the next watch of that kind."""
    journal: list[tuple[str, str, int]] = field(default_factory=list)
    _cut: asyncio.Event = field(default_factory=asyncio.Event)

    def cut_watches(self) -> None:
        """End all open watches, as a load balancer does."""
        self._cut.set()
        self._cut = asyncio.Event()

    def write_kubeconfig(self, path: Path) -> Path:
        """For clients that shall go through the proxy."""
        cluster = {"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        user = {"name": "proxy", "user": {"token": "any"}}
        context = {"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [user], "contexts": [context], "current-context": "proxy"}
        path.write_text(yaml.safe_dump(config))
        return path

    async def forward(self, request: web.Request, session: aiohttp.ClientSession, server: str) -> web.StreamResponse:
        """One request, with the fault that is switched on."""
        if self.refuse:
            self.journal.append((request.method, request.path, self.refuse))
            return web.json_response({"kind": "Status", "reason": "Made", "message": "made up", "code": self.refuse}, status=self.refuse)
        if self.hide & set(request.path.split("/")):
            return web.json_response({"kind": "Status", "reason": "NotFound", "message": "the server could not find it", "code": 404}, status=404)
        if request.query.get("watch") == "true" and self.stall & set(request.path.split("/")):
            self.journal.append((request.method, request.path, 0))
            await asyncio.Event().wait()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        async with session.request(request.method, f"{server}{request.raw_path}", headers=headers, data=await request.read() or None) as answer:
            self.journal.append((request.method, request.path, answer.status))
            reply = web.StreamResponse(status=answer.status, headers={key: value for key, value in answer.headers.items() if key.lower() not in _HOP})
            await reply.prepare(request)
            if request.query.get("watch") == "true":
                await self._stream(request, answer, reply)
            else:
                await reply.write(self._without_hidden(await answer.read()))
            return reply

    def _without_hidden(self, body: bytes) -> bytes:
        """A list of the kinds of a group, without those that are hidden."""
        if not self.hide or b'"APIResourceList"' not in body[:200]:
            return body
        document = json.loads(body)
        document["resources"] = [item for item in document["resources"] if item["name"].split("/")[0] not in self.hide]
        return json.dumps(document).encode()

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse, reply: web.StreamResponse) -> None:
        error = self.inject.pop(request.path.rsplit("/", 1)[-1], None)
        if error is not None:
            await reply.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
        cut = asyncio.create_task(self._cut.wait())
        pump = asyncio.create_task(self._pump(answer, reply))
        try:
            await asyncio.wait({cut, pump}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A TLS connection that is still receiving would take half a minute to close, and outlive the test's event loop.
            if answer.connection is not None and answer.connection.transport is not None:
                answer.connection.transport.abort()
            await _end(cut, pump)

    @staticmethod
    async def _pump(answer: aiohttp.ClientResponse, reply: web.StreamResponse) -> None:
        async for part in answer.content.iter_any():
            await reply.write(part)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def run_fault_proxy(admin: Path) -> AsyncIterator[FaultProxy]:
    """A proxy with the administrator's rights, whatever its clients show it."""
    credentials = await read_credentials({"KUBECONFIG": str(admin)})
    proxy = FaultProxy()
    context = ssl.create_default_context(cafile=credentials.ca_path)
    context.load_cert_chain(credentials.certificate_path or "", credentials.key_path)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        site = web.Application(client_max_size=64 << 20)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await proxy.forward(request, session, credentials.server)

        site.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.port = runner.addresses[0][1]
        try:
            yield proxy
        finally:
            proxy.cut_watches()
            await runner.cleanup()
