"""The operator as its Deployment runs it: one process, started again whenever it ends, killed and frozen from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

RESTART_SECONDS = 0.3
"""Before a process that ended by itself is started again; a kubelet takes longer."""


@dataclass
class OperatorProcess:
    """The present process and what became of the earlier ones."""

    kubeconfig: Path
    directory: Path
    settings: Mapping[str, str]
    on_start: Callable[[], None] = lambda: None
    """Called after each start."""
    ends: list[int] = field(default_factory=list)
    """Exit statuses so far; a killed process has -9."""
    process: Process | None = None
    ending: bool = False
    _killed: Process | None = None

    @property
    def kills(self) -> int:
        """SIGKILLs that found a process."""
        return self.ends.count(-signal.SIGKILL)

    @property
    def store(self) -> Path:
        """The sample store's file, which outlives every process."""
        return self.directory / "store.db"

    async def start(self) -> None:
        """Start a process; its log goes on in the same file."""
        given = {"PROBE_IMAGE": "probe:1", "STORE_URL": f"sqlite:///{self.store}", **self.settings}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("METAINFER_")}
        environ |= {"KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)} | {f"METAINFER_{name}": value for name, value in given.items()}
        with (self.directory / "operator.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", "metainfer.cli", "run", stdout=log, stderr=log, env=environ)
        self.on_start()

    async def keep_running(self) -> None:
        """Start it again each time it ends, until ``ending``."""
        while self.process is not None:
            self.ends.append(await self.process.wait())
            if self.ending:
                return
            await asyncio.sleep(RESTART_SECONDS)
            await self.start()

    def kill(self) -> bool:
        """SIGKILL, at this very moment; False = there is no process, or it is dying of an earlier one."""
        if self.process is None or self.process is self._killed:
            return False
        self._killed = self.process
        return self._signal(signal.SIGKILL)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self._signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, self._signal, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> bool:
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.send_signal(number)
        return True

    async def stop(self) -> int:
        """Ask it to end in order; returns its exit status."""
        self.ending = True
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        return -1 if self.process is None else await self.process.wait()


def build_settings(namespace: str) -> dict[str, str]:
    """Fast clocks, by the operator's own settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "OPERATOR_NAMESPACE": namespace,
        "HEALTH_PORT": str(port),
        "PRIORITY_CLASS": "",
        "BENCH_ROUNDS": "3",
        "BENCH_WINDOW_SECONDS": "0.1",
        "PROFILE_BUDGET_SECONDS": "5",
        "RESYNC_SECONDS": "4",
        "REQUESTS_PER_SECOND": "500",
        "REQUEST_BURST": "500",
    }


@asynccontextmanager
async def run_operator(operator: OperatorProcess) -> AsyncIterator[OperatorProcess]:
    """Running until the end, then stopped in order."""
    await operator.start()
    keeper = asyncio.create_task(operator.keep_running())
    try:
        yield operator
    finally:
        await operator.stop()
        await keeper
