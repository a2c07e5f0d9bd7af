"""Cards that a check beside a server found slower than they were: marked before anybody is placed anew, and measured as soon as one can be. Pure.

The pool's own probes cannot see them: the card is held by the very pods that suffer. So the verdict stands in for a probe until there is
one made later; from then on the card recovers as every degraded one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metainfer.api.v1alpha1.checks import VerdictStatus
from metainfer.api.v1alpha1.node_portrait import HealthTrial, Sighting
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import AdaptationFacts, Portrait
from metainfer.decide.pool_pass import PoolPass, newest_by_node


def find_condemned(adaptations: Sequence[AdaptationFacts]) -> Mapping[str, tuple[str, VerdictStatus]]:
    """By node: whose check found its card slower, and the newest such verdict."""
    verdicts = ((item, item.status.check.verdict) for item in adaptations if item.status.check is not None and item.status.check.verdict is not None)
    slow = ((verdict.node, item, verdict) for item, verdict in verdicts if verdict.verdict == "Card" and verdict.node)
    return newest_by_node(slow, lambda verdict: verdict.judged_at)


def note_verdicts(work: PoolPass, portraits: Mapping[str, Portrait]) -> dict[str, Portrait]:
    """The portraits, degraded where a verdict is younger than the last probe, and with another probe wanted."""
    noted = dict(portraits)
    for name, (who, verdict) in find_condemned(work.snapshot.adaptations).items():
        portrait = portraits.get(name)
        if portrait is None or portrait.status.measured_at is None or parse_time(portrait.status.measured_at) >= parse_time(verdict.judged_at):
            continue
        wanted = Sighting(value=f"a check of {who} found its card slower"[:128], since=verdict.judged_at)
        if portrait.status.probe_wanted == wanted:
            continue
        trial = HealthTrial(job=portrait.status.probe_job)
        noted[name] = replace(portrait, status=portrait.status.model_copy(update={"health": "Degraded", "trial": trial, "probe_wanted": wanted}))
    return noted
