"""Brings a store to the schema this code knows: creates it, moves an older one forward, refuses a newer one.

Forward only. A revision is added to ``migrations/versions`` by whoever changes ``tables``; it is never edited afterwards, because
stores exist that have run it. Everything happens in the caller's transaction: a killed migration has not happened.
"""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from metainfer.store.errors import StoreUnavailable, StoreVersionError

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK_KEY = 0x6D65_7461_696E_6665
"""PostgreSQL's advisory lock of whoever looks at the schema, "metainfe" in ASCII: one starting operator at a time."""
LOCK_SECONDS = 60
_FORMER_VERSION = "1"
"""Stores from before the revisions counted in a table ``schema_version``; the first revision is its version 1."""
_in_this_process = threading.Lock()
"""Alembic keeps the migration under way in module variables."""


def ensure_schema(connection: Connection, *, store: str, migrations: Path = MIGRATIONS) -> str | None:
    """Make the store's schema the newest; returns the revision it had before (None = empty, or from before the revisions).

    ``connection`` is in a transaction that may write. Raises StoreVersionError for a newer store.
    """
    with _in_this_process:
        _lock(connection)
        config = Config()
        config.set_main_option("script_location", str(migrations).replace("%", "%%"))
        script = ScriptDirectory.from_config(config)
        found, known = _find_revision(connection), script.get_current_head() or ""
        if found != known:
            _refuse_newer(connection, script, store, found)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        return found


def check_schema(connection: Connection, *, store: str) -> None:
    """For readers, who change nothing. Raises StoreVersionError for a newer store, StoreUnavailable for an older or empty one."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    found = _find_revision(connection)
    if found != script.get_current_head():
        _refuse_newer(connection, script, store, found)
        msg = f"sample store {store} is empty or of an older version: the operator makes or updates it when it starts"
        raise StoreUnavailable(msg)


def _lock(connection: Connection) -> None:
    # SQLite took its write lock at the transaction's start.
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})


def _find_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(connection: Connection, script: ScriptDirectory, store: str, found: str | None) -> None:
    known = {revision.revision for revision in script.walk_revisions()}
    if found is None and "schema_version" in inspect(connection).get_table_names():
        former = str(connection.execute(text("select max(version) from schema_version")).scalar())
        known, found = {_FORMER_VERSION}, former
    if found is not None and found not in known:
        raise StoreVersionError(store=store, found=found, known=script.get_current_head() or "")
