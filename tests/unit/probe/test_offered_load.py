"""``metainfer-probe load``: where it goes, how it asks, and what it counts, against real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.http_target import AnswerError, Connection, Target
from metainfer_probe.offered_load import Load, Offer, read_bodies

ROOT = Path(__file__).parents[3]
BODY = b'{"inputs": []}'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer, **options: Any) -> AsyncIterator[str]:
    """A real HTTP server with one path."""
    site = web.Application()
    site.router.add_post("/infer", answer)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1, **options)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/infer"
    finally:
        await runner.cleanup()


async def offer_load(url: str, offer: Offer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last line and those before it."""
    said: list[dict[str, Any]] = []
    await Load(Target.read(url), [BODY], offer, said.append).run()
    return said[-1], said[:-1]


@pytest.mark.parametrize(
    ("address", "want_words"),
    [
        ("8.8.8.8", "internet"),
        ("2606:4700::1111", "internet"),
        ("::ffff:8.8.8.8", "internet"),
        ("64:ff9b::808:808", "internet"),
        ("2002:808:808::1", "internet"),
        ("169.254.169.254", "metadata"),
        ("224.0.0.1", "no address of a single host"),
        ("0.0.0.0", "no address of a single host"),  # noqa: S104 - it is to be refused
    ],
)
def test_load_goes_to_no_address_of_somebody_else(address: str, want_words: str) -> None:
    """Whatever the name was, and also when only one of its addresses is outside: nothing is sent."""
    with pytest.raises(ProbeError, match=want_words) as raised:
        Target.read("http://model.example/infer", lambda _host, _port: ["10.0.0.1", address])
    assert raised.value.reason == "AddressRefused"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "198.18.1.7", "100.64.0.1", "fd00::7", "::1", "::ffff:10.0.0.1"])
def test_load_goes_to_the_addresses_that_clusters_use(address: str) -> None:
    """Private networks, the shared space of providers (100.64/10), the benchmark range, loopback."""
    assert Target.read("http://model.example:8080/infer", lambda _host, _port: [address]).address == address


@pytest.mark.parametrize(
    "url", ["https://model/infer", "http:///infer", "http://user@model/", "http://model:99999/", "http://mo del/", "http://m/\r\nX: y", "file:///x"]
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    """One sentence, before anything is looked up."""
    with pytest.raises(ProbeError) as raised:
        Target.read(url, lambda _host, _port: ["10.0.0.1"])
    assert raised.value.reason == "UrlInvalid"


@pytest.mark.parametrize(
    "offer",
    [Offer(1.0), Offer(1.0, clients=1, rate=1.0), Offer(7201.0, clients=1), Offer(1.0, clients=5000), Offer(1.0, rate=1e6), Offer(0.0, clients=1)],
    ids=["nothing", "both ways", "too long", "too many clients", "too fast", "no time"],
)
def test_every_offer_has_a_bound(offer: Offer) -> None:
    """A typo must not load a cluster for a day."""
    with pytest.raises(ProbeError) as raised:
        offer.check()
    assert raised.value.reason == "RequestInvalid"


async def test_a_closed_loop_keeps_one_request_in_flight_per_client() -> None:
    """Never more, and all the time that many."""
    in_flight = most = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal in_flight, most
        in_flight, most = in_flight + 1, max(most, in_flight + 1)
        assert await request.read() == BODY
        await asyncio.sleep(0.01)
        in_flight -= 1
        return web.json_response({})

    async with serving(answer) as url:
        total, intervals = await offer_load(url, Offer(0.5, clients=3, report_seconds=0.1))
    assert most == 3
    assert total["kind"] == "all"
    assert total["requests"] >= 3
    assert total["errors"] == 0
    assert total["p50_us"] >= 10_000
    assert sum(line["requests"] for line in intervals) <= total["requests"]


async def test_an_open_loop_asks_on_while_the_server_stalls() -> None:
    """Requests are due whatever became of the others: many in flight at once, and those that come due beyond the bound are said."""
    in_flight = most = 0
    gate = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        nonlocal in_flight, most
        in_flight, most = in_flight + 1, max(most, in_flight + 1)
        if most == 8:
            asyncio.get_running_loop().call_later(0.2, gate.set)
        await gate.wait()
        in_flight -= 1
        return web.json_response({})

    async with serving(answer) as url:
        total, _ = await offer_load(url, Offer(1.0, rate=200.0, max_in_flight=8))
    assert most == 8
    assert total["held_back"] > 0
    assert total["p99_us"] >= 200_000


async def test_an_even_load_has_the_same_number_of_requests_in_every_second() -> None:
    """For whoever compares windows: chance would make them differ by several percent."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    async with serving(answer) as url:
        total, _ = await offer_load(url, Offer(1.0, rate=50.0, even=True))
    assert total["requests"] in (48, 49, 50)


@pytest.mark.parametrize("reconnect", [False, True], ids=["kept", "one per request"])
async def test_a_connection_is_kept_unless_each_request_is_to_have_its_own(reconnect: bool) -> None:
    """Behind a Service a kept connection stays with its pod; with ``reconnect`` each request may reach another one."""
    peers = []

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername") if request.transport else None)
        return web.json_response({})

    async with serving(answer) as url:
        total, _ = await offer_load(url, Offer(0.3, rate=30.0, even=True, reconnect=reconnect))
    assert total["errors"] == 0
    assert len(peers) > 2
    assert (len(set(peers)) == len(peers)) == reconnect


async def test_failures_are_counted_and_the_first_is_quoted() -> None:
    """An error page is no answer, and has no latency."""
    seen = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        return web.json_response({}, status=500 if seen == 1 else 200)

    async with serving(answer) as url:
        total, _ = await offer_load(url, Offer(0.3, clients=1))
    assert (total["errors"], total["first_error"]) == (1, "HTTP status 500")
    assert total["requests"] == seen - 1


async def test_answers_in_chunks_and_closed_connections_are_no_failures() -> None:
    """Proxies send chunks, and servers close connections when they like."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"x" * 100_000)
        await response.write_eof()
        return response

    async with serving(answer, keepalive_timeout=0.05) as url:
        connection = Connection(Target.read(url))
        for _ in range(3):
            await connection.post(BODY, 5.0)
            await asyncio.sleep(0.15)
        connection.close()


async def test_a_redirect_is_not_followed() -> None:
    """The address that was checked is the only one."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://8.8.8.8/"})

    async with serving(answer) as url:
        connection = Connection(Target.read(url))
        with pytest.raises(AnswerError, match="307"):
            await connection.post(BODY, 5.0)
        connection.close()


def test_bodies_are_the_calibration_files_samples(tmp_path: Path) -> None:
    """One Open Inference Protocol request per index, with every input of it."""
    np.savez(tmp_path / "x.npz", **{"ids/0": np.zeros((1, 2), np.int32), "mask/0": np.ones((1, 2), np.float32), "ids/1": np.ones((1, 3), np.int32)})
    first, second = (json.loads(body) for body in read_bodies(tmp_path / "x.npz"))
    assert {item["name"]: item["datatype"] for item in first["inputs"]} == {"ids": "INT32", "mask": "FP32"}
    assert second["inputs"] == [{"name": "ids", "shape": [1, 3], "datatype": "INT32", "data": [1, 1, 1]}]
    with pytest.raises(ProbeError, match="nothing"):
        read_bodies(tmp_path / "nothing.npz")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "metainfer_probe.cli", "load", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "probes")})


async def test_the_command_prints_lines_of_json_and_ends_well_when_stopped(tmp_path: Path) -> None:
    """SIGTERM is how a Deployment ends it: the figures so far are still said."""
    (tmp_path / "body.json").write_bytes(BODY)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    async with serving(answer) as url:
        with start("--url", url, "--inputs", str(tmp_path / "body.json"), "--clients", "2", "--seconds", "60", "--report-seconds", "0.1") as process:
            assert process.stdout is not None
            first = json.loads(await asyncio.to_thread(process.stdout.readline))
            process.send_signal(signal.SIGTERM)
            rest, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, errors
    assert first["kind"] == "interval"
    assert json.loads(rest.splitlines()[-1])["kind"] == "all"


@pytest.mark.parametrize(
    ("url", "want"), [("http://8.8.8.8/", "AddressRefused"), ("http://127.0.0.1:1/", "NothingAnswered")], ids=["somebody else's", "nobody there"]
)
def test_the_command_ends_with_a_reason(tmp_path: Path, url: str, want: str) -> None:
    """One line on standard error, no traceback."""
    (tmp_path / "body.json").write_bytes(BODY)
    with start("--url", url, "--inputs", str(tmp_path / "body.json"), "--rate", "20", "--seconds", "0.2") as process:
        _, errors = process.communicate()
    assert process.returncode == 3
    assert errors.startswith(f"error: {want}: ")
    assert errors.count("\n") == 1
