"""Benchmarks one after the other: what is run next after what was measured, and whole replays of it on known latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metainfer.predict.public.columns import Column
from metainfer.predict.public.contests import Field, Pick, next_pick
from metainfer.predict.public.groups import Group
from metainfer.predict.workload import Floats

ROUNDS = 4
INFORMATIVE_RUNS = 2
Opening = Literal["sequential", "leaning", "informative"]
"""How an unknown model is opened; the first is what the operator does, because it wins (docs/predictor.md)."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One group in the middle of a replay."""

    group: Group
    own: Column
    """Rows of the table that were measured for it, in their order."""
    told: Column
    """Rows that may be used to correct its forecasts: its own, or (serving) all of its model."""

    @property
    def places(self) -> list[int]:
        """Of its own rows among its members."""
        where = {row: place for place, row in enumerate(self.group.members.tolist())}
        return [where[row] for row in self.own.tolist() if row in where]


def find_next(everything: Field, standing: Standing) -> tuple[Pick | None, Floats]:
    """What to run next (None when nothing is left), and the scores of all members by what is known."""
    contest = everything.corrected(everything.contest(standing.group), standing.told)
    places = standing.places
    if not places:
        return Pick(int(np.argmax(contest.scores)), np.inf), contest.scores
    utilities = feasible_utilities(everything, standing.group, standing.group.members[places])
    return next_pick(contest, places, utilities), contest.scores


def feasible_utilities(everything: Field, group: Group, rows: Column) -> Floats:
    """True utilities of measured rows of the table, 0 where a limit is broken."""
    if not len(rows):
        return np.zeros(0)
    first, second = (item[rows]["latency_us"] / 1000 for item in everything.rows)
    token = first if everything.serves else second
    kept = (token <= group.limit_token_ms) & (everything.serves | (first <= group.limit_first_ms))
    return np.where(kept, everything.utilities(rows), 0.0)


def build_standings(everything: Field, groups: Sequence[Group], measured: Mapping[str, Sequence[int]]) -> list[Standing]:
    """From rows measured per group. Serving runs of a model tell all its groups; of kernel sums each group knows its own."""
    told: dict[str, set[int]] = {}
    for group in groups:
        told.setdefault(group.model, set()).update(measured.get(group.name, ()))
    by_model = {model: np.array(sorted(rows), dtype=np.intp) for model, rows in told.items()}
    standings = []
    for group in groups:
        own = np.array(measured.get(group.name, ()), dtype=np.intp)
        standings.append(Standing(group, own, by_model[group.model] if everything.serves else own))
    return standings


def replay(everything: Field, groups: Sequence[Group], *, rounds: int = ROUNDS, stops: bool, opening: Opening = "sequential") -> dict[str, list[int]]:
    """Rows measured per group when every group picks once a round. The field's rows hold the truth; only picked ones are looked at.

    ``stops``: a group that expects too little of another run makes none.
    """
    measured: dict[str, list[int]] = {group.name: [] for group in groups}
    for number in range(rounds):
        for standing in build_standings(everything, groups, {name: tuple(rows) for name, rows in measured.items()}):
            pick = _open(everything, standing, number, opening) or find_next(everything, standing)[0]
            if pick is not None and (pick.is_worthwhile or not stops):
                measured[standing.group.name].append(int(standing.group.members[pick.place]))
    return measured


def _open(everything: Field, standing: Standing, number: int, opening: Opening) -> Pick | None:
    """The pick of an opening that does not follow the forecasts; None where it does."""
    contest = everything.contest(standing.group)
    if opening == "leaning" and number < len(found := contest.leanings()):
        return Pick(found[number], np.inf)
    if opening == "informative" and number < INFORMATIVE_RUNS:
        return Pick(contest.most_informative(standing.places), np.inf)
    return None
