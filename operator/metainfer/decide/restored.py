"""After everything was given back: is the Deployment what its owner declares, and what of ours is left on it? Pure.

An apply of nothing removes what is recorded as ours. Records get lost: a backup restores objects without managedFields, and
``kubectl rollout undo`` brings our fields back in kubectl's name. What is left then is named, never called restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, PREIMAGE_ANNOTATION
from metainfer.decide.facts import ManagedFields
from metainfer.decide.ownership import UNKNOWN_MANAGER, Path, find_fields, is_last_applied, is_ours, parse_path, read_managed, readable, value_at
from metainfer.decide.pre_image import PreImage, read_pre_image

Raw = Mapping[str, Any]
TEMPLATE_MARK: Final[Path] = ("f:spec", "f:template", "f:metadata", "f:annotations", f"f:{DECISION_ANNOTATION}")
MARKS: Final[tuple[Path, ...]] = (
    TEMPLATE_MARK,
    ("f:metadata", "f:annotations", f"f:{DECISION_ANNOTATION}"),
    ("f:metadata", "f:annotations", f"f:{PREIMAGE_ANNOTATION}"),
)


@dataclass(frozen=True, slots=True)
class Left:
    """A field of ours that was not given back, and who is recorded for it."""

    path: str
    manager: str

    def __str__(self) -> str:
        """For a message."""
        return f"{self.path} (manager {self.manager})"


def find_left(deployment: Raw, pre_image: PreImage | None) -> tuple[Left, ...]:
    """What still differs from the pre-image and is not what the owner has come to declare.

    Our mark on the pod template was written together with all the rest: when it is still there, the records were lost, and whoever is
    recorded now did not declare anything - unless by a server-side apply, which is a declaration.
    """
    managed, records_lost = read_managed(deployment), value_at(deployment, TEMPLATE_MARK) is not None
    touched = {parse_path(path): value for path, value in pre_image.before.items()} if pre_image is not None else {}
    wanted: dict[Path, Any] = touched | dict.fromkeys(MARKS)
    left = [path for path, before in wanted.items() if _is_left(deployment, path, before, records_lost=records_lost)]
    return tuple(Left(readable(path), _holders(managed, path)) for path in left)


def _is_left(deployment: Raw, path: Path, before: Any, *, records_lost: bool) -> bool:
    now = value_at(deployment, path)
    if now == before:
        return False
    if now is None:  # an empty map of the owner's is missing, unless they do not declare it any more
        return bool(_others(deployment, path))
    return not _is_owners(deployment, path, records_lost=records_lost)


def _is_owners(deployment: Raw, path: Path, *, records_lost: bool) -> bool:
    annotations, others = deployment["metadata"].get("annotations") or {}, _others(deployment, path)
    declared = any(item.operation == "Apply" for item in others) or is_last_applied(annotations, path)
    return declared or (bool(others) and not records_lost)


def _others(deployment: Raw, path: Path) -> list[ManagedFields]:
    return [item for item in read_managed(deployment) if not is_ours(item) and find_fields(item, path) is not None]


def _holders(managed: tuple[ManagedFields, ...], path: Path) -> str:
    names = dict.fromkeys(item.manager for item in managed if find_fields(item, path) is not None)
    return ", ".join(names) or UNKNOWN_MANAGER


def find_empty_parents(deployment: Raw) -> tuple[Path, ...]:
    """Maps that were there, empty, before us, and that somebody still declares: an apply of nothing would take them along."""
    pre_image = read_pre_image(deployment["metadata"].get("annotations") or {})
    empty = [parse_path(path) for path, value in pre_image.before.items() if value == {}] if pre_image is not None else []
    return tuple(path for path in empty if _others(deployment, path))
