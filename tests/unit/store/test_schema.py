from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, Dialect, Table, inspect, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.schema import CreateTable
from tests.unit.store.make_results import ADAPTATION, make_run

from metainfer.store.engine import WRITES, build_engine, transaction
from metainfer.store.errors import StoreVersionError
from metainfer.store.samples import open_store
from metainfer.store.schema import FIRST_VERSION, Step, ensure_schema
from metainfer.store.tables import metadata


def add_note(connection: Connection) -> None:
    connection.execute(text("alter table runs add column note text"))


def break_off(connection: Connection) -> None:
    add_note(connection)
    raise RuntimeError("killed here")


NEXT = Step(FIRST_VERSION + 1, "runs get a note", add_note)


def version_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file:
        (version,) = file.execute("select version from schema_version").fetchone()
    return int(version)


def move(path: Path, *steps: Step) -> int:
    with transaction(build_engine(f"sqlite:///{path}").execution_options(**{WRITES: True})) as connection:
        return ensure_schema(connection, store=path.name, steps=steps)


async def test_an_older_store_is_moved_forward_with_its_rows(tmp_path: Path) -> None:
    """An upgrade keeps everything that was measured."""
    path = tmp_path / "samples.db"
    store = open_store(f"sqlite:///{path}")
    await store.record_run(ADAPTATION, make_run())
    await store.close()
    assert move(path, NEXT) == FIRST_VERSION
    assert version_in(path) == FIRST_VERSION + 1
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("select job, note from runs").fetchall() == [("mi-bench-1", None)]


async def test_a_step_that_was_taken_is_not_taken_again(tmp_path: Path) -> None:
    """Every start checks the schema."""
    path = tmp_path / "samples.db"
    await open_store(f"sqlite:///{path}").close()
    move(path, NEXT)
    assert move(path, NEXT) == FIRST_VERSION + 1


async def test_a_migration_that_breaks_off_has_not_happened(tmp_path: Path) -> None:
    """Schema and version change together or not at all."""
    path = tmp_path / "samples.db"
    await open_store(f"sqlite:///{path}").close()
    with pytest.raises(RuntimeError, match="killed here"):
        move(path, Step(FIRST_VERSION + 1, "breaks off", break_off))
    assert version_in(path) == FIRST_VERSION
    columns = {column["name"] for column in inspect(build_engine(f"sqlite:///{path}")).get_columns("runs")}
    assert "note" not in columns


async def test_a_newer_store_is_refused_with_both_versions(tmp_path: Path) -> None:
    """A rollback of the operator must not write into tables that it does not know."""
    path = tmp_path / "samples.db"
    await open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("update schema_version set version = 99")
    with pytest.raises(StoreVersionError, match="schema version 99, this operator knows versions up to 1") as caught:
        open_store(f"sqlite:///{path}")
    assert (caught.value.found, caught.value.known) == (99, FIRST_VERSION)


@pytest.mark.parametrize("dialect", [SQLiteDialect(), PGDialect()], ids=["SQLite", "PostgreSQL"])
@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_can_be_made_in_both_databases(table: Table, dialect: Dialect) -> None:
    """Core types only: the same schema everywhere."""
    statement = str(CreateTable(table).compile(dialect=dialect))
    assert "CREATE TABLE" in statement
