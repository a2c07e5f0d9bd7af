"""One API server for all chaos tests of a session; skipped, with the reason, where it cannot start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.apiserver.api_server import run_api_server


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The administrator's kubeconfig of a fresh etcd + kube-apiserver."""
    try:
        server = run_api_server(tmp_path_factory.mktemp("api-server"))
        with server as running:
            yield running.kubeconfig
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no API server: {error}")


@pytest.fixture
def admin(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in $KUBECONFIG for one test."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return kubeconfig
