"""Passes on a real API server that read a real Prometheus: what is served comes into the status, and a slower service is noticed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from scenarios.prometheus import INSTALL, install, is_installed
from tests.apiserver.make_cluster import make, make_adaptation, make_deployment
from tests.apiserver.merge_patch import patch_merge
from tests.apiserver.test_gather import look
from tests.apiserver.test_job_failures import Writes, create_pool
from tests.unit.act.make_actions import LIMITS
from tests.unit.decide.make_facts import make_config
from tests.unit.observe.latency.prometheus_server import run_prometheus
from tests.unit.observe.latency.strangers import spread_latencies

from metainfer.act.execute import Actor
from metainfer.act.status import dump_status
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.deciding import config_status
from metainfer.decide.facts import Candidate
from metainfer.decide.inputs import decision_id
from metainfer.decide.latency.order import LatencyRules
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Invalid
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, POD
from metainfer.observe.gather import Gatherer
from metainfer.observe.latency_prometheus import PrometheusEndpoint
from metainfer.observe.projections import project_adaptation
from metainfer.observe.served import ServedReader
from metainfer.observe.served_sources import LatencySources
from metainfer.predict.physics import PhysicsPredictor
from metainfer.reconcile import Reconciler, Request
from metainfer.store.patient import PatientStore, open_patiently

pytestmark = pytest.mark.apiserver

STEP, STEPS, PER_STEP, WINDOW_SECONDS = 15, 260, 30, 300
EDGES = tuple(round(0.005 * 1.1**step, 6) for step in range(60))
SLOWER_FROM_STEP, SLOWER = 140, 2.0
POD_NAME = "ocr-6d5f-abcde"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PatientStore]:
    opened = open_patiently(f"sqlite:///{tmp_path}/samples.db")
    yield opened
    await opened.close()


@dataclass(frozen=True)
class History:
    """A Prometheus, and when its history begins and ends."""

    url: str
    end: int

    @property
    def begin(self) -> int:
        return self.end - STEPS * STEP


@pytest.fixture
def history(namespace: str) -> Iterator[History]:
    """A bit more than an hour of one pod: 20 ms in the middle until step 140, twice as much from then on, at the same rate."""
    if not is_installed():
        if os.geteuid() != 0:
            pytest.skip(f"NO PROMETHEUS: served latency is not tested against one; as root: {INSTALL}")
        install()
    end = int(time.time()) // 60 * 60
    with run_prometheus(write_history(namespace, end)) as url:
        yield History(url, end)


def write_history(namespace: str, end: int) -> str:
    """OpenMetrics with timestamps, series by series."""
    labels, lines = f'namespace="{namespace}",pod="{POD_NAME}",model="ocr"', []
    usual = spread_latencies(PER_STEP, 0.02, 0.35)
    steps = [[latency * (SLOWER if step >= SLOWER_FROM_STEP else 1.0) for latency in usual] for step in range(STEPS + 1)]

    def write(part: str, label: str, gained: list[float]) -> None:
        value = 1000.0
        for step, gain in enumerate(gained):
            value += gain
            lines.append(f"metainfer_request_duration_seconds_{part}{{{labels}{label}}} {value:.6f} {end - (STEPS - step) * STEP}")

    for edge in (*EDGES, math.inf):
        text = "+Inf" if math.isinf(edge) else f"{edge:g}"
        write("bucket", f',le="{text}"', [float(sum(latency <= edge for latency in step)) for step in steps])
    write("count", "", [float(len(step)) for step in steps])
    write("sum", "", [sum(step) for step in steps])
    return "\n".join((*lines, "# EOF\n"))


@dataclass
class Operator:
    """Passes of one operator whose clock the test turns, and the reader beside them."""

    kube: KubeClient
    store: PatientStore
    namespace: str
    sources: LatencySources
    now: datetime
    reader: ServedReader = field(init=False)
    woken: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Memory is lost."""
        self.reader = ServedReader(self.sources, LatencyRules(has_prometheus=True), self._wake, self._clock)

    def _clock(self) -> float:
        return self.now.timestamp()

    def _wake(self, namespace: str, name: str) -> None:
        assert (namespace, name) == (self.namespace, "ocr")
        self.woken += 1

    async def reconcile(self) -> float | None:
        """One pass, and one more when it was woken by what was read meanwhile."""
        self.woken = 0
        again = await self._pass()
        await self.reader.settle()
        return await self._pass() if self.woken else again

    async def _pass(self) -> float | None:
        cache, limits = await look(self.kube), replace(LIMITS, operator_namespace=self.namespace)
        gatherer = Gatherer(cache, self.kube, self.store, limits, clock=lambda: self.now, served=self.reader)
        actor = Actor(self.kube, self.store, limits, lambda _raw: None, clock=lambda: self.now)
        reconciler = Reconciler(gatherer, self.store, Writes(actor, cache), PhysicsPredictor())
        return (await reconciler.reconcile(Request("adaptation", self.namespace, "ocr"), self.now)).requeue_after_seconds

    async def turn(self, seconds: float) -> None:
        """Time passes, with a pass whenever one was asked for."""
        until = self.now + timedelta(seconds=seconds)
        while self.now < until:
            again = await self.reconcile()
            assert again is not None
            self.now += timedelta(seconds=min(max(again, 5.0), (until - self.now).total_seconds() + 0.001))

    async def status(self) -> ModelAdaptationStatus:
        """As it is stored."""
        return project_adaptation(await self.kube.get(ADAPTATION, "ocr", self.namespace)).status

    async def said(self, kind: str) -> str:
        """Status, reason and message of a condition."""
        (found,) = (item for item in (await self.status()).conditions if item.type == kind)
        return f"{found.status} {found.reason}: {found.message}"


async def serve(kube: KubeClient, namespace: str, decided: datetime, **drift: Any) -> None:
    """A Deployment with a pod on the pool's node, and an adaptation whose run has kept the present configuration."""
    pool = await create_pool(kube, namespace)
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace))
    running = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1}
    await patch_merge(kube, DEPLOYMENT, "ocr", namespace, {"status": running}, subresource="status")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "ocr-6d5f", "uid": "uid-rs", "controller": True}
    pod = make(POD, POD_NAME, namespace, metadata={"labels": {"app": "ocr"}, "ownerReferences": [owner]})
    pod["spec"] = {"nodeName": f"node-{namespace}", "containers": [{"name": "server", "image": "server:1"}]}
    await kube.create(POD, pod)
    ready = [{"type": "Ready", "status": "True"}]
    await patch_merge(kube, POD, POD_NAME, namespace, {"status": {"phase": "Running", "podIP": "10.0.0.9", "conditions": ready}}, subresource="status")
    adaptation = make_adaptation("ocr", namespace)
    adaptation["spec"] |= {"poolSelector": {"matchLabels": {"of": namespace}}, "drift": drift}
    created = await kube.create(ADAPTATION, adaptation)
    await kube.replace_status(ADAPTATION, "ocr", namespace, make_kept(pool, decided), created["metadata"]["resourceVersion"])


def make_kept(pool: str, decided: datetime) -> dict[str, object]:
    """The status after a run that kept what there was."""
    config = config_status(Candidate(pool, "ort-cpu", make_config()))
    figures = {"p50": "20ms", "p99": "45ms", "throughputPerSecond": 50}
    at = format_time(decided)
    line = {"config": config, "scorePermille": 1000, "measured": figures, "current": True, "verdict": "Selected"}
    chosen = {"decisionId": decision_id("run-1", Candidate(pool, "ort-cpu", make_config()).key), "config": config, "expected": figures, "decidedAt": at}
    run = {"id": "run-1", "inputsHash": "hash", "startedAt": at, "step": "Done"}
    return dump_status(ModelAdaptationStatus.model_validate({"observedGeneration": 1, "run": run, "baseline": line, "recommendation": chosen}))


@pytest.fixture
async def sources(history: History) -> AsyncIterator[LatencySources]:
    opened = LatencySources(PrometheusEndpoint(history.url), lambda: float(history.end))
    yield opened
    await opened.close()


async def test_a_service_that_becomes_slower_is_noticed_across_a_restart(
    kube: KubeClient, store: PatientStore, namespace: str, history: History, sources: LatencySources
) -> None:
    """The baseline comes from the first windows, stays while all is well, outlives the process, and every slower window is held against it."""
    begin = datetime.fromtimestamp(history.begin, UTC) + timedelta(seconds=30)
    await serve(kube, namespace, begin, window=f"{WINDOW_SECONDS}s", minRequests=500)
    operator = Operator(kube, store, namespace, sources, begin)
    await operator.turn(5 * WINDOW_SECONDS)
    served = (await operator.status()).served
    assert served is not None
    assert served.baseline is not None
    assert served.last is not None
    assert served.last.requests == WINDOW_SECONDS // STEP * PER_STEP
    assert (served.last.requests_per_minute, served.last.replicas_permille) == (120, pytest.approx(1000, abs=60))
    assert served.last.p99 == served.baseline.p99
    assert (await operator.said("LatencyObserved")).startswith("True Observed: window to ")
    assert (await operator.said("AnswerTrue")).startswith("True ")

    operator.restart()
    slower = datetime.fromtimestamp(history.begin + SLOWER_FROM_STEP * STEP, UTC)
    await operator.turn((slower - operator.now).total_seconds())
    assert (await operator.said("AnswerTrue")).startswith("True ")
    await operator.turn(4.2 * WINDOW_SECONDS)
    now = (await operator.status()).served
    assert now is not None
    assert now.baseline is not None
    assert now.baseline.p99 == served.baseline.p99
    assert now.p99_ratio_permille == pytest.approx(2000, rel=0.05)
    found = await operator.said("AnswerTrue")
    assert "P99Drift" in found
    assert not found.startswith("True ")


async def test_a_prometheus_that_is_away_is_said_and_nothing_else_suffers(kube: KubeClient, store: PatientStore, namespace: str) -> None:
    """The decision stands, and nothing is doubted."""
    begin = datetime.now(UTC) - timedelta(hours=1)
    await serve(kube, namespace, begin)
    sources = LatencySources(PrometheusEndpoint("http://127.0.0.1:9"), begin.timestamp)
    operator = Operator(kube, store, namespace, sources, begin)
    await operator.reconcile()
    operator.now += timedelta(minutes=45)
    await operator.reconcile()
    assert (await operator.said("LatencyObserved")).startswith("Unknown MetricsUnreachable: http://127.0.0.1:9/api/v1/query cannot be reached")
    assert (await operator.said("Ready")).startswith("True CurrentKept")
    assert (await operator.said("AnswerTrue")).startswith("True ")
    await sources.close()


async def test_the_api_server_refuses_sources_that_contradict_themselves(kube: KubeClient, namespace: str) -> None:
    """Each message says what to do."""
    await serve(kube, namespace, datetime.now(UTC))
    for source, words in (
        ({"scrape": {}, "prometheus": {}}, "prometheus or scrape, not both"),
        ({"preset": "vLLM", "histogram": {"name": "x"}}, "not both"),
        ({"preset": "vLLM", "prometheus": {"query": {"buckets": "x"}}}, "remove them"),
        ({"scrape": {"path": "/metrics?x=http://other"}}, "path"),
        ({"prometheus": {"url": "http://me:secret@prometheus"}}, "url"),
    ):
        with pytest.raises(Invalid) as caught:
            await patch_merge(kube, ADAPTATION, "ocr", namespace, {"spec": {"drift": {"source": source}}})
        assert words in caught.value.message
