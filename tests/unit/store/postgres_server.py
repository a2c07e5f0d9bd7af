"""A real PostgreSQL server for tests: initialised, started, stopped, killed and frozen by them, on a free port of the loopback address.

Runs as an unprivileged user, because PostgreSQL refuses root. Not durable (fsync off): what it survives is the death of its processes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

USER, PASSWORD = "metainfer", "s3cret"
START_SECONDS = 60.0
"""Until it answers; a second on a quiet machine."""
ACCOUNTS = ("postgres", "nobody")
INSTALL = "apt-get install postgresql"


def find_binaries() -> Path | None:
    """The folder with initdb and postgres, of the newest version installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    anywhere = shutil.which("initdb")
    return Path(anywhere).resolve().parent if anywhere else None


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Key and certificate of 127.0.0.1, signed by itself."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


def install() -> None:
    """Debian and Ubuntu, as root."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"], check=True, env=environment, stdout=subprocess.DEVNULL)


@dataclass
class PostgresServer:
    """One server with its own data directory."""

    binaries: Path
    directory: Path
    port: int
    account: str | None
    process: subprocess.Popen[bytes] | None = None
    databases: int = field(default=0)

    def initialise(self) -> None:
        """Make the data directory, with a password for the one user and a certificate of its own making."""
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        self._own(password_file)
        self._run("initdb", "-D", str(self.data), "-U", USER, "--auth=scram-sha-256", f"--pwfile={password_file}", "-E", "UTF8", "--locale=C", "--no-sync")
        key, certificate = make_certificate(self.directory, "server")
        key.chmod(0o600)
        self._own(key)
        self._own(certificate)
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses='127.0.0.1'\nport={self.port}\nunix_socket_directories=''\nfsync=off\nmax_connections=60\n")
            settings.write(f"ssl=on\nssl_cert_file='{certificate}'\nssl_key_file='{key}'\n")
        rules = ["hostnossl needs_tls all 127.0.0.1/32 reject", "host all all 127.0.0.1/32 scram-sha-256"]
        (self.data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    @property
    def certificate(self) -> Path:
        """What clients that check the server's name must trust."""
        return self.directory / "server.crt"

    def url(self, database: str, *, password: str = PASSWORD, query: str = "") -> str:
        """As an operator is given it."""
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}{'?' + query if query else ''}"

    def make_database(self, name: str = "") -> str:
        """An empty database of a test's own; returns its name."""
        self.databases += 1
        name = name or f"test_{self.databases}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def execute(self, statement: str, database: str = "postgres") -> None:
        """One statement outside of transactions."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def start(self) -> None:
        """Start, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen([self.binaries / "postgres", "-D", self.data], stdout=log, stderr=log, start_new_session=True, **self._identity())
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {(self.directory / 'log').read_text()[-2000:]}") from error
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Like a restart in the middle of everything: every connection is cut off at once."""
        if self.process is not None:
            self.thaw()
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Its processes stop; the kernel still accepts connections and answers keepalives."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """They go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (str(self.process.pid), *children):
            try:
                os.kill(int(pid), number)
            except ProcessLookupError:
                continue

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([self.binaries / program, *arguments], check=False, capture_output=True, text=True, cwd=self.directory, **self._identity())
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")

    def _identity(self) -> dict[str, object]:
        return {"user": self.account, "group": pwd.getpwnam(self.account).pw_gid, "extra_groups": []} if self.account else {}

    def _own(self, path: Path) -> None:
        if self.account:
            shutil.chown(path, self.account)


@contextmanager
def run_postgres(binaries: Path) -> Iterator[PostgresServer]:
    """A running server; its directory goes with it."""
    account = next(name for name in ACCOUNTS if _exists(name)) if os.geteuid() == 0 else None
    # Not below pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory(prefix="metainfer-postgres-") as directory:
        server = PostgresServer(binaries, Path(directory), _free_port(), account)
        server._own(Path(directory))
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
