"""Giving fields up without deleting them: the step before a smaller apply where somebody else has come to declare them.

An owner on client-side apply that overwrites the value of our env entry gets ``f:value`` only; the entry itself stays ours, and an
apply that leaves it out would delete the owner's entry with it. An owner that declares the value which is there already gets nothing at
all. So our claim is removed from our own item of ``managedFields`` first, and where nobody else is recorded, the entry is put into
the item of the client-side apply that declares it. Pure; ``target`` and ``restore`` send the patch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.decide.facts import ManagedFields
from metainfer.decide.ownership import LAST_APPLIED, Path, find_fields, is_last_applied, is_ours, read_managed

Raw = Mapping[str, Any]
EnvEntryName = tuple[str, str]
"""(container, env name)."""
_POD_SPEC: Final[Path] = ("f:spec", "f:template", "f:spec")
_CONTAINER_LISTS: Final = ("f:initContainers", "f:containers")
_LAST_APPLIED: Final[Path] = ("f:metadata", "f:annotations", f"f:{LAST_APPLIED}")
_WHOLE_ENTRY: Final[Mapping[str, Any]] = {".": {}, "f:name": {}, "f:value": {}}


def build_release(deployment: Raw, entries: Sequence[EnvEntryName]) -> list[dict[str, Any]]:
    """JSON patch that removes these entries from our managedFields item; empty when none of them is ours.

    Bound to the object's resourceVersion: anybody else's write in between makes it a Conflict, not a mistake.
    """
    managed = read_managed(deployment)
    paths = [path for item in managed if is_ours(item) for entry, path in _env_paths(item) if entry in entries]
    removals = [_build_removal(managed, path) for path in paths]
    return [_guard(deployment), *_build_hand_over(managed, paths), *removals] if removals else []


def build_patch_back(deployment: Raw, wanted: Raw) -> list[dict[str, Any]]:
    """JSON patch that makes template and annotations those of ``wanted``, and takes our item out of managedFields."""
    annotations = wanted["metadata"].get("annotations")
    metadata = {"op": "add", "path": "/metadata/annotations", "value": annotations} if annotations else {"op": "remove", "path": "/metadata/annotations"}
    template = {"op": "add", "path": "/spec/template", "value": wanted["spec"]["template"]}
    return [_guard(deployment), metadata, template, *_build_item_removals(deployment)]


def build_forgetting(deployment: Raw) -> list[dict[str, Any]]:
    """JSON patch that takes us out of managedFields altogether; empty when we are not in it."""
    removals = _build_item_removals(deployment)
    return [_guard(deployment), *removals] if removals else []


def _build_item_removals(deployment: Raw) -> list[dict[str, Any]]:
    ours = [number for number, item in enumerate(read_managed(deployment)) if item.manager == FIELD_MANAGER and not item.subresource]
    return [{"op": "remove", "path": f"/metadata/managedFields/{number}"} for number in reversed(ours)]


def find_contested_env(deployment: Raw) -> tuple[EnvEntryName, ...]:
    """Env entries of ours that a client-side owner declares: another manager holds the value but not the entry, or nothing at all."""
    managed, annotations = read_managed(deployment), deployment["metadata"].get("annotations") or {}
    ours = {entry: path for item in managed if is_ours(item) for entry, path in _env_paths(item)}
    return tuple(sorted(entry for entry, path in ours.items() if _holds_value_only(managed, path) or is_last_applied(annotations, path)))


def owns_fields(deployment: Raw) -> bool:
    """Whether our server-side apply still owns anything of the object."""
    return any(map(is_ours, read_managed(deployment)))


def _holds_value_only(managed: Sequence[ManagedFields], path: Path) -> bool:
    others = [find_fields(item, path) or {} for item in managed if not is_ours(item)]
    return any("f:value" in fields and "." not in fields for fields in others)


def _guard(deployment: Raw) -> dict[str, Any]:
    return {"op": "add", "path": "/metadata/resourceVersion", "value": deployment["metadata"]["resourceVersion"]}


def _build_removal(managed: Sequence[ManagedFields], path: Path) -> dict[str, Any]:
    index = next(number for number, item in enumerate(managed) if is_ours(item))
    return {"op": "remove", "path": _pointer(index, path)}


def _build_hand_over(managed: Sequence[ManagedFields], paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Entries that nobody else owns would go with the next smaller apply, so the client-side apply that declares them is recorded for them."""
    index = next((number for number, item in enumerate(managed) if find_fields(item, _LAST_APPLIED) is not None), None)
    if index is None:
        return
    made: set[Path] = set()
    for path in paths:
        if any(not is_ours(item) and find_fields(item, path) is not None for item in managed):
            continue
        for parent in (path[:length] for length in range(1, len(path))):
            if find_fields(managed[index], parent) is None and parent not in made:
                made.add(parent)
                yield {"op": "add", "path": _pointer(index, parent), "value": {}}
        yield {"op": "add", "path": _pointer(index, path), "value": _WHOLE_ENTRY}


def _env_paths(item: ManagedFields) -> Iterator[tuple[EnvEntryName, Path]]:
    """Every env entry in the item's tree, with its path."""
    for kind in _CONTAINER_LISTS:
        for container in _keys(find_fields(item, (*_POD_SPEC, kind))):
            base = (*_POD_SPEC, kind, container, "f:env")
            for entry in _keys(find_fields(item, base)):
                yield (_name(container), _name(entry)), (*base, entry)


def _keys(tree: Mapping[str, Any] | None) -> list[str]:
    return [key for key in tree or () if key.startswith("k:")]


def _name(key: str) -> str:
    return str(json.loads(key.removeprefix("k:")).get("name", ""))


def _pointer(index: int, path: Path) -> str:
    """JSON pointer (RFC 6901) to a path of one item of managedFields."""
    steps = (step.replace("~", "~0").replace("/", "~1") for step in path)
    return "/".join(("/metadata/managedFields", str(index), "fieldsV1", *steps))
