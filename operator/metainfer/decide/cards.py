"""How many cards a node really has, and how many of them are free: a device plugin may offer each card several times. Pure.

Time-slicing and MPS multiply what a node offers without adding a card. Whoever gets such a piece shares the card with others, so figures
measured there are those of a moment: they are kept, and say nothing about the card against its family.
"""

from __future__ import annotations

from typing import Final

from metainfer.decide.facts import NodeFacts

REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"
STRATEGY_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
NOT_SHARED: Final = ("", "none")
PARTITION_LABEL: Final = "nvidia.com/mig.config.state"
PARTITIONED: Final = ("", "success")
_VENDOR: Final = "nvidia.com/"
"""The only vendor whose labels tell of sharing and of partitions being made."""


def read_sharing(node: NodeFacts, resource: str) -> str:
    """How the node's cards are shared (``time-slicing``, ``mps``); empty = each piece of the resource is a card of its own, as far as labels tell."""
    strategy = node.labels.get(STRATEGY_LABEL, "")
    if not resource.startswith(_VENDOR) or (strategy in NOT_SHARED and pieces_per_card(node, resource) == 1):
        return ""
    return strategy if strategy not in NOT_SHARED else "replicas"


def pieces_per_card(node: NodeFacts, resource: str) -> int:
    """In how many pieces of the resource each card is offered."""
    replicas = node.labels.get(REPLICAS_LABEL, "") if resource.startswith(_VENDOR) else ""
    return max(1, int(replicas)) if replicas.isdigit() else 1


def count_cards(node: NodeFacts, resource: str) -> int:
    """Cards that the node offers."""
    return node.allocatable.get(resource, 0) // pieces_per_card(node, resource)


def count_free(node: NodeFacts, resource: str, held: int) -> int:
    """Cards of which no pod holds a piece, when so many pieces are held."""
    return max(0, node.allocatable.get(resource, 0) - held) // pieces_per_card(node, resource)


def read_partitioning(node: NodeFacts) -> str:
    """The state in which the node's cards are being cut into slices, or failed to be; empty = they are not."""
    state = node.labels.get(PARTITION_LABEL, "")
    return "" if state in PARTITIONED else state
