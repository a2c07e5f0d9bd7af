"""How fast an instance is against the others of its family. Pure.

Compared with the median of the *others*: in a family of three a slow card would else pull the median towards itself and hide a third of
what it lacks. Of two nodes nobody can say which is typical: they are compared with their mean. The others are those with the same driver
where there are at least two (another driver is no fault of the card), and those that are not degraded themselves where there are any.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median

from metainfer.decide.facts import Portrait

Speeds = Mapping[str, float]
"""Figure -> speed, higher is better."""
LEAST_SIBLINGS = 2


def compare_with_siblings(portraits: Sequence[Portrait], speeds: Mapping[str, Speeds]) -> Mapping[str, int | None]:
    """Permille of the siblings' median, by node: the geometric mean over the figures that are shared; None = nothing to compare with."""
    by_driver: dict[str, list[Portrait]] = {}
    for portrait in portraits:
        by_driver.setdefault(portrait.status.driver_version, []).append(portrait)
    groups = {driver: _Group(items, speeds) for driver, items in by_driver.items()}
    family = next(iter(groups.values())) if len(groups) == 1 else _Group(portraits, speeds)
    return {item.node: _compare(item, speeds[item.node], groups[item.status.driver_version], family) for item in portraits}


def _compare(portrait: Portrait, speed: Speeds, group: _Group, family: _Group) -> int | None:
    chosen = group if group.count_without(portrait) >= LEAST_SIBLINGS else family
    ratios = [value / typical for key, value in speed.items() if (typical := chosen.typical(portrait, key, value)) > 0]
    return round(1000 * math.exp(math.fsum(map(math.log, ratios)) / len(ratios))) if ratios else None


class _Group:
    """The cards that others are compared with, their figures sorted once: a family has thousands."""

    def __init__(self, portraits: Sequence[Portrait], speeds: Mapping[str, Speeds]) -> None:
        sound = [item for item in portraits if item.status.health != "Degraded"] or list(portraits)
        self._nodes = frozenset(item.node for item in sound)
        figures: dict[str, list[float]] = {}
        for item in sound:
            for key, value in speeds[item.node].items():
                figures.setdefault(key, []).append(value)
        self._ordered = {key: sorted(values) for key, values in figures.items()}

    def count_without(self, portrait: Portrait) -> int:
        """How many others there are."""
        return len(self._nodes) - (portrait.node in self._nodes)

    def typical(self, portrait: Portrait, key: str, value: float) -> float:
        """Median of the others that have the figure; of a single other, the mean with it; 0 = nobody has it."""
        ordered = self._ordered.get(key, [])
        if portrait.node in self._nodes:
            place = bisect_left(ordered, value)
            others = len(ordered) - 1
            if others >= LEAST_SIBLINGS:
                return _median_without(ordered, place)
            return median(ordered)  # alone, or of two: with itself
        return median([*ordered, value]) if len(ordered) < LEAST_SIBLINGS else _middle(ordered)


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Median of all but the one at ``place``."""
    rest = len(ordered) - 1

    def at(index: int) -> float:
        return ordered[index + (index >= place)]

    half = rest // 2
    return at(half) if rest % 2 else (at(half - 1) + at(half)) / 2
