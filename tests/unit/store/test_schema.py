from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, MetaData, Table, func, insert, inspect, select, text
from tests.unit.store.look import connect
from tests.unit.store.make_old import make_first_store
from tests.unit.store.make_results import ADAPTATION, NOON, RUN, at
from tests.unit.store.postgres_server import PostgresServer

from metainfer.store.errors import StoreVersionError
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.schema import LOCK_KEY, MIGRATIONS, ensure_schema
from metainfer.store.tables import metadata

ROOT = Path(__file__).resolve().parents[3]
OPENER = "import sys; from metainfer.store.samples import open_store; print('opening', flush=True); sys.stdin.readline(); open_store(sys.argv[1])"


def find_revisions() -> list[str]:
    """All of them, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()][::-1]


def move(url: str, *, to: str = "head", migrations: Path = MIGRATIONS) -> None:
    """To a revision, as a former version of the operator would have done it."""
    config = Config()
    config.set_main_option("script_location", str(migrations))
    with connect(url, writes=True) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def ensure(url: str, migrations: Path = MIGRATIONS) -> str | None:
    with connect(url, writes=True) as connection:
        return ensure_schema(connection, store="the store", migrations=migrations)


def make_value(column: Column[Any]) -> Any:
    """Something that the column takes."""
    kind = column.type.python_type
    return NOON.replace(tzinfo=None) if kind is datetime else kind(1)


def fill(connection: Connection) -> dict[str, int]:
    """One row in every table there is; returns rows by table."""
    found = MetaData()
    found.reflect(connection)
    for table in found.tables.values():
        if table.name != "alembic_version":
            connection.execute(insert(table).values({column.name: make_value(column) for column in table.columns}))
    return count(connection)


def count(connection: Connection) -> dict[str, int]:
    names = [name for name in inspect(connection).get_table_names() if name != "alembic_version"]
    return {name: connection.execute(select(func.count()).select_from(Table(name, MetaData()))).scalar_one() for name in names}


def copy_migrations(folder: Path, source: str) -> Path:
    """Ours, and one that comes after them."""
    shutil.copytree(MIGRATIONS, folder / "migrations")
    head = f'revision = "9999"\ndown_revision = "{find_revisions()[-1]}"\n'
    (folder / "migrations" / "versions" / "r9999_next.py").write_text(f"import sqlalchemy as sa\nfrom alembic import op\n{head}\n{source}")
    return folder / "migrations"


async def test_a_store_from_before_the_revisions_keeps_its_rows(tmp_path: Path) -> None:
    """What the first version measured and decided is read by this one."""
    url = make_first_store(tmp_path / "store.db")
    store = open_store(url)
    try:
        (run,) = await store.find_runs(ADAPTATION, RUN)
        (decision,) = await store.find_decisions(ADAPTATION)
        assert (run.job, run.failure and run.failure.reason) == ("mi-bench-1", "NodeLost")
        assert (decision.decision_id, decision.decided_at, decision.document) == ("decision-1", at(5), {"selected": "this"})
        assert await store.known_jobs(["uid-probe", "uid-profile", "uid-run"]) == {"uid-probe", "uid-profile", "uid-run"}
    finally:
        await store.close()
    with connect(url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


@pytest.mark.parametrize("revision", find_revisions())
def test_every_older_revision_is_moved_forward_with_its_rows(url: str, revision: str) -> None:
    """Whatever version of the operator made the store, an upgrade loses no row."""
    move(url, to=revision)
    with connect(url, writes=True) as connection:
        before = fill(connection)
    assert ensure(url) == revision
    with connect(url) as connection:
        after = count(connection)
    assert {name: after[name] for name in before} == before


def test_the_revisions_lead_to_the_tables_that_the_code_uses(url: str) -> None:
    """Who changes a table adds a revision."""
    ensure(url)
    with connect(url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_store_that_is_up_to_date_is_left_alone(url: str) -> None:
    """Every start looks."""
    assert ensure(url) is None
    assert ensure(url) == find_revisions()[-1]


def test_a_store_is_moved_to_a_revision_that_is_made_later(url: str, tmp_path: Path) -> None:
    """The next release's, with rows in the store."""
    ensure(url)
    with connect(url, writes=True) as connection:
        fill(connection)
    later = copy_migrations(tmp_path, 'def upgrade():\n    op.add_column("runs", sa.Column("note", sa.Text))\n')
    assert ensure(url, later) == find_revisions()[-1]
    with connect(url) as connection:
        assert connection.execute(text("select note from runs")).all() == [(None,)]


def test_a_migration_that_breaks_off_has_not_happened(url: str, tmp_path: Path) -> None:
    """Tables and revision change together or not at all."""
    ensure(url)
    breaking = copy_migrations(tmp_path, 'def upgrade():\n    op.add_column("runs", sa.Column("note", sa.Text))\n    raise RuntimeError("killed here")\n')
    with pytest.raises(RuntimeError, match="killed here"):
        ensure(url, breaking)
    assert ensure(url) == find_revisions()[-1]
    with connect(url) as connection:
        assert "note" not in {column["name"] for column in inspect(connection).get_columns("runs")}


def test_a_newer_store_is_refused_with_both_versions(url: str, tmp_path: Path) -> None:
    """A rollback of the operator must not write into tables that it does not know."""
    ensure(url, copy_migrations(tmp_path, "def upgrade():\n    pass\n"))
    with pytest.raises(StoreVersionError, match=f"schema version 9999, this operator knows versions up to {find_revisions()[-1]}.*newer operator") as caught:
        open_store(url)
    assert (caught.value.found, caught.value.known) == ("9999", find_revisions()[-1])


def test_a_newer_store_from_before_the_revisions_is_refused_too(tmp_path: Path) -> None:
    """There was only one version then."""
    with pytest.raises(StoreVersionError, match="schema version 2"):
        open_store(make_first_store(tmp_path / "store.db", version=2))


def test_operators_that_start_at_the_same_moment_make_one_schema(url: str) -> None:
    """Nobody fails because another one was first."""
    environment = {"PYTHONPATH": f"{ROOT}/operator:{ROOT}/probes"}
    command_line = [sys.executable, "-c", OPENER, url]
    openers = [subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) for _ in range(3)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"opening\n"
    said = [opener.communicate(b"go\n") for opener in openers]
    assert [opener.returncode for opener in openers] == [0, 0, 0], said
    asyncio.run(open_store(url).close())


def test_whoever_starts_waits_for_a_migration_that_is_under_way(postgres: PostgresServer) -> None:
    """PostgreSQL's advisory lock: nothing is looked at before it is ours."""
    url = postgres.url(postgres.make_database())
    opened: list[SampleStore] = []
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        opening = threading.Thread(target=lambda: opened.append(open_store(url)))
        opening.start()
        while opening.is_alive() and not other.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone():
            pass
        assert not opened
    opening.join()
    asyncio.run(opened[0].close())
