"""A proxy in front of the real API server that can misbehave as API servers and networks do. Speaks plain HTTP on loopback.

Switches (``refuse``, ``hide``, ``stall``, ``inject``) stay until they are put back; a ``Fault`` is armed for one request. Every
request is in the journal with what the server did, what the client was told, and the fault between the two.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from tests.apiserver.faults import NO_CONNECTION, Entry, Fault, build_status, read_entry
from tests.apiserver.site import run_site

from metainfer.kube.credentials import read_credentials

_HOP = {"host", "transfer-encoding", "content-length", "content-encoding", "connection", "authorization"}
_CHUNK = re.compile(r"\blimit=\d+")


@dataclass
class FaultProxy:
    """Faults are switched on from the outside; ``journal`` has every request, in the order of arrival."""

    port: int = 0
    refuse: int = 0
    """HTTP status to answer everything with; 0 = forward."""
    hide: frozenset[str] = frozenset()
    """Plurals of kinds that do not exist."""
    stall: frozenset[str] = frozenset()
    """Plurals of kinds whose watches get no answer at all."""
    inject: dict[str, Any] = field(default_factory=dict)
    """Plural -> object of an ERROR event to put into the next watch of that kind."""
    chunk: int = 0
    """Objects per page of every list, whatever the client asks for, so that small clusters have continue tokens too; 0 = as asked."""
    audits: bool = False
    """Whether the object is read before each write to it, so that the journal shows which writes changed nothing."""
    severed: bool = False
    """Whether no request gets through, as behind a broken network."""
    faults: list[Fault] = field(default_factory=list)
    """Armed; the first one that fits a request is used up by it."""
    journal: list[Entry] = field(default_factory=list)
    _cut: asyncio.Event = field(default_factory=asyncio.Event)

    def cut_watches(self) -> None:
        """End all open watches, as a load balancer does."""
        self._cut.set()
        self._cut = asyncio.Event()

    def sever(self, seconds: float) -> None:
        """Cut everybody off for a while: open watches end, and no request gets through."""
        self.severed = True
        self.cut_watches()
        asyncio.get_running_loop().call_later(seconds, setattr, self, "severed", False)

    def write_kubeconfig(self, path: Path) -> Path:
        """For clients that shall go through the proxy."""
        cluster = {"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        user = {"name": "proxy", "user": {"token": "any"}}
        context = {"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [user], "contexts": [context], "current-context": "proxy"}
        path.write_text(yaml.safe_dump(config))
        return path

    async def forward(self, request: web.Request, session: aiohttp.ClientSession, server: str) -> web.StreamResponse:
        """One request, with the fault that is switched on or armed for it."""
        body = await request.read()
        entry = read_entry(request.method, request.raw_path, body, number=len(self.journal))
        self.journal.append(entry)
        if self.refuse:
            return self._tell(entry, self.refuse, "refuses everything")
        if self.severed:
            entry.fault = NO_CONNECTION
            return self._drop(request)
        parts = set(request.path.split("/"))
        if self.hide & parts:
            return self._tell(entry, 404, "hidden kind")
        if entry.verb == "watch" and self.stall & parts:
            await asyncio.Event().wait()
        fault = self._take_fault(entry)
        if fault is not None and fault.when == "before" and not fault.is_about_a_stream:
            told = await self._misbehave(fault, entry, request)
            if told is not None:
                return told
        if self.audits and entry.changes:
            entry.version_before = await self._read_version(session, f"{server}{entry.object_path}")
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        path = _CHUNK.sub(f"limit={self.chunk}", request.raw_path) if self.chunk and entry.verb == "list" else request.raw_path
        async with session.request(request.method, f"{server}{path}", headers=headers, data=body or None) as answer:
            entry.status = answer.status
            reply = web.StreamResponse(status=answer.status, headers={key: value for key, value in answer.headers.items() if key.lower() not in _HOP})
            if entry.verb == "watch":
                entry.told = answer.status
                await reply.prepare(request)
                await self._stream(entry, answer, reply, fault)
                return reply
            data = self._without_hidden(await answer.read())
            entry.note_answer(data)
            if fault is not None and fault.when == "after":
                told = await self._misbehave(fault, entry, request)
                if told is not None:
                    return told
            entry.told = answer.status
            await reply.prepare(request)
            await reply.write(data)
            return reply

    def _take_fault(self, entry: Entry) -> Fault | None:
        for fault in self.faults:
            if not fault.fits(entry):
                continue
            if fault.skip == 0:
                self.faults.remove(fault)
                return fault
            fault.skip -= 1
        return None

    async def _misbehave(self, fault: Fault, entry: Entry, request: web.Request) -> web.StreamResponse | None:
        """Do what the fault says; None = the request goes on."""
        entry.fault = fault.words
        fault.spring(entry)
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.does == "answer":
            return self._tell(entry, fault.status, fault.words)
        return self._drop(request) if fault.does == "drop" or self.severed else None

    @staticmethod
    def _drop(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=499)

    @staticmethod
    def _tell(entry: Entry, status: int, words: str) -> web.Response:
        entry.told, entry.fault = status, words
        return web.json_response(build_status(status), status=status, headers={"Retry-After": "1"} if status == 429 else None)

    @staticmethod
    async def _read_version(session: aiohttp.ClientSession, address: str) -> str:
        async with session.get(address) as answer:
            return str(((await answer.json()).get("metadata") or {}).get("resourceVersion", ""))

    def _without_hidden(self, body: bytes) -> bytes:
        """A list of the kinds of a group, without those that are hidden."""
        if not self.hide or b'"APIResourceList"' not in body[:200]:
            return body
        document = json.loads(body)
        document["resources"] = [item for item in document["resources"] if item["name"].split("/")[0] not in self.hide]
        return json.dumps(document).encode()

    async def _stream(self, entry: Entry, answer: aiohttp.ClientResponse, reply: web.StreamResponse, fault: Fault | None) -> None:
        error = self.inject.pop(entry.plural, None)
        if fault is not None and fault.does == "error":
            entry.fault, error = fault.words, build_status(fault.status)
        if error is not None:
            await reply.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
        cut = asyncio.create_task(self._cut.wait())
        pump = asyncio.create_task(self._pump(answer, reply))
        patience = None
        if fault is not None and fault.does == "cut":
            entry.fault, patience = fault.words, fault.seconds
        try:
            await asyncio.wait({cut, pump}, return_when=asyncio.FIRST_COMPLETED, timeout=patience)
        finally:
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
    # A TLS connection that is given up while it is still receiving would take half a minute to close, and outlive the test's event loop.
    connector = aiohttp.TCPConnector(ssl=context, limit=0, enable_cleanup_closed=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        site = web.Application(client_max_size=64 << 20)

        async def handle(request: web.Request) -> web.StreamResponse:
            # A client that was killed reads no answer.
            with suppress(ConnectionError):
                return await proxy.forward(request, session, credentials.server)
            return web.Response(status=499)

        site.router.add_route("*", "/{path:.*}", handle)
        async with run_site(site) as proxy.port:
            try:
                yield proxy
            finally:
                proxy.cut_watches()
