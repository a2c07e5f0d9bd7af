"""On which nodes the owner of the target lets it run. Pure; exact Kubernetes semantics, so that nothing is chosen that cannot be scheduled.

Only what holds for an empty node is looked at: free cards and room for replicas are `room`'s. What the owner rules out
for good is named before what may pass by itself (a node that is not ready), so that messages do not flicker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metainfer.decide.facts import NodeFacts, NodeTerm, PodTemplateFacts, Quantities, Requirement, RuntimeClassFacts, Taint, Toleration
from metainfer.decide.families import Exclusion, requirement_holds
from metainfer.decide.room import pod_requests

DEFAULT_ARCHITECTURES: Final = ("amd64",)
"""What an image is taken to run on while nobody says otherwise: serving images are built for amd64 at least."""
ARCHITECTURE_LABELS: Final = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What the scheduler puts in place of ``spec.unschedulable``: who tolerates it may run on a cordoned node."""
PRESSURES: Final = ("DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Node conditions under which the kubelet starts no ordinary pod, whatever it tolerates. Memory pressure works through its taint."""

NEVER_SELECTED: Final = frozenset({"NodeNameDiffers", "RuntimeClassMismatch", "NodeSelectorMismatch", "NodeAffinityMismatch", "TopologyLabelMissing"})
"""Exclusions by the pod's own selectors: the scheduler does not spread pods over such nodes."""

Terms = tuple[NodeTerm, ...]


@dataclass(frozen=True, slots=True)
class _Restrictions:
    """All that restricts one pod, put together once."""

    template: PodTemplateFacts
    runtime_class: RuntimeClassFacts | None
    claim_terms: Mapping[str, Terms | None]
    architectures: Collection[str]
    requests: Quantities

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """The pod's own and those that its RuntimeClass adds."""
        return self.template.tolerations + (self.runtime_class.tolerations if self.runtime_class else ())


def eligible_nodes(
    template: PodTemplateFacts,
    nodes: Sequence[NodeFacts],
    *,
    runtime_class: RuntimeClassFacts | None,
    claim_terms: Mapping[str, Terms | None],
    running_architectures: Collection[str] = (),
) -> Mapping[str, Exclusion]:
    """The nodes on which the target may *not* run, each with the first restriction that rules it out.

    Args: ``runtime_class`` and ``claim_terms`` as in AdaptationSnapshot; ``running_architectures`` are those of nodes
    on which the target's pods are ready now, which shows that the image runs there.
    """
    architectures = {*DEFAULT_ARCHITECTURES, *running_architectures}
    requests = Counter(pod_requests(template))
    requests.update(runtime_class.overhead if runtime_class is not None else {})
    restrictions = _Restrictions(template, runtime_class, claim_terms, architectures, requests)
    found = {node.name: _find_exclusion(restrictions, node) for node in nodes}
    return {name: exclusion for name, exclusion in found.items() if exclusion is not None}


def _find_exclusion(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    return next((exclusion for rule in CHAIN if (exclusion := rule(restrictions, node)) is not None), None)


def _find_other_node_name(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    name = restrictions.template.node_name
    if not name or name == node.name:
        return None
    return Exclusion("NodeNameDiffers", f"the target is pinned to node {name} by nodeName")


def _find_missing_runtime_class(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    name = restrictions.template.runtime_class
    if name is None or restrictions.runtime_class is not None:
        return None
    return Exclusion("RuntimeClassMissing", f"RuntimeClass {name} does not exist, so that no pod of the target can be created for {node.name}")


def _find_runtime_class_mismatch(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    runtime_class = restrictions.runtime_class
    if runtime_class is None or (key := _missing_label(runtime_class.node_selector, node)) is None:
        return None
    wanted = f"{key}={runtime_class.node_selector[key]}"
    return Exclusion("RuntimeClassMismatch", f"RuntimeClass {runtime_class.name} needs label {wanted}, node {node.name} has {_label(key, node)}")


def _find_selector_mismatch(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    selector = restrictions.template.node_selector
    if (key := _missing_label(selector, node)) is None:
        return None
    return Exclusion("NodeSelectorMismatch", f"nodeSelector needs label {key}={selector[key]}, node {node.name} has {_label(key, node)}")


def _missing_label(selector: Mapping[str, str], node: NodeFacts) -> str | None:
    return next((key for key, value in sorted(selector.items()) if node.labels.get(key) != value), None)


def _label(key: str, node: NodeFacts) -> str:
    return f"{key}={node.labels[key]}" if key in node.labels else "no such label"


def _find_affinity_mismatch(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    terms = restrictions.template.required_terms
    if terms is None or any(term_matches(term, node) for term in terms):
        return None
    return Exclusion("NodeAffinityMismatch", f"required node affinity does not allow node {node.name}: {_why_no_term(terms, node)}")


def term_matches(term: NodeTerm, node: NodeFacts) -> bool:
    """Whether a node selector term selects the node; an empty term selects nothing."""
    return bool(term.expressions or term.fields) and _first_unmet(term, node) is None


def _first_unmet(term: NodeTerm, node: NodeFacts) -> Requirement | None:
    fields = {"metadata.name": node.name}
    unmet = [item for item in term.expressions if not requirement_holds(item, node.labels)]
    unmet += [item for item in term.fields if not requirement_holds(item, fields)]
    return unmet[0] if unmet else None


def _why_no_term(terms: Terms, node: NodeFacts) -> str:
    unmet = [_first_unmet(term, node) for term in terms]
    return "; or ".join(_requirement(item, node) for item in unmet if item is not None) or "it has no term that selects anything"


def _requirement(item: Requirement, node: NodeFacts) -> str:
    wanted = " ".join((item.key, item.operator, ",".join(item.values))).rstrip()
    return f"{wanted} (here {_label(item.key, node)})" if item.key != "metadata.name" else wanted


def _find_no_domain(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    """The scheduler passes over nodes without the label that pods must spread over. Anti-affinity does not mind."""
    keys = [spread.topology_key for spread in restrictions.template.spreads if not spread.one_per_domain]
    missing = next((key for key in keys if key not in node.labels), None)
    if missing is None:
        return None
    return Exclusion("TopologyLabelMissing", f"the target spreads its pods over {missing}, node {node.name} has no such label")


def _find_volume_elsewhere(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    for claim in restrictions.template.claims:
        terms = restrictions.claim_terms.get(claim)
        if terms is not None and not any(term_matches(term, node) for term in terms):
            return Exclusion("VolumeElsewhere", f"the volume of claim {claim} cannot be used on node {node.name}: {_why_no_term(terms, node)}")
    return None


def _find_unknown_architecture(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    architecture = node.labels.get(ARCHITECTURE_LABELS[0]) or node.architecture or DEFAULT_ARCHITECTURES[0]
    if architecture in restrictions.architectures or _owner_names_architecture(restrictions, node):
        return None
    message = f"image not known to run on {architecture} (node {node.name}): if it does, name {ARCHITECTURE_LABELS[0]} in nodeSelector or affinity"
    return Exclusion("ArchitectureUnknown", message)


def _owner_names_architecture(restrictions: _Restrictions, node: NodeFacts) -> bool:
    """Whether the owner's own rule that lets the node in speaks of its architecture. The rule itself was checked before."""
    template = restrictions.template
    selectors = {*template.node_selector, *(restrictions.runtime_class.node_selector if restrictions.runtime_class else ())}
    named = {item.key for term in template.required_terms or () if term_matches(term, node) for item in term.expressions if item.operator == "In"}
    return not selectors.union(named).isdisjoint(ARCHITECTURE_LABELS)


def _find_not_ready(_restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    return None if node.ready else Exclusion("NodeNotReady", f"node {node.name} is not ready")


def _find_pressure(_restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    pressure = next((name for name in PRESSURES if node.conditions.get(name) == "True"), None)
    return None if pressure is None else Exclusion("NodeUnderPressure", f"node {node.name} reports {pressure} and starts no new pods")


def _find_cordon(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    if not node.unschedulable or restrictions.template.node_name or _tolerated(UNSCHEDULABLE, restrictions.tolerations):
        return None
    return Exclusion("NodeUnschedulable", f"node {node.name} is cordoned")


def _find_taint(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    # A pod pinned by nodeName never meets the scheduler, which is the one that looks at NoSchedule.
    effects = ("NoExecute",) if restrictions.template.node_name else ("NoSchedule", "NoExecute")
    for taint in node.taints:
        if taint.effect in effects and not _tolerated(taint, restrictions.tolerations):
            words = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            return Exclusion("TaintNotTolerated", f"the target does not tolerate taint {words} of node {node.name}")
    return None


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt":
            return requirement_holds(Requirement(taint.key, toleration.operator, (toleration.value,)), {taint.key: taint.value})
    return False


def _find_too_small(restrictions: _Restrictions, node: NodeFacts) -> Exclusion | None:
    for resource, wanted in sorted(restrictions.requests.items()):
        have = node.allocatable.get(resource, 0)
        if wanted > have:
            return Exclusion("NodeTooSmall", f"a pod asks for {_amount(resource, wanted)}, node {node.name} has {_amount(resource, have)} in all")
    return None


def _amount(resource: str, quantity: int) -> str:
    if resource == "cpu":
        return f"{quantity}m cpu"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{quantity / (1 << 20):.0f}Mi {resource}"
    return f"{quantity} {resource}"


CHAIN: Final[tuple[Callable[[_Restrictions, NodeFacts], Exclusion | None], ...]] = (
    _find_other_node_name,
    _find_missing_runtime_class,
    _find_runtime_class_mismatch,
    _find_selector_mismatch,
    _find_affinity_mismatch,
    _find_no_domain,
    _find_volume_elsewhere,
    _find_unknown_architecture,
    _find_not_ready,
    _find_pressure,
    _find_cordon,
    _find_taint,
    _find_too_small,
)
