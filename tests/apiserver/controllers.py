"""Some of Kubernetes' own controllers beside a test's API server: what deletes namespaces, collects garbage and keeps ReplicaSets."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.apiserver.api_server import find_binary

PATIENCE_SECONDS = 120.0
"""A guard against hanging, no bound that is tested."""


@contextmanager
def run_controllers(kubeconfig: Path, names: Sequence[str], log: Path) -> Iterator[None]:
    """A kube-controller-manager with these controllers only, as the administrator."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        find_binary("kube-controller-manager"), f"--kubeconfig={kubeconfig}", f"--controllers={','.join(names)}", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={log.parent}", "--use-service-account-credentials=false",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)
