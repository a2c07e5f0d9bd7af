"""Giving env entries back without deleting them: the step before a smaller apply where a client-side owner has taken a value over.

An owner on client-side apply that overwrites the value of our env entry gets ``f:value`` only; the entry itself stays ours, and an
apply that leaves it out would delete the owner's entry with it. So our claim on the entry is removed from our own item of
``managedFields`` first. Pure; ``target`` and ``restore`` send the patch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metainfer.api.v1alpha1.common import FIELD_MANAGER

Raw = Mapping[str, Any]
EnvEntryName = tuple[str, str]
"""(container, env name)."""
_POD_SPEC = ("f:spec", "f:template", "f:spec")
_CONTAINER_LISTS = ("f:initContainers", "f:containers")


def build_release(deployment: Raw, entries: Sequence[EnvEntryName]) -> list[dict[str, Any]]:
    """JSON patch that removes these entries from our managedFields item; empty when none of them is ours.

    Bound to the object's resourceVersion: anybody else's write in between makes it a Conflict, not a mistake.
    """
    removals = [
        {"op": "remove", "path": "/".join(("", "metadata", "managedFields", str(index), "fieldsV1", *map(_escape, path)))}
        for index, item in enumerate(_managed(deployment))
        if _is_ours(item)
        for entry, path in _env_paths(item)
        if entry in entries
    ]
    if not removals:
        return []
    return [{"op": "add", "path": "/metadata/resourceVersion", "value": deployment["metadata"]["resourceVersion"]}, *removals]


def find_contested_env(deployment: Raw) -> tuple[EnvEntryName, ...]:
    """Env entries of ours of which another manager holds the value but not the entry."""
    items = _managed(deployment)
    ours = {entry for item in items if _is_ours(item) for entry, _ in _env_paths(item)}
    contested = {
        entry
        for item in items
        if item.get("manager") != FIELD_MANAGER
        for entry, path in _env_paths(item)
        if "f:value" in _subtree(item["fieldsV1"], path) and "." not in _subtree(item["fieldsV1"], path)
    }
    return tuple(sorted(ours & contested))


def owns_fields(deployment: Raw) -> bool:
    """Whether our server-side apply still owns anything of the object."""
    return any(_is_ours(item) for item in _managed(deployment))


def _managed(deployment: Raw) -> Sequence[Raw]:
    return deployment["metadata"].get("managedFields") or ()


def _is_ours(item: Raw) -> bool:
    return item.get("manager") == FIELD_MANAGER and item.get("operation") == "Apply" and not item.get("subresource")


def _env_paths(item: Raw) -> Iterator[tuple[EnvEntryName, tuple[str, ...]]]:
    """Every env entry in the item's tree, with its path."""
    tree = item.get("fieldsV1") or {}
    for kind in _CONTAINER_LISTS:
        for container in _keys(_subtree(tree, (*_POD_SPEC, kind))):
            base = (*_POD_SPEC, kind, container, "f:env")
            for entry in _keys(_subtree(tree, base)):
                yield (_name(container), _name(entry)), (*base, entry)


def _subtree(tree: Raw, path: Sequence[str]) -> Raw:
    for step in path:
        tree = tree.get(step) or {}
    return tree


def _keys(tree: Raw) -> list[str]:
    return [key for key in tree if key.startswith("k:")]


def _name(key: str) -> str:
    return str(json.loads(key.removeprefix("k:")).get("name", ""))


def _escape(step: str) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
