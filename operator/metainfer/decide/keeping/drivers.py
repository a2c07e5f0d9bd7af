"""Under the cards of a decision there is another driver, firmware or runtime than it was made with. Pure.

Compared with what was last acted on (``known_families``), never with the event before; of the families that the decision rests on: the
chosen one, the one before, and those that were measured against them. A run follows once per new version, when nothing moves any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from metainfer.api.v1alpha1.known_family import LISTED_VERSIONS
from metainfer.decide.draft import Draft
from metainfer.decide.drivers import key_of
from metainfer.decide.families import FamilyOption
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.known_families import FamilyNow, Versions, adopt, is_new, look_at_family, note_family
from metainfer.decide.scene import Scene, occupied_nodes

PATIENCE: Final = 5.0
"""Settle times (so 15 minutes) from when the first node's new version counts until the run starts though others are still on their way
or not measured again: upgrades go through a fleet one node after the other, and a node that serves is measured only when it is free."""
LOOK_SECONDS: Final = 60.0
JITTER_SHARE: Final = 1 / 3
"""Of the settle time: what a fleet notices at the same moment begins at different ones (``damping``)."""


def find_driver_change(draft: Draft, scene: Scene) -> Suspicion | None:
    """``DriverVersionChanged``: one run, because the figures of the cards are others; free nodes are measured again before it."""
    found: Suspicion | None = None
    waits: list[float] = []
    for option in dependencies(draft, scene):
        now = look_at_family(draft, option)
        known = adopt(draft, now).driver_versions
        fresh = _fresh(known, now.drivers)
        waits += _still_moving(draft, option, known, now)
        if fresh and found is None:
            words = f"family {option.family.name}: driver {_words(known, fresh, now.drivers)}"
            pause = draft.snapshot.limits.driver_settle_seconds * JITTER_SHARE
            found = Suspicion("DriverVersionChanged", words, "Run", family=option.family.name, settle_seconds=pause)
    if waits:
        draft.look_again(min(waits))
    return None if waits else found


def find_runtime_change(draft: Draft, scene: Scene) -> Suspicion | None:
    """``RuntimeChanged``: other firmware, or portraits by another version of the runtime; a check tells whether anything became slower."""
    config = draft.recommended
    option = scene.option(config)
    if option is None or config is None:
        return None
    now = look_at_family(draft, option)
    if _is_checked(draft):
        note_family(draft, now)
    known = adopt(draft, now)
    firmware = _fresh(known.firmware_versions, now.firmware)
    runtimes = [item for item in _fresh(known.runtime_versions, now.runtimes) if item.startswith(f"{config.execution_provider} ")]
    words = [f"firmware {_words(known.firmware_versions, firmware, now.firmware)}"] if firmware else []
    words += [f"probes measure with {_words(known.runtime_versions, runtimes, now.runtimes)}"] if runtimes else []
    if not words:
        return None
    pause = draft.snapshot.limits.driver_settle_seconds * JITTER_SHARE
    return Suspicion("RuntimeChanged", f"family {option.family.name}: {'; '.join(words)}", "Check", family=option.family.name, settle_seconds=pause)


def _is_checked(draft: Draft) -> bool:
    """Whether a check of what is there now came to nothing: then it is known from here on."""
    check = draft.status.check
    if check is None or check.verdict is None or check.suspicion is None:
        return False
    asked = check.verdict.reason == check.suspicion.reason == "RuntimeChanged"
    return asked and check.verdict.verdict in ("Nothing", "Load") and check.verdict.judged_at >= check.suspicion.noticed_at


def dependencies(draft: Draft, scene: Scene) -> Iterator[FamilyOption]:
    """Families whose figures the decision rests on."""
    status = draft.status
    configs = [draft.recommended] if draft.recommended is not None else []
    configs += [line.config for line in (status.baseline, *status.candidates) if line is not None and (line.measured is not None or line.current)]
    wanted = {key_of(config.pool, config.family) for config in configs}
    yield from (option for option in scene.options if key_of(option.pool, option.family.name) in wanted)


def _fresh(known: Sequence[str], now: Versions) -> list[str]:
    """Versions that count and were not acted on, the commonest first."""
    return [version for version, _ in now.settled.most_common() if is_new(known, version)] if len(known) < LISTED_VERSIONS else []


def _still_moving(draft: Draft, option: FamilyOption, known: Sequence[str], now: FamilyNow) -> list[float]:
    """Seconds until another look, while new versions are on their way or free nodes with one are not measured again; bounded by patience."""
    settle = draft.snapshot.limits.driver_settle_seconds
    first = min((now.first_seen[item] for item in now.drivers.settled if item in now.first_seen and is_new(known, item)), default=draft.now)
    if (draft.now - first).total_seconds() >= settle * (1 + PATIENCE):
        return []
    waits = [LOOK_SECONDS if left is None else left for version, left in now.drivers.settling.items() if is_new(known, version)]
    measurable = {node.name for node in option.nodes} - occupied_nodes(draft.snapshot, option)
    return waits + [LOOK_SECONDS] * bool(measurable & set(now.unprobed))


def _words(known: Sequence[str], fresh: Sequence[str], now: Versions) -> str:
    total = now.settled.total() + now.unknown + len(now.settling)
    before = f"{known[0]} -> " if known else ""
    return f"{before}{fresh[0]} on {now.settled[fresh[0]]} of {total} nodes"
