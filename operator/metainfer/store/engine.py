"""Connections to the store: SQLite in WAL mode or PostgreSQL, each with deadlines of its own so that nothing waits for ever.

SQLite's file must be on a disk of one machine (WAL needs shared memory): a network file system is not supported by SQLite itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, DisconnectionError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from metainfer.store.errors import RowRefused, StoreUnavailable, StoreUrlInvalid, describe_outage

BUSY_TIMEOUT_SECONDS = 10.0
"""How long a statement waits for another process's write; writes take milliseconds, so longer means stuck."""
STATEMENT_TIMEOUT_SECONDS = 15
"""The same for a PostgreSQL server that answers but is overloaded."""
WAL_LIMIT_BYTES = 64 << 20
"""SQLite's log is cut back to this after a checkpoint; a reader that stays for hours lets it grow meanwhile."""
WRITES = "metainfer_writes"
"""Execution option of transactions that write: SQLite takes its write lock at their start, where waiting for it is possible."""
_SERVER: Mapping[str, Any] = {
    "application_name": "metainfer",
    "connect_timeout": 5,
    # A server that vanished without a word (node lost, packets dropped) is noticed after about 20 s.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
    # Poolers in front of a server do not keep prepared statements.
    "prepare_threshold": None,
}
"""What libpq and the driver are told where the URL says nothing else."""
EXAMPLES = "sqlite:////var/lib/meta-infer/store.db or postgresql://USER:PASSWORD@HOST/NAME"


def build_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine for the URL; connects to nothing yet. ``read_only`` also leaves the file's mode alone. Raises StoreUrlInvalid."""
    try:
        parsed = _read_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        defaults: Mapping[str, Any] = {"timeout": BUSY_TIMEOUT_SECONDS} if sqlite else _SERVER
        arguments = {name: value for name, value in defaults.items() if name not in parsed.query}
        engine = create_engine(parsed, connect_args=arguments, pool_pre_ping=not sqlite)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        msg = f"not a usable store URL ({error}); want for example {EXAMPLES}"
        raise StoreUrlInvalid(msg) from error
    if sqlite:
        event.listen(engine, "connect", _prepare_reader if read_only else _prepare_sqlite)
        event.listen(engine, "checkout", _leave_replaced_file)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _prepare_server_reader if read_only else _prepare_server)
    return engine


def abandon_connections(engine: Engine) -> None:
    """Close those that are idle, and each of the others as soon as whoever hangs in it lets go."""
    event.listen(engine, "checkin", lambda _connection, entry: entry.invalidate())
    engine.dispose()


def store_name(engine: Engine) -> str:
    """The store's URL for messages: never with a password."""
    return engine.url.render_as_string(hide_password=True)


def _read_url(url: str) -> URL:
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        msg = f"{url!r} is a store in memory, which no restart survives: give a file, for example sqlite:////var/lib/meta-infer/store.db"
        raise StoreUrlInvalid(msg)
    if backend not in ("sqlite", "postgresql", "postgres"):
        msg = f"not a usable store URL: {backend} is neither sqlite nor postgresql; want for example {EXAMPLES}"
        raise StoreUrlInvalid(msg)
    # What providers hand out names no driver, and SQLAlchemy would take one that is not installed.
    return parsed if backend == "sqlite" else parsed.set(drivername="postgresql+psycopg")


def _prepare_sqlite(connection: Any, entry: ConnectionPoolEntry) -> None:
    _prepare_reader(connection, entry)
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only=OFF")
    if cursor.execute("PRAGMA page_count").fetchone() == (0,):
        # Before the first table, so that deleted rows can be given back to the file system piece by piece. Later it would be a write.
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
    # FULL: a recorded decision survives a power cut. There are a few writes a minute, so it costs nothing.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _prepare_reader(connection: Any, entry: ConnectionPoolEntry) -> None:
    # None: the driver starts no transactions by itself, ``_begin_sqlite`` does.
    connection.isolation_level = None
    # A damaged page must not make its neighbours unreadable; the text is checked by whoever parses it.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only=ON")
    entry.info["file"] = _file_identity(cursor)
    cursor.close()


def _file_identity(cursor: Any) -> tuple[str, int]:
    path = cursor.execute("PRAGMA database_list").fetchone()[2]
    return path, _inode(path)


def _inode(path: str) -> int:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return 0


def _leave_replaced_file(_connection: Any, entry: ConnectionPoolEntry, _proxy: Any) -> None:
    # A file that was moved away or restored from a backup is another one: writing on into the old one would lose the rows.
    path, inode = entry.info["file"]
    if _inode(path) != inode:
        msg = f"{path} was replaced"
        raise DisconnectionError(msg)


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns into a write fails at once where another one writes; an immediate one waits.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")


def _prepare_server(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.autocommit = True
    connection.execute(f"SET statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'")
    # If this process is frozen in mid-transaction, the server ends it and lets others go on.
    connection.execute("SET idle_in_transaction_session_timeout = '60s'")
    connection.autocommit = False


def check_file(connection: Connection, *, store: str) -> None:
    """Whether every page of an SQLite file is what it should be; a damaged one would fail here and there, now and then.

    Reads the whole file (some 500 MB a second). Raises StoreUnavailable.
    """
    if connection.dialect.name != "sqlite":
        return
    found = [row[0] for row in connection.exec_driver_sql("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StoreUnavailable(describe_outage(store, f"the file is damaged: {'; '.join(found)}"))


def _prepare_server_reader(connection: Any, entry: ConnectionPoolEntry) -> None:
    _prepare_server(connection, entry)
    connection.autocommit = True
    connection.execute("SET default_transaction_read_only = on")
    # A whole table is read in one go.
    connection.execute("SET statement_timeout = 0")
    connection.autocommit = False


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction. What the database or its driver say becomes StoreUnavailable, which never shows a password.

    Raises RowRefused for a value that no column takes. Left as they are: IntegrityError (a key is taken), and values that no
    database was asked about, which are defects.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except (IntegrityError, StoreUnavailable):
        raise
    except DataError as error:
        raise RowRefused(describe_outage(store_name(engine), str(error.__cause__ or error))) from error
    except (DBAPIError, PoolTimeoutError, DisconnectionError) as error:
        raise StoreUnavailable(describe_outage(store_name(engine), str(error.__cause__ or error))) from error
