"""The operator as a process whose store is away: it works, says so, and says so no longer."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.apiserver.make_cluster import create_node, ensure_kinds, make_pool
from tests.apiserver.merge_patch import patch_merge
from tests.apiserver.test_watch_process import run_process
from tests.unit.store.postgres_fixture import one_server, postgres
from tests.unit.store.postgres_server import PostgresServer

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import POOL

__all__ = ["one_server", "postgres"]

pytestmark = pytest.mark.apiserver


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database of the test's own, which does not answer yet."""
    found = postgres.url(postgres.make_database())
    postgres.stop()
    return found


async def read_outage(kube: KubeClient, pool: str) -> dict[str, str] | None:
    """The condition, if it is there; None also before the first pass."""
    conditions = (await kube.get(POOL, pool)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "StoreDegraded"), None)


async def test_it_works_without_its_store_and_says_so_while_it_lasts(
    kube: KubeClient, namespace: str, kubeconfig: Path, url: str, postgres: PostgresServer
) -> None:
    """Ready all the time; the condition comes with the outage and goes with it; an orderly end is possible meanwhile."""
    await ensure_kinds(kube)
    await create_node(kube, f"worker-{namespace}")
    await kube.create(POOL, make_pool(f"pool-{namespace}"))
    async with run_process(kubeconfig, url) as running:
        await running.until("/readyz", 200)
        while (found := await read_outage(kube, f"pool-{namespace}")) is None:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        assert (found["status"], found["reason"]) == ("True", "StoreUnreachable")
        assert "start the database server" in found["message"]
        assert "s3cret" not in found["message"]
        await running.until("/metrics", 200, "metainfer_store_up 0.0")
        assert (await running.read("/readyz"))[0] == 200
        running.process.send_signal(signal.SIGTERM)
        assert await running.end() == 0
    async with run_process(kubeconfig, url) as running:
        await running.until("/readyz", 200)
        await asyncio.to_thread(postgres.start)
        await running.until("/metrics", 200, "metainfer_store_up 1.0")
        await patch_merge(kube, POOL, f"pool-{namespace}", None, {"metadata": {"labels": {"looked": "at"}}})
        while await read_outage(kube, f"pool-{namespace}") is not None:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        assert not any("s3cret" in str(line) for line in running.lines)
