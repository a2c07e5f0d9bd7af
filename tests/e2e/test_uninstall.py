"""Uninstalling the chart with ``uninstall.restore``: its hook in a real pod, with the rights, limits and network that the chart gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from bring_up import CHART, install_chart
from lab import RELEASE, SYSTEM_NAMESPACE, Lab
from tests.apiserver.make_placed import declared, place
from tests.e2e.conftest import SHORT
from tests.e2e.objects import make_adaptation, make_target

from metainfer.act.release import owns_fields
from metainfer.kube.client import KubeClient
from metainfer.kube.credentials import Credentials, read_credentials
from metainfer.kube.kinds import DEPLOYMENT
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Transport

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]
NAME = "leaving"
HOOK = f"{RELEASE}-restore"
KEPT_STORE = r"store.persistence.annotations.helm\.sh/resource-policy=keep"
"""The samples of the other tests, as docs/operations.md says."""


@pytest.fixture
async def administrator(lab: Lab) -> AsyncIterator[KubeClient]:
    """Writes what the operator would, with its code."""

    async def login() -> Credentials:
        return await read_credentials({"KUBECONFIG": str(lab.kubeconfig)})

    client = KubeClient(Transport(TokenBucket(100.0, 100), login=login))
    yield client
    await client.close()


@pytest.fixture
def _release_comes_back(lab: Lab, pool: str) -> Iterator[None]:
    """For the tests that follow; CRDs, pool and store were kept."""
    yield
    install_chart(lab, print, SHORT)


@pytest.mark.usefixtures("_release_comes_back")
async def test_uninstall_gives_every_deployment_back_first(lab: Lab, namespace: str, administrator: KubeClient) -> None:
    """Only the hook can have done it: to the running operator, a suspended adaptation is no reason to take anything back."""
    lab.apply_objects(make_target(NAME), make_adaptation(NAME, suspend=True), namespace=namespace)
    lab.kubectl("-n", namespace, "rollout", "status", f"deployment/{NAME}", "--timeout=120s", timeout_seconds=130)
    before = await administrator.get(DEPLOYMENT, NAME, namespace)
    adaptation = lab.find("modeladaptation", NAME, namespace)
    assert adaptation is not None
    written = await place(administrator, namespace, NAME, uid=adaptation["metadata"]["uid"])
    assert declared(written) != declared(before)
    scope = ("--namespace", SYSTEM_NAMESPACE)
    lab.helm("upgrade", RELEASE, str(CHART), *scope, "--reset-then-reuse-values", "--set", "uninstall.restore=true", "--set", KEPT_STORE)
    assert owns_fields(await administrator.get(DEPLOYMENT, NAME, namespace))
    lab.helm("uninstall", RELEASE, *scope, "--wait")
    after = await administrator.get(DEPLOYMENT, NAME, namespace)
    assert declared(after) == declared(before)
    assert not owns_fields(after)
    said = [event["reason"] for event in lab.list("events", SYSTEM_NAMESPACE) if event["involvedObject"]["name"] == HOOK]
    assert "Completed" in said
    assert lab.list("deployments", SYSTEM_NAMESPACE) == []
    assert [job for job in lab.list("jobs", SYSTEM_NAMESPACE) if job["metadata"]["name"] == HOOK] == []
