"""Nodes whose pods serve slower than the others of the same target, as the status of a ModelAdaptation names them."""

from __future__ import annotations

from pydantic import Field

from metainfer.api.v1alpha1.common import ApiModel, Timestamp


class SlowNode(ApiModel):
    """One node, while its pods stay slow."""

    name: str = Field(max_length=253, description="name of the node.")
    since: Timestamp = Field(description="since is when it was noticed; a probe made later has looked at it.")
    latency_permille: int = Field(description="latencyPermille is the mean latency of its pods over the median of the other nodes' when it was noticed.")
