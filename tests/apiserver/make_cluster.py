"""What tests of reads and writes need on the API server: our CRDs, nodes, Deployments, a second identity with few rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from tests.apiserver.merge_patch import patch_merge

from metainfer.kube.client import KubeClient
from metainfer.kube.credentials import Credentials, read_credentials
from metainfer.kube.errors import AlreadyExists, NotFound
from metainfer.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NODE, PORTRAIT, Kind
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Transport

Raw = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
CARD = "metainfer.dev/card"
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas", namespaced=True)
SCHEMA_ATTEMPTS = 100


async def ensure_kinds(kube: KubeClient) -> None:
    """Our CRDs, served."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        await kube.apply(CUSTOM_RESOURCE_DEFINITION, crd["metadata"]["name"], crd)
    for _ in range(SCHEMA_ATTEMPTS):
        try:
            await kube.list(PORTRAIT)
        except NotFound:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the API server does not serve our kinds")


def make(kind: Kind, name: str, namespace: str | None = None, **parts: Any) -> Raw:
    """An object of any kind."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {}) | parts.pop("metadata", {})
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}


async def create_node(kube: KubeClient, name: str, *, labels: Mapping[str, str] | None = None) -> Raw:
    """A ready node with one card."""
    await kube.create(NODE, make(NODE, name, metadata={"labels": dict(labels or {})}))
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi", CARD: "1", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "8Gi", CARD: "1", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        "nodeInfo": dict.fromkeys(
            (
                "machineID",
                "systemUUID",
                "bootID",
                "kernelVersion",
                "osImage",
                "containerRuntimeVersion",
                "kubeletVersion",
                "kubeProxyVersion",
                "operatingSystem",
            ),
            "x",
        )
        | {"architecture": "amd64"},
    }
    return await patch_merge(kube, NODE, name, None, {"status": status}, subresource="status")


def make_deployment(name: str, namespace: str, *, env: Mapping[str, str] | None = None, **pod: Any) -> Raw:
    """An inference Deployment with one container ``server``; ``pod`` adds to the pod spec."""
    labels = {"app": name}
    server: Raw = {"name": "server", "image": "server:1"} | ({"env": [{"name": key, "value": value} for key, value in env.items()]} if env else {})
    template = {"metadata": {"labels": labels}, "spec": {"containers": [server], **pod}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace, "labels": {"team": "vision"}}, "spec": spec}


def make_pool(name: str, **spec: Any) -> Raw:
    """A pool of one family, whose nodes carry the label card=ort."""
    family = {"name": "ort-cpu", "selector": {"matchLabels": {"card": "ort"}}, "resource": CARD, "executionProviders": ["CPUExecutionProvider"]}
    return {"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "metadata": {"name": name}, "spec": {"families": [family], **spec}}


def make_adaptation(name: str, namespace: str, *, target: str = "ocr") -> Raw:
    """A complete adaptation."""
    spec = {"targetRef": {"name": target}, "model": {"uri": "pvc://models/ocr.onnx"}, "settings": {"preset": "MetaInfer"}}
    return {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def connect_limited(kube: KubeClient, namespace: str, rules: Sequence[Raw]) -> KubeClient:
    """A client that logs in as a service account of the namespace with exactly these rights in the whole cluster."""
    name = f"limited-{namespace}"
    await kube.create(SERVICE_ACCOUNT, make(SERVICE_ACCOUNT, name, namespace))
    await kube.create(CLUSTER_ROLE, make(CLUSTER_ROLE, name, rules=list(rules)))
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await kube.create(CLUSTER_ROLE_BINDING, make(CLUSTER_ROLE_BINDING, name, subjects=[subject], roleRef=role))
    token = await _request_token(kube, namespace, name)

    async def login() -> Credentials:
        return replace(await read_credentials(), certificate_path=None, key_path=None, authorization=f"Bearer {token}")

    return KubeClient(Transport(TokenBucket(50.0, 100), login=login))


async def _request_token(kube: KubeClient, namespace: str, name: str) -> str:
    """A token as the kubelet would get it; the subresource is addressed as a kind of its own."""
    account = Kind("", "v1", "TokenRequest", f"serviceaccounts/{name}/token", namespaced=True)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {"namespace": namespace}, "spec": {"expirationSeconds": 3600}}
    answer = await kube.create(account, request)
    token: str = answer["status"]["token"]
    return token


async def ensure_priority_class(kube: KubeClient, name: str, **fields: Any) -> None:
    """A PriorityClass for measuring Jobs, as the chart makes it."""
    try:
        await kube.create(PRIORITY_CLASS, make(PRIORITY_CLASS, name) | {"value": -1000, "preemptionPolicy": "Never"} | fields)
    except AlreadyExists:
        return
