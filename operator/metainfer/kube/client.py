"""The operator's port to the API server: raw JSON objects in, raw JSON objects or a typed error out.

The only door; nobody else imports the ``kubernetes`` client. It knows no rules: never forces a field, never retries a write.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.kube.errors import Conflict, Expired, NotFound
from metainfer.kube.kinds import POD, Kind
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Call, Transport

Raw = dict[str, Any]

CHUNK = 500
"""Objects per page of a list: 500 Nodes of 18 KB are 9 MB, decoded in about 0.1 s."""
EXPIRIES_BEFORE_WHOLE_LIST = 2
"""A list whose continue token expires that often is asked for in one piece."""

JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind to list; empty selectors select all."""

    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """One chunk of a list. All pages of one list show the cluster at the same ``resource_version``."""

    items: tuple[Raw, ...]
    resource_version: str


class KubeClient:
    """All methods raise ApiError (see ``kube.errors``), and nothing else on the server's account."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    def connect(cls, *, requests_per_second: float = 50.0, burst: int = 100) -> KubeClient:
        """A client for the cluster of KUBECONFIG, or of the pod it runs in. Connects on first use."""
        return cls(Transport(TokenBucket(requests_per_second, burst)))

    async def close(self) -> None:
        """Close the connections; requests in flight fail."""
        await self._transport.close()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Raw:
        """One object; raises NotFound."""
        return await self._send_json(Call("get", "GET", kind.path(namespace=namespace, name=name)))

    async def list_pages(self, kind: Kind, selection: Selection = Selection(), *, chunk: int = CHUNK) -> AsyncIterator[Page]:
        """The list in pages, so that thousands of objects are never held as JSON at once.

        Raises Expired in the middle when the continue token got too old: what was yielded is then of no list.
        """
        query = {"limit": str(chunk)} if chunk else {}
        if selection.label_selector:
            query["labelSelector"] = selection.label_selector
        if selection.field_selector:
            query["fieldSelector"] = selection.field_selector
        while True:
            answer = await self._send_json(Call("list", "GET", kind.path(namespace=selection.namespace), query))
            metadata = answer.get("metadata") or {}
            yield Page(tuple(answer.get("items") or ()), str(metadata.get("resourceVersion") or ""))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def list(
        self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = "", chunk: int = CHUNK
    ) -> tuple[list[Raw], str]:
        """All objects and the resourceVersion at which the server looked. Starts again when a continue token expires."""
        selection = Selection(namespace, label_selector, field_selector)
        for attempt in range(EXPIRIES_BEFORE_WHOLE_LIST + 1):
            size = chunk if attempt < EXPIRIES_BEFORE_WHOLE_LIST else 0
            items: list[Raw] = []
            version = ""
            try:
                async for page in self.list_pages(kind, selection, chunk=size):
                    items += page.items
                    version = page.resource_version
            except Expired:
                if not size:
                    raise
                continue
            return items, version
        raise AssertionError("the last attempt returns or raises")

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Raw:
        """Create the object, in the namespace that stands in its metadata; raises AlreadyExists."""
        namespace = body["metadata"].get("namespace") if kind.namespaced else None
        return await self._send_json(Call("create", "POST", kind.path(namespace=namespace), _OURS, dict(body)))

    async def apply(self, kind: Kind, name: str, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False) -> Raw:
        """Server-side apply of our fields: those left out since the last time are given up. Never forced; ``dry_run`` stores nothing.

        Raises FieldConflict naming the fields that others own.
        """
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.kind}
        query = {**_OURS, "force": "false"} | ({"dryRun": "All"} if dry_run else {})
        return await self._send_json(Call("apply", "PATCH", kind.path(namespace=namespace, name=name), query, whole, APPLY_PATCH))

    async def replace_status(self, kind: Kind, name: str, namespace: str | None, status: Mapping[str, Any], resource_version: str) -> Raw:
        """Put ``status`` in place of the whole old one, if the object is still at ``resource_version``; else raises Conflict.

        A JSON patch: it replaces, where a merge patch would keep every field that is no longer set, and it needs only
        the right to patch, where an update needs the whole object.
        """
        operations: list[Raw] = [
            {"op": "add", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        return await self.patch_json(kind, name, namespace, operations, subresource="status")

    async def patch_json(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Mapping[str, Any]], *, subresource: str | None = None) -> Raw:
        """A JSON patch (RFC 6902). A failed ``test`` raises Invalid."""
        path = kind.path(namespace=namespace, name=name, subresource=subresource)
        return await self._send_json(Call("patch", "PATCH", path, _OURS, [dict(item) for item in operations], JSON_PATCH))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete in the background; an object that is gone, or is another one than ``uid``, is fine."""
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._transport.send(Call("delete", "DELETE", kind.path(namespace=namespace, name=name), body=options))
        except NotFound:
            return
        except Conflict:
            if uid is None:
                raise

    async def pod_log(self, namespace: str, name: str, container: str, *, tail_lines: int, limit_bytes: int) -> str:
        """The end of a container's log, at most ``limit_bytes`` counted from the first of those lines.

        Raises NotFound when the pod is gone, Invalid while the container has not started.
        """
        query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(limit_bytes)}
        path = POD.path(namespace=namespace, name=name, subresource="log")
        return (await self._transport.send(Call("log", "GET", path, query))).decode(errors="replace")

    async def _send_json(self, call: Call) -> Raw:
        answer: Raw = json.loads(await self._transport.send(call))
        return answer


_OURS: Mapping[str, str] = {"fieldManager": FIELD_MANAGER}
