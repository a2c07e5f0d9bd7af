"""A real Prometheus for tests: filled with history by promtool, started on a free port of the loopback address, with a directory of its own."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenarios.prometheus import START_SECONDS


@contextmanager
def run_prometheus(history: str) -> Iterator[str]:
    """The address of a running server that remembers ``history`` (OpenMetrics with timestamps); its directory goes with it."""
    with tempfile.TemporaryDirectory(prefix="metainfer-prometheus-") as folder, socket.socket() as probe:
        directory = Path(folder)
        (directory / "history.om").write_text(history)
        (directory / "prometheus.yml").write_text("global: {scrape_interval: 15s}\n")
        filled = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", "history.om", "data"], check=False, cwd=directory, capture_output=True, text=True
        )
        assert filled.returncode == 0, filled.stderr[-2000:]
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}", "--log.level=warn"]
        with (directory / "log").open("wb") as log, subprocess.Popen(command, cwd=directory, stdout=log, stderr=log) as process:
            try:
                _wait(f"http://{address}", process, directory / "log")
                yield f"http://{address}"
            finally:
                process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 # http, on loopback
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
