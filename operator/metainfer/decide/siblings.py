"""How fast an instance is against the others of its family. Pure.

Compared with the median of the *others*: in a family of three a slow card would else pull the median towards itself and hide a third of
what it lacks. Of two nodes nobody can say which is typical: they are compared with their mean. The others are those with the same driver
where there are at least two (another driver is no fault of the card), and those that are not degraded themselves where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """The cards that others are compared with. A family has thousands, so each figure is sorted once."""

    def __init__(self, portraits: Sequence[Portrait], speeds: Mapping[str, Speeds]) -> None:
        sound = [item for item in portraits if item.status.health != "Degraded"] or list(portraits)
        self._nodes = frozenset(item.node for item in sound)
        figures: dict[str, list[float]] = {}
        for item in sound:
            for key, value in speeds[item.node].items():
                figures.setdefault(key, []).append(value)
        self._middles = {key: _Middle.of(sorted(values)) for key, values in figures.items()}

    def count_without(self, portrait: Portrait) -> int:
        """How many others there are."""
        return len(self._nodes) - (portrait.node in self._nodes)

    def typical(self, portrait: Portrait, key: str, value: float) -> float:
        """Median of the others that have the figure; of a single other, the mean with it; 0 = nobody has it."""
        middle = self._middles.get(key)
        if middle is None:
            return 0.0
        others = middle.count - (portrait.node in self._nodes)
        if others >= LEAST_SIBLINGS:
            return middle.without(value) if portrait.node in self._nodes else middle.whole
        return middle.whole if portrait.node in self._nodes else (middle.whole + value) / 2


@dataclass(frozen=True, slots=True)
class _Middle:
    """The median of some values, and what it is without one of them: that depends only on which side of the middle the one is."""

    count: int
    whole: float
    pivot: float
    without_lower: float
    without_pivot: float
    without_higher: float

    @staticmethod
    def of(ordered: Sequence[float]) -> _Middle:
        """Of sorted values."""
        half, last = len(ordered) // 2, len(ordered) - 1
        before, at, after = ordered[max(0, half - 1)], ordered[half], ordered[min(last, half + 1)]
        if len(ordered) % 2:
            return _Middle(len(ordered), at, at, (at + after) / 2, (before + after) / 2, (before + at) / 2)
        return _Middle(len(ordered), (before + at) / 2, before, at, at, before)

    def without(self, value: float) -> float:
        """The median of all but one that is equal to ``value``."""
        if value == self.pivot:
            return self.without_pivot
        return self.without_lower if value < self.pivot else self.without_higher
