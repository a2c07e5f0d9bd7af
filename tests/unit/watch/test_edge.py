"""kopf, configured to bring events and to write nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import kopf
import pytest
from tests.unit.watch.make_raw import make_node, make_pool
from tests.unit.watch.make_watch import Watch

from metainfer.kube.credentials import Credentials, CredentialsError
from metainfer.kube.kinds import NODE, POOL, WATCHED, Kind
from metainfer.watch import edge
from metainfer.watch.edge import EndlessBackoffs, build_handler, build_kopf_settings, build_login, register


class NotedPokes:
    """A resync that only notes which kinds it is to list again."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def poke(self, kind: Kind) -> None:
        self.kinds.append(kind)


def test_backoffs_never_end_and_can_be_started_again() -> None:
    """kopf exits when they end; each request starts from the first one."""
    backoffs = EndlessBackoffs()
    for _ in range(2):
        have = list(itertools.islice(backoffs, 1000))
        assert len(have) == 1000
        assert 0.75 <= have[0] <= 1.0
        assert all(6.0 <= pause <= 8.0 for pause in have[3:])


def test_settings_keep_kopf_from_writing_and_from_ending() -> None:
    """Each of these was measured to matter."""
    settings = build_kopf_settings()
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert not settings.scanning.disabled
    assert settings.admission.managed is None
    assert settings.watching.chunk_size == 500
    assert settings.watching.server_timeout is None
    assert settings.queueing.worker_limit is None
    assert (settings.networking.request_timeout, settings.networking.connect_timeout) == (60, 10)
    assert settings.watching.label_selectors["batch", "v1", "jobs"] == "metainfer.dev/purpose"
    assert settings.persistence.diffbase_storage.build(body={}, extra_fields=()) == {}


def test_only_events_and_login_are_asked_of_kopf() -> None:
    """No handler that would patch, annotate or add a finalizer, for any kind."""

    async def stop() -> None:
        """Nothing to stop."""

    registry = kopf.OperatorRegistry()
    register(registry, Watch().intake, NotedPokes(), stop)  # type: ignore[arg-type] # it only pokes
    assert len(registry._watching.get_all_handlers()) == len(WATCHED)
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert not list(others.get_all_handlers())
    assert [str(handler.activity) for handler in registry._activities.get_all_handlers()] == ["authentication", "cleanup"]


@pytest.mark.parametrize(("event_type", "want"), [(None, 1), ("ADDED", 1), ("MODIFIED", 1), ("DELETED", 0)])
async def test_an_event_becomes_a_fact_and_nothing_is_returned(event_type: str | None, want: int) -> None:
    """kopf would write any other value into the object's status."""
    watch, pokes = Watch().show(NODE, make_node("other")), NotedPokes()
    raw = make_node("n1")
    assert await build_handler(NODE, watch.intake, pokes)(event={"type": event_type, "object": raw}, body=raw) is None  # type: ignore[arg-type,func-returns-value]
    assert watch.cluster.count(NODE) == 1 + want
    assert pokes.kinds == []


async def test_a_list_after_the_first_one_means_that_events_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf lists again only after a gap, and tells of no deletion in it."""
    now = [1000.0]
    monkeypatch.setattr(edge.time, "monotonic", lambda: now[0])
    watch, pokes = Watch(), NotedPokes()
    handle = build_handler(POOL, watch.intake, pokes)  # type: ignore[arg-type]
    await handle(event={"type": None, "object": make_pool("a")})
    now[0] += edge.FIRST_LISTS_SECONDS + 1
    await handle(event={"type": "MODIFIED", "object": make_pool("a")})
    assert pokes.kinds == []
    await handle(event={"type": None, "object": make_pool("a")})
    assert pokes.kinds == [POOL]


async def test_an_event_with_an_unreadable_object_ends_nothing() -> None:
    """It is logged and counted; the handler does not raise."""
    watch = Watch()
    await build_handler(POOL, watch.intake, NotedPokes())(event={"type": "ADDED", "object": make_pool(families=[])})  # type: ignore[arg-type]
    assert watch.cluster.count(POOL) == 0


CREDENTIALS = Credentials("kubeconfig", "https://api:6443", ca_path="/ca", certificate_path="/crt", key_path="/key", authorization="Bearer abc")


async def test_a_login_hands_over_all_that_the_client_uses() -> None:
    """Certificates, token and address, with an end ten minutes ahead."""
    have = await build_login(_returning(CREDENTIALS))()
    assert (have.server, have.ca_path, have.certificate_path, have.private_key_path) == ("https://api:6443", "/ca", "/crt", "/key")
    assert (have.scheme, have.token, have.insecure) == ("Bearer", "abc", False)
    assert have.expiration is not None
    bare = await build_login(_returning(replace(CREDENTIALS, authorization=None, verify=False)))()
    assert (bare.scheme, bare.token, bare.insecure) == (None, None, True)


async def test_two_logins_differ_and_are_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf ends when it is handed the refused credentials again, and asks again at once when they are refused."""
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(edge.asyncio, "sleep", note)
    login = build_login(_returning(CREDENTIALS))
    first, second = await login(), await login()
    assert first != second
    assert slept[0] == 0.0
    assert 0.5 < slept[1] <= 1.0


async def test_no_credentials_is_tried_again_soon() -> None:
    """kopf waits a minute after an exception that it does not know."""

    async def read() -> Credentials:
        raise CredentialsError("no token")

    with pytest.raises(kopf.TemporaryError, match="no token") as caught:
        await build_login(read)()
    assert caught.value.delay == 5


def _returning(credentials: Credentials) -> Any:
    async def read() -> Credentials:
        return credentials

    return read
