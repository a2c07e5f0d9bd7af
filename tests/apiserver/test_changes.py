"""Targets, pools and objects that change, on a real API server: what it defaults, what it accepts, and what stands in its status then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from tests.apiserver.make_cluster import ROOT, connect_limited, create_node, ensure_kinds, make_adaptation, make_deployment, make_pool
from tests.apiserver.test_placement import FAST, METAINFER
from tests.unit.decide.make_facts import OPENVINO_PROVIDER, make_family
from tests.unit.decide.make_facts import make_pool as make_pool_facts
from tests.unit.decide.make_world import make_world

from metainfer.act.portraits import write_node_labels
from metainfer.act.status import write_adaptation_status
from metainfer.act.target import apply_target
from metainfer.act.unreadable import report_unreadable
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.facts import AdaptationFacts
from metainfer.decide.placement import PlacementRequest, build_placement
from metainfer.decide.plan import WriteNodeLabels
from metainfer.decide.rivals import find_rivals
from metainfer.decide.startup import rollout_seconds, start_up_seconds
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Invalid, NotFound
from metainfer.kube.kinds import ADAPTATION, CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, NODE, POOL, Kind
from metainfer.observe.projections import ProjectionError, project_adaptation, project_target
from metainfer.watch.cluster import ClusterCache

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
NOW = datetime(2026, 3, 1, tzinfo=UTC)
ATTEMPTS = 100


@pytest.fixture(autouse=True)
async def _kinds(kube: KubeClient) -> None:
    await ensure_kinds(kube)


def make_slow(namespace: str) -> Raw:
    """A model that loads for half an hour, no surge, no history, paused by somebody."""
    server = {
        "name": "server",
        "image": "llm-server:9",
        "startupProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, "failureThreshold": 180},
        "resources": {"limits": {"example.com/card": "1"}},
    }
    raw = make_deployment("slow", namespace)
    raw["spec"] |= {"paused": True, "revisionHistoryLimit": 0, "progressDeadlineSeconds": 3600, "minReadySeconds": 120, "strategy": {"type": "Recreate"}}
    raw["spec"]["template"]["spec"] = {"terminationGracePeriodSeconds": 600, "containers": [server]}
    return raw


async def test_the_time_to_start_is_read_from_what_the_api_server_makes_of_it(kube: KubeClient, namespace: str) -> None:
    """Its defaults are in the object: thresholds and delays that nobody wrote count as well."""
    slow = project_target(await kube.create(DEPLOYMENT, make_slow(namespace)))
    assert (slow.paused, slow.strategy, start_up_seconds(slow), rollout_seconds(slow)) == (True, "Recreate", 10 * 180 + 120, 10 * 180 + 120 + 600)
    raw = make_deployment("plain", namespace)
    raw["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 80}, "initialDelaySeconds": 5}
    plain = project_target(await kube.create(DEPLOYMENT, raw))
    assert start_up_seconds(plain) == 5 + 10 * 3
    bare = project_target(await kube.create(DEPLOYMENT, make_deployment("bare", namespace)))
    assert (start_up_seconds(bare), bare.template.termination_grace_seconds) == (0, 30)


async def test_an_affinity_with_rivals_is_accepted(kube: KubeClient, namespace: str) -> None:
    """Every opposite that can be written, each with and without values as its operator wants it."""
    selectors: list[Raw] = [
        {"matchLabels": {"card": "l4"}},
        {"matchExpressions": [{"key": "mig", "operator": "DoesNotExist"}]},
        {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a", "b"]}]},
        {"matchExpressions": [{"key": "gib", "operator": "Gt", "values": ["40"]}]},
    ]
    rivals = [make_family(f"rival-{number}", selector=selector) for number, selector in enumerate(selectors)]
    family = make_family("openvino-cpu", selector={"matchLabels": {"vendor": "x"}}, execution_providers=(OPENVINO_PROVIDER,))
    pool = make_pool_facts("cards", *rivals, family)
    target = project_target(await kube.create(DEPLOYMENT, make_deployment("ocr", namespace)))
    request = PlacementRequest(
        target=target,
        container=target.template.containers[0],
        family=family,
        pool="cards",
        config=FAST,
        mapping=METAINFER,
        config_maps={},
        decision_id="d41d8cd98f00",
        adaptation_uid="uid-adaptation",
        rivals=find_rivals(pool, family, (pool,)),
    )
    plan = build_placement(request)
    assert plan.apply is not None
    written = await apply_target(kube, plan.apply)
    required = written["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    by_vendor, by_label = (term["matchExpressions"] for term in required["nodeSelectorTerms"])
    said = {(item["key"], item["operator"], tuple(item.get("values", ()))) for item in by_vendor}
    want = {("card", "NotIn", ("l4",)), ("mig", "Exists", ()), ("zone", "In", ("a", "b")), ("metainfer.dev/family", "NotIn", ("rival-3",))}
    assert want < said
    assert {item["key"] for item in by_label} == {"metainfer.dev/family", "metainfer.dev/health"}


async def test_every_status_on_the_way_fits_the_schema_and_comes_back_as_it_was(kube: KubeClient, namespace: str) -> None:
    """A run with a change in the middle: what the schema would prune or refuse would be forgotten by the next pass."""
    world = make_world()
    facts: AdaptationFacts = project_adaptation(await kube.create(ADAPTATION, make_adaptation("ocr", namespace)))
    for turn in range(40):
        if turn == 4:
            world.change_target(image="server:2")
        if turn == 25:
            world.change_target(paused=True, image="server:3")
        world.turn()
        await write_adaptation_status(kube, facts, world.status, lambda _raw: None)
        facts = project_adaptation(await kube.get(ADAPTATION, "ocr", namespace))
        assert facts.status == world.status
    assert facts.status.run is not None
    assert facts.status.run.trigger.startswith("ImageChanged")


GOAL = ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "properties", "objective", "properties", "goal", "enum")
RESOURCE = ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "properties", "families", "items", "properties", "resource", "pattern")


def change_schema(crd: Raw) -> None:
    """The CRDs of a version to come: another goal, another way to name a resource."""
    for path, value in ((GOAL, ["Latency", "Throughput", "Cost", "Carbon"]), (RESOURCE, ".*")):
        part: Any = crd
        for step in path[:-1]:
            part = part.get(step, {}) if isinstance(part, dict) else part[step]
        if path[-1] in part:
            part[path[-1]] = value


@pytest.fixture
async def newer_kinds(kube: KubeClient) -> AsyncIterator[KubeClient]:
    """The same server with a newer version's CRDs, and back."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        change_schema(crd)
        await kube.apply(CUSTOM_RESOURCE_DEFINITION, crd["metadata"]["name"], crd)
    yield kube
    await ensure_kinds(kube)


async def create_when_served(kube: KubeClient, kind: Kind, raw: Raw) -> Raw:
    """The new schema takes a moment to be in force."""
    for _ in range(ATTEMPTS):
        try:
            return await kube.create(kind, raw)
        except Invalid:
            await asyncio.sleep(0.1)
    return await kube.create(kind, raw)


@pytest.mark.parametrize("kind", [ADAPTATION, POOL], ids=["adaptation", "pool"])
async def test_an_object_of_a_newer_schema_says_that_it_cannot_be_read(newer_kinds: KubeClient, kind: Kind, namespace: str) -> None:
    """After a downgrade: the schema accepts it, our types do not. One write, with the field's name; a second look writes nothing."""
    kube, name = newer_kinds, f"of-tomorrow-{namespace}"
    raw = make_adaptation(name, namespace) if kind == ADAPTATION else make_pool(name)
    if kind == ADAPTATION:
        raw["spec"]["objective"] = {"goal": "Carbon"}
    else:
        raw["spec"]["families"][0]["resource"] = "not a resource"
    created, place = await create_when_served(kube, kind, raw), namespace if kind == ADAPTATION else ""
    cache = ClusterCache()
    with pytest.raises(ProjectionError):
        cache.take(kind, created)
    problem = cache.problem(kind, (place, name))
    assert problem is not None
    for _ in range(2):
        await report_unreadable(kube, kind, name, place or None, problem=problem, now=NOW)
        found = await kube.get(kind, name, place or None)
    conditions = {item["type"]: item for item in found["status"]["conditions"]}
    assert {(item["type"], item["status"], item["reason"]) for item in conditions.values()} == {
        ("Ready", "False", "Unreadable"),
        ("Stalled", "True", "Unreadable"),
    }
    assert ("objective.goal" if kind == ADAPTATION else "resource") in conditions["Ready"]["message"]
    again = await kube.get(kind, name, place or None)
    await report_unreadable(kube, kind, name, place or None, problem=problem, now=NOW + timedelta(hours=1))
    assert (await kube.get(kind, name, place or None))["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    await kube.delete(kind, name, place or None)


async def test_to_say_so_needs_no_more_than_the_rights_on_the_status(newer_kinds: KubeClient, namespace: str) -> None:
    """What the chart gives the operator on its own kinds."""
    raw = make_adaptation("ocr", namespace)
    raw["spec"]["objective"] = {"goal": "Carbon"}
    await create_when_served(newer_kinds, ADAPTATION, raw)
    rules = [
        {"apiGroups": ["metainfer.dev"], "resources": ["modeladaptations"], "verbs": ["get"]},
        {"apiGroups": ["metainfer.dev"], "resources": ["modeladaptations/status"], "verbs": ["patch"]},
    ]
    limited = await connect_limited(newer_kinds, namespace, rules)
    await report_unreadable(limited, ADAPTATION, "ocr", namespace, problem="objective.goal", now=NOW)
    await limited.close()
    assert (await newer_kinds.get(ADAPTATION, "ocr", namespace))["status"]["conditions"][0]["reason"] == "Unreadable"
    await newer_kinds.delete(ADAPTATION, "ocr", namespace)


class Counting:
    """The client, with a journal of its calls."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self.calls: list[str] = []

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Raw:
        self.calls.append("get")
        return await self._kube.get(kind, name, namespace)

    async def apply(self, kind: Kind, name: str, body: Mapping[str, Any], *, namespace: str | None = None) -> Raw:
        self.calls.append("apply")
        return await self._kube.apply(kind, name, body, namespace=namespace)


async def test_a_node_that_was_judged_is_labelled_in_one_call(kube: KubeClient, namespace: str) -> None:
    """Five thousand nodes are five thousand calls, not ten; one that is gone or replaced meanwhile is left alone."""
    name = f"node-{namespace}"
    node = await create_node(kube, name)
    counting = Counting(kube)
    written = await write_node_labels(counting, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}, node["metadata"]["uid"]))  # type: ignore[arg-type]
    assert written is not None
    assert (written["metadata"]["labels"][FAMILY_LABEL], counting.calls) == ("ort-cpu", ["apply"])
    await kube.delete(NODE, name)
    assert await write_node_labels(counting, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}, node["metadata"]["uid"])) is None  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await kube.get(NODE, name)
    await create_node(kube, name)
    assert await write_node_labels(counting, WriteNodeLabels(name, {FAMILY_LABEL: "ort-cpu"}, node["metadata"]["uid"])) is None  # type: ignore[arg-type]
    assert FAMILY_LABEL not in (await kube.get(NODE, name))["metadata"].get("labels", {})
    await kube.delete(NODE, name)
