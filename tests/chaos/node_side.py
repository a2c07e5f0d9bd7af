"""Plays everything that runs pods: scheduler, kubelets, Job controller, Deployment controller. Straight on the API server, never disturbed.

It looks at everything a few times a second and moves each object one step. Jobs always end well, with reports of the real
shape: whatever goes wrong in a chaos run went wrong in the operator.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.apiserver.make_cluster import CARD, make
from tests.apiserver.merge_patch import patch_merge
from tests.chaos.kubelet import KubeletLogs
from tests.chaos.world import World

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.decide.facts import Candidate, NodeTerm
from metainfer.decide.families import requirement_holds
from metainfer.decide.names import ADAPTATION_ANNOTATION, CANDIDATE_ANNOTATION, PURPOSE_LABEL, short_hash
from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import DEPLOYMENT, JOB, NODE, POD
from metainfer.observe.pods import project_terms
from metainfer_probe.contract import Report, ServingConfig, encode_line, encode_summary

Raw = dict[str, Any]
TICK_SECONDS = 0.2
JOB_SECONDS = (0.3, 1.0)
"""A measurement takes so long; the operator is frozen for longer."""
START_SECONDS = 0.5
"""Until a server is ready."""
HASH_LABEL = "pod-template-hash"


@dataclass
class NodeSide:
    """One run's nodes. ``chance`` decides how long things take, nothing else."""

    kube: KubeClient
    world: World
    logs: KubeletLogs
    chance: random.Random
    job_seconds: tuple[float, float] = JOB_SECONDS
    ending: bool = False
    most_measuring: int = 0
    """Most measuring Jobs that were unfinished at one moment. Exact: only this side finishes them, and it counts before it does."""
    most_rolling: int = 0
    """The same of rollouts of what the operator wrote."""
    _due: dict[str, float] = field(default_factory=dict)
    """Pod UID -> when its next step is due."""
    _cards: dict[str, int] = field(default_factory=dict)
    """Node -> free cards in this round."""
    _labels: dict[str, Raw] = field(default_factory=dict)

    async def run(self) -> None:
        """Until ``ending``: never cut off in the middle of a request, whose connection would then outlive the event loop."""
        while not self.ending:
            await self.step()
            await asyncio.sleep(TICK_SECONDS)

    async def step(self) -> None:
        """One round over everything."""
        nodes, _ = await self.kube.list(NODE, label_selector=f"lab={self.world.tag}")
        pods = [pod for namespace in (self.world.namespace, self.world.system) for pod in (await self.kube.list(POD, namespace=namespace))[0]]
        self._labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
        self._cards = {node["metadata"]["name"]: int(node["status"]["allocatable"][CARD]) for node in nodes}
        for pod in pods:
            if pod["status"].get("phase") in ("Pending", "Running"):
                self._cards[pod["spec"]["nodeName"]] -= 1
        jobs = [job for namespace in (self.world.namespace, self.world.system) for job in (await self.kube.list(JOB, namespace=namespace))[0]]
        deployments, _ = await self.kube.list(DEPLOYMENT, namespace=self.world.namespace)
        self.most_measuring = max(self.most_measuring, sum(not _is_complete(job) for job in jobs))
        self.most_rolling = max(self.most_rolling, sum(_is_rolling(deployment) for deployment in deployments))
        for job in jobs:
            await self._move_job(job, [pod for pod in pods if _owned_by(pod, job["metadata"]["uid"])])
        for deployment in deployments:
            name = deployment["metadata"]["name"]
            await self._move_deployment(deployment, [pod for pod in pods if pod["metadata"]["labels"].get("app") == name])

    # --- Jobs ---

    async def _move_job(self, job: Raw, pods: list[Raw]) -> None:
        if _is_complete(job):
            return
        if not pods:
            await self._start_job(job)
            return
        (pod,) = pods
        if pod["status"]["phase"] == "Succeeded":
            await self._complete_job(job)
        elif self._is_due(pod):
            await self._end_pod(job, pod)

    async def _start_job(self, job: Raw) -> None:
        template = job["spec"]["template"]
        node = self._pick_node(template["spec"])
        if node is None:
            return
        owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": True}
        pod = await self._start_pod(job["metadata"]["namespace"], f"{job['metadata']['name']}-x", template, owner=owner, node=node)
        self._due[pod["metadata"]["uid"]] = time.monotonic() + self.chance.uniform(*self.job_seconds)
        await self._set_job_status(job, {"active": 1, "startTime": _now()})

    async def _end_pod(self, job: Raw, pod: Raw) -> None:
        report, metadata = self._measure(job), pod["metadata"]
        self.logs.lines[metadata["namespace"], metadata["name"]] = encode_line(report)
        ended = {"exitCode": 0, "reason": "Completed", "message": encode_summary(report), "startedAt": pod["status"]["startTime"], "finishedAt": _now()}
        await self._set_pod_status(pod, "Succeeded", {"terminated": ended}, ready=False)

    async def _complete_job(self, job: Raw) -> None:
        now = _now()
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now} for kind in ("SuccessCriteriaMet", "Complete")]
        done = {"active": 0, "succeeded": 1, "completionTime": now, "startTime": job["status"]["startTime"], "conditions": conditions}
        await self._set_job_status(job, done)

    async def _set_job_status(self, job: Raw, status: Raw) -> None:
        metadata = job["metadata"]
        await patch_merge(self.kube, JOB, metadata["name"], metadata["namespace"], {"status": status}, subresource="status")

    def _measure(self, job: Raw) -> Report:
        """What the probe would have reported."""
        annotations = job["metadata"]["annotations"]
        target = annotations.get(ADAPTATION_ANNOTATION, "").rpartition("/")[2]
        match job["metadata"]["labels"][PURPOSE_LABEL]:
            case "probe":
                return self.world.probe(self.world.nodes()[annotations["metainfer.dev/node"]])
            case "profile":
                return self.world.profile(target)
            case _:
                document = json.loads(annotations[CANDIDATE_ANNOTATION])
                candidate = Candidate(document["pool"], document["family"], ServingConfig.model_validate(document["config"]))
                return self.world.bench(target, candidate)

    # --- Deployments ---

    async def _move_deployment(self, deployment: Raw, pods: list[Raw]) -> None:
        template = deployment["spec"]["template"]
        wanted = short_hash(json.dumps(template, sort_keys=True))
        new = [pod for pod in pods if pod["metadata"]["labels"].get(HASH_LABEL) == wanted]
        old = [pod for pod in pods if pod not in new]
        if not new:
            new = await self._start_server(deployment, template, wanted)
        for pod in new:
            if not _is_ready(pod) and self._is_due(pod):
                await self._set_pod_status(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
        if old and any(map(_is_ready, new)):
            for pod in old:
                await self.kube.delete(POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
            old = []
        await self._report_rollout(deployment, new, old)

    async def _start_server(self, deployment: Raw, template: Raw, wanted: str) -> list[Raw]:
        node = self._pick_node(template["spec"])
        if node is None:
            return []
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-{wanted}", "uid": f"rs-{name}-{wanted}", "controller": True}
        labelled = {**template, "metadata": {**template["metadata"], "labels": {**template["metadata"]["labels"], HASH_LABEL: wanted}}}
        pod = await self._start_pod(namespace, f"{name}-{wanted}-x", labelled, owner=owner, node=node)
        self._due[pod["metadata"]["uid"]] = time.monotonic() + START_SECONDS
        return [pod]

    async def _report_rollout(self, deployment: Raw, new: list[Raw], old: list[Raw]) -> None:
        ready = sum(map(_is_ready, new))
        done = bool(ready and not old)
        progressing = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable" if done else "ReplicaSetUpdated", "message": "rolling out"}
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(new) + len(old),
            "updatedReplicas": len(new),
            "readyReplicas": ready + len(old),
            "availableReplicas": ready + len(old),
            "conditions": [progressing],
        }
        known = deployment.get("status") or {}
        if all(known.get(key, 0) == value for key, value in status.items() if key != "conditions") and _reasons(known) == _reasons(status):
            return
        metadata = deployment["metadata"]
        await patch_merge(self.kube, DEPLOYMENT, metadata["name"], metadata["namespace"], {"status": status}, subresource="status")

    # --- pods ---

    def _pick_node(self, spec: Raw) -> str | None:
        """The first node by name that the pod's node selector and required affinity allow and that has a free card."""
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        terms = None if required is None else project_terms(required)
        selector = (spec.get("nodeSelector") or {}).items()
        for name in sorted(self._labels):
            if self._cards[name] > 0 and selector <= self._labels[name].items() and (terms is None or self._allows(terms, name)):
                self._cards[name] -= 1
                return name
        return None

    def _allows(self, terms: Iterable[NodeTerm], node: str) -> bool:
        labels = self._labels[node]
        return any(all(requirement_holds(item, labels) for item in term.expressions) and all(node in item.values for item in term.fields) for term in terms)

    async def _start_pod(self, namespace: str, name: str, template: Raw, *, owner: Raw, node: str) -> Raw:
        metadata = {"labels": template["metadata"]["labels"], "annotations": template["metadata"].get("annotations") or {}, "ownerReferences": [owner]}
        # Without grace: there is no kubelet that would confirm the end of a deleted pod.
        spec = {**template["spec"], "nodeName": node, "terminationGracePeriodSeconds": 0}
        pod = await self.kube.create(POD, make(POD, name, namespace, metadata=metadata, spec=spec))
        return await self._set_pod_status(pod, "Running", {"running": {"startedAt": _now()}}, ready=False)

    async def _set_pod_status(self, pod: Raw, phase: str, state: Raw, *, ready: bool) -> Raw:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        states = [{"name": container["name"], "image": container["image"], "imageID": "x", "ready": ready, "restartCount": 0, "state": state}]
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        started = pod["status"].get("startTime") or _now()
        status = {"phase": phase, "startTime": started, "containerStatuses": states, "conditions": conditions}
        return await patch_merge(self.kube, POD, metadata["name"], metadata["namespace"], {"status": status}, subresource="status")

    def _is_due(self, pod: Raw) -> bool:
        return time.monotonic() >= self._due.get(pod["metadata"]["uid"], 0.0)


def _owned_by(pod: Raw, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())


def _is_complete(job: Raw) -> bool:
    return any(item["type"] == "Complete" for item in (job.get("status") or {}).get("conditions") or ())


def _is_rolling(deployment: Raw) -> bool:
    """Written by the operator, and not over."""
    status = deployment.get("status") or {}
    over = status.get("observedGeneration") == deployment["metadata"]["generation"] and _reasons(status) == ["NewReplicaSetAvailable"]
    return DECISION_ANNOTATION in (deployment["metadata"].get("annotations") or {}) and not over


def _is_ready(pod: Raw) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ())


def _reasons(status: Raw) -> list[str]:
    return [str(item.get("reason")) for item in status.get("conditions") or ()]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
