"""Who owns which field of the Deployment, read from managedFields. Pure.

A field is ours when our own server-side apply put it there. Everything else that is present belongs to somebody, also
when nobody is recorded (managedFields get lost in backups).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.decide.facts import ContainerFacts, ManagedFields, TargetFacts

Path = tuple[str, ...]
UNKNOWN_MANAGER: Final = "unknown"
"""Stands for the manager of a field that nobody is recorded for."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""What a client-side apply (kubectl's, Argo CD's default) declared last. The only trace of an owner that declares a value which is there already."""
CLIENT_SIDE: Final = "client-side apply"
"""Stands for the manager of what only ``LAST_APPLIED`` tells of."""

NODE_AFFINITY: Final[Path] = ("f:spec", "f:template", "f:spec", "f:affinity", "f:nodeAffinity")
REQUIRED_AFFINITY: Final[Path] = (*NODE_AFFINITY, "f:requiredDuringSchedulingIgnoredDuringExecution")
PREFERRED_AFFINITY: Final[Path] = (*NODE_AFFINITY, "f:preferredDuringSchedulingIgnoredDuringExecution")


def item_step(name: str) -> str:
    """The step into a list item by its name, as FieldsV1 writes it."""
    return f"k:{json.dumps({'name': name}, separators=(',', ':'))}"


def container_path(container: ContainerFacts) -> Path:
    """Where the container stands in the pod template."""
    return ("f:spec", "f:template", "f:spec", "f:initContainers" if container.init else "f:containers", item_step(container.name))


def env_path(container: ContainerFacts, name: str) -> Path:
    """Where one env entry of the container stands."""
    return (*container_path(container), "f:env", item_step(name))


def readable(path: Path) -> str:
    """The path in the words of the API server's own conflict messages."""
    text = ""
    for step in path:
        if step.startswith("k:"):
            text += f"[name={json.dumps(json.loads(step[2:])['name'])}]"
        else:
            text += f".{step.removeprefix('f:')}"
    return text.removeprefix(".")


_STEP: Final = re.compile(r'\[name=("(?:[^"\\]|\\.)*")\]|\.?([^.\[]+)')


def parse_path(text: str) -> Path:
    """Inverse of ``readable``."""
    return tuple(item_step(json.loads(name)) if name else f"f:{key}" for name, key in _STEP.findall(text))


def value_at(raw: Any, path: Path) -> Any:
    """What stands at the path of an object on the wire; None when nothing does."""
    found = raw
    for step in path:
        if step.startswith("k:"):
            keys = json.loads(step[2:])
            items = found if isinstance(found, Sequence) else ()
            found = next((item for item in items if all(item.get(key) == value for key, value in keys.items())), None)
        else:
            found = found.get(step.removeprefix("f:")) if isinstance(found, Mapping) else None
    return found


def read_managed(raw: Mapping[str, Any]) -> tuple[ManagedFields, ...]:
    """managedFields of an object on the wire."""
    items = (raw.get("metadata") or {}).get("managedFields") or ()
    return tuple(
        ManagedFields(item.get("manager", ""), item.get("operation", ""), item.get("fieldsV1") or {}, item.get("subresource", ""), item.get("time") or "")
        for item in items
    )


def is_last_applied(annotations: Mapping[str, str], path: Path) -> bool:
    """Whether the owner's last client-side apply declared the field."""
    try:
        return value_at(json.loads(annotations.get(LAST_APPLIED, "{}")), path) is not None
    except ValueError:
        return False  # not written by kubectl


def other_managers(target: TargetFacts, path: Path) -> tuple[str, ...]:
    """Managers other than us that own the field or a part of it, in the order of managedFields."""
    names = [item.manager for item in target.managed if item.manager != FIELD_MANAGER and find_fields(item, path) is not None]
    return tuple(dict.fromkeys(names))


def holders(target: TargetFacts, path: Path) -> str:
    """The other managers of a field, for a message."""
    return ", ".join(other_managers(target, path)) or (CLIENT_SIDE if is_last_applied(target.annotations, path) else UNKNOWN_MANAGER)


def owned_by_us(target: TargetFacts, path: Path) -> bool:
    """Whether our own apply owns the field; of a list item (an env entry) the item itself, not only parts of it."""
    found = [find_fields(item, path) for item in target.managed if is_ours(item)]
    return any(part is not None and (_is_whole(part) or not path[-1].startswith("k:")) for part in found)


def others_hold_parts_only(target: TargetFacts, path: Path) -> bool:
    """Whether every other manager has only parts of the list item: leaving it out of our apply would delete theirs too."""
    others = [found for item in target.managed if item.manager != FIELD_MANAGER and (found := find_fields(item, path)) is not None]
    return bool(others) and not any(map(_is_whole, others))


def _is_whole(part: Mapping[str, Any]) -> bool:
    """FieldsV1: ``.`` is the item itself, and so is a leaf (two env entries of one name are written like that)."""
    return "." in part or not part


def is_ours(item: ManagedFields) -> bool:
    """Whether the item is that of our own server-side apply."""
    return (item.manager, item.operation, item.subresource) == (FIELD_MANAGER, "Apply", "")


def find_fields(item: ManagedFields, path: Path) -> Mapping[str, Any] | None:
    """What the item owns at the path and below; None = nothing."""
    found: Mapping[str, Any] | None = item.fields
    for step in path:
        if found is None:
            return None
        found = found.get(step)
    return found
