"""Connections to the store: SQLite in WAL mode beside any server that SQLAlchemy has a driver for.

SQLite's file must be on a disk of one machine (WAL needs shared memory): a network file system is not supported by SQLite itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from metainfer.store.errors import StoreUnavailable, StoreUrlInvalid

BUSY_TIMEOUT_SECONDS = 10.0
"""How long a statement waits for another process's write; writes take milliseconds, so longer means stuck."""
WRITES = "metainfer_writes"
"""Execution option of transactions that write: SQLite takes its write lock at their start, where waiting for it is possible."""


def build_engine(url: str) -> Engine:
    """An engine for the URL; connects to nothing yet. Raises StoreUrlInvalid."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            msg = f"{url!r} is a store in memory, which no restart survives: give a file, for example sqlite:////var/lib/metainfer/samples.db"
            raise StoreUrlInvalid(msg)
        sqlite = parsed.get_backend_name() == "sqlite"
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_SECONDS} if sqlite else {}, pool_pre_ping=not sqlite)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        msg = f"not a usable store URL ({error}); want for example sqlite:////var/lib/metainfer/samples.db or postgresql+psycopg://HOST/NAME"
        raise StoreUrlInvalid(msg) from error
    if sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:
    # None: the driver starts no transactions by itself, ``_begin_sqlite`` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: a recorded decision survives a power cut. There are a few writes a minute, so it costs nothing.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns into a write fails at once where another one writes; an immediate one waits.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction. What the database or its driver say becomes StoreUnavailable, which never shows a password.

    Left as they are: IntegrityError (a key is taken), and values that no database was asked about, which are defects.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeoutError) as error:
        cause = str(error.__cause__ or error).strip()
        msg = f"sample store {engine.url.render_as_string(hide_password=True)}: {cause}"
        raise StoreUnavailable(msg) from error
