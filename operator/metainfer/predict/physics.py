"""The physics base: answers ``decide``'s questions from measured peaks and the model's measured work, without any learning.

1. Peaks of the card for provider and precision (``peaks``), work of the model (``workload``).
2. Time of one execution: roofline per operator class and launches (``roofline``), times what the measured curve says (``curve``).
3. Latency and throughput of the closed loop (``queueing``); P99 from the measured tail, the node's launch tail and its load.

Nothing that is missing stops a prediction; it widens ``log_sigma``, and ``source`` names what it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metainfer.decide.evidence import is_figure
from metainfer.decide.facts import Portrait
from metainfer.decide.predictor import Prediction, Question
from metainfer.predict.curve import LOAD_TAIL, ONE_RUN_TAIL, Correction, Home, build_correction
from metainfer.predict.peaks import Peaks, find_peaks
from metainfer.predict.queueing import Loop, settle
from metainfer.predict.roofline import Execution, class_times_us, launch_times_us
from metainfer.predict.workload import Workload, build_workload
from metainfer_probe.contract import Precision, ProfileReport

CURVE_LOG_SIGMA = 0.10
"""A latency that was really measured, on another instance of the family or another day."""
OTHER_FAMILY_LOG_SIGMA = 0.20
"""Added in square where the curve comes from another family's card."""
UNRELATED_LOG_SIGMA = 0.25
"""Added where it is not known on which card the curve was measured."""
PRECISION_LOG_SIGMA = {"fp32": 0.0, "bf16": 0.25, "fp16": 0.25, "int8": 0.5}
"""Added for a precision that the curve did not measure. int8 is the most doubtful: one model's was 5 times faster, another's half as fast."""
BATCH_LOG_SIGMA = 0.15
"""Added for a batch outside the measured ones."""
NOTHING_KNOWN_LOG_SIGMA = 1.0
"""Added where the profile counted no work at all: the launch is then all that is known."""
SPEED_LIMIT = 1.5
"""Between a portrait and a profile of the same card a day later; beyond it the micro-probe was disturbed."""
UNRELATED_SPEED_LIMIT = 8.0
"""Between the micro-probes of two different cards."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All that is needed to answer one question."""

    question: Question
    execution: Execution
    correction: Correction
    loop: Loop


class PhysicsPredictor:
    """See ``decide.predictor.Predictor``. Without state: the same questions have the same answers."""

    def predict(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """One prediction per question; the rooflines of all of them are computed at once."""
        return answer(take_apart(questions))


def take_apart(questions: Sequence[Question]) -> Sequence[Parts]:
    """What each question is made of, in their order."""
    shared = _Shared()
    return tuple(_gather(question, shared) for question in questions)


def answer(parts: Sequence[Parts]) -> Sequence[Prediction]:
    """One prediction per question."""
    if not parts:
        return ()
    executions = [part.execution for part in parts]
    factors = np.stack([part.correction.class_factors for part in parts])
    single_us = (class_times_us(executions) * factors).sum(axis=1) + launch_times_us(executions)
    return tuple(_answer(part, float(value)) for part, value in zip(parts, single_us, strict=True))


@dataclass(slots=True)
class _Shared:
    """What many questions of one call have in common: thousands of them are about one model and a few cards. Objects count by id."""

    workloads: dict[int, Workload] = field(default_factory=dict)
    peaks: dict[tuple[int, str, Precision], Peaks] = field(default_factory=dict)
    corrections: dict[tuple[int, int, int, str], Correction] = field(default_factory=dict)

    def workload(self, profile: ProfileReport) -> Workload:
        if id(profile) not in self.workloads:
            self.workloads[id(profile)] = build_workload(profile)
        return self.workloads[id(profile)]

    def peaks_of(self, question: Question) -> Peaks:
        config = question.candidate.config
        key = (id(question.card), config.execution_provider, config.precision)
        if key not in self.peaks:
            self.peaks[key] = find_peaks(question.card, config.execution_provider, config.precision)
        return self.peaks[key]

    def correction(self, question: Question) -> Correction:
        provider, profile = question.candidate.config.execution_provider, question.profile
        key = (id(profile), id(question.card), id(question.profiled_on), provider)
        if key not in self.corrections:
            curve = next((item.curve for item in profile.providers if item.provider == provider), ())
            self.corrections[key] = build_correction(self.workload(profile), profile.stored_precision, curve, _home(question, provider))
        return self.corrections[key]


def _gather(question: Question, shared: _Shared) -> Parts:
    config, profile = question.candidate.config, question.profile
    loop = settle(config, question.load_clients)
    execution = Execution(shared.workload(profile), shared.peaks_of(question), config.precision, profile.stored_precision, loop.batch)
    return Parts(question, execution, shared.correction(question), loop)


def _home(question: Question, provider: str) -> Home:
    profile, known = question.profile, question.profiled_on
    card = known if known is not None else question.card
    gflops = profile.micro.gflops if profile.micro is not None else 0.0
    speed = 1.0
    if card is not None and card.status.micro_megaflops > 0 and is_figure(gflops):
        limit = SPEED_LIMIT if known is not None else UNRELATED_SPEED_LIMIT
        speed = max(1 / limit, min(limit, gflops * 1000 / card.status.micro_megaflops))
    return Home(_fp32_peaks(card, provider), _fp32_peaks(card, _counting_provider(profile) or provider), speed, known is not None)


def _fp32_peaks(card: Portrait | None, provider: str) -> Peaks:
    return find_peaks(card, provider, "fp32")


def _counting_provider(profile: ProfileReport) -> str | None:
    """The provider on which the work was counted: where most of the hot operators ran."""
    shares: dict[str, int] = {}
    for item in profile.hot:
        shares[item.provider] = shares.get(item.provider, 0) + item.time_permille
    return max(sorted(shares), key=lambda name: shares[name], default=None)


def _answer(part: Parts, single_us: float) -> Prediction:
    loop, correction, peaks = part.loop, part.correction, part.execution.peaks
    service_us = single_us * correction.ratio(loop.batch) * correction.slowdown(loop.workers)
    latency_us = loop.latency_us(service_us)
    tail = correction.tail if correction.tail is not None else ONE_RUN_TAIL + LOAD_TAIL * peaks.load_share
    # Independent executions one after the other: the relative spread of their sum shrinks with the root of their number.
    p99_us = latency_us * (1.0 + (tail - 1.0) / math.sqrt(loop.turns)) + peaks.launch_tail_us
    return Prediction(latency_us, p99_us, loop.throughput_per_second(service_us), _log_sigma(part), _source(part))


def _log_sigma(part: Parts) -> float:
    question, execution = part.question, part.execution
    parts = [0.0 if execution.work.macs.sum() > 0 or part.correction.is_measured else NOTHING_KNOWN_LOG_SIGMA]
    if not part.correction.is_measured:
        return math.hypot(execution.peaks.log_sigma, *parts)
    home = question.profiled_on
    parts += [CURVE_LOG_SIGMA, UNRELATED_LOG_SIGMA if home is None else 0.0 if _same_family(question.card, home) else OTHER_FAMILY_LOG_SIGMA]
    parts.append(PRECISION_LOG_SIGMA[execution.precision])
    parts.append(0.0 if part.correction.covers(execution.batch) else BATCH_LOG_SIGMA)
    return math.hypot(*parts)


def _same_family(card: Portrait | None, home: Portrait) -> bool:
    return card is not None and (card.spec.pool, card.spec.family) == (home.spec.pool, home.spec.family)


def _source(part: Parts) -> str:
    basis = part.execution.peaks.basis
    return f"{basis}, scaled by the model's measured curve" if part.correction.is_measured else basis
