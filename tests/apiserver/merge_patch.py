"""Merge patches, as people, kubelets and controllers send them. The operator itself sends none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import Kind
from metainfer.kube.transport import Call


async def patch_merge(  # the address of the object, and what becomes of it
    client: KubeClient, kind: Kind, name: str, namespace: str | None, body: Mapping[str, Any], *, subresource: str | None = None
) -> dict[str, Any]:
    """RFC 7386: null removes, lists are replaced. With metadata.resourceVersion it raises Conflict."""
    path = kind.path(namespace=namespace, name=name, subresource=subresource)
    return await client._send_json(Call("patch", "PATCH", path, {"fieldManager": FIELD_MANAGER}, dict(body), "application/merge-patch+json"))
