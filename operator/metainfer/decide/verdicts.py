"""What the measurements mean: which configuration is chosen, what became of every other one, and how sure that is. Pure.

A difference inside the noise is a tie, and in a tie the present configuration stays: a rollout for nothing is a loss. Limits that
nothing can keep are said, never bent: the best is still recommended, and ``infeasible`` tells why it is not good enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metainfer.api.durations import format_duration_us
from metainfer.decide.estimation import Estimate, difference_log_sigma
from metainfer.decide.evidence import Fault, Verdict
from metainfer.decide.facts import Candidate
from metainfer.decide.ranking import TAIL_LOG_SIGMA, Objective, Ranked, log_utility
from metainfer.decide.validation import Situation, expects_fault

DEAD_BAND = math.log(1.05)
"""Differences below 5 % are noise on any machine measured so far."""
TAIL_ALLOWANCE = math.log(1.2) + math.sqrt(2) * TAIL_LOG_SIGMA
"""How much longer than the current configuration's a P99 may be under goal Latency: the 20 % that a later drift check would act on,
and one standard deviation of the difference of two P99s."""
NOISY_LOG_SIGMA = 0.15
"""A chosen figure with more than this is worth saying so."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one candidate."""

    verdict: Verdict
    message: str
    measured: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a validation."""

    selected: Candidate | None
    """None only when there is no current configuration and nothing else may be chosen."""
    gain_percent: int
    """Of the selected one's utility over the current configuration's; 0 when it stays or has no figures."""
    verdicts: Mapping[Candidate, Judgement]
    low_confidence: str | None = None
    """Why the choice is less sure than it should be."""
    infeasible: str | None = None
    """Why the choice is not good enough: a limit that nothing keeps, or nothing could be measured."""


@dataclass(frozen=True, slots=True)
class _Contender:
    """A measured candidate whose answers are good enough."""

    candidate: Candidate
    estimate: Estimate
    utility: float
    excess: float
    """How far beyond the worst broken limit, as a log ratio; 0 or less = all limits are kept."""
    tail_excess: float = -math.inf
    """The same beyond what the current configuration's tail allows."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The situation with everything that follows from it, worked out once."""

    situation: Situation
    measured: Mapping[Candidate, Estimate]
    faults: Mapping[Candidate, Fault]
    ranking: Sequence[Ranked]
    contenders: Sequence[_Contender]
    """Best first; equal ones in the order of their keys."""

    @property
    def objective(self) -> Objective:
        return self.situation.objective

    @property
    def current(self) -> Candidate | None:
        return self.situation.current

    def contender(self, candidate: Candidate | None) -> _Contender | None:
        return next((item for item in self.contenders if item.candidate == candidate), None)


@dataclass(frozen=True, slots=True)
class _Choice:
    selected: Candidate | None
    gain_percent: int
    why: str
    infeasible: str | None = None


def judge(situation: Situation, *, minimum_gain_percent: int = 0) -> Decision:
    """The decision on what is measured so far; every feasible candidate gets a verdict."""
    record = _read(situation)
    choice = _choose(record, minimum_gain_percent)
    verdicts = {item.candidate: _tell_slow_card(_judge_one(item, record, choice), item.candidate, situation) for item in record.ranking}
    return Decision(choice.selected, choice.gain_percent, verdicts, _find_doubt(record, choice.selected), choice.infeasible)


def dead_band(left: Estimate, right: Estimate, sigmas: float = 1.0) -> float:
    """Log ratio below which two measurements are the same: 5 %, or so many standard deviations of their difference where that is more."""
    return max(DEAD_BAND, sigmas * difference_log_sigma(left, right))


def is_tie(left: Estimate, right: Estimate, log_difference: float, sigmas: float = 1.0) -> bool:
    """Whether a difference is inside the noise; symmetric."""
    return abs(log_difference) <= dead_band(left, right, sigmas)


def _read(situation: Situation) -> _Record:
    measured, faults, found = situation.compared, situation.faults, []
    for candidate, estimate in measured.items():
        utility = log_utility(candidate, estimate, situation.objective.goal, situation.costs)
        if candidate not in faults and utility is not None:
            found.append(_Contender(candidate, estimate, utility, _excess(estimate, situation.objective), _tail_excess(estimate, situation)))
    contenders = sorted(found, key=lambda item: (-item.utility, item.candidate.key))
    return _Record(situation, measured, faults, situation.ranking, contenders)


def _tail_excess(estimate: Estimate, situation: Situation) -> float:
    """Without an SLO nobody said how long the tail may be: under goal Latency, not longer than it is today."""
    today = situation.compared.get(situation.current) if situation.current is not None else None
    if today is None or situation.objective.goal != "Latency" or situation.objective.p99_limit_us is not None:
        return -math.inf
    return math.log(estimate.p99_us / today.p99_us) - TAIL_ALLOWANCE


def _excess(estimate: Estimate, objective: Objective) -> float:
    limit_us, floor = objective.p99_limit_us, objective.throughput_floor_per_second
    tail = -math.inf if limit_us is None else math.log(estimate.p99_us / max(limit_us, 1e-9))
    lack = -math.inf if floor is None else math.log(floor / estimate.throughput_per_second)
    return max(tail, lack)


def _choose(record: _Record, minimum_gain_percent: int) -> _Choice:
    current = record.contender(record.current)
    if not record.contenders:
        return _Choice(record.current, 0, "nothing else could be measured", "no candidate has a valid measurement")
    within = [item for item in record.contenders if item.excess <= 0]
    if not within:
        return _least_bad(record, current, minimum_gain_percent)
    best = _prefer_exact([item for item in within if item.tail_excess <= 0] or within)
    if current is None or current.excess > 0:
        return _Choice(best.candidate, _gain_percent(best, current), "best of what keeps every limit")
    if best.candidate == current.candidate or _is_no_change(best, current, record):
        return _Choice(current.candidate, 0, "nothing is better than it beyond the noise")
    gain = _gain_percent(best, current)
    if gain < minimum_gain_percent:
        return _Choice(current.candidate, 0, f"the best gains {gain} %, updatePolicy.minimumGainPercent is {minimum_gain_percent}")
    return _Choice(best.candidate, gain, "best measured")


def _is_no_change(best: _Contender, current: _Contender, record: _Record) -> bool:
    return is_tie(best.estimate, current.estimate, best.utility - current.utility, record.situation.change_sigmas)


def _least_bad(record: _Record, current: _Contender | None, minimum_gain_percent: int) -> _Choice:
    """Nothing keeps the limits: of those that break them least (P99 of one window cannot tell them apart), the best; a tie keeps the current one."""
    least = min(item.excess for item in record.contenders)
    near = [item for item in record.contenders if item.excess - least <= TAIL_LOG_SIGMA]
    best = near[0]
    infeasible = f"no measured candidate keeps the SLO: the nearest has {_describe_miss(best.estimate, record.objective)}"
    if current is not None and current in near and _is_no_change(best, current, record):
        return _Choice(current.candidate, 0, "nothing is nearer to the SLO beyond the noise", infeasible)
    gain = _gain_percent(best, current)
    if current is not None and gain < minimum_gain_percent:
        return _Choice(current.candidate, 0, f"the nearest to the SLO gains {gain} %, updatePolicy.minimumGainPercent is {minimum_gain_percent}", infeasible)
    return _Choice(best.candidate, gain, "nearest to the SLO", infeasible)


def _prefer_exact(within: Sequence[_Contender]) -> _Contender:
    """The best; a lossy best that is only as good as an exact one gives way to it: the difference in its answers buys nothing."""
    best = within[0]
    if best.candidate.config.precision == "fp32":
        return best
    exact = (item for item in within if item.candidate.config.precision == "fp32" and is_tie(best.estimate, item.estimate, best.utility - item.utility))
    return next(exact, best)


def _gain_percent(best: _Contender, current: _Contender | None) -> int:
    return 0 if current is None or best is current else round(100 * math.expm1(min(20.0, best.utility - current.utility)))


def _judge_one(item: Ranked, record: _Record, choice: _Choice) -> Judgement:
    candidate, measured, fault = item.candidate, record.measured.get(item.candidate), record.faults.get(item.candidate)
    if candidate == choice.selected:
        return Judgement("Selected", choice.why if fault is None else f"{choice.why}; {fault.message}", measured)
    if fault is not None:
        return Judgement(fault.verdict, fault.message, measured)
    contender = record.contender(candidate)
    if contender is None:
        return _not_measured(item, record)
    if contender.excess > 0:
        return Judgement("SloMissed", _describe_miss(contender.estimate, record.objective), measured)
    if contender.tail_excess > 0:
        return Judgement("Slower", _describe_tail(contender.estimate, record), measured)
    return _compare(contender, record.contender(choice.selected), choice)


def _tell_slow_card(judgement: Judgement, candidate: Candidate, situation: Situation) -> Judgement:
    """What is shown is what was measured, with the words that tell why it was compared as slower."""
    if candidate != situation.current or situation.current_slowdown <= 1 or candidate not in situation.measured:
        return judgement
    words = f"compared as it serves, {situation.current_slowdown:.1f} times slower than measured: on a slow card, and no other of its family is free"
    return Judgement(judgement.verdict, f"{judgement.message}; {words}", situation.measured.get(candidate))


def _compare(contender: _Contender, selected: _Contender | None, choice: _Choice) -> Judgement:
    difference = 0.0 if selected is None else contender.utility - selected.utility
    percent = 100 * math.expm1(min(20.0, difference))
    if selected is None or is_tie(contender.estimate, selected.estimate, difference):
        return Judgement("Tie", f"{percent:+.0f} % against the selected one, within the noise", contender.estimate)
    if difference > 0:  # better, and still not selected
        return Judgement("Tie", f"{percent:+.0f} % against the selected one, but {choice.why}", contender.estimate)
    return Judgement("Slower", f"{percent:+.0f} % against the selected one", contender.estimate)


def _not_measured(item: Ranked, record: _Record) -> Judgement:
    if item.candidate in record.measured:
        return Judgement("Failed", "measured, but it has no utility: its family's cost is unknown", record.measured[item.candidate])
    if expects_fault(item.candidate, record.faults):
        return Judgement("NotMeasured", "left out: like one that was measured and failed, or whose joined requests or fp32 were wrong")
    return Judgement("NotMeasured", f"predicted at {item.score_permille / 1000:.2f}: {item.prediction.source}")


def _describe_tail(estimate: Estimate, record: _Record) -> str:
    today = record.measured[record.current].p99_us if record.current is not None else 0.0
    found = f"P99 {format_duration_us(estimate.p99_us)}, the current configuration has {format_duration_us(today)}"
    return f"{found}: a longer tail than goal Latency allows (set slo.p99 to allow it)"


def _describe_miss(estimate: Estimate, objective: Objective) -> str:
    parts: list[str] = []
    limit_us, floor = objective.p99_limit_us, objective.throughput_floor_per_second
    if limit_us is not None and estimate.p99_us > limit_us:
        parts.append(f"P99 {format_duration_us(estimate.p99_us)}, at most {format_duration_us(limit_us)} allowed")
    if floor is not None and estimate.throughput_per_second < floor:
        parts.append(f"{estimate.throughput_per_second:.3g} requests per second, at least {floor:.0f} needed")
    return "; ".join(parts)


def _find_doubt(record: _Record, selected: Candidate | None) -> str | None:
    """The first reason why the choice is less sure than it should be."""
    current, faults = record.current, record.faults
    if current is not None and (current not in record.measured or current in faults):
        fault = faults.get(current)
        return f"the current configuration has no valid measurement: {fault.message if fault is not None else 'it was not run'}"
    if not any(item.candidate != current for item in record.contenders):
        return "no other candidate than the current configuration has a valid measurement"
    best = next((item for item in record.ranking if item.candidate not in faults and not expects_fault(item.candidate, faults)), None)
    if best is not None and best.candidate not in record.measured:
        return f"{best.candidate.key} is predicted to be better, but was not measured within topK and budget"
    return _find_noise(record.measured.get(selected) if selected is not None else None, record.objective)


def _find_noise(estimate: Estimate | None, objective: Objective) -> str | None:
    if estimate is None:
        return None
    if estimate.total_log_sigma > NOISY_LOG_SIGMA:
        return f"the selected one's measurement is noisy: {100 * math.expm1(estimate.total_log_sigma):.0f} % standard deviation"
    if abs(_excess(estimate, objective)) < math.hypot(TAIL_LOG_SIGMA, estimate.total_log_sigma) / 2:
        return "the selected one is nearer to a limit of the SLO than one measurement can tell"
    return None
