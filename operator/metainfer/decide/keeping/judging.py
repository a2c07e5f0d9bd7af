"""What a check of the present configuration says, beside an earlier one of the same: model, driver, card, load, or nothing. Pure.

The same thing measured twice at the same place differs by what changed there and by noise. Compared are the mean latency under the
validated load, and the card's own micro-probe, which knows nothing of the model: a card that is slower shows in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.checks import CheckFigures
from metainfer.decide.conditions import format_time
from metainfer.decide.draft import Draft
from metainfer.decide.drivers import read_driver
from metainfer.decide.facts import CheckResult
from metainfer.decide.scene import Scene

Finding = Literal["Model", "Driver", "Card", "Load", "Nothing", "CheckFailed"]
ACTED_ON: Final = frozenset({"Model", "Driver", "Card"})
"""Verdicts that lead to a run."""
CHECKS: Final = 3
"""Before a card is called slower. At 15 % noise of each figure one check is wrong once in twenty times, and the served latency with it only
now and then: three, a window apart, while the latency stays up all the time, are not (``hack/bench/damping``)."""
SLOWER_SHARE: Final = 0.75
"""Of the threshold. At the whole of it a card that is slower by just that much would be acquitted every other time."""
LEAST_RATE: Final = 50
"""Requests per second from which the rounded throughput of a decision tells the mean latency to 1 %."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to."""

    verdict: Finding
    message: str
    slowdown_permille: int = 0
    """How many times slower the card was found; 0 = nothing is said of it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One check beside an earlier one."""

    reason: str
    """The trigger that wants it."""
    now: CheckFigures
    before: CheckFigures
    threshold_percent: int
    earlier_permille: tuple[int, ...] = ()
    """Slowdowns by the earlier checks of the same suspicion."""
    serves: bool = True
    """Whether a pod of the target serves on the node that was looked at now."""

    @property
    def is_same_place(self) -> bool:
        """Whether both looked at the same serving node in the same way: then what they share cancels out."""
        return self.serves and (self.now.node, self.now.beside_server) == (self.before.node, self.before.beside_server)

    @property
    def slowdown(self) -> float:
        """How many times slower all checks of this suspicion found it, on (geometric) average; 1 = as before."""
        logs = [math.log(max(1, item) / 1000) for item in self.earlier_permille] + [math.log(self.own_slowdown)]
        return math.exp(sum(logs) / len(logs))

    @property
    def own_slowdown(self) -> float:
        """The same by this check alone: the geometric mean of what the model and what the micro-probe show."""
        shown = [_ratio(parse_duration_us(self.now.mean or "0us"), parse_duration_us(self.before.mean or "0us")), self.card_slowdown]
        known = [item for item in shown if item is not None]
        return math.exp(sum(math.log(item) for item in known) / len(known)) if known else 1.0

    @property
    def card_slowdown(self) -> float | None:
        """By the micro-probe: the geometric mean of calculating and copying. None = it is not known of both."""
        compute = _ratio(self.before.micro_megaflops, self.now.micro_megaflops)
        memory = _ratio(self.before.micro_megabytes_per_second, self.now.micro_megabytes_per_second)
        return math.sqrt(compute * memory) if compute is not None and memory is not None else None

    @property
    def is_slower(self) -> bool:
        """Whether it is slower by most of what counts as drift. The served latency is all of it already: that is the other half of the proof."""
        return self.slowdown > 1 + SLOWER_SHARE * self.threshold_percent / 100

    @property
    def is_open(self) -> bool:
        """Whether another check is needed: it seems slower, by one or two that may have been unlucky.

        Half the threshold is where the noise ends that a good card has nine times in ten; three times the threshold is beyond any noise.
        """
        seems, plainly = (1 + share * self.threshold_percent / 100 for share in (0.5, 3.0))
        return self.is_same_place and len(self.earlier_permille) + 1 < CHECKS and seems <= self.slowdown < plainly

    def figures(self) -> str:
        """For messages."""
        card = f", its micro-probe {100 * (self.card_slowdown - 1):+.0f} %" if self.card_slowdown is not None else ""
        where = " beside the server" if self.now.beside_server else ""
        checks = f" (check {len(self.earlier_permille) + 1})" if self.earlier_permille else ""
        return f"on node {self.now.node}{where} the mean latency is {self.now.mean} where it was {self.before.mean or 'unknown'}{card}{checks}"


def _ratio(above: float, below: float) -> float | None:
    return above / below if above > 0 and below > 0 else None


Rule = Callable[[Comparison], Verdict | None]


def judge_check(compared: Comparison) -> Verdict:
    """The first rule that finds something; ``Nothing`` when none does."""
    found = next((verdict for rule in RULES if (verdict := rule(compared)) is not None), None)
    return found or Verdict("Nothing", f"{compared.figures()}: no more than it varies by itself")


def _find_other_model(compared: Comparison) -> Verdict | None:
    now, before = compared.now.digest, compared.before.digest
    if not now or not before or now == before:
        return None
    return Verdict("Model", f"the model file is another one now (sha256 {now[:12]}… in place of {before[:12]}…)")


def _find_other_driver(compared: Comparison) -> Verdict | None:
    now, before = compared.now.driver_version, compared.before.driver_version
    if not now or not before or now == before or not compared.is_slower:
        return None
    return Verdict("Driver", f"the driver is {now} in place of {before}, and {compared.figures()}")


def _find_other_place(compared: Comparison) -> Verdict | None:
    if compared.is_same_place:
        return None
    why = "there is no first check beside the server to compare it with" if compared.serves else "no card is free where the pods serve"
    return Verdict("Nothing", f"{why}, so their own card could not be looked at: on node {compared.now.node} model and driver are as before")


def _find_slower_card(compared: Comparison) -> Verdict | None:
    found = compared.is_same_place and compared.is_slower
    return Verdict("Card", f"the same work is slower than it was: {compared.figures()}", round(1000 * compared.slowdown)) if found else None


def _find_load(compared: Comparison) -> Verdict | None:
    if compared.reason != "LoadShifted":
        return None
    return Verdict("Load", f"the load is another one, and nothing speaks against the card: {compared.figures()}")


RULES: Final[tuple[Rule, ...]] = (_find_other_model, _find_other_driver, _find_slower_card, _find_load, _find_other_place)


def read_figures(draft: Draft, scene: Scene, result: CheckResult, *, beside_server: bool) -> CheckFigures:
    """The figures of a check that is a result (``evidence.find_broken`` asked before)."""
    report, recommendation = result.report, draft.status.recommendation
    if report is None or report.candidate is None or recommendation is None:
        msg = f"check {result.job} has no figures"
        raise ValueError(msg)
    micro = report.micro
    return CheckFigures(
        job=result.job,
        decision_id=recommendation.decision_id,
        node=result.node,
        beside_server=beside_server,
        digest=report.digest,
        driver_version=_driver_of(draft, scene, result.node),
        mean=f"{round(report.candidate.mean_us)}us",
        p99=f"{round(report.candidate.p99_us)}us",
        micro_megaflops=round(1000 * micro.gflops) if micro is not None else 0,
        micro_megabytes_per_second=round(1000 * micro.bandwidth_gigabytes_per_second) if micro is not None else 0,
        measured_at=format_time(result.finished_at),
    )


def _driver_of(draft: Draft, scene: Scene, name: str) -> str:
    option = scene.option(draft.recommended)
    node = next((item for item in draft.snapshot.nodes if item.name == name), None)
    return (read_driver(option.family, node) or "")[:128] if option is not None and node is not None else ""


def earlier_figures(draft: Draft, node: str) -> CheckFigures | None:
    """What a check on this node is compared with: the first one, else the decision's own benchmark and the node's portrait."""
    check, recommendation = draft.status.check, draft.status.recommendation
    if recommendation is None:
        return None
    first = check.baseline if check is not None else None
    if first is not None and first.decision_id == recommendation.decision_id and first.node == node:
        return first
    portrait, expected = draft.snapshot.portraits.get(node), recommendation.expected
    clients, rate = draft.snapshot.adaptation.spec.load.clients, expected.throughput_per_second
    return CheckFigures(
        decision_id=recommendation.decision_id,
        node=node,
        digest=draft.status.model.digest if draft.status.model is not None else "",
        driver_version=portrait.status.driver_version if portrait is not None else "",
        mean=f"{round(1e6 * clients / rate)}us" if rate >= LEAST_RATE else expected.p50,
        p99=expected.p99,
        micro_megaflops=portrait.status.micro_megaflops if portrait is not None else 0,
        micro_megabytes_per_second=portrait.status.micro_megabytes_per_second if portrait is not None else 0,
        measured_at=recommendation.decided_at,
    )
