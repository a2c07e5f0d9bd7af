"""A second identity with few rights, and kubeconfig files for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.apiserver.make_cluster import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, SERVICE_ACCOUNT, make

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import Kind

Raw = dict[str, Any]


async def create_identity(kube: KubeClient, namespace: str, rules: Sequence[Raw]) -> str:
    """Token of a service account with exactly these rights in the whole cluster, as the kubelet would get it."""
    name = f"identity-{namespace}"
    await kube.create(SERVICE_ACCOUNT, make(SERVICE_ACCOUNT, name, namespace))
    await kube.create(CLUSTER_ROLE, make(CLUSTER_ROLE, name, rules=list(rules)))
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await kube.create(CLUSTER_ROLE_BINDING, make(CLUSTER_ROLE_BINDING, name, subjects=[subject], roleRef=role))
    tokens = Kind("authentication.k8s.io", "v1", "TokenRequest", f"serviceaccounts/{name}/token", namespaced=True)
    address = Kind("", "v1", tokens.kind, tokens.plural, namespaced=True)
    request = make(tokens, name, namespace, spec={"expirationSeconds": 3600})
    answer = await kube.create(address, request)
    token: str = answer["status"]["token"]
    return token


def write_kubeconfig(admin: Path, path: Path, *, token: str | None = None, server: str | None = None) -> Path:
    """The administrator's kubeconfig with another token, or another address."""
    config = yaml.safe_load(admin.read_text())
    if token is not None:
        config["users"][0]["user"] = {"token": token}
    if server is not None:
        config["clusters"][0]["cluster"]["server"] = server
    path.write_text(yaml.safe_dump(config))
    return path


def read_cluster(admin: Path) -> Raw:
    """The cluster's entry of a kubeconfig: server, certificate-authority-data."""
    cluster: Raw = yaml.safe_load(admin.read_text())["clusters"][0]["cluster"]
    return cluster
