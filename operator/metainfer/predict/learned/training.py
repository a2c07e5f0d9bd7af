"""From rows to a model: members fitted, weighed and doubted by models that they did not see. Deterministic for rows and seed.

1. Rows that teach (``rows.select_teaching``), in an order of their own, so that the input's order never matters.
2. Models are dealt into folds; each fold's members are fitted without its models and asked about them.
3. From those honest answers: the members' weights, how much of their mean to keep, sigma, and the effects of single instances.
4. Members fitted again on everything, freed of the instances' effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.boosting import fit_trees
from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.learned.features import IDENTITY, PORTABLE, Vocabulary, build_vocabulary, numeric_features
from metainfer.predict.learned.model import Member, Model, Newness, Spread
from metainfer.predict.learned.network import fit_network
from metainfer.predict.learned.portrait import build_portraits
from metainfer.predict.learned.rows import Rows, log_residual, select_teaching
from metainfer.predict.learned.shift import PRIOR_ROWS
from metainfer.predict.workload import Floats

FOLDS = 3
CARD_FOLDS = 4
LEAST_ROWS = 60
"""Below this the base is all there is to know."""
FAMILY_ROWS = 500
"""Of one family, before it gets a member of its own."""
NETWORK_ROWS = 3000
FAMILY = "family "
"""Before a family's name, the name of its member."""
RESIDUAL_LIMIT = 3.0
"""A latency that is off by more than twenty times from physics is learned as twenty times."""
LEAST_VARIANCE = 0.01**2


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What the members are fitted on: arrays only, because folds copy them and rows are a thousand bytes each."""

    numeric: Floats
    codes: Floats
    """Columns as ``IDENTITY``."""
    words: tuple[int, ...]
    """How many different codes each column has."""
    family: npt.NDArray[np.str_]
    weight: Floats
    target: Floats
    seed: int

    def part(self, where: npt.NDArray[np.bool_]) -> _Lesson:
        """Some of it."""
        return replace(
            self, numeric=self.numeric[where], codes=self.codes[where], family=self.family[where], weight=self.weight[where], target=self.target[where]
        )

    def features(self, categories: tuple[str, ...]) -> Floats:
        """With the codes of these categories."""
        return np.concatenate([self.numeric, self.codes[:, [IDENTITY.index(name) for name in categories]]], axis=1)


def train(rows: Rows, *, seed: int) -> Model:
    """A model of all rows. Raises Untrainable: BadColumns, NoRows, TooFewRows, OneModel."""
    rows = select_teaching(rows)
    models = np.unique(rows["model"])
    if len(rows) < LEAST_ROWS:
        raise Untrainable("TooFewRows", f"{len(rows)} different rows teach something, {LEAST_ROWS} are needed before the base can be improved")
    if len(models) < 2:
        raise Untrainable("OneModel", f"all rows are of the model {models[0]!r}: nothing tells what holds for another one")
    target = np.clip(log_residual(rows), -RESIDUAL_LIMIT, RESIDUAL_LIMIT)
    vocabulary = build_vocabulary(rows)
    lesson = _build_lesson(rows, vocabulary, target, seed)
    honest = _hold_out(lesson, _choose(lesson), _folds(rows, seed))
    weights = _weigh(honest, target)
    mean, variance = _mean_of(honest, weights)
    kept = _shrinkage(rows, mean, target)
    errors = target - mean * np.array([kept[str(regime)] for regime in rows["regime"]])
    freed = replace(lesson, target=target - _instance_effects(rows, errors))
    return Model(
        vocabulary=vocabulary,
        members=dict(_fit(freed, tuple(honest))),
        weights=weights,
        shrinkage=kept,
        spreads=_spreads(rows, errors, variance, _held_out_distance(rows, seed)),
        portraits=build_portraits(rows),
        newness=_newness(lesson, rows, weights),
        metrics={
            "rows": float(len(rows)),
            "models": float(len(models)),
            "held_out_rms": float(np.sqrt(np.mean(errors**2))),
            "base_rms": float(np.sqrt(np.mean(target**2))),
        },
    )


def _build_lesson(rows: Rows, vocabulary: Vocabulary, target: Floats, seed: int) -> _Lesson:
    return _Lesson(
        numeric=numeric_features(rows),
        codes=vocabulary.encode(rows, IDENTITY),
        words=tuple(len(vocabulary.words[name]) for name in IDENTITY),
        family=rows["family"],
        weight=np.asarray(rows["weight"], dtype=np.float64),
        target=target,
        seed=seed,
    )


def _choose(lesson: _Lesson) -> tuple[str, ...]:
    """Members that the rows suffice for."""
    families, counts = np.unique(lesson.family, return_counts=True)
    own = [FAMILY + name for name, count in zip(families.tolist(), counts.tolist(), strict=True) if name and count >= FAMILY_ROWS]
    return ("global", *(["network"] if len(lesson.target) >= NETWORK_ROWS else []), *own)


def _fit(lesson: _Lesson, names: Sequence[str]) -> Iterator[tuple[str, Member]]:
    """These members; a family of which hardly a row is there is passed over."""
    for name in names:
        if name == "network":
            words = [lesson.words[IDENTITY.index(category)] for category in PORTABLE]
            yield name, Member(fit_network(lesson.features(PORTABLE), lesson.target, words, seed=lesson.seed), PORTABLE)
            continue
        family = name.removeprefix(FAMILY) if name.startswith(FAMILY) else ""
        own = lesson.part(lesson.family == family) if family else lesson
        categories = IDENTITY if family else PORTABLE
        if len(own.target) >= LEAST_ROWS // 2:
            yield name, Member(fit_trees(own.features(categories), own.target, own.weight, categories, seed=lesson.seed), categories, family)


def _folds(rows: Rows, seed: int) -> npt.NDArray[np.intp]:
    """A fold per row; whole models, dealt out by size so that folds are about equal."""
    models, inverse, counts = np.unique(rows["model"], return_inverse=True, return_counts=True)
    tie = np.random.default_rng(seed).random(len(models))
    order = np.lexsort((tie, -counts))
    place = np.zeros(len(models), dtype=np.intp)
    place[order] = np.arange(len(models)) % min(FOLDS, len(models))
    return np.asarray(place[inverse], dtype=np.intp)


def _hold_out(lesson: _Lesson, names: Sequence[str], folds: npt.NDArray[np.intp]) -> dict[str, Floats]:
    """What each member says of models it was not fitted on; NaN where it does not speak for the row."""
    answers: dict[str, Floats] = {}
    for fold in np.unique(folds):
        held = folds == fold
        for name, member in _fit(lesson.part(~held), names):
            mine = held if not member.family else held & (lesson.family == member.family)
            found = answers.setdefault(name, np.full(len(lesson.target), np.nan))
            if mine.any():
                found[mine] = member.learner.predict(lesson.part(mine).features(member.categories))
    return answers


def _newness(lesson: _Lesson, rows: Rows, weights: Mapping[str, float]) -> dict[str, Newness]:
    """Whole families (cards, where there is one family) are held out, as a new card is: only portable members know anything of it."""
    held_by = rows["family"] if len(np.unique(rows["family"])) > 1 else rows["card"]
    groups, inverse, counts = np.unique(held_by, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        return {}
    folds = np.empty(len(groups), dtype=np.intp)
    folds[np.argsort(-counts, kind="stable")] = np.arange(len(groups)) % CARD_FOLDS
    names = [name for name in weights if not name.startswith(FAMILY)]
    honest = _hold_out(lesson, names, folds[inverse])
    known = np.isfinite(np.stack(list(honest.values()))).any(axis=0) if honest else np.zeros(len(rows), dtype=np.bool_)
    if not known.any():
        return {}
    mean, _ = _mean_of({name: values[known] for name, values in honest.items()}, weights)
    rows, target = rows[["regime"]][known], lesson.target[known]
    keep = _shrinkage(rows, mean, target)
    found: dict[str, Newness] = {}
    for regime, kept in keep.items():
        mine = rows["regime"] == regime
        squares = (target[mine] - kept * mean[mine]) ** 2
        found[regime] = Newness(kept, float(np.mean(np.minimum(squares, 9 * max(LEAST_VARIANCE, float(np.median(squares)) / 0.455)))))
    return found


def _weigh(honest: Mapping[str, Floats], target: Floats) -> dict[str, float]:
    """One over the mean squared error where the member speaks; robust to single rows by the bound on the target."""
    errors = {name: float(np.nanmean((values - target) ** 2)) for name, values in honest.items()}
    return {name: 1.0 / max(error, LEAST_VARIANCE) for name, error in errors.items()}


def _mean_of(honest: Mapping[str, Floats], weights: Mapping[str, float]) -> tuple[Floats, Floats]:
    opinions = np.stack(list(honest.values()), axis=1)
    weight = np.where(np.isfinite(opinions), np.array([weights[name] for name in honest]), 0.0)
    opinions = np.nan_to_num(opinions)
    total = weight.sum(axis=1)
    mean = (opinions * weight).sum(axis=1) / total
    return mean, (weight * (opinions - mean[:, None]) ** 2).sum(axis=1) / total


def _shrinkage(rows: Rows, mean: Floats, target: Floats) -> dict[str, float]:
    """Least squares of target on the members' mean, between 0 and 1, by regime."""
    found: dict[str, float] = {}
    for regime in np.unique(rows["regime"]).tolist():
        mine = rows["regime"] == regime
        power = float((mean[mine] ** 2).sum())
        found[regime] = min(1.0, max(0.0, float((mean[mine] * target[mine]).sum()) / power)) if power > 0 else 0.0
    return found


def _instance_effects(rows: Rows, errors: Floats) -> Floats:
    """What single instances add, as far as their rows justify it: the median of their errors, times n / (n + 2.5)."""
    effects = np.zeros(len(rows))
    for name in np.unique(rows["instance"]).tolist():
        mine = rows["instance"] == name
        siblings = (rows["instance"] != name) & np.isin(rows["card"], rows["card"][mine])
        if name and siblings.any():
            count = np.count_nonzero(mine)
            effects[mine] = (np.median(errors[mine]) - np.median(errors[siblings])) * count / (count + PRIOR_ROWS)
    return effects


def _held_out_distance(rows: Rows, seed: int) -> Floats:
    folds = _folds(rows, seed)
    distance = np.zeros(len(rows))
    for fold in np.unique(folds):
        distance[folds == fold] = build_portraits(rows[folds != fold]).distance(rows[folds == fold])
    return distance


def _spreads(rows: Rows, errors: Floats, variance: Floats, distance: Floats) -> dict[str, Spread]:
    """Non-negative least squares of the squared errors on 1, disagreement and squared distance, by regime; outliers count as 3 sigma."""
    from scipy.optimize import nnls  # noqa: PLC0415  only training needs it

    found: dict[str, Spread] = {}
    for regime in np.unique(rows["regime"]).tolist():
        mine = rows["regime"] == regime
        squares = errors[mine] ** 2
        squares = np.minimum(squares, 9 * max(LEAST_VARIANCE, float(np.median(squares)) / 0.455))  # the median of a chi-square of one degree
        causes = np.stack([np.ones(len(squares)), variance[mine], distance[mine] ** 2], axis=1)
        causes[:, causes.max(axis=0) < LEAST_VARIANCE] = 0.0  # members that never disagree explain nothing
        own, by_disagreement, by_distance = nnls(causes, squares)[0].tolist()
        found[regime] = Spread(max(own, LEAST_VARIANCE), by_disagreement, by_distance)
    return found
