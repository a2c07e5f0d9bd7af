"""Nodes whose pods serve slower than the target's other pods: not judged here, only named, so that the pool measures their cards soon. Pure.

A slower pod may have a slower card, a busier host or the heavier requests: latency accuses nobody by itself. What follows is a probe of
the node (``suspects``), and a label only when that finds the card slower too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from metainfer.api.v1alpha1.served import Drift
from metainfer.api.v1alpha1.slow_node import SlowNode
from metainfer.decide.conditions import format_time
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.served import settled_windows
from metainfer.decide.latency.served import ServedWindow

LISTED_NODES: Final = 4
LEAST_NODES: Final = 3
"""Of two nodes nobody can say which is typical."""
LEAST_REQUESTS: Final = 100
"""Of a node in a window: the mean of fewer moves by itself."""


def note_slow_nodes(draft: Draft) -> None:
    """Bring ``status.slowNodes`` up to date."""
    drift = draft.snapshot.adaptation.spec.drift
    found = find_slow_nodes(settled_windows(draft)[-drift.windows :], drift)
    known = {item.name: item for item in draft.status.slow_nodes}
    noted = [
        known.get(name) or SlowNode(name=name, since=format_time(draft.now), latency_permille=permille)
        for name, permille in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]
    draft.put(slow_nodes=tuple(noted[:LISTED_NODES]))


def find_slow_nodes(windows: Sequence[ServedWindow], drift: Drift) -> Mapping[str, int]:
    """Nodes that were slower than the others in every one of the last windows, by as much as counts as drift; with permille in the last one."""
    if len(windows) < drift.windows:
        return {}
    each = [_against_others(window) for window in windows]
    bound = 1000 + 10 * drift.p99_increase_percent
    names = set.intersection(*(set(item) for item in each))
    return {name: each[-1][name] for name in names if all(item[name] >= bound for item in each)}


def _against_others(window: ServedWindow) -> Mapping[str, int]:
    """Mean latency of each node's pods over the median of the others'."""
    means = {name: item.mean_us for name, item in window.nodes.items() if item.mean_us is not None and item.mean_us > 0 and item.requests >= LEAST_REQUESTS}
    if len(means) < LEAST_NODES:
        return {}
    return {name: round(1000 * mean / median(value for other, value in means.items() if other != name)) for name, mean in means.items()}
