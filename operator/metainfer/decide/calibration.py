"""Has a whole family of cards become slower or faster? A few of its cards are measured in every period and compared with themselves. Pure.

Correction factors cannot see it: they compare a card with its siblings, and a firmware, a power policy or a change of the hosts moves all
of them. Each portrait carries its card's speed against that card's own first probe (``speed_ppm``, chained from probe to probe); a family
has moved when the median over the cards that were measured in the period is further from the family's level than the threshold. A card
whose measurement could be compared with none before it (its first, or the first under another driver) has no voice in that period.

How often that is a false alarm follows from the probe's own noise (``sigma``, 3 % between two runs on the same card; ``hack/bench/probe``
measures it). A card's ratio has two probes in it, the median of n of them a standard deviation of ``sqrt(2) sigma c(n)``, so one period of
one family alarms with probability ``2 (1 - Phi(ln(1 + t) / (sqrt(2) sigma c(n))))``: with t = 10 % once in 1,200 periods of three cards and
once in 36,000 of five. Of one or two cards the threshold is larger by c(n) / c(3), which leaves it at once in 900 and 1,200. A family that
really moved by 15 % is found by five cards at the first look in 97 % of the cases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import NormalDist, median
from typing import Final

from metainfer.api.durations import parse_duration
from metainfer.api.v1alpha1.accelerator_pool import Calibration, FamilyCalibration
from metainfer.decide.conditions import format_time
from metainfer.decide.facts import PoolFacts, Portrait
from metainfer.decide.names import hash_share, short_hash

MILLION: Final = 1_000_000
CALIBRATED_CARDS: Final = 5
"""Per family and period: more would find smaller shifts than any threshold asks for."""
LATE_SHARE: Final = 0.5
"""Of a period: after that, most of them will do, because the others are busy. Fewer never: one card's own change is not its family's."""
PROBE_SHARE: Final = 1 / 3
LEAST_PROBE: Final = timedelta(seconds=5)
"""A calibration probe is a short one: the same figures, from a third of the time."""
SIGMA: Final = 0.03
MEDIAN_DEVIATION: Final[Mapping[int, float]] = {1: 1.0, 2: 0.7071, 3: 0.6698, 4: 0.5456, 5: 0.5357}
"""c(n): standard deviation of the median of n standard normal values; of more, 1.2533 / sqrt(n)."""


@dataclass(frozen=True, slots=True)
class Round:
    """One period of one family. Families begin theirs at different times, always the same ones."""

    number: int
    begins: datetime
    period: timedelta

    def is_late(self, now: datetime) -> bool:
        """Whether there is not much sense in waiting for more cards."""
        return now - self.begins >= self.period * LATE_SHARE


def find_round(pool: PoolFacts, family: str, now: datetime) -> Round:
    """The period that it is now."""
    period = parse_duration(pool.spec.calibration.period)
    offset = period * hash_share(pool.uid, family)
    epoch = datetime.fromtimestamp(0, now.tzinfo) + offset
    number = (now - epoch) // period
    return Round(number, epoch + number * period, period)


def family_calibration(pool: PoolFacts, family: str) -> FamilyCalibration:
    """As the pool's status has it."""
    return next((item.calibration for item in pool.status.families if item.name == family), FamilyCalibration())


def chain_speed(known_ppm: int, before: Mapping[str, float], after: Mapping[str, float]) -> int:
    """A card's speed against its own first probe, after one more: the geometric mean over the figures that both have."""
    logs = [math.log(after[key] / value) for key, value in before.items() if key in after]
    return round(known_ppm * math.exp(math.fsum(logs) / len(logs))) if logs else known_ppm


def find_sound(portraits: Sequence[Portrait]) -> tuple[Portrait, ...]:
    """Those of cards that say something of their family: a degraded one does not."""
    return tuple(item for item in portraits if item.status.health != "Degraded")


def measured_in(portraits: Sequence[Portrait], now: Round) -> tuple[Portrait, ...]:
    """Those that were measured since it began."""
    begins = format_time(now.begins)  # sorts as the times do, and thousands need not be parsed
    return tuple(item for item in portraits if item.status.measured_at is not None and item.status.measured_at >= begins)


def compared_in(portraits: Sequence[Portrait], now: Round) -> tuple[Portrait, ...]:
    """Those of them that were compared with a measurement before."""
    begins = format_time(now.begins)
    return tuple(item for item in portraits if item.status.speed_compared_at is not None and item.status.speed_compared_at >= begins)


def pick_cards(portraits: Sequence[Portrait], idle: Collection[str], now: Round) -> tuple[str, ...]:
    """Nodes to calibrate next: of those that are idle always the same first, as many as are still missing in this period."""
    sound = find_sound(portraits)
    done = {item.node for item in measured_in(sound, now)}
    missing = min(CALIBRATED_CARDS, len(sound)) - len(compared_in(sound, now))
    rest = [item for item in sound if item.node in idle and item.node not in done]
    return tuple(item.node for item in sorted(rest, key=lambda item: short_hash(item.spec.node_uid)))[: max(0, missing)]


def threshold_log(threshold_percent: int, cards: int) -> float:
    """How far the median of so many cards may be off, as a logarithm."""
    few = max(1.0, median_deviation(cards) / MEDIAN_DEVIATION[3])
    return math.log1p(threshold_percent / 100) * few


def median_deviation(cards: int) -> float:
    """c(n)."""
    return MEDIAN_DEVIATION.get(cards) or 1.2533 / math.sqrt(cards)


def false_alarm_rate(threshold_percent: int, cards: int, sigma: float = SIGMA) -> float:
    """Probability that a family that did not move is said to have, per period."""
    deviation = math.sqrt(2) * sigma * median_deviation(cards)
    return 2 * (1 - NormalDist().cdf(threshold_log(threshold_percent, cards) / deviation))


def calibrate(before: FamilyCalibration, portraits: Sequence[Portrait], spec: Calibration, now: Round, moment: datetime) -> FamilyCalibration:
    """The family's calibration after a look: judged once in each period, when enough cards were measured in it."""
    sound = find_sound(portraits)
    done, most = compared_in(sound, now), min(CALIBRATED_CARDS, len(portraits)) // 2 + 1
    least = most if now.is_late(moment) else max(most, min(CALIBRATED_CARDS, len(sound)))
    if before.round == now.number or len(done) < least:
        return before
    speed = median(item.status.speed_ppm for item in done) / before.level_ppm
    judged = before.model_copy(update={"round": now.number, "cards": len(done), "speed_permille": round(1000 * speed), "judged_at": format_time(moment)})
    if abs(math.log(speed)) < threshold_log(spec.threshold_percent, len(done)):
        return judged
    level = round(before.level_ppm * speed)
    return judged.model_copy(update={"epoch": before.epoch + 1, "level_ppm": level, "shifted_at": format_time(moment), "shift_permille": round(1000 * speed)})
