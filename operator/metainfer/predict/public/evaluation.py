"""The protocol by which figures compare: models (and cards) held out, groups as the data card makes them, regrets with intervals.

Pools: LLM kernel sums of unseen models on known cards; the same on cards of which three measured rows are known; end-to-end serving runs,
leaving one model out at a time. Every pool is answered by the same methods on the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.picking import ranked_scores
from metainfer.predict.public.baselines import plain_trees, probe_roofline, spec_roofline, strongest_card_scores
from metainfer.predict.public.columns import Column, Columns, length, take
from metainfer.predict.public.groups import Group, make_kernel_groups, make_serving_groups, true_utilities
from metainfer.predict.public.learner import forecast_with, learn
from metainfer.predict.public.metrics import Quality, judge
from metainfer.predict.public.replay import replay
from metainfer.predict.public.tasks import Task

SEED = 0
MODEL_FOLDS = 6
CARD_SETS = (("a100_sxm",), ("l40s",), ("h100_sxm", "h200_sxm"), ("b200_sxm", "gb200"))
"""Cards left out together: two single ones and two whole families."""
PROBE_ROWS = 3
"""Measured rows that are known of each left-out card."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One group, one method, one way of using it ("one-shot" or "sequential")."""

    pool: str
    method: str
    way: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class Split:
    """What may be learned from, and what is asked: masks over the table."""

    train: Column
    asked: Column
    cards: tuple[str, ...] = ()
    """Left out; empty = all are known. Only groups with at least one of them count."""


def evaluate_pool(pool: str, task: Task, table: Columns, splits: Sequence[Split], say: Say) -> Iterator[Verdict]:
    """All methods on all groups of all splits."""
    for number, split in enumerate(splits, 1):
        train, asked = take(table, split.train), take(table, split.asked)
        groups = tuple(group for group in _groups(task, asked) if not split.cards or np.isin(asked["card"][group.members], split.cards).any())
        if not groups:
            continue
        say(f"{pool}: split {number} of {len(splits)}, {length(train)} rows to learn from, {len(groups)} groups")
        truth = {group.name: true_utilities(asked, group) for group in groups}
        rows = task.build_rows(asked)
        answers = {
            "ours": forecast_with(learn(task, train, seed=SEED), rows),
            "probe roofline": probe_roofline(task, asked),
            "spec roofline": spec_roofline(task, asked),
            "plain LightGBM": plain_trees(task, train, asked, seed=SEED),
        }
        strongest = strongest_card_scores(task, asked)
        for group in groups:
            yield Verdict(pool, "strongest card, biggest batch", "one-shot", judge(group.model, truth[group.name], strongest[group.members]))
        for method, forecasts in answers.items():
            everything = task.build_field(asked, rows, forecasts)
            for group in groups:
                contest = everything.contest(group)
                scores = ranked_scores(contest) if method == "ours" else contest.scores
                yield Verdict(pool, method, "one-shot", judge(group.model, truth[group.name], scores))
        yield from _sequential(pool, task, asked, groups, answers)


def _sequential(pool: str, task: Task, asked: Columns, groups: Sequence[Group], answers: dict[str, tuple[Forecast, Forecast]]) -> Iterator[Verdict]:
    rows = task.build_rows(asked)
    for method in ("ours", "probe roofline"):
        everything = task.build_field(asked, rows, answers[method])
        picked = replay(everything, groups, stops=task.serves)
        for group in groups:
            places = np.searchsorted(group.members, picked[group.name])
            yield Verdict(pool, method, "sequential", judge(group.model, true_utilities(asked, group), everything.contest(group).scores, places.tolist()))


def _groups(task: Task, table: Columns) -> tuple[Group, ...]:
    return make_serving_groups(table) if task.serves else make_kernel_groups(table, task.hardware["card"].tolist())


def known_card_splits(table: Columns, folds: int = MODEL_FOLDS) -> list[Split]:
    """Models dealt into folds."""
    return [Split(~held, held) for held in _model_folds(table, folds)]


def unseen_card_splits(table: Columns, folds: int = MODEL_FOLDS) -> list[Split]:
    """Every set of cards, each with another fold of models held out, too; three rows per left-out card come from training models."""
    found = []
    held_models = _model_folds(table, folds)
    random = np.random.default_rng(SEED)
    for index, cards in enumerate(CARD_SETS):
        for held in (held_models[index % folds], held_models[(index + len(CARD_SETS)) % folds]):
            train = ~held & ~np.isin(table["card"], cards)
            for card in cards:
                train[random.choice(np.flatnonzero(~held & (table["card"] == card)), PROBE_ROWS, replace=False)] = True
            found.append(Split(train, held, cards))
    return found


def leave_one_model_out(table: Columns) -> list[Split]:
    """One split per model."""
    return [Split(table["model"] != model, table["model"] == model) for model in sorted(set(table["model"].tolist()))]


def collapse_repeats(table: Columns, task: Task) -> Columns:
    """Runs of the same configuration become one, with their medians."""
    places: dict[tuple[object, ...], list[int]] = {}
    for index, key in enumerate(zip(*(table[name].tolist() for name in task.table_columns), strict=True)):
        places.setdefault(key, []).append(index)
    first = np.array([rows[0] for rows in places.values()], dtype=np.intp)
    medians = {name: np.array([float(np.median(table[name][rows])) for rows in places.values()]) for name in task.latency_columns}
    return {**take(table, first), **medians}


def _model_folds(table: Columns, folds: int) -> list[Column]:
    models = np.array(sorted(set(table["model"].tolist())))
    order = np.random.default_rng(SEED).permutation(len(models))
    return [np.isin(table["model"], models[order[fold::folds]]) for fold in range(min(folds, len(models)))]
