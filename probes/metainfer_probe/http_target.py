"""The server that ``metainfer-probe load`` sends requests to: which addresses may be one, and one connection to it.

Whoever can start this with an address could aim it at somebody else's service. So it goes to private and loopback addresses only, looks the
name up once and connects to what was looked at; redirects are answers like any other and followed nowhere.

HTTP/1.1 by hand, on asyncio: the probe's image has no HTTP client that keeps a thousand requests in flight, and of the protocol
only one POST on a connection that stays open is needed.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.outbound import Resolver, find_outside, find_refused, resolve

ANSWER_LIMIT_BYTES = 64 << 20
HEAD_LIMIT_BYTES = 64 << 10
OK = 200


@dataclass(frozen=True, slots=True)
class Target:
    """One path of one server, by an address that was checked."""

    address: str
    port: int
    host: str
    path: str

    @classmethod
    def read(cls, url: str, find_addresses: Resolver = resolve) -> Self:
        """The target behind ``http://HOST[:PORT]/PATH``. Raises ProbeError ``UrlInvalid``, ``HostUnknown`` or ``AddressRefused``."""
        host, port, path = _split(url)
        try:
            addresses = find_addresses(host, port)
        except (socket.gaierror, UnicodeError):
            raise ProbeError("HostUnknown", f"the host name {host[:100]!r} is not known here") from None
        for address in addresses:
            why = find_refused(ip_address(address)) or find_outside(ip_address(address))
            if why is not None:
                raise ProbeError("AddressRefused", f"{host[:100]!r} is {address}, {why}: load goes to the cluster's own addresses only")
        if not addresses:
            raise ProbeError("HostUnknown", f"the host name {host[:100]!r} has no address")
        return cls(addresses[0], port, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", path)


def _split(url: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or not host or "@" in parts.netloc or not url.isprintable() or " " in url:
        raise ProbeError("UrlInvalid", f"{url[:200]!r} is not http://HOST[:PORT]/PATH")
    return host, port or 80, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class AnswerError(Exception):
    """An answer that is none: another status than 200, a connection that broke, or no HTTP. The text is short and names no request."""


@dataclass(slots=True)
class Connection:
    """One connection that is opened when needed and kept while the server keeps it."""

    target: Target
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)

    async def post(self, body: bytes, timeout_seconds: float) -> None:
        """One request of JSON, to the end of its answer. Raises AnswerError; the next request opens a new connection then."""
        kept = self._streams is not None
        try:
            async with asyncio.timeout(timeout_seconds):
                try:
                    status = await self._exchange(body)
                except (ConnectionError, asyncio.IncompleteReadError):
                    self.close()
                    if not kept:
                        raise
                    status = await self._exchange(body)  # the server closed an idle connection: that is no failed request
        except TimeoutError:
            self.close()
            raise AnswerError(f"no answer within {timeout_seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            self.close()
            raise AnswerError(f"{type(error).__name__}: {error}"[:200]) from None
        if status != OK:
            raise AnswerError(f"HTTP status {status}")

    def close(self) -> None:
        """Safe to call twice."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, body: bytes) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.target.address, self.target.port, limit=HEAD_LIMIT_BYTES)
        reader, writer = self._streams
        head = f"POST {self.target.path} HTTP/1.1\r\nHost: {self.target.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return await self._read_answer(reader)

    async def _read_answer(self, reader: asyncio.StreamReader) -> int:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status = lines[0].split(" ", 2)[:2]
        headers = {name.lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        if not version.startswith("HTTP/1."):
            raise ValueError("the answer is no HTTP/1.1")
        if headers.get("transfer-encoding", "") == "chunked":
            await _skip_chunks(reader)
        elif "content-length" in headers:
            await _skip(reader, int(headers["content-length"]))
        else:
            raise ValueError("the answer has no length")
        if headers.get("connection", "") == "close" or version == "HTTP/1.0":
            self.close()
        return int(status)


async def _skip_chunks(reader: asyncio.StreamReader) -> None:
    left = ANSWER_LIMIT_BYTES
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        left -= size
        await _skip(reader, size + 2, left)
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass


async def _skip(reader: asyncio.StreamReader, count: int, left: int = ANSWER_LIMIT_BYTES) -> None:
    if not 0 <= count <= max(left, 0) + 2:
        raise ValueError(f"the answer is longer than {ANSWER_LIMIT_BYTES} bytes")
    while count:
        block = await reader.read(min(count, 1 << 16))
        if not block:
            raise ConnectionResetError("the answer ended early")
        count -= len(block)
