"""Where a model's URL may not lead, however it is spelt, and servers that waste time or lie."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.contract import ModelSource, decode_line
from metainfer_probe.download import REDIRECT_LIMIT, download
from metainfer_probe.model_file import fetch_model
from metainfer_probe.outbound import Address, find_refused

ROOT = Path(__file__).parents[3]
METADATA = "169.254.169.254"
BODY = b"model bytes"
Talk = Callable[[socket.socket], None]


def reason_of(call: Callable[..., object], *arguments: object, **named: object) -> ProbeError:
    """The ProbeError that a call ends in."""
    with pytest.raises(ProbeError) as caught:
        call(*arguments, **named)
    return caught.value


class Server:
    """A loopback server that says what it is told to; ``requests`` are the heads of what it was sent."""

    def __init__(self, talk: Talk, tls: ssl.SSLContext | None = None) -> None:
        self._talk, self._tls = talk, tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.requests: list[bytes] = []
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        if self._tls is not None:
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                self.requests.append(secured.recv(65536))
                self._talk(secured)
            return
        self.requests.append(connection.recv(65536))
        self._talk(connection)


def saying(answer: bytes) -> Talk:
    return lambda connection: connection.sendall(answer)


def dripping(head: bytes, drop: bytes) -> Talk:
    """First ``head``, then ``drop`` again and again, each long before any timeout of a socket, until the client goes away."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(0.05)

    return talk


def fetch(server: Server, folder: Path, *, path: str = "m.onnx", scheme: str = "http", **named: object) -> Path:
    return download(f"{scheme}://127.0.0.1:{server.port}/{path}", folder, **({"max_bytes": 10_000, "timeout_seconds": 20.0} | named))  # type: ignore[arg-type]


# --- Addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        METADATA, "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[::ffff:0:a9fe:a9fe]", "[fd00::5efe:a9fe:a9fe]", "[fe80::1]", "[fe80::1%1]",
        "[fd00:ec2::254]", "[fd20:ce::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0", "0", "0.1.2.3", "[::]", "224.0.0.1", "[ff02::1]",
        "255.255.255.255", "240.0.0.1", "169.254.169.254.",
    ],
)  # fmt: skip
def test_a_forbidden_address_is_refused_however_it_is_written(host: str, tmp_path: Path) -> None:
    """Metadata services, link-local, groups and nobody's addresses; as numbers, in octal, and inside IPv6."""
    error = reason_of(download, f"http://{host}/latest/meta-data/", tmp_path, max_bytes=100, timeout_seconds=5.0)
    assert error.reason in ("AddressRefused", "HostUnknown")
    assert error.reason == "AddressRefused" or host.endswith(".")  # some resolvers do not take a number with a dot behind it
    assert not error.retryable or host.endswith(".")


@pytest.mark.parametrize("addresses", [[METADATA], ["127.0.0.1", METADATA], ["::ffff:169.254.169.254", "127.0.0.1"]])
def test_a_name_that_leads_there_is_refused_before_anything_is_sent(addresses: Sequence[str], tmp_path: Path) -> None:
    """Also where only one of its addresses does: nobody would know which one is taken."""
    with Server(saying(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)) as server:
        error = reason_of(download, f"http://models.example:{server.port}/m", tmp_path, max_bytes=100, find_addresses=lambda _host, _port: addresses)
    assert error.reason == "AddressRefused"
    assert "'models.example'" in error.message
    assert server.requests == []


def test_a_name_is_looked_up_once_for_a_connection(tmp_path: Path) -> None:
    """What was checked is what is connected to: a second answer of the name server changes nothing."""
    answers = iter((["127.0.0.1"], [METADATA]))
    with Server(saying(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)) as server:
        path = download(f"http://models.example:{server.port}/m", tmp_path, max_bytes=100, find_addresses=lambda _host, _port: next(answers))
    assert path.read_bytes() == BODY
    assert len(server.requests) == 1
    assert f"Host: models.example:{server.port}".encode() in server.requests[0]


def test_the_next_connection_is_checked_anew(tmp_path: Path) -> None:
    """A redirect to the same name may find another address behind it."""
    answers = iter((["127.0.0.1"], [METADATA]))
    with Server(saying(b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n")) as server:
        error = reason_of(download, f"http://models.example:{server.port}/m", tmp_path, max_bytes=100, find_addresses=lambda _host, _port: next(answers))
    assert error.reason == "AddressRefused"
    assert len(server.requests) == 1


def embeddings(inner: IPv4Address) -> tuple[Address, ...]:
    """One IPv4 address in every spelling that IPv6 has for it."""
    low = int(inner)
    tops = (0xFFFF, 0xFFFF_0000, 0x64_FF9B << 64, (0x64_FF9B_0001 << 48), (0xFD00 << 80) | 0x5EFE)
    return (inner, *(IPv6Address((top << 32) | low) for top in tops), IPv6Address((0x2002 << 112) | (low << 80) | 1))


@given(st.ip_addresses(network="169.254.0.0/16") | st.ip_addresses(network="224.0.0.0/3") | st.ip_addresses(network="0.0.0.0/8"))
def test_no_spelling_of_a_forbidden_address_passes(address: IPv4Address) -> None:
    """Mapped, translated, tunnelled."""
    assert [spelt for spelt in embeddings(address) if find_refused(spelt) is None] == []


@given(st.sampled_from(("10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12", "127.0.0.0/8", "93.184.0.0/16")).flatmap(lambda net: st.ip_addresses(network=net)))
def test_places_where_models_are_kept_stay_open(address: IPv4Address) -> None:
    """Private networks are where a cluster keeps its files; loopback is the Job's own pod."""
    assert find_refused(address) is None
    assert address in IPv4Network("0.0.0.0/0")


def test_ordinary_addresses_of_ipv6_stay_open() -> None:
    """Unique local ones and the world's."""
    assert [text for text in ("::1", "fd12:3456::1", "2a00:1450:4001::200e", "2606:2800:220::1") if find_refused(ip_address(text)) is not None] == []


def test_a_name_that_nobody_knows_has_its_own_reason(tmp_path: Path) -> None:
    """It is not the server's fault."""

    def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    error = reason_of(download, "http://u:s3cret@models.example/m", tmp_path, max_bytes=100, find_addresses=unknown)
    assert (error.reason, error.retryable) == ("HostUnknown", True)
    assert "s3cret" not in error.message


def test_a_proxy_of_the_environment_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look the name up for us, unseen."""
    with Server(saying(b"HTTP/1.1 200 OK\r\n\r\nfrom the proxy")) as proxy, Server(saying(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert fetch(server, tmp_path).read_bytes() == BODY
        assert proxy.requests == []


# --- Servers ---------------------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TALKS: dict[str, tuple[Talk, str, bool]] = {
    "body byte by byte": (dripping(OK + b"Content-Length: 9000\r\n\r\n", b"x"), "DownloadTimedOut", True),
    "head byte by byte": (dripping(OK, b"X-A: b\r\n"), "DownloadTimedOut", True),
    "one endless line": (dripping(OK, b"a"), "DownloadTimedOut", True),
    "chunks without end": (dripping(CHUNKED, b"1\r\nx\r\n"), "DownloadTimedOut", True),
    "interim answers without end": (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "DownloadTimedOut", True),
    "silence": (lambda connection: print(connection.recv(1), end=""), "DownloadTimedOut", True),
    "no length and no end": (dripping(OK + b"\r\n", b"x" * 4000), "ModelTooLarge", False),
    "a length that is too large": (saying(OK + b"Content-Length: 99999999999999999999\r\n\r\nx"), "ModelTooLarge", False),
    "less than announced": (saying(OK + b"Content-Length: 20\r\n\r\nhalf"), "DownloadFailed", True),
    "a broken chunk": (saying(CHUNKED + b"ffff\r\nhalf"), "DownloadFailed", True),
    "no HTTP": (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), "DownloadFailed", True),
    "nothing": (saying(b""), "DownloadFailed", True),
    "a head of a megabyte": (saying(OK + b"X-A: " + b"b" * (1 << 20)), "DownloadFailed", True),
    "no content": (saying(b"HTTP/1.1 204 No Content\r\n\r\n"), "DownloadFailed", False),
    "not found": (saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "ModelNotFound", False),
    "a redirect to a file": (saying(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"), "RedirectRefused", False),
    "a redirect to another host": (saying(b"HTTP/1.1 307 Moved\r\nLocation: http://169.254.169.254/latest\r\n\r\n"), "RedirectRefused", False),
    "a redirect to another port": (saying(b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/x\r\n\r\n"), "RedirectRefused", False),
    "a redirect with credentials": (saying(b"HTTP/1.1 301 Moved\r\nLocation: //a:s3cret@elsewhere/x\r\n\r\n"), "RedirectRefused", False),
    "a redirect to itself": (saying(b"HTTP/1.1 302 Found\r\nLocation: /m.onnx\r\n\r\n"), "RedirectRefused", False),
}


@pytest.mark.parametrize("case", TALKS)
def test_a_server_that_wastes_time_or_lies_ends_in_its_reason(case: str, tmp_path: Path) -> None:
    """Each its own, no half file is left, and nothing of a credential is repeated."""
    talk, want_reason, retryable = TALKS[case]
    with Server(talk) as server:
        url = f"http://us3r:s3cret@127.0.0.1:{server.port}/m.onnx?sig=t0ken"
        error = reason_of(download, url, tmp_path, max_bytes=10_000, timeout_seconds=1.5 if want_reason == "DownloadTimedOut" else 30.0)
    assert (error.reason, error.retryable) == (want_reason, retryable)
    assert not any(secret in error.message for secret in ("us3r", "s3cret", "t0ken"))
    assert list(tmp_path.iterdir()) == []
    assert len(server.requests) <= REDIRECT_LIMIT + 1


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"\r\n" + BODY,
        OK + b"Content-Length: 11\r\n\r\n" + BODY + b"more",
        CHUNKED + b"5\r\nmodel\r\n6\r\n bytes\r\n0\r\n\r\n",
    ],
    ids=["no length", "more than announced", "chunks"],
)
def test_a_whole_body_is_stored_however_it_is_framed(answer: bytes, tmp_path: Path) -> None:
    """A length is not needed; the limit counts what arrives."""
    with Server(saying(answer)) as server:
        assert fetch(server, tmp_path).read_bytes() == BODY


def test_letters_beyond_ascii_are_escaped_once(tmp_path: Path) -> None:
    """As browsers do; what is escaped already stays."""
    with Server(saying(OK + b"\r\n" + BODY)) as server:
        assert fetch(server, tmp_path, path="mödel%20x/ü.onnx?a=ß#frag").read_bytes() == BODY
    assert server.requests[0].startswith(b"GET /m%C3%B6del%20x/%C3%BC.onnx?a=%C3%9F HTTP/1.1\r\n")


@pytest.mark.parametrize("url", ["http://h\\@127.0.0.1/x", "http://h/a\tb", "http://h/\x00", "HTTP://", "https:/h/x", "gopher://h/x", "http://[::1/x"])
def test_addresses_that_two_readers_read_differently_are_refused(url: str, tmp_path: Path) -> None:
    """Backslashes and control characters are how one host is shown and another one asked."""
    assert reason_of(download, url, tmp_path, max_bytes=100).reason == "UrlInvalid"


def test_content_that_changed_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Both digests are named."""
    with Server(saying(OK + b"\r\n" + BODY)) as server:
        source = ModelSource(url=f"http://127.0.0.1:{server.port}/m.bin", sha256="cd" * 32)
        error = reason_of(fetch_model, source, tmp_path, tmp_path)
    assert error.reason == "DigestMismatch"
    assert "cdcd" in error.message


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate that nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_a_certificate_that_nobody_vouches_for_is_refused(self_signed: ssl.SSLContext, tmp_path: Path) -> None:
    """And no request was sent over it."""
    with Server(saying(OK + b"\r\n" + BODY), self_signed) as server:
        error = reason_of(fetch, server, tmp_path, scheme="https")
    assert (error.reason, error.retryable) == ("TlsFailed", False)
    assert "self-signed" in error.message
    assert server.requests == []


def test_a_server_without_tls_has_the_same_reason(tmp_path: Path) -> None:
    """Somebody wrote https for http."""
    with Server(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        assert reason_of(fetch, server, tmp_path, scheme="https").reason == "TlsFailed"


def test_a_handshake_that_drips_ends_too(tmp_path: Path) -> None:
    """One deadline for everything."""
    with Server(dripping(b"\x16\x03\x03\x40\x00", b"\x02")) as server:
        assert reason_of(fetch, server, tmp_path, scheme="https", timeout_seconds=1.5).reason in ("DownloadTimedOut", "TlsFailed")


# --- As a Job runs it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["profile", "bench"])
def test_no_output_of_a_job_repeats_credentials(command: str, tmp_path: Path) -> None:
    """Neither log nor termination message: both are read by more people than the Job's spec."""
    config = {"execution_provider": "CPUExecutionProvider"}
    rest = {"providers": ["CPUExecutionProvider"], "budget_seconds": 5} if command == "profile" else {"candidate": config, "reference": config}
    with Server(saying(b"HTTP/1.1 404 Not Found\r\n\r\n")) as server:
        request = {"kind": command, "model": {"url": f"http://us3r:s3cret@127.0.0.1:{server.port}/m.onnx?sig=t0ken"}} | rest
        arguments = [sys.executable, "-m", "metainfer_probe.cli", command, "--request", json.dumps(request), "--termination-log", str(tmp_path / "t")]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT / "probes")})
    report = decode_line(done.stdout.splitlines()[-1])
    assert report.failure is not None
    assert report.failure.reason == "ModelNotFound"
    said = done.stdout + done.stderr + (tmp_path / "t").read_text()
    assert [secret for secret in ("us3r", "s3cret", "t0ken") if secret in said] == []
