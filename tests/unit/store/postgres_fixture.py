"""The server as fixtures, for whoever imports them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.unit.store.postgres_server import INSTALL, PostgresServer, find_binaries, install, run_postgres


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
