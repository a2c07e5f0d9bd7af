"""Real faults of real stores: what breaks them while an operator uses them, and what mends them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unit.store.postgres_server import PostgresServer

DISK_BYTES = 1 << 20
LOCKER = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@dataclass
class Fault:
    """A store, how to break it, and how to mend it. ``words`` are in the problem that is reported."""

    url: str
    words: str
    break_it: Callable[[], None]
    mend_it: Callable[[], None]
    clean_up: list[Callable[[], object]] = field(default_factory=list)


@contextmanager
def mount_disk(folder: Path, size_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """A file system of that size."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"NO SMALL DISK (needs root and the right to mount): {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def fill_disk(folder: Path) -> None:
    """To the last byte."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while filler.write(b"\0" * size):
                    pass
            except OSError:
                continue


def remount(folder: Path, mode: str) -> None:
    """``ro`` or ``rw``; files must be closed."""
    subprocess.run(["mount", "-o", f"remount,{mode}", folder], check=True)


@contextmanager
def sqlite_full(folder: Path) -> Iterator[Fault]:
    """The volume is full, until somebody enlarges it."""
    with mount_disk(folder / "disk") as disk:
        yield Fault(f"sqlite:///{disk}/store.db", "enlarge the volume", lambda: fill_disk(disk), (disk / "filler").unlink)


@contextmanager
def sqlite_locked(folder: Path) -> Iterator[Fault]:
    """Another process began to write and does not end."""
    lockers: list[subprocess.Popen[bytes]] = []

    def lock() -> None:
        lockers.append(subprocess.Popen([sys.executable, "-c", LOCKER, folder / "store.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert lockers[-1].stdout is not None
        assert lockers[-1].stdout.readline() == b"locked\n"

    def unlock() -> None:
        lockers.pop().communicate(b"\n")

    try:
        yield Fault(f"sqlite:///{folder}/store.db?timeout=0.2", "another process holds the file", lock, unlock)
    finally:
        for locker in lockers:
            locker.kill()


@contextmanager
def sqlite_moved_away(folder: Path) -> Iterator[Fault]:
    """The folder is gone with the file, as a volume that is unmounted; then there is an empty one."""
    home = folder / "volume"
    home.mkdir()
    yield Fault(f"sqlite:///{home}/store.db", "mount the volume", lambda: shutil.move(home, folder / "elsewhere"), home.mkdir)


@contextmanager
def server_restarts(server: PostgresServer) -> Iterator[Fault]:
    """Every connection is cut off, and nobody answers for a while."""
    yield Fault(server.url(server.make_database()), "start the database server", server.stop, server.start)


@contextmanager
def server_freezes(server: PostgresServer) -> Iterator[Fault]:
    """It accepts connections and says nothing."""
    yield Fault(server.url(server.make_database(), query="connect_timeout=2"), "", server.freeze, server.thaw)


@contextmanager
def server_full(server: PostgresServer) -> Iterator[Fault]:
    """The server's volume is full."""
    with mount_disk(server.directory / "disk", 24 << 20) as disk:
        home = disk / "space"
        home.mkdir()
        shutil.chown(home, server.account or os.geteuid())
        server.execute(f"CREATE TABLESPACE small LOCATION '{home}'")
        server.execute("CREATE DATABASE small TABLESPACE small")
        try:
            yield Fault(server.url("small"), "No space left on device", lambda: fill_disk(disk), (disk / "filler").unlink)
        finally:
            server.execute("DROP DATABASE IF EXISTS small WITH (FORCE)")
            server.execute("DROP TABLESPACE small")


@dataclass(frozen=True, slots=True)
class Login:
    """A role without any privilege but its own database."""

    server: PostgresServer
    name: str

    @property
    def url(self) -> str:
        """Its database."""
        return self.server.url(self.name, query="sslmode=require").replace("://metainfer:", f"://{self.name}:")

    def change(self, *statements: str) -> None:
        """As the administrator; connections that exist end."""
        for statement in statements:
            self.server.execute(statement)
        self.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.name}'")  # noqa: S608  our own name


def make_login(server: PostgresServer) -> Login:
    """A new one."""
    name = server.make_database()
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD 's3cret'")
    server.execute(f"ALTER DATABASE {name} OWNER TO {name}")
    return Login(server, name)


@contextmanager
def password_changed(server: PostgresServer) -> Iterator[Fault]:
    """The Secret has the old one."""
    login = make_login(server)
    old, new = (f"ALTER ROLE {login.name} PASSWORD '{password}'" for password in ("s3cret", "another"))
    yield Fault(login.url, "correct user and password", lambda: login.change(new), lambda: login.change(old))


@contextmanager
def no_more_connections(server: PostgresServer) -> Iterator[Fault]:
    """Others took them all."""
    login = make_login(server)
    few, many = (f"ALTER ROLE {login.name} CONNECTION LIMIT {limit}" for limit in (0, -1))
    yield Fault(login.url, "too many connections", lambda: login.change(few), lambda: login.change(many))


@contextmanager
def server_read_only(server: PostgresServer) -> Iterator[Fault]:
    """A failover to a standby, as a client sees it."""
    login = make_login(server)
    on, off = (f"ALTER DATABASE {login.name} SET default_transaction_read_only = {state}" for state in ("on", "off"))
    yield Fault(login.url, "read-only transaction", lambda: login.change(on), lambda: login.change(off))


@contextmanager
def tls_refused(server: PostgresServer) -> Iterator[Fault]:
    """The server stopped to offer TLS, which the URL demands."""
    login = make_login(server)
    off, on = (("ALTER SYSTEM SET ssl = " + state, "SELECT pg_reload_conf()", "SELECT pg_sleep(0.5)") for state in ("off", "on"))
    yield Fault(login.url, "sslmode", lambda: login.change(*off), lambda: login.change(*on))


SQLITE_FAULTS = {"disk full": sqlite_full, "locked by another process": sqlite_locked, "volume gone": sqlite_moved_away}
SERVER_FAULTS = {
    "server restarted": server_restarts,
    "server frozen": server_freezes,
    "server's disk full": server_full,
    "password changed": password_changed,
    "no connection left": no_more_connections,
    "server read-only": server_read_only,
    "TLS refused": tls_refused,
}
