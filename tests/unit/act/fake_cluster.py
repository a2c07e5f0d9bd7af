"""A handful of objects with the API server's answers to creating, reading, JSON-patching and deleting them.

For what a real API server cannot be made to do on demand (fail at a given moment) and for time. Applies and field ownership are tested on
a real one only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from metainfer.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from metainfer.kube.kinds import Kind

Raw = dict[str, Any]


class FakeCluster:
    """Objects by (kind, namespace, name). ``failures``: errors to raise, by verb; ``calls``: what was asked, in order."""

    def __init__(self, *objects: Raw, failures: Mapping[str, ApiError] | None = None) -> None:
        self.objects: dict[tuple[str, str, str], Raw] = {}
        self.failures = dict(failures or {})
        self.calls: list[tuple[str, str, str]] = []
        self._version = 0
        for item in objects:
            self._put(item["kind"], item)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Raw:
        self._called("get", kind, name)
        return copy.deepcopy(self._find(kind, name, namespace))

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Raw:
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace")
        self._called("create", kind, name)
        if (kind.kind, namespace or "", name) in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{kind.plural} {name!r} already exists")
        return self._put(kind.kind, dict(body))

    async def apply(self, kind: Kind, name: str, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False) -> Raw:
        self._called("apply", kind, name)
        raise NotImplementedError("applies need a real API server")

    async def replace_status(self, kind: Kind, name: str, namespace: str | None, status: Mapping[str, Any], resource_version: str) -> Raw:
        self._called("status", kind, name)
        found = self._find(kind, name, namespace)
        if found["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(409, "Conflict", "the object has been modified")
        return self._put(kind.kind, found | {"status": dict(status)})

    async def patch_json(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Mapping[str, Any]]) -> Raw:
        self._called("patch", kind, name)
        found = copy.deepcopy(self._find(kind, name, namespace))
        for operation in operations:
            *parents, last = operation["path"].strip("/").split("/")
            place = found
            for step in parents:
                place = place[step]
            if operation["path"] == "/metadata/resourceVersion" and place[last] != operation["value"]:
                raise Conflict(409, "Conflict", "the object has been modified")
            place[last] = operation["value"]
        return self._put(kind.kind, found)

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        self._called("delete", kind, name)
        found = self.objects.get((kind.kind, namespace or "", name))
        if found is not None and uid in (None, found["metadata"]["uid"]):
            del self.objects[kind.kind, namespace or "", name]

    def _called(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append((verb, kind.kind, name))
        if verb in self.failures:
            raise self.failures[verb]

    def _find(self, kind: Kind, name: str, namespace: str | None) -> Raw:
        try:
            return self.objects[kind.kind, namespace or "", name]
        except KeyError:
            raise NotFound(404, "NotFound", f"{kind.plural} {name!r} not found") from None

    def _put(self, kind: str, body: Raw) -> Raw:
        self._version += 1
        metadata = {"uid": f"uid-{self._version}"} | body["metadata"] | {"resourceVersion": str(self._version)}
        self.objects[kind, metadata.get("namespace", ""), metadata["name"]] = body | {"kind": kind, "metadata": metadata}
        return copy.deepcopy(self.objects[kind, metadata.get("namespace", ""), metadata["name"]])
