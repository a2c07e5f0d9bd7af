"""Our own status, written by compare-and-swap and only when it changed. What stands in it is decided elsewhere.

A Conflict means that somebody else moved first: drop the pass and look again.
"""

from __future__ import annotations

from dataclasses import replace

from metainfer.act.ports import ClusterWriter, Remember
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.common import ApiModel
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.facts import AdaptationFacts, PoolFacts
from metainfer.kube.kinds import ADAPTATION, POOL


async def write_pool_status(client: ClusterWriter, facts: PoolFacts, status: AcceleratorPoolStatus, remember: Remember) -> PoolFacts:
    """Replace the pool's status if it differs; returns the facts that a next write starts from. Raises Conflict and other ApiErrors."""
    if status == facts.status:
        return facts
    written = await client.replace_status(POOL, facts.name, None, dump_status(status), facts.resource_version)
    remember(written)
    return replace(facts, status=status, resource_version=written["metadata"]["resourceVersion"])


async def write_adaptation_status(client: ClusterWriter, facts: AdaptationFacts, status: ModelAdaptationStatus, remember: Remember) -> AdaptationFacts:
    """Replace the adaptation's status if it differs; returns the facts that a next write starts from. Raises Conflict and other ApiErrors."""
    if status == facts.status:
        return facts
    written = await client.replace_status(ADAPTATION, facts.name, facts.namespace, dump_status(status), facts.resource_version)
    remember(written)
    return replace(facts, status=status, resource_version=written["metadata"]["resourceVersion"])


def dump_status(status: ApiModel) -> dict[str, object]:
    """As it travels: camelCase, without fields that are not set."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
