"""Nodes that an adaptation saw serve slower than its other nodes: their cards are measured as soon as one is free. Pure.

A probe that was made after the node was noticed has answered; as long as the pods stay slow it is not asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metainfer.api.v1alpha1.node_portrait import Sighting
from metainfer.api.v1alpha1.slow_node import SlowNode
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import AdaptationFacts, Portrait
from metainfer.decide.pool_pass import PoolPass, newest_by_node


def find_suspects(adaptations: Sequence[AdaptationFacts]) -> Mapping[str, tuple[str, SlowNode]]:
    """By node: who noticed it last, and what."""
    return newest_by_node(((slow.name, item, slow) for item in adaptations for slow in item.status.slow_nodes), lambda slow: slow.since)


def note_suspects(work: PoolPass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    """The portraits, with a probe wanted where pods are slow since after the last one."""
    noted = dict(portraits)
    for name, (who, slow) in find_suspects(work.snapshot.adaptations).items():
        portrait = portraits.get(name)
        if portrait is None or portrait.status.measured_at is None or parse_time(portrait.status.measured_at) > parse_time(slow.since):
            continue
        known = portrait.status.probe_wanted
        if known is None or parse_time(known.since) < parse_time(slow.since):
            words = f"pods of {who} serve {slow.latency_permille / 10:.0f} % of the others' latency there"
            wanted = Sighting(value=words[:128], since=slow.since)
            noted[name] = replace(portrait, status=portrait.status.model_copy(update={"probe_wanted": wanted}))
    return noted
