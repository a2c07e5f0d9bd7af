"""The operator as a process: it says when it is ready, ends in order, and never lives on without eyes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.apiserver.fault_proxy import FaultProxy, run_fault_proxy
from tests.apiserver.make_cluster import create_node, ensure_kinds, make_adaptation, make_pool
from tests.apiserver.merge_patch import patch_merge

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import ADAPTATION, CUSTOM_RESOURCE_DEFINITION, POOL

pytestmark = pytest.mark.apiserver

PATIENCE_SECONDS = 300.0
"""A guard against hanging, no bound that is tested."""


@dataclass
class Running:
    """One operator process."""

    process: Process
    port: int
    lines: list[dict[str, Any]] = field(default_factory=list)

    async def read(self, path: str) -> tuple[int, str]:
        """Status and text of a health path; (0, "") while nothing listens."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def until(self, path: str, want_status: int, want_text: str = "") -> str:
        """Wait for an answer of a health path; fails at once when the process ended."""
        while True:
            assert self.process.returncode is None, self.lines
            status, text = await self.read(path)
            if status == want_status and want_text in text:
                return text
            await asyncio.sleep(0.1)

    async def end(self) -> int:
        """Wait for its exit status."""
        return await self.process.wait()


@asynccontextmanager
async def run_process(kubeconfig: Path, store: Path | str) -> AsyncIterator[Running]:
    """``metainfer run`` with its store in a file or behind a URL; killed at the end if it still runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = store if isinstance(store, str) else f"sqlite:///{store}"
    settings = {"PROBE_IMAGE": "probe:1", "STORE_URL": url, "HEALTH_PORT": str(port), "OPERATOR_NAMESPACE": "default"}
    environ = (
        os.environ | {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)} | {f"METAINFER_{name}": value for name, value in settings.items()}
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "metainfer.cli", "run", stdout=PIPE, env=environ)
    running = Running(process, port)
    reader = asyncio.create_task(_read_log(process, running.lines))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def _read_log(process: Process, lines: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        print(line.decode(), end="")  # what pytest shows when the test fails
        lines += [json.loads(line)]


@pytest.fixture(autouse=True)
async def kinds(kube: KubeClient) -> None:
    """Our CRDs."""
    await ensure_kinds(kube)


@pytest.fixture
async def proxy(kubeconfig: Path) -> AsyncIterator[FaultProxy]:
    """A proxy of the test's own."""
    async with run_fault_proxy(kubeconfig) as proxy:
        yield proxy


async def test_it_works_on_a_pool_and_ends_in_order(kube: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """Ready after the first lists; a pool gets its status; SIGTERM ends with 0 after an orderly stop; every line of the log is JSON."""
    await create_node(kube, f"worker-{namespace}")
    async with run_process(kubeconfig, tmp_path / "store.db") as running:
        assert await running.until("/readyz", 200) == "ok\n"
        await kube.create(POOL, make_pool(f"pool-{namespace}"))
        while (await kube.get(POOL, f"pool-{namespace}"))["status"].get("observedGeneration") != 1:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        assert (await running.read("/healthz"))[0] == 200
        figures = (await running.read("/metrics"))[1]
        assert 'metainfer_reconcile_seconds_count{kind="pool",result="done"}' in figures
        assert 'metainfer_cached_objects{kind="AcceleratorPool"}' in figures
        running.process.send_signal(signal.SIGTERM)
        assert await running.end() == 0
    assert "stopped" in [line["message"] for line in running.lines]


async def test_it_goes_on_where_a_killed_one_stopped(kube: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """SIGKILL at any time; the next process finds everything on the API server and in the store."""
    async with run_process(kubeconfig, tmp_path / "store.db") as running:
        await running.until("/readyz", 200)
        await kube.create(POOL, make_pool(f"pool-{namespace}"))
        running.process.kill()
        assert await running.end() == -signal.SIGKILL
    async with run_process(kubeconfig, tmp_path / "store.db") as running:
        while (await kube.get(POOL, f"pool-{namespace}"))["status"].get("observedGeneration") != 1:
            assert running.process.returncode is None
            await asyncio.sleep(0.1)


async def test_it_says_which_kind_is_missing_until_it_is_there(kube: KubeClient, namespace: str, proxy: FaultProxy, tmp_path: Path) -> None:
    """Without a CRD it is alive, not ready, and says what to install; it goes on by itself once the CRD is there."""
    proxy.hide = frozenset({"modeladaptations"})
    async with run_process(proxy.write_kubeconfig(tmp_path / "proxied"), tmp_path / "store.db") as running:
        text = await running.until("/readyz", 503, "install the CRDs")
        assert "ModelAdaptation: ModelAdaptation is not known to the API server: install the CRDs of this version" in text
        assert (await running.read("/healthz"))[0] == 200
        proxy.hide = frozenset()
        definition = {"metadata": {"annotations": {"installed": "now"}}}
        await patch_merge(kube, CUSTOM_RESOURCE_DEFINITION, "modeladaptations.metainfer.dev", None, definition)
        await running.until("/readyz", 200)
        await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
        while not (await kube.get(ADAPTATION, "ocr", namespace))["status"].get("conditions"):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)


async def test_it_exits_when_a_watch_dies(proxy: FaultProxy, tmp_path: Path) -> None:
    """An ERROR event that kopf cannot handle ends kopf; to live on would be to look healthy and see nothing."""
    async with run_process(proxy.write_kubeconfig(tmp_path / "proxied"), tmp_path / "store.db") as running:
        await running.until("/readyz", 200)
        proxy.inject = {"nodes": {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcdserver: no leader"}}
        proxy.cut_watches()
        assert await running.end() == 1
    messages = [line["message"] for line in running.lines]
    assert any("Watcher for nodes" in message and "has failed" in message for message in messages)
    assert "stopped" in messages


async def test_it_exits_even_when_kopf_does_not_end(proxy: FaultProxy, tmp_path: Path) -> None:
    """A watch that was connecting when another one died waits for a login that nobody gives any more; the deadline ends that."""
    proxy.stall = frozenset({"nodeportraits"})
    async with run_process(proxy.write_kubeconfig(tmp_path / "proxied"), tmp_path / "store.db") as running:
        await running.until("/readyz", 200)
        while not any(entry.label == "watch nodeportraits" and entry.status == 0 for entry in proxy.journal):  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(0.05)
        proxy.inject = {"nodes": {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcdserver: no leader"}}
        proxy.cut_watches()
        assert await running.end() == 1
    assert "did not end in time, exiting at once" in [line["message"] for line in running.lines]


async def test_wrong_settings_are_named_on_one_line(tmp_path: Path) -> None:
    """Exit status 2, and each variable with what is wrong; no trace."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("METAINFER_")}
    environ |= {"METAINFER_WORKERS": "none", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "metainfer.cli", "run", stderr=PIPE, env=environ)
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().startswith("metainfer: METAINFER_PROBE_IMAGE must be set; METAINFER_WORKERS is wrong: input should be a valid integer")
