"""What the operator has written and nobody may want any more: the facts of the sweeps that take the place of finalizers.

The cache decides whether to look, never what to do: before anything is taken away, it is read from the API server who still claims it. An
object that this version cannot read lives, too, and a kind is gone only when its definition is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from metainfer.decide.facts import AdaptationFacts
from metainfer.decide.leaving import Claim, LeavingSnapshot, decide_leaving
from metainfer.decide.orphans import OrphanSnapshot, decide_orphans
from metainfer.decide.pre_image import DeletionPolicy
from metainfer.kube.errors import NotFound
from metainfer.kube.kinds import ADAPTATION, CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, NAMESPACE, POOL, Kind
from metainfer.observe.projections import ProjectionError, project_pool, project_target
from metainfer.observe.view import ClusterView

Raw = Mapping[str, Any]


class LeftoverReader(Protocol):
    """Fresh reads; ``KubeClient`` has them. Raises ApiError."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object; raises NotFound."""
        ...

    async def list(self, kind: Kind, *, namespace: str | None = None) -> tuple[list[dict[str, Any]], str]:
        """All objects of a kind; raises NotFound where the kind is not known."""
        ...


class LeftoverGatherer:
    """Snapshots of what may be left over. Stateless."""

    def __init__(self, view: ClusterView, reader: LeftoverReader) -> None:
        self._view = view
        self._reader = reader

    async def gather_leaving(self, namespace: str, name: str) -> LeavingSnapshot | None:
        """A Deployment and who claims it; None when there is nothing to do about it. Raises ApiError."""
        cached = self._view.deployment(namespace, name)
        claims = tuple(claim_of(item) for item in self._view.adaptations(namespace) if not item.deleting)
        if cached is None or not decide_leaving(LeavingSnapshot(cached, claims)):
            return None
        try:
            raw = await self._reader.get(DEPLOYMENT, name, namespace)
            if _is_leaving(raw) or _is_leaving(await self._reader.get(NAMESPACE, namespace)):
                return None
        except NotFound:
            return None
        living = [item for item in await list_living(self._reader, ADAPTATION, namespace) if not _is_leaving(item)]
        return LeavingSnapshot(project_target(raw), tuple(map(read_claim, living)))

    async def gather_orphans(self) -> OrphanSnapshot | None:
        """Portraits and node labels against the pools that live; None when nothing is left over. Raises ApiError."""
        nodes, portraits = self._view.nodes(), self._view.portraits()
        if not decide_orphans(OrphanSnapshot(self._view.pools(), (), nodes, portraits)):
            return None
        pools, unread = [], []
        for raw in await list_living(self._reader, POOL, None):
            try:
                pools.append(project_pool(raw))
            except ProjectionError:
                unread.append(str(raw["metadata"]["name"]))
        return OrphanSnapshot(tuple(pools), tuple(unread), nodes, portraits)


def claim_of(adaptation: AdaptationFacts) -> Claim:
    """The claim of an adaptation in the cache."""
    return Claim(adaptation.uid, adaptation.spec.target_ref.name, adaptation.spec.deletion_policy)


def read_claim(raw: Raw) -> Claim:
    """The claim of an adaptation on the wire, whatever else is in it."""
    spec = raw.get("spec") or {}
    policy: DeletionPolicy = "Retain" if spec.get("deletionPolicy") == "Retain" else "Restore"
    return Claim(str(raw["metadata"]["uid"]), str((spec.get("targetRef") or {}).get("name", "")), policy)


def _is_leaving(raw: Raw) -> bool:
    return "deletionTimestamp" in raw["metadata"]


async def list_living(reader: LeftoverReader, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
    """All objects of one of our kinds. A kind that is not served may only not be served yet: it has none when its definition is gone."""
    try:
        return (await reader.list(kind, namespace=namespace))[0]
    except NotFound:
        try:
            await reader.get(CUSTOM_RESOURCE_DEFINITION, f"{kind.plural}.{kind.group}")
        except NotFound:
            return []
        raise
