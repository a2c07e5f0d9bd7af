"""What an AcceleratorPool's status says after a pass: counts per family, unassigned nodes, conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily, AcceleratorPoolStatus, FamilyCalibration, FamilyStatus, UnassignedNode
from metainfer.api.v1alpha1.common import JobRefusal
from metainfer.decide.cards import count_cards, count_free
from metainfer.decide.conditions import Finding, find_store_outage, merge_conditions
from metainfer.decide.drivers import read_driver
from metainfer.decide.facts import NodeFacts, PoolSnapshot, Portrait
from metainfer.decide.families import Membership, NoMembership, cards_used
from metainfer.decide.predictor_status import build_predictor_status, family_figures, find_predictor
from metainfer.decide.probing import Obstacle, failure_words
from metainfer.decide.refusal import refusal_words

LISTED_UNASSIGNED = 16


@dataclass(frozen=True, slots=True)
class PoolFindings:
    """What the pass found."""

    places: Mapping[str, Membership | NoMembership]
    portraits: Mapping[str, Portrait]
    obstacles: tuple[Obstacle, ...]
    starting: int
    refusal: JobRefusal | None = None
    calibrations: Mapping[str, FamilyCalibration] = field(default_factory=dict)

    @property
    def measured(self) -> Mapping[str, Portrait]:
        """Portraits with figures."""
        return {name: item for name, item in self.portraits.items() if item.status.measured_at is not None}


def _keys(snapshot: PoolSnapshot) -> list[str]:
    """Families as models know them."""
    return [f"{snapshot.pool.name}/{family.name}" for family in snapshot.pool.spec.families]


def build_pool_status(snapshot: PoolSnapshot, findings: PoolFindings, now: datetime) -> AcceleratorPoolStatus:
    """The whole status."""
    nodes = {node.name: node for node in snapshot.nodes}
    outside = sorted((name, place) for name, place in findings.places.items() if isinstance(place, NoMembership))
    found = (*_findings(findings), find_predictor(snapshot.learned, _keys(snapshot)), *find_store_outage(snapshot.store_problem))
    conditions = merge_conditions(snapshot.pool.status.conditions, found, now=now, generation=snapshot.pool.generation)
    return AcceleratorPoolStatus(
        observed_generation=snapshot.pool.generation,
        nodes=sum(isinstance(place, Membership) for place in findings.places.values()),
        families=tuple(_family(family, nodes, snapshot, findings) for family in snapshot.pool.spec.families),
        unassigned=tuple(UnassignedNode(name=name, reason=place.reason, message=place.message[:512]) for name, place in outside[:LISTED_UNASSIGNED]),
        unassigned_count=len(outside),
        refusal=findings.refusal,
        predictor=build_predictor_status(snapshot.learned),
        conditions=conditions,
    )


def _family(family: AcceleratorFamily, nodes: Mapping[str, NodeFacts], snapshot: PoolSnapshot, findings: PoolFindings) -> FamilyStatus:
    mine = [nodes[name] for name, place in findings.places.items() if isinstance(place, Membership) and place.family.name == family.name]
    used = cards_used(snapshot.card_pods, family.resource)
    portraits = [findings.portraits[node.name] for node in mine if node.name in findings.portraits]
    return FamilyStatus(
        name=family.name,
        nodes=len(mine),
        cards=sum(count_cards(node, family.resource) for node in mine),
        free_cards=sum(count_free(node, family.resource, used[node.name]) for node in mine),
        probed=sum(portrait.status.measured_at is not None for portrait in portraits),
        degraded=sum(portrait.status.health == "Degraded" for portrait in portraits),
        driver_versions=tuple(sorted({version for node in mine if (version := read_driver(family, node))}))[:8],
        calibration=findings.calibrations.get(family.name, FamilyCalibration()),
    ).model_copy(update=family_figures(snapshot.learned, snapshot.pool.name, family.name))


def _findings(findings: PoolFindings) -> tuple[Finding, ...]:
    members = sum(isinstance(place, Membership) for place in findings.places.values())
    probes = _probes(members, findings)
    labels = _labels(findings)
    if members == 0 and any(isinstance(place, NoMembership) and place.reason == reasons.POOL_OVERLAP for place in findings.places.values()):
        ready = Finding(reasons.READY, "False", reasons.POOL_OVERLAP, "every node that a family selects belongs to an older pool")
    elif members == 0:
        ready = Finding(reasons.READY, "False", "NoNodes", "no node is in a family of this pool: check the families' selectors against the nodes' labels")
    elif not findings.measured:
        ready = Finding(reasons.READY, "False", probes.reason, probes.message)
    else:
        ready = Finding(reasons.READY, "True", "Portrayed", f"{len(findings.measured)} of {members} nodes have a portrait")
    working = findings.starting or any(obstacle.reason == "ProbesPending" for obstacle in findings.obstacles)
    reconciling = Finding(reasons.RECONCILING, "True" if working else "False", "Probing", probes.message)
    return (ready, probes, labels, _conflict(findings), reconciling)


def _conflict(findings: PoolFindings) -> Finding:
    """Nodes that an older pool has."""
    taken = sorted(place.message for place in findings.places.values() if isinstance(place, NoMembership) and place.reason == reasons.POOL_OVERLAP)
    if not taken:
        return Finding(reasons.NODE_CONFLICT, "False", "OnlyPool", "no older pool has a node of this one")
    more = f" and {len(taken) - 4} more" if len(taken) > 4 else ""
    words = f"{'; '.join(taken[:4])}{more}: narrow the nodeSelector or the families of one of the pools"
    return Finding(reasons.NODE_CONFLICT, "True", reasons.POOL_OVERLAP, words)


def _probes(members: int, findings: PoolFindings) -> Finding:
    done = len(findings.measured)
    failed = {name: item.status.probe_failure for name, item in sorted(findings.portraits.items()) if item.status.probe_failure is not None}
    if findings.refusal is not None:
        words = f"{done} of {members} nodes measured; {refusal_words(findings.refusal)}"
        return Finding(reasons.PROBES_COMPLETED, "False", findings.refusal.reason, words)
    if failed:
        kinds = {failure.reason for failure in failed.values()}
        words = "; ".join([failure_words(name, failure) for name, failure in failed.items()][:4])
        return Finding(
            reasons.PROBES_COMPLETED, "False", kinds.pop() if len(kinds) == 1 else reasons.PROBE_FAILED, f"{done} of {members} nodes measured; failed: {words}"
        )
    waiting = [obstacle for obstacle in findings.obstacles if obstacle.reason != "ProbesPending"]
    if findings.starting or len(waiting) < len(findings.obstacles):
        return Finding(reasons.PROBES_COMPLETED, "False", "Probing", f"{done} of {members} nodes measured")
    if waiting:
        words = "; ".join(obstacle.message for obstacle in waiting[:4])
        return Finding(reasons.PROBES_COMPLETED, "False", waiting[0].reason, f"{done} of {members} nodes measured; {words}")
    return Finding(reasons.PROBES_COMPLETED, "True", "Measured", f"{done} of {members} nodes measured")


def _labels(findings: PoolFindings) -> Finding:
    missing = sorted(place.message for place in findings.places.values() if isinstance(place, NoMembership) and place.reason == reasons.LABEL_MISSING)
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        return Finding(reasons.LABELS_AVAILABLE, "False", reasons.LABEL_MISSING, "; ".join(missing[:4]) + more)
    return Finding(reasons.LABELS_AVAILABLE, "True", "Labelled", "every node of the pool carries the labels its family selects on")
