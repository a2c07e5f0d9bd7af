"""The local cluster as the scenarios need it: operator with short clocks, a pool whose cards can be shared, servers under load, Prometheus."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bring_up import ensure_cluster, ensure_models, install_chart, models_volume
from lab import IMAGES, RELEASE, SYSTEM_NAMESPACE, Lab, LabError, condition, fill, wait_until

from scenarios.prometheus import Prometheus, run_prometheus
from scenarios.watched import Object, Watched, say

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
MODEL = "magika"
"""Requests of 8 KB: what is served is mostly inference, and a hundred requests a second leave the machine room for everything else."""
OTHER_MODEL = "ocr-rec"
"""Much faster on the family on which it does not run at first (1.8 times with the demo's own settings): something is sure to be written."""
METRICS_PORT = 8082
"""MLServer's own page; 8080 is the requests'."""
OPERATOR_PORT = 8080

SETTINGS: Mapping[str, object] = {"benchWindowSeconds": 0.4, "benchRounds": 3, "profileBudgetSeconds": 45, "driverSettleSeconds": 15}
WINDOW_SECONDS = 10
DRIFT: Mapping[str, object] = {"p99IncreasePercent": 50, "windows": 2, "window": f"{WINDOW_SECONDS}s", "minRequests": 150}
SPEC: Mapping[str, Any] = {
    "settings": {"preset": "MetaInfer"},
    "configSpace": {"precisions": ["fp32"], "batchSizes": [1], "concurrencies": [1]},
    "validation": {"topK": 2},
    "load": {"clients": 8},
    "updatePolicy": {"cooldown": "1m"},
    "drift": DRIFT,
    "rollout": {"watch": "20s"},
}
"""Fields of every adaptation here, unless a scenario says otherwise."""


@dataclass(frozen=True, slots=True)
class Answers:
    """To the requests of one load."""

    requests: int
    """Answered."""
    failures: Sequence[str]


@dataclass(slots=True)
class Stage:
    """One namespace of the cluster, with everything in it."""

    lab: Lab
    prometheus: Prometheus
    namespace: str

    def serve(self, name: str, model: str = MODEL, *, prepare: Callable[[Object], None] = lambda _deployment: None, **patch: Any) -> Watched:
        """A real server as its owner would start it; ``patch`` goes over its container, ``prepare`` changes what else it is to be."""
        service, deployment = yaml.safe_load_all(fill(MANIFESTS / "model.yaml", NAME=name, MODEL=model, IMAGE=IMAGES["demo-server"]))
        deployment["spec"]["template"]["spec"]["containers"][0] |= patch
        prepare(deployment)
        self.lab.apply_objects(service, deployment, namespace=self.namespace)
        self.lab.kubectl("-n", self.namespace, "rollout", "status", f"deployment/{name}", "--timeout=240s", timeout_seconds=250)
        return Watched(self.lab, self.prometheus, self.namespace, name)

    def adapt(self, name: str, model: str = MODEL, **spec: Any) -> None:
        """An adaptation of the Deployment of the same name."""
        merged = {"targetRef": {"name": name}, "model": {"uri": f"pvc://models/{model}.onnx"}, **copy.deepcopy(dict(SPEC)), **spec}
        item = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "metadata": {"name": name}, "spec": merged}
        self.lab.apply_objects(item, namespace=self.namespace)

    def send(self, name: str, *how: str, to: str, model: str = MODEL) -> None:
        """Requests to a server from a pod of its own until ``stop``: ``--rate 40`` or ``--clients 8``."""
        self.lab.apply_objects(make_load(name, self.namespace, to, ("--inputs", f"/models/{model}.npz", *how)), namespace=self.namespace)
        self.lab.kubectl("-n", self.namespace, "rollout", "status", f"deployment/{name}", "--timeout=120s", timeout_seconds=130)

    def answers(self, name: str) -> Answers:
        """What the requests from there have come to, up to its last report (every five seconds)."""
        text = self.lab.kubectl("-n", self.namespace, "logs", f"deployment/{name}", "--tail=-1")
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        errors = [f"{line['errors']} before {line['at']:.0f}: {line['first_error']}" for line in lines if line["errors"]]
        held_back = [f"{line['held_back']} before {line['at']:.0f} were not sent, as too many were unanswered" for line in lines if "held_back" in line]
        return Answers(sum(line["requests"] for line in lines), (*errors, *held_back))

    def stop(self, name: str) -> None:
        """No more requests from there."""
        self.lab.kubectl("-n", self.namespace, "delete", "deployment", name, "--wait=true", "--timeout=60s", timeout_seconds=70)

    def label(self, nodes: Sequence[str], *labels: str) -> None:
        """``kubectl label``: KEY=VALUE sets, KEY- takes away."""
        self.lab.kubectl("label", "node", *nodes, "--overwrite", *labels)

    @contextmanager
    def closed(self, nodes: Sequence[str]) -> Iterator[None]:
        """Nothing new starts on these nodes until the end."""
        if not nodes:
            yield
            return
        self.lab.kubectl("cordon", *nodes)
        try:
            yield
        finally:
            self.lab.kubectl("uncordon", *nodes)

    def degraded_nodes(self) -> list[str]:
        """Nodes that the operator found slower than their family."""
        return sorted(node["metadata"]["name"] for node in self.lab.list("nodes", selector="metainfer.dev/health=degraded"))

    def family_nodes(self, product: str) -> list[str]:
        """Nodes that stand in for that card."""
        return sorted(node["metadata"]["name"] for node in self.lab.list("nodes", selector=f"card.metainfer.dev/product={product}"))

    def targets(self) -> list[tuple[str, Mapping[str, str]]]:
        """What Prometheus is to scrape now: the servers' pods and the operator's."""
        pods = [(pod, METRICS_PORT) for pod in self.lab.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"] if _is_server(pod)]
        selector = f"labelSelector=app.kubernetes.io%2Finstance%3D{RELEASE}"
        pods += [(pod, OPERATOR_PORT) for pod in self.lab.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods?{selector}")["items"]]
        return [
            (f"{pod['status']['podIP']}:{port}", {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]})
            for pod, port in pods
            if pod["status"].get("podIP") and pod["status"]["phase"] == "Running"
        ]


def make_load(name: str, namespace: str, to: str, how: Sequence[str]) -> Object:
    """A Deployment, so that a lost pod is replaced; it asks for no card and for little of a processor."""
    url = f"http://{to}.{namespace}.svc.cluster.local:8080/v2/models/{to}/infer"
    container = {
        "name": "load",
        "image": IMAGES["probe"],
        "imagePullPolicy": "IfNotPresent",
        "args": ["load", "--url", url, "--seconds", "3600", *how],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}],
    }
    labels = {"load": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _is_server(pod: Object) -> bool:
    return "app" in pod["metadata"].get("labels", {})


@contextmanager
def open_stage(lab: Lab, prometheus: Prometheus, namespace: str) -> Iterator[Stage]:
    """A stage in a namespace that is there, with the claim of the models; Prometheus follows its pods until the end."""
    stage, ended = Stage(lab, prometheus, namespace), threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            try:
                prometheus.scrape(stage.targets())
            except LabError as error:
                say(f"targets of Prometheus: {error}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield stage
    finally:
        ended.set()
        thread.join()


@contextmanager
def set_up() -> Iterator[Stage]:
    """Everything from nothing: cluster, images, models, Prometheus, operator, pool, namespace."""
    ensure_cluster(say)
    lab = Lab.connect()
    models = ensure_models(lab, say, MODEL, OTHER_MODEL)
    with run_prometheus(lab.host) as prometheus:
        install_operator(lab, prometheus)
        ensure_pool(lab)
        namespace = "scenarios"
        make_namespace(lab, namespace, models)
        with open_stage(lab, prometheus, namespace) as stage:
            yield stage


def install_operator(lab: Lab, prometheus: Prometheus) -> None:
    """With short clocks, the right to try a choice first, and the Prometheus of the scenarios as its own."""
    install_chart(lab, say, SETTINGS, prometheus={"url": prometheus.url}, rbac={"canary": {"enabled": True}})


def ensure_pool(lab: Lab) -> None:
    """The demo's pool with cards that can be shared (they are processors) and short probes, every node measured while it is idle."""
    for name in ("demo", "scenarios"):
        lab.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", timeout_seconds=180)
        lab.kubectl("delete", "persistentvolume", f"models-{name}", "--ignore-not-found")
    lab.kubectl("delete", "acceleratorpool", "demo", "--ignore-not-found")
    lab.kubectl("delete", "nodeportraits", "--all")
    lab.apply_objects(make_pool())

    def probed() -> bool | None:
        return True if condition(lab.find("acceleratorpool", "demo"), "ProbesCompleted")["status"] == "True" else None

    say("waiting for the portraits of all nodes")
    wait_until("every node of the pool measured", probed, timeout_seconds=600, every_seconds=2)


def make_pool() -> Object:
    """The manifest of the demo, changed where scenarios need it."""
    pool: Object = yaml.safe_load((MANIFESTS / "pool.yaml").read_text(encoding="utf-8"))
    pool["spec"]["probe"] = {"duration": "6s"}
    for family in pool["spec"]["families"]:
        family["shareable"] = True
    return pool


def make_namespace(lab: Lab, name: str, models: Path) -> None:
    """With the claim of the models."""
    volume, claim = models_volume(models, name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    lab.apply_objects({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}, volume)
    lab.apply_objects(claim, namespace=name)


def clear(stage: Stage) -> None:
    """Everything that a scenario left in the namespace, so that the next one finds free cards; the claim of the models stays."""
    names = "modeladaptations,deployments,services,jobs"
    stage.lab.kubectl("-n", stage.namespace, "delete", names, "--all", "--wait=true", "--timeout=120s", timeout_seconds=130)
    stage.lab.kubectl("-n", stage.namespace, "wait", "--for=delete", "pods", "--all", "--timeout=120s", check=False, timeout_seconds=130)


def await_decision(watched: Watched) -> None:
    """Decided and in place."""
    watched.wait("a decision in place", lambda moment: moment.is_ready and moment.run.get("step") == "Done", timeout_seconds=420)


def await_baselines(watched: Watched) -> None:
    """Of what is served and of the check: from here on a slower service can be told from nothing."""
    watched.wait("a baseline of what is served", lambda moment: bool((moment.status.get("served") or {}).get("baseline")), timeout_seconds=180)
    watched.wait("a baseline of the check", lambda moment: bool(moment.check.get("baseline")) and not moment.check.get("claim"), timeout_seconds=120)
    deadline = time.monotonic() + 60
    while watched.p99_seconds() is None and time.monotonic() < deadline:
        time.sleep(1)
