"""On which of the nodes that are open to the target no Job of the adaptation may be started, and why. Pure.

Not what passes within minutes (a card in use, another measuring Job: ``measuring.closed_nodes``), but what stays until somebody
changes something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metainfer.decide.cards import read_partitioning
from metainfer.decide.facts import AdaptationSnapshot, NodeFacts
from metainfer.decide.families import Exclusion, FamilyOption
from metainfer.decide.image_room import why_no_image_room
from metainfer.decide.names import claim_of
from metainfer.decide.probe_failures import is_sick
from metainfer.decide.restrictions import term_matches

_EXAMPLES: Final = 3
Rule = Callable[[AdaptationSnapshot, NodeFacts], Exclusion | None]


def find_unmeasurable(snapshot: AdaptationSnapshot, nodes: Sequence[NodeFacts]) -> Mapping[str, Exclusion]:
    """The nodes where nothing may be measured, each with the first reason."""
    found = {node.name: next((exclusion for rule in RULES if (exclusion := rule(snapshot, node)) is not None), None) for node in nodes}
    return {name: exclusion for name, exclusion in found.items() if exclusion is not None}


def why_nowhere(options: Sequence[FamilyOption], nodes: Sequence[str]) -> Exclusion | None:
    """Why none of these nodes of the families takes a Job, the commonest reason; None when one may, or there are none."""
    found = [option.unmeasurable.get(node.name) for option in options for node in option.nodes if node.name in nodes]
    known = [item for item in found if item is not None]
    if not known or len(known) < len(found):
        return None
    reason = Counter(item.reason for item in known).most_common(1)[0][0]
    words = list(dict.fromkeys(item.message for item in known if item.reason == reason))
    more = f"; and {len(words) - _EXAMPLES} more nodes" if len(words) > _EXAMPLES else ""
    return Exclusion(reason, "; ".join(words[:_EXAMPLES]) + more)


def _volume_elsewhere(snapshot: AdaptationSnapshot, node: NodeFacts) -> Exclusion | None:
    """The model's volume is bound to other nodes: a Job there would wait for ever."""
    claim = claim_of(snapshot.adaptation.spec.model.uri)
    terms = snapshot.claim_terms.get(claim) if claim is not None else None
    if terms is None or any(term_matches(term, node) for term in terms):
        return None
    return Exclusion("ModelElsewhere", f"the volume of the model's claim {claim} cannot be used on node {node.name}")


def _card_refused(snapshot: AdaptationSnapshot, node: NodeFacts) -> Exclusion | None:
    portrait = snapshot.portraits.get(node.name)
    failure = portrait.status.probe_failure if portrait is not None and portrait.spec.node_uid == node.uid else None
    if failure is None or not is_sick(failure):
        return None
    return Exclusion(failure.reason, f"node {node.name} did not hand out its card: {failure.message}")


def _being_partitioned(_snapshot: AdaptationSnapshot, node: NodeFacts) -> Exclusion | None:
    """Its labels may still tell of cards that are no longer there."""
    state = read_partitioning(node)
    return Exclusion("CardsBeingPartitioned", f"the cards of node {node.name} are being cut into slices ({state})") if state else None


def _evicted(snapshot: AdaptationSnapshot, node: NodeFacts) -> Exclusion | None:
    """One eviction is enough: the measurement may have been what filled the node."""
    results = [item for item in (snapshot.profile, *snapshot.runs) if item is not None]
    if not any(item.node == node.name and item.failure is not None and item.failure.reason == "Evicted" for item in results):
        return None
    return Exclusion("Evicted", f"a Job of this run was evicted from node {node.name}: nothing more is measured there in this run")


def _no_image_room(snapshot: AdaptationSnapshot, node: NodeFacts) -> Exclusion | None:
    words = why_no_image_room(node, snapshot.limits)
    return Exclusion("NoImageSpace", words) if words else None


RULES: Final[tuple[Rule, ...]] = (_volume_elsewhere, _card_refused, _being_partitioned, _evicted, _no_image_room)
