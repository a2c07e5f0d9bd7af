"""The calibration of a pool's families in one pass: whose turn it is, and what came of it. Pure; the rule is in ``calibration``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from metainfer.api.v1alpha1.accelerator_pool import FamilyCalibration
from metainfer.decide.calibration import calibrate, family_calibration, find_round, pick_cards
from metainfer.decide.facts import Portrait
from metainfer.decide.pool_pass import PoolPass
from metainfer.decide.portraits import tells_of_its_card
from metainfer.decide.probing import ProbeCase


def calibration_turns(work: PoolPass, cases: Sequence[ProbeCase]) -> Collection[str]:
    """Nodes whose cards are measured for their family in this period, as far as they are idle. Nothing is taken from anybody for it."""
    by_family: dict[str, list[ProbeCase]] = {}
    for case in cases:
        if case.portrait is not None and tells_of_its_card(case.portrait):
            by_family.setdefault(case.membership.family.name, []).append(case)
    turns: set[str] = set()
    for name, members in by_family.items():
        idle = {case.node.name for case in members if case.free_cards > 0 or any(not job.finished for job in case.jobs)}
        portraits = [case.portrait for case in members if case.portrait is not None]
        turns |= set(pick_cards(portraits, idle, find_round(work.snapshot.pool, name, work.now)))
    return turns


def calibrate_families(work: PoolPass, portraits: Mapping[str, Portrait]) -> Mapping[str, FamilyCalibration]:
    """By family, as the status is to have it."""
    pool = work.snapshot.pool
    by_family: dict[str, list[Portrait]] = {family.name: [] for family in pool.spec.families}
    for node, place in work.members():
        if node.name in portraits and tells_of_its_card(portraits[node.name]):
            by_family[place.family.name].append(portraits[node.name])
    return {
        name: calibrate(family_calibration(pool, name), items, pool.spec.calibration, find_round(pool, name, work.now), work.now)
        for name, items in by_family.items()
    }
