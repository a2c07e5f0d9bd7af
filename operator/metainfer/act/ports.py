"""What the writers need from the outside: the API server, the cache, the decision log. Implemented elsewhere, joined in ``app``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from metainfer.decide.plan import RecordDecision, RecordServed
from metainfer.kube.kinds import Kind

Raw = Mapping[str, Any]
Remember = Callable[[Raw], None]
"""Puts an object that a write returned into the cache, so that the next pass reads what this one wrote."""
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time, for whoever was given no other clock."""
    return datetime.now(UTC)


class ClusterWriter(Protocol):
    """The part of ``KubeClient`` that writes. All methods raise ``kube.errors.ApiError``."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object; raises NotFound."""
        ...

    async def create(self, kind: Kind, body: Raw) -> dict[str, Any]:
        """Create an object; raises AlreadyExists."""
        ...

    async def apply(self, kind: Kind, name: str, body: Raw, *, namespace: str | None = None, dry_run: bool = False) -> dict[str, Any]:
        """Server-side apply of our fields, never forced; raises FieldConflict."""
        ...

    async def replace_status(self, kind: Kind, name: str, namespace: str | None, status: Raw, resource_version: str) -> dict[str, Any]:
        """Replace the whole status if the object is still at that version; raises Conflict."""
        ...

    async def patch_json(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Raw]) -> dict[str, Any]:
        """A JSON patch (RFC 6902)."""
        ...

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete in the background; one that is gone, or has another UID, is fine."""
        ...


class DecisionLog(Protocol):
    """Where decisions are kept. One that is away keeps them in memory until it is back."""

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        """Keep a decision; False = it was there already."""
        ...

    async def record_served(self, adaptation_uid: str, served: RecordServed) -> bool:
        """Keep what a window served; False = it was there already."""
        ...
