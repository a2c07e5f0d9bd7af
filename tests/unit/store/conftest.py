"""Every test that takes ``url`` or ``store`` runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.unit.store.postgres_server import INSTALL, PostgresServer, find_binaries, install, run_postgres

from metainfer.store.samples import SampleStore, open_store


@pytest.fixture(scope="session")
def one_server() -> Iterator[PostgresServer]:
    """One server for all tests of a session."""
    if find_binaries() is None:
        if os.geteuid() != 0:
            pytest.skip(f"NO POSTGRESQL: half of the store's tests do not run; as root: {INSTALL}")
        install()
    binaries = find_binaries()
    assert binaries is not None
    with run_postgres(binaries) as server:
        yield server


@pytest.fixture
def postgres(one_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, which runs again when a test that broke it is over."""
    yield one_server
    one_server.thaw()
    if one_server.process is None:
        one_server.start()


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of the test's own."""
    if request.param == "SQLite":
        return f"sqlite:///{tmp_path}/samples.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.make_database())


@pytest.fixture
async def store(url: str) -> AsyncIterator[SampleStore]:
    """An open store."""
    opened = open_store(url)
    yield opened
    await opened.close()
