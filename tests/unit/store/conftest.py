"""Every test that takes ``url`` or ``store`` runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.store.postgres_fixture import one_server, postgres
from tests.unit.store.postgres_server import PostgresServer

from metainfer.store.samples import SampleStore, open_store

__all__ = ["one_server", "postgres"]


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
