"""The place of a placement is gone: no nodes, nodes that became something else, or pods that find no room where we sent them. Pure.

A label that is missing is no label that changed: labellers restart, and drop all of them for minutes. Nothing here looks at a node
that only lacks the labels which its family selects on.
"""

from __future__ import annotations

from typing import Final

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FAMILY_LABEL
from metainfer.api.v1alpha1.model_adaptation import Placement
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import NodeFacts, PodFacts
from metainfer.decide.families import FamilyOption, selector_requirements
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.scene import Scene
from metainfer.decide.standing import is_standing

LOST_SETTLE_SECONDS: Final = 120.0
"""A node that restarts is back, and one that an autoscaler replaces has its successor, mostly within that; whoever changes labels is done."""
ROLLOUT_GRACE_SECONDS: Final = 600.0
"""Kubernetes' own default for a rollout to make progress: until then pods that wait are the rollout's matter."""
ABSENCE_PASSES: Final = ("NotIn", "DoesNotExist")
NAMED_NODES: Final = 4


def find_lost(draft: Draft, scene: Scene) -> Suspicion | None:
    """``PlacementLost``, for what is on the Deployment now."""
    placement = draft.status.placement
    if placement is None or not is_standing(placement, scene.target):
        return None
    option = scene.option(placement.config)
    if option is None:
        return None  # the pool has no such family any more: its inputs changed, which is a trigger of its own
    found = _find_other_cards(draft, option) or _find_no_nodes(draft, option) or _find_no_room(draft, placement, option)
    if found is None:
        return None
    words, node = found
    blocked = "" if _has_elsewhere(scene, option, node) else "no family of the pools can take the target now"
    return Suspicion("PlacementLost", words, "Run", family=option.family.name, node=node, settle_seconds=LOST_SETTLE_SECONDS, is_urgent=True, blocked=blocked)


Found = tuple[str, str]
"""What is lost in words, and the node that the pods have to leave, if it is one."""


def _find_no_nodes(draft: Draft, option: FamilyOption) -> Found | None:
    if option.nodes or option.excluded or any(is_unlabelled(node, option.family) for node in draft.snapshot.nodes):
        return None
    return f"family {option.family.name} of pool {option.pool} has no nodes any more", ""


def _find_other_cards(draft: Draft, option: FamilyOption) -> Found | None:
    """Pods on nodes that are there, carry the labels that the family selects on, and carry other values."""
    homes = {pod.node for pod in draft.snapshot.target_pods if _is_placed(draft, pod)}
    others = [node for node in draft.snapshot.nodes if node.name in homes and node.name not in option.members and not _lacks_labels(node, option.family)]
    if not others:
        return None
    names = ", ".join(sorted(node.name for node in others)[:NAMED_NODES])
    return f"node {names} is no longer of family {option.family.name}: the labels that it selects on have other values", others[0].name


def _find_no_room(draft: Draft, placement: Placement, option: FamilyOption) -> Found | None:
    """Pods of the decision for which the scheduler finds no node."""
    if (draft.now - parse_time(placement.applied_at)).total_seconds() < ROLLOUT_GRACE_SECONDS:
        return None
    waiting = [pod for pod in draft.snapshot.target_pods if _is_placed(draft, pod) and pod.node is None and pod.unschedulable]
    if not waiting:
        return None
    return f"{len(waiting)} pods find no node of family {option.family.name}: {waiting[0].unschedulable}"[:400], ""


def _is_placed(draft: Draft, pod: PodFacts) -> bool:
    """Whether it is a living pod of what was placed."""
    placement = draft.status.placement
    ours = placement is not None and pod.annotations.get(DECISION_ANNOTATION) == placement.decision_id
    return ours and not pod.deleting and pod.phase not in ("Succeeded", "Failed")


def is_unlabelled(node: NodeFacts, family: AcceleratorFamily) -> bool:
    """Whether it was a node of the family by our own label, and only lacks the vendor's now."""
    return node.labels.get(FAMILY_LABEL) == family.name and _lacks_labels(node, family)


def _lacks_labels(node: NodeFacts, family: AcceleratorFamily) -> bool:
    wanted = (item.key for item in selector_requirements(family.selector) if item.operator not in ABSENCE_PASSES)
    return any(key not in node.labels for key in wanted)


def _has_elsewhere(scene: Scene, lost: FamilyOption, node: str) -> bool:
    """Whether a run could find another place: a family with room, which may be other nodes of the same."""
    same = node and any(item.name != node for item in lost.nodes) and lost.no_room is None
    return bool(same) or any(option is not lost and option.nodes and option.no_room is None for option in scene.options)
