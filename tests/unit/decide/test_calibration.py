"""Whether a whole family became slower: which cards are measured when, how far their median may move, and what follows from a shift."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import timedelta
from statistics import median

import pytest
from tests.unit.decide.make_facts import make_pool, make_portrait
from tests.unit.decide.make_lab import NOW, Lab, make_lab
from tests.unit.decide.test_driver_changes import make_fleet

from metainfer.api.v1alpha1.accelerator_pool import Calibration, FamilyCalibration
from metainfer.decide.calibration import CALIBRATED_CARDS, MILLION, SIGMA, calibrate, chain_speed, false_alarm_rate, find_round, pick_cards, threshold_log
from metainfer.decide.conditions import format_time
from metainfer.decide.facts import Portrait
from metainfer.decide.plan import CreateJob
from metainfer.decide.pool import decide_pool
from metainfer_probe.contract import NodeRequest

DAY = timedelta(days=1)


def make_calibrated(speed: float, number: int = 0, *, fresh: bool = True) -> Portrait:
    """A card that does so much of what it did at first, measured in this period or long before."""
    moment = NOW if fresh else NOW - 30 * DAY
    return make_portrait(f"n{number}", speed_ppm=round(speed * MILLION), measured_at=format_time(moment), speed_compared_at=format_time(moment))


def judge(*speeds: float, before: FamilyCalibration | None = None) -> FamilyCalibration:
    """The family after a look at so many cards, at the end of the period."""
    period = replace(find_round(make_pool(), "ort-cpu", NOW), begins=NOW - 6 * DAY, number=7)
    portraits = [make_calibrated(speed, number) for number, speed in enumerate(speeds)]
    return calibrate(before or FamilyCalibration(), portraits, Calibration(), period, NOW)


@pytest.mark.parametrize(
    ("speeds", "want_shift"),
    [
        pytest.param((0.85, 0.86, 0.84, 0.85, 0.85), 850, id="all slower"),
        pytest.param((1.2, 1.2, 1.2), 1200, id="all faster: others may win now"),
        pytest.param((0.93, 0.92, 0.94, 0.93, 0.91), None, id="by less than the threshold"),
        pytest.param((0.5, 1.0, 1.0, 1.0, 1.0), None, id="one card alone: that is its own matter"),
        pytest.param((0.88,), None, id="a family of one, by what noise can do"),
        pytest.param((0.8,), 800, id="a family of one, clearly"),
    ],
)
def test_a_family_shifts_when_its_median_moves(speeds: tuple[float, ...], want_shift: int | None) -> None:
    """The new level is what the cards do now, so that the next period compares with it."""
    found = judge(*speeds)
    assert (found.epoch, found.cards, found.round) == (0 if want_shift is None else 1, len(speeds), 7)
    assert (found.shift_permille, found.level_ppm) == ((1000, MILLION) if want_shift is None else (want_shift, want_shift * 1000))
    again = judge(*speeds, before=found.model_copy(update={"round": 6}))
    assert again.epoch == found.epoch


def test_a_period_is_judged_once_and_not_before_enough_cards_were_measured() -> None:
    """Each look is a chance for a false alarm; half a period later most of them will do, because the others are busy, and never fewer."""
    period = replace(find_round(make_pool(), "ort-cpu", NOW), begins=NOW - DAY, number=7)
    few = [make_calibrated(0.8, number, fresh=number < 2) for number in range(8)]
    assert calibrate(FamilyCalibration(), few, Calibration(), period, NOW + 4 * DAY) == FamilyCalibration()
    portraits = [make_calibrated(0.8, number, fresh=number < 3) for number in range(8)]
    early = calibrate(FamilyCalibration(), portraits, Calibration(), period, NOW)
    assert early == FamilyCalibration()
    late = calibrate(early, portraits, Calibration(), period, NOW + 4 * DAY)
    assert (late.epoch, late.cards) == (1, 3)
    assert calibrate(late, portraits, Calibration(), period, NOW + 5 * DAY) == late


def test_a_first_measurement_has_no_voice() -> None:
    """It equals itself: the new ones among cards that became slower would say that nothing happened, and so would the first of a new pool alone."""
    period = replace(find_round(make_pool(), "ort-cpu", NOW), begins=NOW - DAY, number=7)
    new = [replace(item, status=item.status.model_copy(update={"speed_compared_at": None})) for item in (make_calibrated(1.0, number) for number in range(3))]
    assert calibrate(FamilyCalibration(), new, Calibration(), period, NOW + 5 * DAY) == FamilyCalibration()
    old = [make_calibrated(0.8, number) for number in range(3, 8)]
    assert pick_cards([*new, *(make_calibrated(0.8, number, fresh=False) for number in range(3, 8))], {f"n{number}" for number in range(8)}, period) != ()
    found = calibrate(FamilyCalibration(), [*new, *old], Calibration(), period, NOW)
    assert (found.epoch, found.cards) == (1, 5)


def test_a_degraded_card_says_nothing_of_its_family() -> None:
    """Neither is it measured for it."""
    period = replace(find_round(make_pool(), "ort-cpu", NOW), begins=NOW - DAY)
    sick = [replace(item, status=item.status.model_copy(update={"health": "Degraded"})) for item in (make_calibrated(0.5, 1), make_calibrated(0.5, 2))]
    sound = [make_calibrated(1.0, number) for number in range(3, 6)]
    found = calibrate(FamilyCalibration(), [*sick, *sound], Calibration(), period, NOW)
    assert (found.epoch, found.cards) == (0, 3)
    assert calibrate(FamilyCalibration(), [*sick, make_calibrated(0.5, 3)], Calibration(), period, NOW + 5 * DAY) == FamilyCalibration()
    assert pick_cards([replace(item, status=item.status.model_copy(update={"measured_at": None})) for item in sick], {"n1", "n2"}, period) == ()


@pytest.mark.parametrize("cards", [1, 2, 3, 5])
def test_the_false_alarm_rate_is_what_the_formula_says(cards: int) -> None:
    """Simulated with the probe's own noise; at the default threshold at most once in 900 periods, whatever the family's size."""
    draw, runs = random.Random(3), 200_000  # noqa: S311 - a draw, no secret
    bound, deviation = threshold_log(10, cards), math.sqrt(2) * SIGMA
    tight = bound / 2  # where there is something to count
    found = sum(abs(median(draw.gauss(0.0, deviation) for _ in range(cards))) >= tight for _ in range(runs // cards)) / (runs // cards)
    want = 2 * (1 - _phi(tight / (deviation * {1: 1.0, 2: 0.7071, 3: 0.6698, 5: 0.5357}[cards])))
    assert found == pytest.approx(want, rel=0.1)
    print(f"{cards} cards: {false_alarm_rate(10, cards):.2e} false alarms per period")
    assert false_alarm_rate(10, cards) < 1 / 900


def _phi(value: float) -> float:
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def test_ratios_are_chained_so_that_slow_changes_add_up() -> None:
    """1 % in each period is 10 % after ten; a noisy probe in between leaves nothing behind."""
    speed, figures = MILLION, {"a": 100.0, "b": 50.0}
    for step in (0.99, 0.7, 0.97):
        after = {"a": 100.0 * step, "b": 50.0 * step}
        speed, figures = chain_speed(speed, figures, after), after
    assert speed == pytest.approx(970_000, abs=2)
    assert chain_speed(speed, figures, {"another": 5.0}) == speed


def test_families_have_their_periods_at_different_times() -> None:
    """And always the same ones."""
    pool = make_pool()
    rounds = [find_round(pool, f"family-{number}", NOW) for number in range(20)]
    assert len({item.begins for item in rounds}) == 20
    assert all(item.begins <= NOW < item.begins + item.period for item in rounds)
    assert find_round(pool, "family-0", NOW + timedelta(days=7)).number == rounds[0].number + 1


def make_calibrating_lab(nodes: int, **fields: object) -> Lab:
    """A pool that measures each card once in two months by itself, and calibrates weekly."""
    pool = make_pool(spec={"probe": {"max_age": "1440h"}, "limits": {"max_concurrent_probes": 2}})
    lab = make_lab(nodes=nodes, pool=pool, **fields)
    lab.play(3 * nodes)
    lab.probes.clear()
    return lab


def test_a_few_idle_cards_of_a_large_family_are_measured_in_each_period() -> None:
    """Always the same ones, by a short probe, under the caps; the others are left alone."""
    lab = make_calibrating_lab(12)
    weeks = []
    for _ in range(3):
        lab.now += 7 * DAY
        lab.probes.clear()
        lab.play(30)
        weeks.append(sorted(node for _, node in lab.probes))
    assert len(weeks[0]) == CALIBRATED_CARDS
    assert weeks[0] == weeks[1] == weeks[2]


def test_a_calibration_probe_is_short_and_says_what_it_is() -> None:
    """As a sample it is told from a portrait."""
    lab = make_calibrating_lab(4)
    lab.now += 7 * DAY
    requests = [action.request for action in decide_pool(lab.snapshot, lab.now).actions if isinstance(action, CreateJob)]
    assert [(item.purpose, item.duration_seconds) for item in requests if isinstance(item, NodeRequest)] == [("calibration", 10.0)] * 2


def test_a_family_that_became_slower_is_told_once_and_raises_its_epoch() -> None:
    """All cards do 15 % less from one week to the next: no card is degraded, the family is."""
    lab = make_calibrating_lab(6, speed=lambda _, hours: 1.0 if hours < 24 * 10 else 0.85)
    for _ in range(5):
        lab.now += 7 * DAY
        lab.play(30)
    assert [event.reason for event in lab.events] == ["CalibrationShifted"]
    assert "85 %" in lab.events[0].message
    assert lab.labelled() == []
    calibration = lab.snapshot.pool.status.families[0].calibration
    assert (calibration.epoch, calibration.level_ppm) == (1, pytest.approx(850_000, rel=0.001))


def test_a_shift_has_every_adaptation_that_rests_on_the_family_worked_out_anew_once() -> None:
    """The epoch is compared with the one acted on; a pool that is made anew counts from the beginning and changes nothing."""
    fleet = make_fleet()
    status = fleet.lab.snapshot.pool.status
    shifted = tuple(
        item.model_copy(update={"calibration": item.calibration.model_copy(update={"epoch": 1, "shift_permille": 850})}) for item in status.families
    )
    fleet.lab.snapshot = replace(fleet.lab.snapshot, pool=replace(fleet.lab.snapshot.pool, status=status.model_copy(update={"families": shifted})))
    fleet.play(90)
    assert len(fleet.runs) == 1
    assert fleet.runs[0].startswith("CalibrationShifted: family ")
    assert "do 85 % of what they did" in fleet.runs[0]
    fresh = tuple(item.model_copy(update={"calibration": FamilyCalibration()}) for item in fleet.lab.snapshot.pool.status.families)
    pool = fleet.lab.snapshot.pool
    fleet.lab.snapshot = replace(fleet.lab.snapshot, pool=replace(pool, status=pool.status.model_copy(update={"families": fresh})))
    fleet.play(30)
    assert len(fleet.runs) == 1
