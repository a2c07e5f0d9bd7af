"""Everything of a kind in a namespace goes at once, as with ``kubectl delete --all``. The operator itself never does that."""

from __future__ import annotations

from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import Kind
from metainfer.kube.transport import Call


async def delete_all(client: KubeClient, kind: Kind, namespace: str) -> None:
    """By one request; finalizers are waited for by nobody."""
    await client._send_json(Call("delete", "DELETE", kind.path(namespace=namespace)))
