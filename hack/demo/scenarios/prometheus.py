"""A real Prometheus (the distribution's package) on this machine, that scrapes pods of the local cluster and evaluates the chart's alert rules.

The package is built without Kubernetes service discovery, so the targets are written into a file that it watches.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from lab import ROOT, LabError

RULES = ROOT / "charts" / "meta-infer" / "files" / "rules.yaml"
SCRAPE_SECONDS = 2
START_SECONDS = 60.0
"""Until it answers; a second on a quiet machine."""
INSTALL = "apt-get install --no-install-recommends prometheus"
SERVICE = Path("/etc/systemd/system/prometheus.service")
Labels = Mapping[str, str]


def is_installed() -> bool:
    """Whether both programs are there."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def install() -> None:
    """Debian and Ubuntu, as root. The package's service is masked before, so that it never starts."""
    if SERVICE.parent.is_dir() and not SERVICE.exists() and not SERVICE.is_symlink():
        SERVICE.symlink_to("/dev/null")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus"], check=True, env=environment, stdout=subprocess.DEVNULL)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str
    folder: Path

    def scrape(self, targets: Sequence[tuple[str, Labels]]) -> None:
        """From now on these: address with port, and the labels of its series."""
        document = [{"targets": [address], "labels": dict(labels)} for address, labels in targets]
        partial = self.folder / "targets.partial"
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.rename(self.folder / "targets.json")

    def value(self, expression: str) -> float | None:
        """The one value of an expression now; None = there is none, or it is not a number."""
        found = self.ask(expression)
        value = float(found[0][1]) if len(found) == 1 else float("nan")
        return value if value == value else None  # noqa: PLR0124 - NaN is what is looked for

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {labels["alertname"] for labels, _ in self.ask('ALERTS{alertstate="firing"}')}

    def ask(self, expression: str) -> list[tuple[Labels, str]]:
        """Labels and value of every series that an expression gives now."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - http, this machine
                result = json.load(response)["data"]["result"]
        except (OSError, KeyError, ValueError) as error:
            raise LabError(f"Prometheus does not answer {expression!r}: {error}") from error
        return [(item["metric"], item["value"][1]) for item in result]


@contextmanager
def run_prometheus(host: str) -> Iterator[Prometheus]:
    """Listening on an address of this machine that pods reach; its directory goes with it. Raises LabError where it cannot start."""
    if not is_installed():
        if os.geteuid() != 0:
            raise LabError(f"Prometheus is not installed; as root: {INSTALL}")
        install()
    with tempfile.TemporaryDirectory(prefix="metainfer-prometheus-") as name, socket.socket() as probe:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_config()), encoding="utf-8")
        (folder / "targets.json").write_text("[]", encoding="utf-8")
        probe.bind((host, 0))
        address = f"{host}:{probe.getsockname()[1]}"
        probe.close()
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}", "--log.level=warn"]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process:
            try:
                _wait_until_ready(f"http://{address}", process, folder / "log")
                yield Prometheus(f"http://{address}", folder)
            finally:
                process.terminate()


def _config() -> Mapping[str, object]:
    scrape = {"job_name": "pods", "file_sd_configs": [{"files": ["targets.json"]}]}
    clocks = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "5s"}
    return {"global": clocks, "rule_files": [str(RULES)], "scrape_configs": [scrape]}


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 - http, this machine
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"Prometheus did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
