"""Which candidate is benchmarked next, and on which node; or that enough is known. Pure: a function of what is measured so far.

The caller keeps no state: after a crash the same runs lead to the same next step. The order: the present configuration first (it
is the baseline of everything), then always the one that promises most by predictions that all runs so far have corrected; the loop
ends when the best one is already measured, when ``top_k`` others are, or when the time left does not allow another run.

*Promises most* is expected improvement over the best measured one (Jones, Schonlau, Welch, Efficient Global Optimization, 1998):
a doubtful prediction that may be much better is worth a run, a sure one that is hardly better is not. Taking the best mean instead
stops too early: simulated with answers that are always good enough,
it left 2.5 times the regret of this rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.accuracy_odds import read_odds
from metainfer.decide.candidates import joins_requests
from metainfer.decide.correction import correct
from metainfer.decide.estimation import Estimate, estimates
from metainfer.decide.evidence import Fault, find_fault
from metainfer.decide.facts import Candidate, Portrait, RunResult
from metainfer.decide.families import FamilyOption
from metainfer.decide.predictor import Prediction
from metainfer.decide.ranking import Costs, Objective, Ranked, rank

__all__ = ["Decide", "Estimate", "Measure", "Situation", "correct", "estimates", "next_step", "pick_node"]

WORTHWHILE_LOG_GAIN = 0.01
"""The best one counts as measured when another run is expected to gain less than 1 %: an expectation of that much is often 5 % that are
missed one time in five, and 5 % are the dead band."""
NEW_FAMILY_FACTOR = 1.5
"""A first run on a family also tells of all its other candidates: of two that promise about the same it is the better run."""
_Known = TypeVar("_Known", Estimate, Prediction)
ALSO_FAILS = frozenset({"Failed", "AccuracyExceeded"})
"""Verdicts that the same variant with a larger batch or more parallel executions would share."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One adaptation in the middle of its validation."""

    predictions: Mapping[Candidate, Prediction]
    """Of every feasible candidate, the current configuration included where it is one."""
    runs: tuple[RunResult, ...]
    """Of this adaptation's run, oldest first."""
    portraits: Mapping[str, Portrait]
    """By node."""
    objective: Objective
    accuracy: Accuracy = field(default_factory=Accuracy)
    costs: Costs = field(default_factory=dict)
    current: Candidate | None = None
    top_k: int = 4
    seconds_left: float = 600.0
    seconds_per_run: float = 90.0
    """What one more run takes, start of its Job included."""
    change_sigmas: float = 1.0
    """By how many standard deviations of their difference a candidate has to beat the current configuration."""
    current_slowdown: float = 1.0
    """How many times slower the current configuration serves than its benchmark says: its pods are on a slow card, and no other is free."""

    @property
    def measured(self) -> Mapping[Candidate, Estimate]:
        """Figures of everything that was measured."""
        return estimates(self.runs, self.portraits)

    @property
    def compared(self) -> Mapping[Candidate, Estimate]:
        """The same, the current configuration as it serves where it has to stay."""
        return {candidate: self._as_served(candidate, estimate) for candidate, estimate in self.measured.items()}

    def _as_served(self, candidate: Candidate, known: _Known) -> _Known:
        slowdown = self.current_slowdown if candidate == self.current else 1.0
        return replace(
            known,
            p50_us=known.p50_us * slowdown,
            p99_us=known.p99_us * slowdown,
            throughput_per_second=known.throughput_per_second / slowdown,
        )

    @property
    def faults(self) -> Mapping[Candidate, Fault]:
        """Candidates that cannot be chosen. One good run outweighs failed ones, but not one with wrong answers; of several faults the last counts."""
        by_candidate: dict[Candidate, list[Fault | None]] = {}
        for run in self.runs:
            by_candidate.setdefault(run.candidate, []).append(find_fault(run, self.accuracy, is_current=run.candidate == self.current))
        found: dict[Candidate, Fault] = {}
        for candidate, faults in by_candidate.items():
            real = [fault for fault in faults if fault is not None]
            wrong = [fault for fault in real if fault.verdict == "AccuracyExceeded"]
            if wrong or len(real) == len(faults):
                found[candidate] = (wrong or real)[-1]
        return found

    @property
    def ranking(self) -> tuple[Ranked, ...]:
        """All feasible candidates by what is known now: estimates where there are any, corrected predictions elsewhere."""
        known = {candidate: self._as_served(candidate, item) for candidate, item in correct(self.predictions, self.measured).items()}
        order = [candidate for candidate in known if candidate in self.predictions or candidate in self.measured]
        return rank(order, [known[candidate] for candidate in order], self.objective, self.costs, current=self.current)


@dataclass(frozen=True, slots=True)
class Measure:
    """Benchmark this candidate next."""

    candidate: Candidate
    because: str


@dataclass(frozen=True, slots=True)
class Decide:
    """Enough is known; ``verdicts.judge`` says what it means."""

    because: str


def next_step(situation: Situation) -> Measure | Decide:
    """Total for any situation; at most ``top_k`` + 1 different candidates are ever asked for."""
    tried = {run.candidate for run in situation.runs}
    if situation.seconds_left < situation.seconds_per_run:
        return Decide(f"the budget leaves {max(0.0, situation.seconds_left):.0f} s, one more run takes {situation.seconds_per_run:.0f} s")
    if situation.current in situation.predictions and situation.current is not None and situation.current not in tried:
        return Measure(situation.current, "the current configuration is the baseline")
    if len(tried - {situation.current}) >= situation.top_k:
        return Decide(f"{situation.top_k} candidates are measured besides the current configuration")
    return _best_open(situation, tried)


def _best_open(situation: Situation, tried: Collection[Candidate]) -> Measure | Decide:
    faults = situation.faults
    ranking = [item for item in situation.ranking if item.candidate not in faults]
    sound = [item for item in ranking if item.candidate in tried]
    unmeasured = [item for item in ranking if item.candidate not in tried and not expects_fault(item.candidate, faults)]
    if not unmeasured:
        return Decide("every feasible candidate is measured, or fails like one that was")
    odds = read_odds(situation.runs, situation.accuracy)
    if not sound:
        likely = max(unmeasured, key=lambda item: item.score + (math.log(odds.chance(item.candidate)) if faults else 0.0))
        return Measure(likely.candidate, "best by prediction")
    known = {(candidate.pool, candidate.family) for candidate in tried}
    gains = {
        item.candidate: odds.chance(item.candidate)
        * expected_gain(item, sound[0])
        * (1.0 if (item.candidate.pool, item.candidate.family) in known else NEW_FAMILY_FACTOR)
        for item in unmeasured
    }
    best = max(unmeasured, key=lambda item: gains[item.candidate])  # of equal ones the first, which is the better ranked
    has_alternative = any(item.candidate != situation.current for item in sound)
    if has_alternative and gains[best.candidate] < WORTHWHILE_LOG_GAIN:
        return Decide("the best one is already measured")
    return Measure(best.candidate, f"promises most by what is known so far, score {best.score_permille / 1000:.2f}")


def expected_gain(item: Ranked, best: Ranked) -> float:
    """E[max(0, score - best score)] for a score normal around the stated one with the prediction's sigma."""
    sigma = item.prediction.log_sigma
    if not (math.isfinite(sigma) and sigma > 0):
        return max(0.0, item.score - best.score)
    distance = (item.score - best.score) / sigma
    density = math.exp(-0.5 * distance * distance) / math.sqrt(2 * math.pi)
    return sigma * (distance * 0.5 * math.erfc(-distance / math.sqrt(2)) + density)


def expects_fault(candidate: Candidate, faults: Mapping[Candidate, Fault]) -> bool:
    """Whether a measured one tells that this one fails, too.

    It failed and differs only by a smaller batch or fewer parallel executions, its joined requests were wrong, or its runtime computes
    something else there.
    """
    return any(_shares_fault(candidate, other, fault) for other, fault in faults.items())


def _shares_fault(candidate: Candidate, other: Candidate, fault: Fault) -> bool:
    mine, theirs = candidate.config, other.config
    if (candidate.pool, candidate.family, mine.execution_provider) != (other.pool, other.family, theirs.execution_provider):
        return False
    if fault.reason == "AnswersDiffer":
        return True
    if fault.reason == "BatchDiffers":
        return joins_requests(mine)
    if fault.verdict == "AccuracyExceeded":
        # Parallel executions do not change answers; of the precisions only int8's depend on who else is in the batch.
        return mine.precision == theirs.precision and (mine.precision != "int8" or mine.batch_size >= theirs.batch_size)
    grows = mine.batch_size >= theirs.batch_size and mine.concurrency >= theirs.concurrency
    return fault.is_lasting and fault.verdict in ALSO_FAILS and mine.precision == theirs.precision and grows


def pick_node(option: FamilyOption, busy: Collection[str], avoid: Collection[str] = ()) -> str | None:
    """The most typical node of the family that is free now; None = wait.

    Args:
        busy: nodes where a measuring Job runs, or whose cards are all held by pods (the target's own included).
        avoid: nodes on which a run failed; taken only where there is no other, like degraded ones (a degraded one last).
    """
    names = {node.name for node in option.nodes}
    typical = [portrait for portrait in option.portraits if portrait.node in names and portrait.node not in busy]
    order = sorted(typical, key=lambda portrait: (portrait.status.health == "Degraded", portrait.node in avoid))  # stable: typical first within each
    unprobed = sorted(names - {portrait.node for portrait in option.portraits} - set(busy))
    free = [portrait.node for portrait in order] + unprobed
    return free[0] if free else None
