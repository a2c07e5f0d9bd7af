"""One request: how often it is sent, with which credentials, under which deadline, and what comes of a refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from metainfer.kube import transport
from metainfer.kube.credentials import Credentials, CredentialsError
from metainfer.kube.errors import (
    ApiError,
    Conflict,
    FieldConflict,
    FieldOwner,
    Invalid,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
    build_error,
)
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Call, Transport

READ = Call("get", "GET", "/api/v1/nodes/n1")
WRITE = Call("create", "POST", "/api/v1/nodes", body={"a": 1})
Answer = tuple[int, dict[str, str], Any]


@dataclass
class Server:
    """Gives its answers in order, the last one for ever, and notes what it was asked."""

    answers: list[Answer]
    asked: list[web.BaseRequest] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request)
        await request.read()
        status, headers, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 0:
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=status or 200, headers=headers, body=body if isinstance(body, bytes) else json.dumps(body).encode())


@dataclass
class Pauses:
    """A clock that only moves when somebody sleeps."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Server]:
    """A server on loopback."""
    server = Server(list(answers))
    runner = web.ServerRunner(web.Server(server.handle, access_log=None))  # type: ignore[arg-type] # aiohttp's own callable type is narrower than it takes
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


def make_transport(server: Server, pauses: Pauses, *, tokens: tuple[str, ...] = ("t",)) -> Transport:
    """A transport whose n-th login gives the n-th token, the last one for ever."""
    left = list(tokens)

    async def login() -> Credentials:
        token = left.pop(0) if len(left) > 1 else left[0]
        return Credentials("service account", server.url, authorization=f"Bearer {token}")

    bucket = TokenBucket(10.0, 100, clock=pauses.clock, sleep=pauses.sleep)
    return Transport(bucket, login=login, clock=pauses.clock, sleep=pauses.sleep)


OK: Answer = (200, {}, {"kind": "Node"})


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0], ids=str)
async def test_a_read_gets_one_more_try(status: int) -> None:
    """Overload, a restarting server and a cut connection pass; reading twice changes nothing."""
    async with serving((status, {}, b""), OK) as server:
        carrier = make_transport(server, Pauses())
        assert json.loads(await carrier.send(READ)) == {"kind": "Node"}
        await carrier.close()
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "want"),
    [(401, Unauthorized), (429, TooManyRequests), (500, ServerUnavailable), (503, ServerUnavailable), (0, ServerUnavailable)],
    ids=str,
)
async def test_a_write_is_sent_once(status: int, want: type[ApiError]) -> None:
    """Whether it happened is not known: the next pass looks, nobody repeats."""
    async with serving((status, {}, b"")) as server:
        carrier = make_transport(server, Pauses())
        with pytest.raises(want):
            await carrier.send(WRITE)
        await carrier.close()
    assert len(server.asked) == 1


async def test_a_read_that_fails_twice_is_the_callers() -> None:
    """One more try, not many: the queue's backoff is the place for patience."""
    async with serving((503, {}, {"reason": "ServiceUnavailable", "message": "starting"})) as server:
        carrier = make_transport(server, Pauses())
        with pytest.raises(ServerUnavailable, match="starting"):
            await carrier.send(READ)
        await carrier.close()
    assert len(server.asked) == 2


@pytest.mark.parametrize(("header", "want"), [("7", 7.0), ("0", None), ("100000", transport.RETRY_AFTER_LIMIT_SECONDS), ("soon", None)])
async def test_a_pause_that_the_server_asks_for_holds_everybody(header: str, want: float | None) -> None:
    """Retry-After stops the bucket, for a while that is bounded; what is no number is ignored."""
    pauses = Pauses()
    async with serving((429, {"Retry-After": header}, b""), OK) as server:
        carrier = make_transport(server, pauses)
        await carrier.send(READ)
        await carrier.close()
    assert [seconds for seconds in pauses.slept if seconds > transport.RETRY_SECONDS] == ([] if want is None else [want - transport.RETRY_SECONDS])


async def test_a_refused_token_is_read_again() -> None:
    """A read is sent once more with the token of now; a write is not, but the next one has that token."""
    refused: Answer = (401, {}, {"reason": "Unauthorized"})
    async with serving(refused, OK, refused, OK) as server:
        carrier = make_transport(server, Pauses(), tokens=("worn", "fresh", "fresher"))
        await carrier.send(READ)
        with pytest.raises(Unauthorized):
            await carrier.send(WRITE)
        await carrier.send(WRITE)
        await carrier.close()
    assert [request.headers["Authorization"].split()[1] for request in server.asked] == ["worn", "fresh", "fresh", "fresher"]


async def test_a_token_that_stays_refused_is_unauthorized() -> None:
    """Two 401s are enough."""
    async with serving((401, {}, b"")) as server:
        carrier = make_transport(server, Pauses())
        with pytest.raises(Unauthorized):
            await carrier.send(READ)
        await carrier.close()
    assert len(server.asked) == 2


async def test_a_projected_token_is_read_again_every_minute() -> None:
    """The kubelet replaces it long before it ends."""
    pauses = Pauses()
    async with serving(OK) as server:
        carrier = make_transport(server, pauses, tokens=("first", "second", "third"))
        for at in (0.0, 59.0, 61.0, 100.0, 122.0):
            pauses.now = at
            await carrier.send(READ)
        await carrier.close()
    assert [request.headers["Authorization"].split()[1] for request in server.asked] == ["first", "first", "second", "second", "third"]


async def test_no_way_to_log_in_is_an_api_error() -> None:
    """Callers know one family of errors."""

    async def login() -> Credentials:
        raise CredentialsError("cannot use kubeconfig /nowhere")

    carrier = Transport(TokenBucket(10.0, 10), login=login)
    with pytest.raises(ServerUnavailable, match="/nowhere"):
        await carrier.send(WRITE)


async def test_a_server_that_does_not_answer_in_time_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request has a deadline."""
    monkeypatch.setattr(transport, "TOTAL_SECONDS", 0.05)
    never = asyncio.Event()

    async def hang(_: web.BaseRequest) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    async with serving(OK) as server:
        server.handle = hang  # type: ignore[method-assign] # the answer that never comes
        runner = web.ServerRunner(web.Server(hang, access_log=None))  # type: ignore[arg-type]
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        carrier = make_transport(server, Pauses())
        with pytest.raises(ServerUnavailable, match="TimeoutError"):
            await carrier.send(WRITE)
        never.set()
        await carrier.close()
        await runner.cleanup()


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[1]", b"null"], ids=["html", "nothing", "list", "null"])
async def test_an_answer_that_is_no_status_object_is_still_typed(body: bytes) -> None:
    """Load balancers answer in their own words."""
    async with serving((502, {}, body)) as server:
        carrier = make_transport(server, Pauses())
        with pytest.raises(ServerUnavailable):
            await carrier.send(WRITE)
        await carrier.close()


def _status(reason: str, *causes: dict[str, str]) -> dict[str, Any]:
    return {"reason": reason, "message": "words", "details": {"causes": list(causes)}}


def _cause(field_name: str, message: str) -> dict[str, str]:
    return {"reason": "FieldManagerConflict", "field": field_name, "message": message}


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ('conflict with "kubectl-client-side-apply" using apps/v1', "kubectl-client-side-apply"),
        ('conflict with "helm" with subresource "status" using apps/v1 at 2026-01-01T00:00:00Z', "helm"),
        (r'conflict with "a \"b\" c"', 'a "b" c'),
        ("in words of a later version", "in words of a later version"),
    ],
)
def test_a_field_conflict_names_field_and_manager(message: str, want: str) -> None:
    """However the server says it; words that are not understood are kept whole."""
    error = build_error(409, _status("Conflict", _cause(".spec.x", message)))
    assert isinstance(error, FieldConflict)
    assert error.causes == (FieldOwner(".spec.x", want),)


def test_a_conflict_without_fields_is_one_of_versions() -> None:
    """The same status and reason, another meaning: this one passes by reading again."""
    error = build_error(409, _status("Conflict"))
    assert type(error) is Conflict
    assert error.retryable


def test_a_long_message_is_cut() -> None:
    """The server repeats the whole rejected object."""
    error = build_error(422, {"reason": "Invalid", "message": "x" * 100_000})
    assert isinstance(error, Invalid)
    assert len(str(error)) < 2000


@pytest.mark.parametrize(("count", "want_seconds"), [(100, 0.0), (101, 0.1), (200, 10.0)])
async def test_the_bucket_keeps_the_rate(count: int, want_seconds: float) -> None:
    """A burst at once, then the average rate, in the order of arrival."""
    pauses = Pauses()
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    bucket = TokenBucket(10.0, 100, clock=pauses.clock, sleep=note)
    for _ in range(count):
        await bucket.take()
    assert max(waits, default=0.0) == pytest.approx(want_seconds)
    assert waits == sorted(waits)


def _advance(pauses: Pauses, seconds: float) -> None:
    pauses.now += seconds


@pytest.mark.parametrize("idle", [lambda pauses: _advance(pauses, 1000.0), lambda _: None], ids=["after an hour", "at once"])
async def test_a_quiet_bucket_fills_up_to_the_burst_only(idle: Callable[[Pauses], None]) -> None:
    """Idle time is not saved beyond it."""
    pauses = Pauses()
    bucket = TokenBucket(10.0, 5, clock=pauses.clock, sleep=pauses.sleep)
    idle(pauses)
    for _ in range(6):
        await bucket.take()
    assert pauses.slept == [pytest.approx(0.1)]
