"""From samples to rows that may be learned from: one per thing that was measured, freed of its moment, weighted by what it tells.

1. *Moment*: in every Job the candidate alternated with a reference. Where several Jobs on a node measured the same reference, what one
   of them found off its median is the card's mood at that time, and is taken out of the candidate as well.
2. *Doubles*: runs of the same thing on the same node become their median.
3. *Weight*: a run that contradicts what its like did is kept and weighs more, up to three times: it is what the model does not know
   yet. Beyond a factor of thirty it weighs as much as any other, because a unit mistaken for another looks like that.

No weight lets a single row move a family: the learner's loss grows no faster than the error itself. What is wrong with a whole node is
left to the learner, which knows a row's ``instance``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from metainfer.decide.learning import Sample, family_key
from metainfer.decide.predictor import Prediction
from metainfer.predict.learned.rows import Rows, make_rows
from metainfer.predict.physics import Parts, answer, take_apart
from metainfer.predict.question_rows import build_rows

LEAST_JOBS = 3
"""Of a median: with fewer, one of them decides what is typical."""
EFFECT_LIMIT = math.log(3.0)
"""A moment more than three times off was not a slower card but another one."""
REPEAT_WEIGHT_LIMIT = 2.0
SURPRISE_SIGMAS, SURPRISE_WEIGHT_LIMIT = 2.0, 3.0
SURPRISE_LOG_LIMIT = math.log(30.0)
LEAST_LOG_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample on its way: ``log_ratio`` is log(measured / base)."""

    sample: Sample
    parts: Parts
    base: Prediction
    log_ratio: float
    weight: float = 1.0

    @property
    def family(self) -> str:
        """POOL/FAMILY."""
        return family_key(self.sample.question.candidate)

    @property
    def like(self) -> Hashable:
        """What is asked: model, configuration, load; the same on every card."""
        return (self.sample.digest, self.sample.question.candidate.config, self.sample.question.load_clients)


def build_training_rows(samples: Sequence[Sample]) -> Rows:
    """Rows with latency and weight, one per model, family, node, configuration and load; the samples' order does not matter."""
    ordered = sorted({sample.key: sample for sample in samples}.values(), key=lambda item: (item.finished_at, item.key))
    observations = weigh(merge(free_of_moments(observe(ordered))))
    if not observations:
        return make_rows(0)
    rows = build_rows([item.parts for item in observations], [item.base for item in observations])
    rows["model"] = [item.sample.digest for item in observations]
    rows["instance"] = [item.sample.node for item in observations]
    rows["latency_us"] = rows["base_us"] * np.exp([item.log_ratio for item in observations])
    rows["weight"] = [item.weight for item in observations]
    return rows


def observe(samples: Sequence[Sample]) -> list[Observation]:
    """Each with its base; a measured latency at the card's speed at that moment is told as at the portrait's speed."""
    parts = take_apart([sample.question for sample in samples])
    found = zip(samples, parts, answer(parts), strict=True)
    return [
        Observation(sample, part, base, math.log(sample.measured.mean_us * sample.speed) - math.log(base.p50_us))
        for sample, part, base in found
        if base.p50_us > 0 and math.isfinite(base.p50_us)
    ]


def free_of_moments(observations: Sequence[Observation]) -> list[Observation]:
    """Without what the reference of the same Job was off its usual."""
    level = {item.sample.key: math.log(item.sample.reference.mean_us * item.sample.speed) for item in observations if item.sample.reference is not None}

    def sort(item: Observation) -> Hashable:
        question = item.sample.question
        return (item.sample.digest, item.sample.node, question.candidate.config.execution_provider, question.load_clients)

    usual = _medians(((sort(item), level[item.sample.key]) for item in observations if item.sample.key in level), LEAST_JOBS)
    return [_shift(item, level[item.sample.key] - usual[sort(item)]) if item.sample.key in level and sort(item) in usual else item for item in observations]


def merge(observations: Sequence[Observation]) -> list[Observation]:
    """One per thing, node and family: the median run, weighing more with each repetition."""
    groups: dict[Hashable, list[Observation]] = defaultdict(list)
    for item in observations:
        groups[item.family, item.sample.node, item.like].append(item)
    merged = []
    for items in groups.values():
        middle = sorted(items, key=lambda item: item.log_ratio)[(len(items) - 1) // 2]
        merged.append(replace(items[-1], log_ratio=middle.log_ratio, weight=min(REPEAT_WEIGHT_LIMIT, math.sqrt(len(items)))))
    return merged


def weigh(observations: Sequence[Observation]) -> list[Observation]:
    """By how far a row is off the median of its family and provider, in units of their spread."""

    def sort(item: Observation) -> Hashable:
        return (item.family, item.sample.question.candidate.config.execution_provider)

    middle = _medians(((sort(item), item.log_ratio) for item in observations), LEAST_JOBS)
    spread = _medians(((sort(item), abs(item.log_ratio - middle[sort(item)])) for item in observations if sort(item) in middle), LEAST_JOBS)
    weighed = []
    for item in observations:
        off = abs(item.log_ratio - middle.get(sort(item), item.log_ratio))
        sigmas = off / max(LEAST_LOG_SPREAD, 1.4826 * spread.get(sort(item), 0.0))
        surprise = 1.0 if off > SURPRISE_LOG_LIMIT else min(SURPRISE_WEIGHT_LIMIT, max(1.0, sigmas / SURPRISE_SIGMAS))
        weighed.append(replace(item, weight=item.weight * surprise))
    return weighed


def _shift(item: Observation, effect: float) -> Observation:
    return replace(item, log_ratio=item.log_ratio - max(-EFFECT_LIMIT, min(EFFECT_LIMIT, effect)))


def _medians(pairs: Iterable[tuple[Hashable, float]], least: int) -> Mapping[Hashable, float]:
    grouped: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in pairs:
        grouped[key].append(value)
    return {key: median(values) for key, values in grouped.items() if len(values) >= least}
