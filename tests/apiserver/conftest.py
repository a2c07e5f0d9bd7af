"""One API server for all tests of a session, and a namespace for each test; skipped, with the reason, where it cannot start."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.apiserver.api_server import find_binary
from tests.apiserver.make_placed import Kubectl

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import NAMESPACE

HACK = Path(__file__).resolve().parents[2] / "hack" / "cluster"
SAID_LIMIT = 2000


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The administrator's kubeconfig of a fresh etcd + kube-apiserver."""
    directory = tmp_path_factory.mktemp("api-server")
    up = subprocess.run([HACK / "up", "--api-only", "--dir", directory], capture_output=True, text=True, check=False)
    if up.returncode != 0:
        pytest.skip(f"no API server: {(up.stderr or up.stdout).strip()[-SAID_LIMIT:]}")
    try:
        yield Path(up.stdout.split()[-1])
    finally:
        subprocess.run([HACK / "down", "--api-only", "--dir", directory], capture_output=True, check=False)


@pytest.fixture(autouse=True)
def _environment(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG for these tests only: elsewhere it would send other tests to this server."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))


@pytest.fixture(scope="module")
def kubectl(kubeconfig: Path) -> Iterator[Kubectl]:
    """As people use it."""
    with closing(Kubectl(kubeconfig, find_binary("kubectl"))) as kubectl:
        yield kubectl


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """A client with all rights, in a hurry."""
    client = KubeClient.connect(requests_per_second=2000.0, burst=2000)
    yield client
    await client.close()


@pytest.fixture
async def namespace(kube: KubeClient) -> str:
    """A namespace of the test's own. Nothing empties it (no controllers run here): the server goes after the session."""
    name = f"test-{secrets.token_hex(4)}"
    await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
