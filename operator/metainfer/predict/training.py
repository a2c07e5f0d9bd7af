"""A challenger trained on everything, judged on models that it has not seen, against its predecessor and the bare base.

Judging is by cross-validation over models: each fold's models are predicted by a learner that was trained without them. The
predecessor is judged on the same models by the same recipe, on the rows that it had: asking the stored one would ask it about models
that it has seen.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from metainfer.decide.learned import ModelRecord
from metainfer.decide.learning import Sample
from metainfer.predict.learned.document import model_to_document
from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.learned.features import FEATURE_VERSION
from metainfer.predict.learned.rows import Rows
from metainfer.predict.learned.training import train
from metainfer.predict.registry import Forecasts, checksum
from metainfer.predict.training_rows import build_training_rows
from metainfer.predict.workload import Floats

FOLDS = 5
LEAST_MODELS = 4
"""With fewer, what is held out says more about the split than about the learner."""
LEAST_CHOICES = 3
"""Candidates of a group: between two, any order is right half of the time."""
SPREAD_WEIGHT = 0.1
"""Of the error of relative latencies in a loss, beside the regret of the first pick: it tells apart learners that pick the same."""
LEAST_GAIN = 0.002
"""Less than a fifth of a percent is nothing that a user would notice."""
Mask = npt.NDArray[np.bool_]
Learner = Callable[[Rows], Forecasts]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """What there is to learn from."""

    samples: Sequence[Sample]
    """Benchmarks of the store, or of tables that somebody gave."""
    shipped: Sequence[Sample] = ()
    """Those that came with the operator; every model knows them."""
    known_until: datetime | None = None
    """What the predecessor was trained on besides: samples that finished by then. None = there is none of this feature version."""
    seed: int = 0

    def rows(self, until: datetime | None = None) -> Rows:
        """Of all samples, or of what was known at a time."""
        return build_training_rows([*self.shipped, *(item for item in self.samples if until is None or item.finished_at <= until)])

    def learn(self, rows: Rows) -> Forecasts:
        """A model of some rows. Raises Untrainable."""
        return train(rows, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Loss:
    """Of an order, one entry per group of one model's candidates under one load: the mean over the sets of families that may be there."""

    regrets: Floats
    """Share of the best candidate's throughput that the first pick loses."""
    spreads: Floats
    """Mean error of log latencies among the candidates."""

    @property
    def groups(self) -> int:
        """How many."""
        return len(self.regrets)

    @property
    def regret(self) -> float:
        """Mean; 0 without groups."""
        return float(self.regrets.mean()) if self.groups else 0.0

    @property
    def regret_permille(self) -> int:
        """-1 = no group."""
        return round(1000 * self.regret) if self.groups else -1

    def beats(self, other: Loss) -> bool:
        """Whether it is better on the same groups by more than luck: the mean gain exceeds its own standard error."""
        if not self.groups:
            return False
        gains = (other.regrets - self.regrets) + SPREAD_WEIGHT * (other.spreads - self.spreads)
        error = float(gains.std(ddof=1)) / math.sqrt(self.groups) if self.groups > 1 else 0.0
        return float(gains.mean()) > max(LEAST_GAIN, error)

    def is_no_worse(self, other: Loss) -> bool:
        """Whether it loses nothing beyond that on the same groups."""
        return not other.beats(self)


def train_challenger(curriculum: Curriculum, made_at: datetime) -> ModelRecord:
    """The trained model with its verdict; ``version`` 0 until the store gives one. Raises Untrainable."""
    rows = curriculum.rows()
    if len(set(rows["model"])) < LEAST_MODELS:
        raise Untrainable("TooFewModels", f"benchmarks of {len(set(rows['model']))} models, at least {LEAST_MODELS} are needed to hold some out")
    metrics = judge(curriculum, rows)
    document = json.dumps(model_to_document(curriculum.learn(rows)), separators=(",", ":"), sort_keys=True)  # type: ignore[arg-type]  # what train gives
    metrics["trained_until"] = max(sample.finished_at for sample in curriculum.samples or curriculum.shipped).isoformat()
    return ModelRecord(
        version=0,
        made_at=made_at,
        feature_version=FEATURE_VERSION,
        training_hash=training_hash(rows),
        rows=len(rows),
        serves=bool(metrics["serves"]),
        metrics=metrics,
        checksum=checksum(document),
        document=document if metrics["serves"] else "",
    )


def judge(curriculum: Curriculum, rows: Rows) -> dict[str, Any]:
    """Held-out figures, and whether the challenger serves: better than the base and, where there is one, than its predecessor."""
    challenger = held_out(curriculum.learn, rows, rows)
    ours, base = measure_loss(rows, challenger), measure_loss(rows, np.log(rows["base_us"]))
    old = _predecessor(curriculum, rows)
    return {
        "serves": ours.beats(base) and (old is None or ours.beats(old)),
        "verdict": _words(ours, base, old),
        "regret_permille": ours.regret_permille,
        "base_regret_permille": base.regret_permille,
        "old_regret_permille": old.regret_permille if old is not None else -1,
        "groups": ours.groups,
        "models": len(set(rows["model"])),
        "families": {str(name): _family(rows, challenger, rows["family"] == name) for name in np.unique(rows["family"])},
        "serves_others": _beats_base_elsewhere(curriculum, rows),
    }


def held_out(learn: Learner, teaching: Rows, asked: Rows, *, folds: int = FOLDS) -> Floats:
    """Log latency of each asked row by a model that was trained on ``teaching`` without the row's own model."""
    models = np.unique(asked["model"])
    answers = np.zeros(len(asked))
    for fold in range(min(folds, len(models))):
        out = models[fold::folds]
        mine = np.isin(asked["model"], out)
        answers[mine] = learn(teaching[~np.isin(teaching["model"], out)]).predict(asked[mine]).log_latency_us
    return answers


def measure_loss(rows: Rows, log_latency: Floats, only: Mask | None = None) -> Loss:
    """Over groups of one model under one load that offer a choice.

    No adaptation sees all cards that there ever were, and where one family is the best of all anything that knows this much picks alike:
    so each family is judged alone, with each other one, and all together.
    """
    considered = np.ones(len(rows), dtype=bool) if only is None else only
    regrets, spreads = [], []
    for model, clients in sorted({(str(row["model"]), float(row["clients"])) for row in rows[considered]}):
        group = considered & (rows["model"] == model) & (rows["clients"] == clients)
        found = [_measure_choice(rows["latency_us"][mine], log_latency[mine]) for mine in _card_sets(rows, group) if mine.sum() >= LEAST_CHOICES]
        if found:
            regret, spread = np.mean(found, axis=0)
            regrets.append(regret)
            spreads.append(spread)
    return Loss(np.array(regrets), np.array(spreads))


def _card_sets(rows: Rows, group: Mask) -> list[Mask]:
    """The group's rows by families: each alone, each pair, all."""
    names = np.unique(rows["family"][group]).tolist()
    sets = [*combinations(names, 1), *combinations(names, 2), *([tuple(names)] if len(names) > 2 else [])]
    return [group & np.isin(rows["family"], chosen) for chosen in sets]


def _measure_choice(latency: Floats, stated: Floats) -> tuple[float, float]:
    """Regret of the first pick, and mean error."""
    error = stated - np.log(latency)
    return 1.0 - float(latency.min() / latency[int(np.argmin(stated))]), float(np.mean(np.abs(error - np.median(error))))


def training_hash(rows: Rows) -> str:
    """Over the rows in any order and the feature version."""
    digests = sorted(hashlib.sha256(row.tobytes()).digest() for row in rows)
    return hashlib.sha256(b"".join([FEATURE_VERSION.to_bytes(4, "big"), *digests])).hexdigest()


def _predecessor(curriculum: Curriculum, rows: Rows) -> Loss | None:
    if curriculum.known_until is None:
        return None
    try:
        return measure_loss(rows, held_out(curriculum.learn, curriculum.rows(curriculum.known_until), rows))
    except Untrainable:
        return None  # what it was trained on is no longer there


def _family(rows: Rows, challenger: Floats, mine: Mask) -> dict[str, Any]:
    """Figures of one family, and whether the challenger is at least as good as the base there."""
    ours, base = measure_loss(rows, challenger, mine), measure_loss(rows, np.log(rows["base_us"]), mine)
    return {
        "rows": int(mine.sum()),
        "regret_permille": ours.regret_permille,
        "base_regret_permille": base.regret_permille,
        "serves": ours.is_no_worse(base),
    }


def _beats_base_elsewhere(curriculum: Curriculum, rows: Rows) -> bool:
    """Whether a family that nothing was learned of gains too: each one in turn is predicted from the others, its models held out as well."""
    families = np.unique(rows["family"])
    if len(families) < 2:
        return False
    answers = np.zeros(len(rows))
    for family in families:
        mine = rows["family"] == family
        try:
            answers[mine] = held_out(curriculum.learn, rows[~mine], rows[mine], folds=3)
        except Untrainable:
            return False
    return measure_loss(rows, answers).beats(measure_loss(rows, np.log(rows["base_us"])))


def _words(ours: Loss, base: Loss, old: Loss | None) -> str:
    compared = f"regret {100 * ours.regret:.1f} % on models it has not seen, the base {100 * base.regret:.1f} %"
    return compared if old is None else f"{compared}, the one before {100 * old.regret:.1f} %"
