"""Servers of tests leave no connection behind, whatever their clients do: it would be an error of whichever test comes next."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml
from aiohttp import web
from tests.apiserver.fault_proxy import run_fault_proxy
from tests.apiserver.site import run_site

PATIENCE_SECONDS = 5.0
"""In the one direction a guard against hanging; a connection that is left stays for longer."""
LARGE = b"x" * (32 << 20)
"""More than the buffers of both ends hold."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, with its key in one file, signed by itself."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    ask = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", path.with_name("certificate.pem")]
    subprocess.run(["openssl", *ask, *options], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_name("certificate.pem").read_bytes())
    return path


def make_context(certificate: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    """For either end."""
    context = ssl.create_default_context(purpose, cafile=str(certificate))
    if purpose == ssl.Purpose.CLIENT_AUTH:
        context.load_cert_chain(certificate)
    return context


def ask(connection: socket.socket) -> None:
    """A request whose answer nobody reads."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def ask_over_tls(connection: socket.socket, context: ssl.SSLContext) -> None:
    """The same; a good-bye is not answered either."""
    tls = context.wrap_socket(connection.dup(), server_hostname="127.0.0.1")
    ask(tls)
    tls.recv(1)
    tls.detach()


def read_to_the_end(connection: socket.socket) -> None:
    """TimeoutError where the other end was not closed. Blocks on purpose: no event loop does anything more meanwhile."""
    connection.settimeout(PATIENCE_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 20):
            pass


@pytest.mark.parametrize("secure", [pytest.param(False, id="plain"), pytest.param(True, id="TLS")])
@pytest.mark.parametrize("answer", [pytest.param(b"", id="that waits"), pytest.param(LARGE, id="that reads nothing")])
async def test_a_client_holds_no_server_up(certificate: Path, answer: bytes, *, secure: bool) -> None:
    """One that has its answer and keeps the connection; one that does not take its answer."""
    site = web.Application()

    async def reply(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    site.router.add_get("/", reply)
    with socket.socket() as connection:
        async with run_site(site, make_context(certificate, ssl.Purpose.CLIENT_AUTH) if secure else None) as port:
            connection.connect(("127.0.0.1", port))
            context = make_context(certificate, ssl.Purpose.SERVER_AUTH)
            await asyncio.to_thread(ask_over_tls, connection, context) if secure else ask(connection)
            await asyncio.sleep(0.1)
        read_to_the_end(connection)


async def test_a_handshake_that_goes_nowhere_holds_no_server_up(certificate: Path) -> None:
    """The server knows nothing of such a client yet."""
    with socket.socket() as connection:
        async with run_site(web.Application(), make_context(certificate, ssl.Purpose.CLIENT_AUTH)) as port:
            connection.connect(("127.0.0.1", port))
            await asyncio.sleep(0.1)
        read_to_the_end(connection)


@contextlib.contextmanager
def run_talker(context: ssl.SSLContext) -> Iterator[tuple[int, threading.Event]]:
    """A server that begins a long answer, says so, and from then on neither reads nor closes."""
    begun, ended = threading.Event(), threading.Event()

    def talk(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")
            begun.set()
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1], begun
        finally:
            ended.set()
            thread.join()


def write_kubeconfig(path: Path, port: int, certificate: Path) -> Path:
    """As an administrator's, for a server of the test's own."""
    cluster = {"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}}
    user = {"name": "u", "user": {"client-certificate": str(certificate), "client-key": str(certificate)}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    path.write_text(yaml.safe_dump({"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "c"}))
    return path


def connections_to(port: int) -> list[object]:
    """Of this process."""
    return [item for item in psutil.Process().net_connections("tcp") if item.raddr and item.raddr.port == port and item.status != "TIME_WAIT"]


@pytest.mark.parametrize("path", [pytest.param("/api/v1/pods", id="a list"), pytest.param("/api/v1/pods?watch=true", id="a watch")])
async def test_a_proxy_that_ends_leaves_no_connection_to_its_server(certificate: Path, tmp_path: Path, path: str) -> None:
    """In the middle of an answer, from a server that does not answer a good-bye."""
    context = make_context(certificate, ssl.Purpose.CLIENT_AUTH)
    with run_talker(context) as (port, begun):
        async with aiohttp.ClientSession() as client:
            async with run_fault_proxy(write_kubeconfig(tmp_path / "config", port, certificate)) as proxy:
                request = asyncio.create_task(_get(client, f"http://127.0.0.1:{proxy.port}{path}"))
                assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
                await asyncio.sleep(0.1)
                assert connections_to(port)
            assert connections_to(port) == []
            with contextlib.suppress(aiohttp.ClientError):
                await request


async def _get(client: aiohttp.ClientSession, address: str) -> bytes:
    async with client.get(address) as answer:
        return await answer.read()
