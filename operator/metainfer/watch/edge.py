"""kopf, and only as much of it as brings events: login, watch settings, and one translating handler per kind.

Handlers call ``Intake.watch`` and return None (kopf would write any other value into the object's status); they do no I/O and
are never retried. Nothing else of kopf is used: see docs/architecture.md for what its other handlers would do to a cluster.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from metainfer.api.v1alpha1.common import GROUP
from metainfer.kube.client import CHUNK
from metainfer.kube.credentials import Credentials, CredentialsError, read_credentials
from metainfer.kube.kinds import WATCHED, Kind
from metainfer.kube.transport import CONNECT_SECONDS, TOTAL_SECONDS
from metainfer.watch.intake import Intake
from metainfer.watch.resync import SELECTORS, Resync

LOGIN_SECONDS = 600.0
"""Credentials are read again that often: projected tokens live an hour and are renewed after 48 minutes. Each time the
watches are opened anew, which costs a request per kind."""
LOGIN_PAUSE_SECONDS = 1.0
"""kopf logs in again at once after every 401: without a pause, a burst of them is a burst of ours."""
FIRST_LISTS_SECONDS = 60.0
"""Lists of a watch within this time after the start are its first ones; a later one means that events were missed."""


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf keeps a deep copy of every object to compare with, even when nobody asks: 60 % of its time, saved here."""

    def build(self, **_: Any) -> Any:
        """Nothing of an object is compared."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Nothing was kept."""
        return {}

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class EndlessBackoffs:
    """Pauses between kopf's requests that fail: 1 s, doubling to 8 s, for ever; kopf's own end after a minute, with the process.

    Up to a quarter is taken off by chance, so that operators do not come back together after an outage.
    """

    def __iter__(self) -> Iterator[float]:
        pause = 1.0
        while True:
            yield pause * (1.0 - 0.25 * random.random())  # noqa: S311 - spreads load, guards nothing
            pause = min(8.0, pause * 2)


def build_kopf_settings() -> kopf.OperatorSettings:
    """kopf's settings: memory and patience, and everything off that would write."""
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = NoDiffBase()
    # Never set on an object; an own name all the same, because shared ones made operators fight.
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.watching.chunk_size = CHUNK
    for kind, selector in SELECTORS.items():
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    # A worker per object ends after a second without events: with 5,000 nodes that is 90 MB less than after five.
    settings.queueing.idle_timeout = 1.0
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.networking.request_timeout = TOTAL_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.peering.standalone = True
    settings.posting.enabled = False
    return settings


def register(registry: kopf.OperatorRegistry, intake: Intake, resync: Resync, on_cleanup: Callable[[], Awaitable[None]]) -> None:
    """Register all handlers; ``on_cleanup`` stops what was started before kopf."""
    kopf.on.login(registry=registry)(build_login())
    for kind in WATCHED:
        handler = build_handler(kind, intake, resync)
        kopf.on.event(kind.group, kind.version, kind.plural, id=f"watch-{kind.plural}", registry=registry)(handler)

    @kopf.on.cleanup(registry=registry)
    async def clean_up(**_: Any) -> None:
        await on_cleanup()


def build_handler(kind: Kind, intake: Intake, resync: Resync) -> Callable[..., Awaitable[None]]:
    """The translation for one kind: kopf's event into the intake, and a list after a gap into a sweep."""
    first_until = time.monotonic() + FIRST_LISTS_SECONDS

    async def handle(event: Any, **_: Any) -> None:
        intake.watch(kind, event["type"], event["object"])
        if event["type"] is None and time.monotonic() > first_until:
            resync.poke(kind)

    return handle


def build_login(read: Callable[[], Awaitable[Credentials]] = read_credentials) -> Callable[..., Awaitable[kopf.ConnectionInfo]]:
    """The login: the same credentials as our own client's, read anew each time, never twice within a second."""
    earliest = 0.0

    async def login(**_: Any) -> kopf.ConnectionInfo:
        nonlocal earliest
        await asyncio.sleep(max(0.0, earliest - time.monotonic()))
        earliest = time.monotonic() + LOGIN_PAUSE_SECONDS
        try:
            return _as_connection(await read(), datetime.now(UTC))
        except CredentialsError as error:
            raise kopf.TemporaryError(str(error), delay=5) from error

    return login


def _as_connection(credentials: Credentials, now: datetime) -> kopf.ConnectionInfo:
    scheme, _, token = (credentials.authorization or "").partition(" ")
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_path=credentials.ca_path,
        insecure=not credentials.verify,
        scheme=scheme or None,
        token=token or None,
        certificate_path=credentials.certificate_path,
        private_key_path=credentials.key_path,
        proxy_url=credentials.proxy,
        # Also makes each login differ from the last: kopf gives up when it is handed the credentials that were refused.
        expiration=now + timedelta(seconds=LOGIN_SECONDS),
    )
