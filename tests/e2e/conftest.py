"""The whole operator on the local cluster: brought up once per session, with short measuring windows.

What is short here: windows of 0.4 s and 3 rounds instead of 1.5 s and 7, probes of 6 s instead of 30 s, two benchmarks before a new
predictor is trained instead of 20. Decisions made with them are noisier; the tests check that the loop works, not that it picks the best card.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bring_up import ensure_cluster, ensure_models, install_chart, models_volume
from lab import Lab, LabError, condition, wait_until
from scenarios.prometheus import Prometheus, run_prometheus
from scenarios.stage import make_pool

SHORT = {"benchWindowSeconds": 0.4, "benchRounds": 3, "profileBudgetSeconds": 45, "learnAfterSamples": 2}


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The local cluster with images on its nodes; skips loudly where that cannot be."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("the local cluster needs Linux and root (network namespaces, cgroups, containerd)")
    ensure_cluster(print)
    lab = Lab.connect()
    if "KUBECONFIG" not in os.environ:
        # The local cluster has five cards: what a demo or an interrupted session left on them would be waited for.
        left = [item["metadata"]["name"] for item in lab.list("namespaces")]
        for name in (name for name in left if name == "demo" or name.startswith("e2e-")):
            lab.kubectl("delete", "namespace", name, "--wait=true", "--timeout=120s", timeout_seconds=130)
    return lab


@pytest.fixture(scope="session")
def models(lab: Lab) -> Path:
    """Folder with the demo's models, as the nodes see it."""
    return ensure_models(lab, print)


@pytest.fixture(scope="session")
def prometheus(lab: Lab) -> Iterator[Prometheus]:
    """A real one on this machine; it scrapes what a test tells it to."""
    with run_prometheus(lab.host) as running:
        yield running


@pytest.fixture(scope="session")
def pool(lab: Lab, prometheus: Prometheus) -> str:
    """The operator installed from the chart, and a pool whose nodes are all measured."""
    install_chart(lab, print, SHORT, prometheus={"url": prometheus.url})
    lab.apply_objects(make_pool())

    def measured() -> bool | None:
        return True if condition(lab.find("acceleratorpool", "demo"), "ProbesCompleted")["status"] == "True" else None

    wait_until("every node of the pool measured", measured, timeout_seconds=600, every_seconds=2)
    return "demo"


@pytest.fixture
def namespace(lab: Lab, pool: str, models: Path) -> Iterator[str]:
    """A namespace of its own with the claim of the models, gone (with its pods) when the test ends."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "metainfer.dev/e2e": "true"}
    volume, claim = models_volume(models, name)
    lab.apply_objects({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}, volume)
    lab.apply_objects(claim, namespace=name)
    yield name
    lab.kubectl("delete", "namespace", name, "--wait=true", "--timeout=120s", timeout_seconds=130)
    lab.kubectl("delete", "persistentvolume", f"models-{name}", "--ignore-not-found")


@pytest.fixture
def settled(lab: Lab, namespace: str) -> Callable[..., dict[str, object]]:
    """Wait until an adaptation has a condition with one of the wanted statuses; returns the object."""

    def wait(name: str, kind: str = "Ready", status: str = "True", *, timeout_seconds: float = 420) -> dict[str, object]:
        seen: list[str] = []

        def ask() -> dict[str, object] | None:
            item = lab.find("modeladaptation", name, namespace)
            state = condition(item, kind)
            words = f"{state['status']} {state['reason']}: {state['message']}"
            if not seen or seen[-1] != words:
                seen.append(words)
            return item if state["status"] == status else None

        try:
            return wait_until(f"{kind}={status} of {name}", ask, timeout_seconds=timeout_seconds)
        except LabError as error:
            logs = lab.kubectl("-n", "meta-infer-system", "logs", "deployment/meta-infer", "--tail=40", check=False)
            pytest.fail(f"{error}; seen: {seen[-8:]}\n{logs[-6000:]}")

    return wait
