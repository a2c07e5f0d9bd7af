"""One Prometheus for all tests of a session, with an hour of history."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import aiohttp
import pytest
from scenarios.prometheus import INSTALL, install, is_installed
from tests.unit.observe.latency.prometheus_server import run_prometheus
from tests.unit.observe.latency.strangers import write_history


@dataclass(frozen=True)
class History:
    """Where it is remembered, and until when it goes."""

    url: str
    end: int


@pytest.fixture(scope="session")
def history() -> Iterator[History]:
    """A running server that was filled by promtool."""
    if not is_installed():
        if os.geteuid() != 0:
            pytest.skip(f"NO PROMETHEUS: served latency is not tested against one; as root: {INSTALL}")
        install()
    end = int(time.time()) // 60 * 60
    with run_prometheus(write_history(end)) as url:
        yield History(url, end)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """As the operator has one."""
    async with aiohttp.ClientSession() as opened:
        yield opened
