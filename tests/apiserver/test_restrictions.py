"""Where a target may run, against the real kube-scheduler: one pod per kind of restriction and node, nothing simulated."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apiserver.api_server import ApiServer, find_binary, run_api_server
from tests.unit.decide.make_facts import make_target

from metainfer.decide.facts import NodeTerm, RuntimeClassFacts
from metainfer.decide.restrictions import eligible_nodes
from metainfer.decide.room import find_no_room
from metainfer.observe.pods import project_template, project_terms
from metainfer.observe.projections import project_node, project_runtime_class

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
GPU, ZONE, ARCH, ONE_NODE = "nvidia.com/gpu", "topology.kubernetes.io/zone", "kubernetes.io/arch", "tests.example/node"
PATIENCE_SECONDS = 120.0
"""For the scheduler to look at a hundred pods; it needs a few seconds on a quiet machine."""

TRUE_TAINT = {"key": GPU, "value": "true", "effect": "NoSchedule"}
ONLY_TAINT = {"key": "site/cards-only", "value": "", "effect": "NoSchedule"}
SOFT_TAINT = {"key": "old", "effect": "PreferNoSchedule"}
NODES: dict[str, Raw] = {
    "t4-a": {"labels": {"product": "T4", ZONE: "a", "cc": "false"}, "taints": [TRUE_TAINT]},
    "t4-c": {"labels": {"product": "T4", ZONE: "c", "cc": "false"}, "taints": [TRUE_TAINT]},
    "l4-c": {"labels": {"product": "L4", ZONE: "c", "cc": "false", "memory": "23034"}, "taints": [TRUE_TAINT]},
    "l4-reserved": {"labels": {"product": "L4", ZONE: "b", "cc": "false", "memory": "23034", "site/reserved": ""}},
    "l40s-cc": {"labels": {"product": "L40S", ZONE: "a", "cc": "true", "memory": "46068"}},
    "a10-unit": {"labels": {"product": "A10", ZONE: "b", "cc": "false", "memory": "23028MiB"}},
    "l4-present": {"labels": {"product": "L4", ZONE: "b", "cc": "false", "memory": "23034"}, "taints": [TRUE_TAINT | {"value": "present"}]},
    "l4-only": {"labels": {"product": "L4", ZONE: "b", "cc": "false", "memory": "23034"}, "taints": [ONLY_TAINT]},
    "cordoned": {"labels": {"product": "T4", ZONE: "a", "cc": "false"}, "unschedulable": True},
    "small": {"labels": {"product": "T4", ZONE: "a", "cc": "false"}, "cpu": "1", "cards": "0"},
    "soft": {"labels": {"product": "T4", ZONE: "b"}, "taints": [SOFT_TAINT, {"key": "sla", "value": "700", "effect": "NoExecute"}]},
}
RUNTIME_CLASS: Raw = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "sandbox"},
    "handler": "sandbox",
    "overhead": {"podFixed": {"cpu": "250m"}},
    "scheduling": {"nodeSelector": {"cc": "false"}, "tolerations": [{"key": "site/cards-only", "operator": "Exists", "effect": "NoSchedule"}]},
}
VOLUME_TERMS: Raw = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]}
TOLERATES_TRUE = {"key": GPU, "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def expression(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def required(*terms: Raw) -> Raw:
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}}


def container(**resources: Raw) -> Raw:
    return {"name": "server", "image": "server:1", "resources": resources}


EVERYTHING = {
    "runtimeClassName": "sandbox",
    "tolerations": [TOLERATES_TRUE],
    **required(
        {"matchExpressions": [expression("product", "In", "T4"), expression(ZONE, "NotIn", "c")]},
        {"matchExpressions": [expression("memory", "Gt", "20000"), expression("site/reserved", "DoesNotExist")]},
    ),
}
PODS: dict[str, Raw] = {
    "plain": {},
    "selector": {"nodeSelector": {"product": "L4"}},
    "every form at once": EVERYTHING,
    "an empty term beside another": required({}, {"matchExpressions": [expression("product", "Exists")]}),
    "only an empty term": required({}),
    "a node by its field": required({"matchFields": [expression("metadata.name", "In", "a10-unit")]}),
    "not a node by its field": required({"matchFields": [expression("metadata.name", "NotIn", "a10-unit")]}),
    "less than": required({"matchExpressions": [expression("memory", "Lt", "30000")]}),
    "NotIn without the label": required({"matchExpressions": [expression("cc", "NotIn", "true")]}),
    "tolerates one value": {"tolerations": [TOLERATES_TRUE]},
    "tolerates any value": {"tolerations": [{"key": GPU, "operator": "Exists"}]},
    "tolerates every key": {"tolerations": [{"operator": "Exists"}]},
    "tolerates another effect": {"tolerations": [TOLERATES_TRUE | {"effect": "NoExecute"}]},
    "runtime class alone": {"runtimeClassName": "sandbox"},
    "a bound volume": {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]},
    "what the sandbox takes for itself": {"runtimeClassName": "sandbox", "containers": [container(requests={"cpu": "900m"})]},
    "two cores": {"containers": [container(requests={"cpu": "1500m"})]},
    "a card": {"containers": [container(limits={GPU: 1})]},
    "a card of a native sidecar": {"initContainers": [container(limits={GPU: 1}) | {"name": "model", "restartPolicy": "Always"}]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server of its own with a scheduler, and with nodes that no kubelet stands behind."""
    with run_api_server(tmp_path_factory.mktemp("scheduled")) as server:
        create_cluster(server)
        command = [
            find_binary("kube-scheduler"),
            f"--kubeconfig={server.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as scheduler:
            try:
                yield server
            finally:
                scheduler.terminate()


def post(server: ApiServer, path: str, body: Raw) -> Raw:
    status, answer = server.send("POST", path, body)
    assert status == 201, answer
    created: Raw = answer
    return created


def create_cluster(server: ApiServer) -> None:
    for name, node in NODES.items():
        create_node(server, name, node)
    post(server, "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    claim_of = {"claimRef": {"namespace": "default", "name": "models"}, "nodeAffinity": {"required": VOLUME_TERMS}, "hostPath": {"path": "/models"}}
    post(server, "/api/v1/persistentvolumes", {"metadata": {"name": "models"}, "spec": volume | claim_of})
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}}
    bound = {"name": "models", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    post(server, "/api/v1/namespaces/default/persistentvolumeclaims", {"metadata": bound, "spec": claim})


def create_node(server: ApiServer, name: str, node: Raw) -> None:
    labels = node["labels"] | {"kubernetes.io/hostname": name, ARCH: "amd64", ONE_NODE: name}
    post(server, "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": node.get("unschedulable", False)}})
    # The API server taints a new node as not ready; the controller that would take the taint off does not run here.
    status, answer = server.send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": node.get("taints", [])}}, "application/merge-patch+json")
    assert status == 200, answer
    amounts = {"cpu": node.get("cpu", "64"), "memory": "64Gi", "pods": "200", GPU: node.get("cards", "64")}
    state = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    status, answer = server.send("PATCH", f"/api/v1/nodes/{name}/status", {"status": state}, "application/strategic-merge-patch+json")
    assert status == 200, answer


@pytest.fixture(scope="module")
def allowed(server: ApiServer) -> dict[str, set[str]]:
    """What the scheduler says: for each pod the nodes that it would take, asked one by one (a label of its own holds the pod to one node)."""
    pods: dict[str, tuple[str, str]] = {}
    for index, (kind, spec) in enumerate(PODS.items()):
        for node in NODES:
            name = f"pod-{index}-{node}"
            held = {"nodeSelector": spec.get("nodeSelector", {}) | {ONE_NODE: node}}
            body = {"metadata": {"name": name}, "spec": {"containers": [container()]} | spec | held}
            post(server, "/api/v1/namespaces/default/pods", body)
            pods[name] = (kind, node)
    answers = wait_for_answers(server, set(pods))
    return {kind: {node for name, (of, node) in pods.items() if of == kind and answers[name]} for kind in PODS}


def wait_for_answers(server: ApiServer, names: set[str]) -> dict[str, bool]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    answers: dict[str, bool] = {}
    while not names <= set(answers) and time.monotonic() < deadline:
        time.sleep(0.2)
        _, listed = server.send("GET", "/api/v1/namespaces/default/pods")
        found = {pod["metadata"]["name"]: scheduled(pod) for pod in listed["items"]}
        answers = {name: answer for name, answer in found.items() if answer is not None}
    assert names <= set(answers), "the scheduler did not look at every pod"
    return answers


def scheduled(pod: Raw) -> bool | None:
    condition = next((item for item in pod.get("status", {}).get("conditions", ()) if item["type"] == "PodScheduled"), None)
    return None if condition is None else condition["status"] == "True"


@pytest.mark.parametrize("kind", PODS)
def test_we_exclude_exactly_what_the_scheduler_excludes(server: ApiServer, allowed: dict[str, set[str]], kind: str) -> None:
    """Same nodes, for every form of restriction, read from the objects as they are stored."""
    nodes = [project_node(raw) for raw in server.send("GET", "/api/v1/nodes")[1]["items"]]
    template = project_template({"metadata": {}, "spec": {"containers": [container()]} | PODS[kind]}, "default")
    runtime_class: RuntimeClassFacts = project_runtime_class(server.send("GET", "/apis/node.k8s.io/v1/runtimeclasses/sandbox")[1])
    terms: tuple[NodeTerm, ...] = project_terms(server.send("GET", "/api/v1/persistentvolumes/models")[1]["spec"]["nodeAffinity"]["required"])
    excluded = eligible_nodes(template, nodes, runtime_class=runtime_class if template.runtime_class else None, claim_terms={"models": terms})
    assert {node.name for node in nodes} - set(excluded) == allowed[kind]


def test_the_cases_are_worth_asking(allowed: dict[str, set[str]]) -> None:
    """The scheduler tells nodes apart: every kind but one leaves some node, and every node is refused to some pod."""
    assert [kind for kind, nodes in allowed.items() if not nodes] == ["only an empty term"]
    assert allowed["every form at once"] == {"t4-a", "l4-c", "l4-only", "small"}
    assert all(any(node not in nodes for nodes in allowed.values()) for node in NODES)


SKEW = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
SPREADS = [
    pytest.param({"a": 3, "b": 1}, SKEW, (), id="the full zone holds the other back"),
    pytest.param({"a": 3, "b": 1}, SKEW | {"maxSkew": 2}, (), id="two more are allowed"),
    pytest.param({"a": 2, "b": 0}, SKEW, (), id="a zone without a card counts"),
    pytest.param({"a": 2, "b": 2, "c": 2}, SKEW, ("c",), id="a zone that is cordoned counts"),
    pytest.param({"a": 3, "b": 3}, SKEW | {"minDomains": 3}, (), id="fewer zones than minDomains"),
    pytest.param({"a": 2, "b": 3}, SKEW | {"whenUnsatisfiable": "ScheduleAnyway"}, (), id="a wish is no restriction"),
    pytest.param({"a": 2, "b": 2}, None, (), id="anti-affinity by zone"),
]


@pytest.mark.parametrize(("cards", "constraint", "cordoned"), SPREADS)
def test_as_many_pods_find_a_place_as_we_say(server: ApiServer, cards: dict[str, int], constraint: Raw | None, cordoned: tuple[str, ...]) -> None:
    """One node for each zone, pods until no more fit: the scheduler places exactly as many as we count room for."""
    case = secrets.token_hex(4)
    try:
        for zone, count in cards.items():
            create_node(server, f"{case}-{zone}", {"labels": {ZONE: zone, "case": case}, "cards": str(count), "unschedulable": zone in cordoned})
        template = make_spreading(case, constraint)
        names = {f"{case}-{number}" for number in range(sum(cards.values()) + 1)}
        for name in sorted(names):
            post(server, "/api/v1/namespaces/default/pods", {"metadata": {"name": name, "labels": {"app": case}}, "spec": template["spec"]})
        wait_for_answers(server, names)
        want = count_places(server, case, template)
        assert placed(server, names, want) == want
        assert 0 < want < len(names)
    finally:
        for zone in cards:
            server.send("DELETE", f"/api/v1/nodes/{case}-{zone}")


def make_spreading(case: str, constraint: Raw | None) -> Raw:
    """A pod template of one card on the nodes of the case."""
    own = {"matchLabels": {"app": case}}
    spread: Raw = {"topologySpreadConstraints": [constraint | {"labelSelector": own}]} if constraint is not None else {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": ZONE, "labelSelector": own}]}}
    }  # fmt: skip
    return {"metadata": {"labels": {"app": case}}, "spec": {"nodeSelector": {"case": case}, "containers": [container(limits={GPU: 1})], **spread}}


def count_places(server: ApiServer, case: str, template: Raw) -> int:
    """The most replicas for which we find room."""
    facts = project_template(template, "default")
    nodes = [node for raw in server.send("GET", "/api/v1/nodes")[1]["items"] if (node := project_node(raw)).labels.get("case") == case]
    excluded = eligible_nodes(facts, nodes, runtime_class=None, claim_terms={})
    free = {node.name: node.allocatable[GPU] for node in nodes}
    places = [node for node in nodes if node.name not in excluded]
    closed = [node for node in nodes if node.name in excluded]
    replicas = 0
    while find_no_room(make_target(template=facts, replicas=replicas + 1, strategy="Recreate"), places, free, GPU, closed=closed) is None:
        replicas += 1
    return replicas


def placed(server: ApiServer, names: set[str], want: int) -> int:
    """How many pods have a node once the scheduler has tried the waiting ones again; not fewer than wanted, if that comes about."""
    deadline = time.monotonic() + PATIENCE_SECONDS / 4
    while True:
        _, listed = server.send("GET", "/api/v1/namespaces/default/pods")
        count = sum(scheduled(pod) is True for pod in listed["items"] if pod["metadata"]["name"] in names)
        if count >= want or time.monotonic() > deadline:
            return count
        time.sleep(0.2)
