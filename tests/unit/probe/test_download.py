"""Fetching a model over http: limits, redirects, credentials, and what may be tried again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.contract import ModelSource
from metainfer_probe.download import download
from metainfer_probe.model_file import fetch_model


def reason_of(call: object, *arguments: object, **named: object) -> ProbeError:
    """The ProbeError that a call ends in."""
    with pytest.raises(ProbeError) as caught:
        call(*arguments, **named)  # type: ignore[operator]
    return caught.value


class _Server(BaseHTTPRequestHandler):
    """Answers by path; remembers what was asked."""

    body = b"model bytes"
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - one server per test run, cleared by the fixture
    other = ""

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        route = self.path.partition("?")[0]
        if route.startswith("/moved-away"):
            self._redirect(f"http://{self.other}/secret")
        elif route.startswith("/moved"):
            self._redirect("/model.onnx")
        elif route in ("/401", "/404", "/500"):
            self.send_error(int(route[1:]))
        else:
            self.send_response(200)
            if route != "/endless":
                self.send_header("Content-Length", str(len(self.body) + (10 if route == "/short" else 0)))
            self.end_headers()
            self.wfile.write(self.body * (100_000 if route == "/endless" else 1))

    def _redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("Location", target)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
        """Quiet."""


@contextmanager
def serving() -> Iterator[str]:
    """A server on loopback; yields host:port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _Server.asked.clear()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_url_is_fetched_with_its_credentials_and_nothing_else_is(tmp_path: Path) -> None:
    """User information becomes basic authorisation; a redirect on the same host is followed."""
    with serving() as host:
        source = ModelSource(url=f"http://user:pa%3Ass@{host}/moved/x.onnx?token=abc")
        path = fetch_model(source, tmp_path, tmp_path)
        asked = list(_Server.asked)
    assert path.read_bytes() == _Server.body
    assert path.name.endswith("x.onnx")
    assert [where for where, _ in asked] == ["/moved/x.onnx?token=abc", "/model.onnx"]
    assert asked[0][1] == "Basic dXNlcjpwYTpzcw=="


def test_two_urls_with_one_file_name_do_not_meet(tmp_path: Path) -> None:
    """Model and calibration may both be called the same."""
    with serving() as host:
        first, second = (download(f"http://{host}/{folder}/x.onnx", tmp_path, max_bytes=1000) for folder in "ab")
    assert first != second


@pytest.mark.parametrize(
    ("path", "reason", "retryable"),
    [
        ("moved-away", "RedirectRefused", False),
        ("401", "AccessRefused", False),
        ("404", "ModelNotFound", False),
        ("500", "DownloadFailed", True),
        ("short", "DownloadFailed", True),
        ("endless", "ModelTooLarge", False),
    ],
)
def test_a_failed_download_ends_in_a_reason_without_credentials(path: str, reason: str, *, retryable: bool, tmp_path: Path) -> None:
    """Messages name host and path, never user, password or query, and say whether trying again can help."""
    with serving() as host:
        _Server.other = "localhost:1"
        error = reason_of(download, f"http://us3r:s3cret@{host}/{path}?sig=t0ken", tmp_path, max_bytes=100_000)
    assert (error.reason, error.retryable) == (reason, retryable)
    assert not any(secret in error.message for secret in ("us3r", "s3cret", "t0ken", "sig="))
    assert path in error.message


def test_a_refused_redirect_reaches_nobody(tmp_path: Path) -> None:
    """The other host never gets a request."""
    with serving() as host, serving() as other:
        _Server.other = other.replace("127.0.0.1", "localhost")
        assert reason_of(download, f"http://{host}/moved-away", tmp_path, max_bytes=100).reason == "RedirectRefused"
        assert [where for where, _ in _Server.asked] == ["/moved-away"]


def test_a_dead_server_can_be_tried_again(tmp_path: Path) -> None:
    """Connection refused is the network's state, not the model's."""
    error = reason_of(download, "http://u:p4ss@127.0.0.1:9/m.onnx", tmp_path, max_bytes=100)
    assert (error.reason, error.retryable) == ("DownloadFailed", True)
    assert "p4ss" not in error.message


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://h/m.onnx", "m.onnx", "http://", "http://h:port/x", "http://h/a b"])
def test_only_http_urls_are_fetched(url: str, tmp_path: Path) -> None:
    """Nothing else is opened."""
    assert reason_of(download, url, tmp_path, max_bytes=100).reason == "UrlInvalid"
