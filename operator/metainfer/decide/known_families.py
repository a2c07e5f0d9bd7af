"""The versions of drivers, firmware and runtimes that a run rests on, per family: noted when it starts, compared ever after. Pure.

Versions and not nodes are compared: an upgrade that goes through a fleet one node at a time for days is one change, and a label that
vanishes and comes back is none. What is unknown is adopted when it becomes known and never called changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from metainfer.api.v1alpha1.accelerator_pool import FamilyCalibration
from metainfer.api.v1alpha1.known_family import LISTED_VERSIONS, KnownFamily
from metainfer.decide.calibration import family_calibration
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.drivers import Settling, VersionCase, is_of_present_driver, is_same_version, key_of, leading_driver
from metainfer.decide.facts import Portrait, RunResult
from metainfer.decide.families import FamilyOption
from metainfer.decide.scene import Scene

LISTED_FAMILIES: Final = 32


@dataclass(slots=True)
class Versions:
    """Of one kind, over the nodes of a family."""

    settled: Counter[str] = field(default_factory=Counter)
    settling: dict[str, float | None] = field(default_factory=dict)
    """Those that do not count yet, with the seconds until they do; None = that depends on the node."""
    unknown: int = 0
    """Nodes that tell none now."""

    def add(self, found: Settling) -> None:
        """One node more."""
        if found.version is None:
            self.unknown += 1
        elif found.settled is not None:
            self.settled[self._spelled(found.settled)] += 1
        else:
            self.settling[found.version] = found.seconds_left

    def _spelled(self, version: str) -> str:
        return next((known for known in self.settled if is_same_version(known, version)), version)

    def is_complete(self) -> bool:
        """Whether every node tells a version that counts."""
        return not self.settling and not self.unknown and bool(self.settled)


@dataclass(frozen=True, slots=True)
class FamilyNow:
    """One family as its portraits and its nodes' labels have it now."""

    key: str
    drivers: Versions
    firmware: Versions
    runtimes: Versions
    first_seen: dict[str, datetime]
    """Of each driver version that counts: since when it stands on the first node that has it."""
    calibration: FamilyCalibration
    unprobed: list[str]
    """Nodes whose driver counts, but whose portrait was made under another one."""

    def add(self, portrait: Portrait, case: VersionCase) -> None:
        """One node more."""
        driver, status = case.driver(), portrait.status
        self.drivers.add(driver)
        self.firmware.add(case.firmware())
        for runtime in {f"{item.execution_provider} {item.runtime_version}" for item in status.figures}:
            self.runtimes.add(Settling(runtime))
        if driver.settled is None:
            return
        if status.driver_seen is not None:
            since = parse_time(status.driver_seen.since)
            self.first_seen[driver.settled] = min(since, self.first_seen.get(driver.settled, since))
        if status.driver_version and not is_same_version(status.driver_version, driver.settled):
            self.unprobed.append(portrait.node)


def look_at_family(draft: Draft, option: FamilyOption) -> FamilyNow:
    """What is there now; a node whose family label vanished still counts, by its portrait, as one that tells nothing."""
    key = key_of(option.pool, option.family.name)
    if key not in draft.looks:
        draft.looks[key] = _look(draft, option, key)
    return draft.looks[key]


def _look(draft: Draft, option: FamilyOption, key: str) -> FamilyNow:
    pool = draft.snapshot.pool(option.pool)
    calibration = family_calibration(pool, option.family.name) if pool is not None else FamilyCalibration()
    now = FamilyNow(key, Versions(), Versions(), Versions(), {}, calibration, [])
    nodes = {node.name: node for node in draft.snapshot.nodes}
    for portrait in _portraits_of(draft, option):
        node = nodes.get(portrait.node)
        if node is not None and node.uid == portrait.spec.node_uid:
            now.add(portrait, VersionCase(portrait.status, option.family, node, draft.snapshot.limits.driver_settle_seconds, draft.now))
    return now


def _portraits_of(draft: Draft, option: FamilyOption) -> Iterator[Portrait]:
    for portrait in draft.snapshot.portraits.values():
        if (portrait.spec.pool, portrait.spec.family) == (option.pool, option.family.name) and portrait.status.measured_at is not None:
            yield portrait


def note_families(draft: Draft, scene: Scene) -> None:
    """A run starts: it answers for the families as they are now, whatever made it start."""
    known = known_families(draft)
    found = [_acted(known.get(now.key), now) for now in (look_at_family(draft, option) for option in scene.options if option.nodes)]
    draft.put(families=tuple(found[:LISTED_FAMILIES]), image_digests=())  # what pods run is known when the run is over


def note_family(draft: Draft, now: FamilyNow) -> None:
    """The same of one family alone: what is there now was looked into."""
    noted = _acted(known_families(draft).get(now.key), now)
    others = tuple(item for item in draft.status.families if item.key != now.key)
    draft.put(families=(*others, noted)[-LISTED_FAMILIES:])


def _acted(known: KnownFamily | None, now: FamilyNow) -> KnownFamily:
    before = known or KnownFamily(key=now.key)
    return KnownFamily(
        key=now.key,
        driver_versions=_merged(before.driver_versions, now.drivers),
        firmware_versions=_merged(before.firmware_versions, now.firmware),
        runtime_versions=_merged(before.runtime_versions, now.runtimes),
        calibration_epoch=now.calibration.epoch,
    )


def _merged(before: Sequence[str], now: Versions) -> tuple[str, ...]:
    """New ones first, then those that are still there; where a node tells nothing, what was known may be its version."""
    fresh = [version for version, _ in now.settled.most_common() if is_new(before, version)]
    kept = [version for version in before if not now.is_complete() or not is_new(list(now.settled), version)]
    return (*fresh, *kept)[:LISTED_VERSIONS]


def is_new(known: Sequence[str], version: str) -> bool:
    """Whether it is none of these."""
    return not any(is_same_version(item, version) for item in known)


def known_families(draft: Draft) -> Mapping[str, KnownFamily]:
    """What was acted on, by key."""
    return {item.key: item for item in draft.status.families}


def adopt(draft: Draft, now: FamilyNow) -> KnownFamily:
    """What is compared with: the record, with kinds of versions that were unknown till now, and without versions that are gone."""
    known = known_families(draft).get(now.key) or KnownFamily(key=now.key, calibration_epoch=now.calibration.epoch)
    adopted = known.model_copy(
        update={
            "driver_versions": _adopted(known.driver_versions, now.drivers),
            "firmware_versions": _adopted(known.firmware_versions, now.firmware),
            "runtime_versions": _adopted(known.runtime_versions, now.runtimes),
            "calibration_epoch": min(known.calibration_epoch, now.calibration.epoch),  # a pool that was made anew counts from 0
        }
    )
    if adopted != known_families(draft).get(now.key):
        others = tuple(item for item in draft.status.families if item.key != now.key)
        draft.put(families=(*others, adopted)[-LISTED_FAMILIES:])
    return adopted


def _adopted(known: Sequence[str], now: Versions) -> tuple[str, ...]:
    if not known:
        return tuple(version for version, _ in now.settled.most_common())[:LISTED_VERSIONS]
    if not now.is_complete():
        return tuple(known)
    return tuple(version for version in known if not is_new(list(now.settled), version)) or tuple(known)


def holds(draft: Draft, run: RunResult) -> bool:
    """Whether an earlier benchmark is of the driver that its family's figures should be of."""
    portrait = draft.snapshot.portraits.get(run.node)
    status = portrait.status if portrait is not None else None
    leading = leading_driver(draft.status.families, run.candidate.pool, run.candidate.family)
    if leading and status is not None and status.driver_seen is not None and not is_same_version(status.driver_seen.value, leading):
        return False
    return is_of_present_driver(status, run.finished_at, run.report.driver_version if run.report is not None else "")
