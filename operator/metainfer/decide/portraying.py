"""The portraits of a pool's nodes after a look at the cluster: finished probes, what labels say, and each card against its siblings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.calibration import family_calibration
from metainfer.decide.conditions import parse_time
from metainfer.decide.drivers import read_upgrade, sight
from metainfer.decide.facts import NodeFacts, Portrait, ProbeResult
from metainfer.decide.families import Membership
from metainfer.decide.health import judge_health
from metainfer.decide.pool_pass import PoolPass
from metainfer.decide.portraits import Assessment, assess_family, tells_of_its_card
from metainfer.decide.probe_failures import circumstances_of, mark_sick, portray_result
from metainfer.decide.probing import is_of_this_card

FACTOR_STEP_PERMILLE = 10
"""1 %: a third of what two probes of the same card differ by."""


def merge_results(work: PoolPass) -> dict[str, Portrait]:
    """Portraits of members after the finished probes; one that failed is noted in the portrait there is, or in an empty one."""
    members = {node.name: (node, place) for node, place in work.members()}
    portraits = {name: item for name, item in work.snapshot.portraits.items() if name in members and item.spec.node_uid == members[name][0].uid}
    for result in sorted(work.snapshot.results, key=lambda item: item.finished_at):
        before = portraits.get(result.node)
        if result.node in members and not _is_stale(before, result.finished_at) and _counts(work, result, *members[result.node]):
            node, place = members[result.node]
            circumstances = circumstances_of(node, place, work.snapshot.pool, work.snapshot.limits)
            portraits[result.node] = _at_level(work, portray_result(node, place, result, before, circumstances), before)
    return portraits


def _at_level(work: PoolPass, portrait: Portrait, before: Portrait | None) -> Portrait:
    """A card's first portrait is what its family does now: it counts from there on."""
    if portrait.status.measured_at is None or (before is not None and before.status.measured_at is not None):
        return portrait
    level = family_calibration(work.snapshot.pool, portrait.spec.family).level_ppm
    return replace(portrait, status=portrait.status.model_copy(update={"speed_ppm": level}))


def _counts(work: PoolPass, result: ProbeResult, node: NodeFacts, place: Membership) -> bool:
    """Whether it was measured for the family that the node is in now."""
    return all(is_of_this_card(job, node, place) for job in work.jobs_of_node.get(result.node, ()) if job.name == result.job)


def _is_stale(portrait: Portrait | None, finished_at: datetime) -> bool:
    # The portrait's times have whole seconds, so equality means 'this very result'.
    status = portrait.status if portrait is not None else None
    seen = [status.measured_at, status.probe_failure.failed_at if status.probe_failure is not None else None] if status is not None else []
    return any(finished_at.replace(microsecond=0) <= parse_time(moment) for moment in seen if moment is not None)


def note_labels(work: PoolPass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    """The portraits with what the nodes' labels say of driver and firmware; a node in the middle of an upgrade has one from then on."""
    noted = dict(portraits)
    for node, place in work.members():
        known = portraits.get(node.name)
        if known is None and read_upgrade(place.family, node) is None:
            continue
        if known is None:
            spec = NodePortraitSpec(node_uid=node.uid, pool=place.pool, family=place.family.name)
            known = Portrait(node.name, spec, NodePortraitStatus(observed_generation=1))
        status = sight(known.status, place.family, node, work.now)
        noted[node.name] = known if status is known.status else replace(known, status=status)
    return noted


def assess(work: PoolPass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    """The portraits with factor and health, each by its own family."""
    by_family: dict[str, list[Portrait]] = {}
    for node, place in work.members():
        if node.name in portraits and tells_of_its_card(portraits[node.name]):
            by_family.setdefault(place.family.name, []).append(portraits[node.name])
    assessed = dict(portraits)
    for family in by_family.values():
        for name, assessment in assess_family(family).items():
            assessed[name] = _assessed(portraits[name], assessment)
    return {name: mark_sick(item) for name, item in assessed.items()}


def _assessed(portrait: Portrait, assessment: Assessment) -> Portrait:
    """The very same portrait where nothing worth a write is new: one probe moves the median, and with it all siblings by next to nothing."""
    status, factor = portrait.status, assessment.correction_factor_permille
    if assessment.siblings_permille is not None:
        status = judge_health(status, assessment.siblings_permille)
    if abs(status.correction_factor_permille - factor) >= FACTOR_STEP_PERMILLE:
        status = status.model_copy(update={"correction_factor_permille": factor})
    return portrait if status is portrait.status else replace(portrait, status=status)
