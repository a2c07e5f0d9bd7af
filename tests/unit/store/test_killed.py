from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from tests.unit.store.make_results import ADAPTATION, RUN

from metainfer.store.samples import open_store

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import asyncio, sys
from tests.unit.store.make_results import ADAPTATION, at, make_run
from metainfer.store.samples import open_store

async def main():
    store = open_store(sys.argv[1])
    for number in range(100_000):
        await store.record_run(ADAPTATION, make_run(f"job-{number}", finished_at=at(number)))
        print(number, flush=True)

asyncio.run(main())
"""


async def read_jobs(url: str) -> set[str]:
    store = open_store(url)
    try:
        return {item.job for item in await store.find_runs(ADAPTATION, RUN)}
    finally:
        await store.close()


def test_a_writer_killed_between_writes_leaves_a_readable_store(url: str) -> None:
    """SIGKILL at any line: whatever was said to be recorded is there, and the next operator goes on writing."""
    for round_number in range(2):
        command = [sys.executable, "-c", WRITER, url]
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/operator:{ROOT}/probes"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            recorded = [int(writer.stdout.readline()) for _ in range(20 + 10 * round_number)]
            writer.send_signal(signal.SIGKILL)
        assert asyncio.run(read_jobs(url)) >= {f"job-{number}" for number in recorded}
