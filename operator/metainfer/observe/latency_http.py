"""One bounded HTTP request to a source of metrics, and what can go wrong with it. Knows no metrics.

Servers and Prometheus are other people's: each answer has a deadline and a size, redirects are not followed, and no message repeats a
credential that was part of an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

SHOWN_CHARACTERS = 300
"""Of what the other side says about a failure."""


class LatencySourceError(Exception):
    """Served latency could not be read: ``reason`` and message for a condition."""

    retryable = False

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class MetricsUnavailable(LatencySourceError):
    """No answer, or the other side says that it cannot answer now."""

    retryable = True


class MetricsRefused(LatencySourceError):
    """It answers, and will answer the same until somebody changes something."""


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """What to ask, and the bounds of the answer."""

    url: URL
    form: Mapping[str, str] | None = None
    """Sent as POST; None = GET."""
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 10.0
    bytes_limit: int = 16 << 20

    @property
    def shown(self) -> str:
        """The address without user, password and query."""
        return str(self.url.with_user(None).with_query(None).with_fragment(None))


def parse_url(text: str) -> URL:
    """An http(s) address. Raises MetricsRefused, without repeating it: it may hold a password."""
    try:
        url = URL(text)
    except ValueError as error:
        raise MetricsRefused("AddressInvalid", "the address of the metrics is no URL") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise MetricsRefused("AddressInvalid", "the address of the metrics must begin with http:// or https:// and name a host")
    return url


async def read_answer(session: aiohttp.ClientSession, request: MetricsRequest) -> tuple[int, bytes]:
    """Status and body. Raises MetricsUnavailable without an answer in time, MetricsRefused for one past its size."""
    timeout = aiohttp.ClientTimeout(total=request.seconds)
    method = "GET" if request.form is None else "POST"
    try:
        async with session.request(
            method, request.url, data=request.form, headers={"Accept-Encoding": "identity", **request.headers}, timeout=timeout, allow_redirects=False
        ) as answer:
            body = await _read_bounded(answer, request)
            return answer.status, body
    except TimeoutError as error:
        raise MetricsUnavailable("MetricsUnreachable", f"{request.shown} did not answer within {request.seconds:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise MetricsUnavailable("MetricsUnreachable", f"{request.shown} cannot be reached: {_describe(error)}") from error


async def _read_bounded(answer: aiohttp.ClientResponse, request: MetricsRequest) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > request.bytes_limit:
            words = f"{request.shown} answers with more than {request.bytes_limit >> 20} MiB: restrict what it answers, or make the window shorter"
            raise MetricsRefused("AnswerTooLarge", words)
    return bytes(body)


def _describe(error: Exception) -> str:
    """The system's words where there are some; a client's own may repeat the address."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or type(error).__name__
