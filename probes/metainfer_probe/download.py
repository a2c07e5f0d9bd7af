"""Fetches one file over http or https and nothing else: the model's URL, from that host only.

Limits in size and time; redirects stay on the same host and never leave https; credentials (user information, query)
are used but never repeated in a message. Redirects to other hosts are refused, because they turn a model URL into a way
to reach what only the cluster can reach. Proxies of the environment are not used: they would look names up, and ``outbound``
has to see the address.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import re
import ssl
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.outbound import Deadline, Resolver, open_connection, resolve

DOWNLOAD_TIMEOUT_SECONDS = 300.0
"""16 GiB (the default size limit) would need 55 MB/s: slower sources belong on a volume."""
REDIRECT_LIMIT = 5
_CHUNK_BYTES = 1 << 20
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "%/:=&?~#+!$,;'@()*[]"
"""Characters that have a meaning in an address or are escaped already; everything else beyond ASCII is escaped."""


def download(url: str, workdir: Path, *, max_bytes: int, timeout_seconds: float = DOWNLOAD_TIMEOUT_SECONDS, find_addresses: Resolver = resolve) -> Path:
    """Fetch ``url`` into ``workdir`` and return the file.

    Raises ProbeError ``UrlInvalid``, ``AddressRefused``, ``RedirectRefused``, ``ModelNotFound``, ``AccessRefused``,
    ``TlsFailed``, ``ModelTooLarge``, ``DiskFull``, or, where a retry may help, ``HostUnknown``, ``DownloadFailed`` and
    ``DownloadTimedOut``.
    """
    source = _Source.parse(url)
    target = workdir / _file_name(url, source.parts)
    limits = _Limits(max_bytes, Deadline(time.monotonic() + timeout_seconds), find_addresses)
    try:
        _fetch(source, target, limits)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise _explain(error, source.shown, timeout_seconds) from None
        raise
    return target


@dataclass(frozen=True, slots=True)
class _Limits:
    max_bytes: int
    deadline: Deadline
    find_addresses: Resolver


@dataclass(frozen=True, slots=True)
class _Source:
    """An address, and how it may be shown: without user information, query and fragment."""

    parts: SplitResult
    shown: str
    authorization: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ProbeError ``UrlInvalid``."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ProbeError("UrlInvalid", "the model's URL cannot be parsed") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ProbeError("UrlInvalid", f"models are fetched over http or https, not {parts.scheme or 'without a scheme'!r}")
        if re.search(r"[\x00-\x20\x7f\\]", url):
            raise ProbeError("UrlInvalid", "the model's URL contains blanks, control characters or backslashes")
        shown_host = parts.hostname if port is None else f"{parts.hostname}:{port}"
        return cls(parts, f"{parts.scheme}://{shown_host}{parts.path}"[:300], _authorization(parts))

    @property
    def host(self) -> str:
        """Host and port as written, in lower case: what a redirect must not change."""
        return self.parts.netloc.rpartition("@")[2].lower()

    @property
    def request_target(self) -> str:
        """Path and query in the form that travels in a request line."""
        return quote(urlunsplit(("", "", self.parts.path or "/", self.parts.query, "")), safe=_SAFE)

    def redirected(self, location: str) -> _Source:
        """Raises ProbeError ``RedirectRefused`` unless the scheme, host and port stay the same. Credentials are not sent again."""
        target = urlsplit(urljoin(urlunsplit(self.parts._replace(netloc=self.host)), location))
        moved = replace(self, parts=target, authorization="")
        if (target.scheme, moved.host) != (self.parts.scheme, self.host):
            where = f"{target.scheme}://{(target.hostname or '')[:100]}"
            raise ProbeError("RedirectRefused", f"{self.shown} redirects to {where}; give the URL of the file itself on one host")
        return moved


def _authorization(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return "Basic " + base64.b64encode(pair).decode()


def _file_name(url: str, parts: SplitResult) -> str:
    """Unique per URL, so that a model and its calibration inputs do not meet; keeps the suffix."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", parts.path.rsplit("/", 1)[-1])[-80:].lstrip(".") or "model.onnx"
    return f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{stem}"


def _fetch(source: _Source, target: Path, limits: _Limits) -> None:
    for _ in range(REDIRECT_LIMIT + 1):
        moved = _fetch_once(source, target, limits)
        if moved is None:
            return
        source = source.redirected(moved)
    raise ProbeError("RedirectRefused", f"{source.shown} redirects more than {REDIRECT_LIMIT} times; give the URL of the file itself")


def _fetch_once(source: _Source, target: Path, limits: _Limits) -> str | None:
    """Store the answer's body, or return where it redirects to."""
    host, scheme = source.parts.hostname or "", source.parts.scheme
    tls = ssl.create_default_context() if scheme == "https" else None
    port = source.parts.port or _PORTS[scheme]
    with open_connection(host, port, limits.deadline, tls=tls, find_addresses=limits.find_addresses) as socket:
        connection = http.client.HTTPConnection(host, port)
        connection.sock = socket  # it offers the part of a socket that http.client uses
        connection.putrequest("GET", source.request_target, skip_host=True, skip_accept_encoding=True)
        headers = {"Host": _ascii_host(source.host), "User-Agent": "metainfer-probe", "Accept-Encoding": "identity", "Connection": "close"}
        if source.authorization:
            headers["Authorization"] = source.authorization
        for name, text in headers.items():
            connection.putheader(name, text)
        connection.endheaders()
        response = connection.getresponse()
        if response.status in _REDIRECTS and response.headers.get("Location"):
            return str(response.headers["Location"])
        if response.status != http.client.OK:
            raise _refusal(response.status, source.shown)
        _store(response, target, source.shown, limits)
    return None


def _ascii_host(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()


def _store(response: http.client.HTTPResponse, target: Path, shown: str, limits: _Limits) -> None:
    announced = response.headers.get("Content-Length")
    if announced is not None and announced.isdigit() and int(announced) > limits.max_bytes:
        raise ProbeError("ModelTooLarge", f"{shown} has {announced} bytes, the limit is {limits.max_bytes}")
    received = 0
    with target.open("wb") as file:
        while chunk := response.read1(_CHUNK_BYTES):
            received += len(chunk)
            if received > limits.max_bytes:
                raise ProbeError("ModelTooLarge", f"{shown} has more than {limits.max_bytes} bytes, the limit")
            file.write(chunk)
            limits.deadline.wait_seconds()
    if announced is not None and announced.isdigit() and received < int(announced):
        raise ProbeError("DownloadFailed", f"{shown} ended after {received} of {announced} bytes", retryable=True)


def _refusal(status: int, shown: str) -> ProbeError:
    if status in (401, 403):
        return ProbeError("AccessRefused", f"{shown} answered {status}: the URL needs other credentials")
    if status in (404, 410):
        return ProbeError("ModelNotFound", f"{shown} answered {status}: no such file")
    return ProbeError("DownloadFailed", f"{shown} answered {status}", retryable=status >= 500 or status == 429)


def _explain(error: Exception, shown: str, timeout_seconds: float) -> ProbeError:
    """Never the error's own words: they may quote the address with its credentials."""
    if isinstance(error, TimeoutError):
        return ProbeError("DownloadTimedOut", f"{shown} was not fetched within {timeout_seconds:.0f} s, or was silent for too long", retryable=True)
    if getattr(error, "errno", None) == errno.ENOSPC:
        return ProbeError("DiskFull", f"no room left to store {shown}", retryable=True)
    return ProbeError("DownloadFailed", f"fetching {shown}: {type(error).__name__}", retryable=True)
