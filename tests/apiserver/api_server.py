"""A real API server (etcd + kube-apiserver of hack/cluster) for tests: started in a directory, ended with the test.

It knows how to be talked to and nothing about what is tested.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class ApiServer:
    """The API server as a client sees it: one connection, JSON in and out."""

    def __init__(self, kubeconfig: Path, kubectl: str) -> None:
        self.kubeconfig, self._kubectl = kubeconfig, kubectl
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        pair = kubeconfig.with_name("client.pem")
        pair.write_bytes(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.chmod(0o600)
        context.load_cert_chain(pair)
        host, port = re.fullmatch(r"https://([^:]+):(\d+)", cluster["server"]).groups()  # type: ignore[union-attr]  # we made it
        self._connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> tuple[int, Any]:
        """Status and decoded answer."""
        self._connection.request(method, path, json.dumps(body), {"Content-Type": content_type, "Accept": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """As users do it."""
        command = [self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self._connection.close()


def find_binary(name: str) -> str:
    """Path of one of the cluster's binaries; built first where that was not done yet."""
    return subprocess.run([ROOT / "hack/cluster/bin", name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def run_api_server(directory: Path) -> Iterator[ApiServer]:
    """An empty API server that keeps its state in ``directory``."""
    subprocess.run([ROOT / "hack/cluster/up", "--api-only", "--dir", directory], check=True, stdout=subprocess.DEVNULL)
    try:
        with closing(ApiServer(directory / "admin.kubeconfig", find_binary("kubectl"))) as server:
            yield server
    finally:
        subprocess.run([ROOT / "hack/cluster/down", "--api-only", "--dir", directory], check=True, stdout=subprocess.DEVNULL)
