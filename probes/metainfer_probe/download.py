"""Fetches one file over http or https and nothing else: the model's URL, from that host only.

Limits in size and time; redirects stay on the same host and never leave https; credentials (user information, query)
are used but never repeated in a message. Redirects to other hosts are refused, because they turn a model URL into a way
to reach what only the cluster can reach.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from metainfer_probe.backends.base import ProbeError

SOCKET_TIMEOUT_SECONDS = 20.0
DOWNLOAD_TIMEOUT_SECONDS = 300.0
"""16 GiB (the default size limit) would need 55 MB/s: slower sources belong on a volume."""
_CHUNK_BYTES = 1 << 20


def download(url: str, workdir: Path, *, max_bytes: int, timeout_seconds: float = DOWNLOAD_TIMEOUT_SECONDS) -> Path:
    """Fetch ``url`` into ``workdir`` and return the file.

    Raises ProbeError ``UrlInvalid``, ``RedirectRefused``, ``ModelNotFound``, ``AccessRefused``, ``ModelTooLarge``,
    ``DiskFull``, or, retryable, ``DownloadFailed`` and ``DownloadTimedOut``.
    """
    parts, shown = _parse(url)
    target = workdir / _file_name(url, parts)
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=_host(parts), fragment="")))  # noqa: S310 - _parse lets http and https through only
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair).decode())
    opener = urllib.request.build_opener(_SameHost(parts, shown))
    deadline = time.monotonic() + timeout_seconds
    try:
        with opener.open(request, timeout=min(SOCKET_TIMEOUT_SECONDS, timeout_seconds)) as response:
            _store(response, target, shown, _Limits(max_bytes, deadline, timeout_seconds))
    except urllib.error.HTTPError as error:
        error.close()
        raise _http_failure(error.code, shown) from None
    except TimeoutError:
        raise _timed_out(shown, timeout_seconds) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise ProbeError("DiskFull", f"no room left to store {shown}", retryable=True) from None
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise _timed_out(shown, timeout_seconds) from None
        raise ProbeError("DownloadFailed", f"fetching {shown}: {type(reason).__name__}", retryable=True) from None
    return target


class _Limits:
    def __init__(self, max_bytes: int, deadline: float, timeout_seconds: float) -> None:
        self.max_bytes = max_bytes
        self.deadline = deadline
        self.timeout_seconds = timeout_seconds


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the same host and port, and never from https to http."""

    def __init__(self, parts: SplitResult, shown: str) -> None:
        self._parts = parts
        self._shown = shown

    def redirect_request(  # noqa: PLR0917 # budget: the signature of urllib
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        target = urlsplit(newurl)
        if target.scheme != self._parts.scheme or _host(target) != _host(self._parts):
            fp.close()
            raise ProbeError("RedirectRefused", f"{self._shown} redirects to {target.scheme}://{target.hostname}; give the URL of the file itself on one host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _parse(url: str) -> tuple[SplitResult, str]:
    """The URL's parts and how it may be shown: without user information, query and fragment."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ProbeError("UrlInvalid", "the model's URL cannot be parsed") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ProbeError("UrlInvalid", f"models are fetched over http or https, not {parts.scheme or 'without a scheme'!r}")
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ProbeError("UrlInvalid", "the model's URL contains blanks or control characters")
    shown_host = parts.hostname if port is None else f"{parts.hostname}:{port}"
    return parts, f"{parts.scheme}://{shown_host}{parts.path}"[:300]


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2].lower()


def _file_name(url: str, parts: SplitResult) -> str:
    """Unique per URL, so that a model and its calibration inputs do not meet; keeps the suffix."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", parts.path.rsplit("/", 1)[-1])[-80:].lstrip(".") or "model.onnx"
    return f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{stem}"


def _store(response: http.client.HTTPResponse, target: Path, shown: str, limits: _Limits) -> None:
    announced = response.headers.get("Content-Length")
    if announced is not None and announced.isdigit() and int(announced) > limits.max_bytes:
        raise ProbeError("ModelTooLarge", f"{shown} has {announced} bytes, the limit is {limits.max_bytes}")
    received = 0
    with target.open("wb") as file:
        while chunk := response.read(_CHUNK_BYTES):
            received += len(chunk)
            if received > limits.max_bytes:
                raise ProbeError("ModelTooLarge", f"{shown} has more than {limits.max_bytes} bytes, the limit")
            if time.monotonic() > limits.deadline:
                raise _timed_out(shown, limits.timeout_seconds)
            file.write(chunk)
    if announced is not None and announced.isdigit() and received < int(announced):
        raise ProbeError("DownloadFailed", f"{shown} ended after {received} of {announced} bytes", retryable=True)


def _http_failure(status: int, shown: str) -> ProbeError:
    if status in (401, 403):
        return ProbeError("AccessRefused", f"{shown} answered {status}: the URL needs other credentials")
    if status in (404, 410):
        return ProbeError("ModelNotFound", f"{shown} answered {status}: no such file")
    return ProbeError("DownloadFailed", f"{shown} answered {status}", retryable=status >= 500 or status == 429)


def _timed_out(shown: str, timeout_seconds: float) -> ProbeError:
    return ProbeError("DownloadTimedOut", f"{shown} was not fetched within {timeout_seconds:.0f} s", retryable=True)
