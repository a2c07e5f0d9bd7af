"""Whether a card is slower than its siblings: what one probe says, what its repeats decide, and how a card becomes healthy again."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.unit.decide.make_facts import make_portrait
from tests.unit.decide.make_lab import make_lab

from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus
from metainfer.decide.health import RECOVERY_LIMIT, TRIAL_PROBES, judge_health
from metainfer.decide.portraits import assess_family


def test_a_card_that_is_slower_than_its_siblings_is_labelled_after_its_repeats() -> None:
    """This card, not its SKU: 10 % behind is found within minutes, and only that node carries the label; an Event says it once."""
    lab = make_lab(lambda node, _: 0.9 if node == "n2" else 1.0)
    lab.play(15)
    assert lab.labelled() == ["n2"]
    assert [node for _, node in lab.probes].count("n2") == TRIAL_PROBES
    assert [node for _, node in lab.probes].count("n0") == 1
    assert [(event.reason, event.kind) for event in lab.events] == [("CardDegraded", "Warning")]
    assert "90 %" in lab.events[0].message
    assert lab.snapshot.pool.status.families[0].degraded == 1


def test_a_card_that_is_plainly_broken_is_labelled_after_one_repeat() -> None:
    """30 % behind needs no four probes."""
    lab = make_lab(lambda node, _: 0.7 if node == "n2" else 1.0)
    lab.play(15)
    assert (lab.labelled(), [node for _, node in lab.probes].count("n2")) == (["n2"], 2)


def test_one_bad_probe_that_its_repeat_does_not_confirm_leaves_no_label() -> None:
    """A neighbour's burst, a page cache that was written back: the label must not flap with every one of them."""
    lab = make_lab(lambda node, hours: 0.9 if node == "n2" and hours < 0.05 else 1.0)
    seen = set()
    for _ in range(20):
        lab.play(1)
        seen |= set(lab.labelled())
    assert (seen, lab.events) == (set(), [])
    assert len([node for _, node in lab.probes if node == "n2"]) == TRIAL_PROBES - 1


def test_a_doubt_that_was_cleared_is_not_raised_again_by_the_same_probe() -> None:
    """Else a card at the bound would be measured for ever."""
    lab = make_lab(lambda node, _: 0.962 if node == "n2" else 1.0)
    lab.play(120)
    assert (lab.labelled(), [node for _, node in lab.probes].count("n2")) == ([], 2)


def test_a_degraded_card_recovers_by_itself_after_two_good_probes() -> None:
    """Measured again after half an hour; the first good probe is not enough, the second follows soon; an Event tells."""
    lab = make_lab(lambda node, hours: 0.85 if node == "n2" and hours < 0.2 else 1.0)
    lab.play(20)
    assert lab.labelled() == ["n2"]
    lab.play(16)
    assert lab.snapshot.portraits["n2"].status.trial is not None
    assert (lab.labelled(), lab.snapshot.portraits["n2"].status.trial.good) == (["n2"], 1)
    lab.play(10)
    assert lab.labelled() == []
    assert [event.reason for event in lab.events] == ["CardDegraded", "CardRecovered"]


def test_a_card_that_stays_slow_is_measured_ever_less_often() -> None:
    """Half an hour, an hour, two, ..., at last twice a day: a card that is idle because it is avoided must not be probed all day."""
    lab = make_lab(lambda node, _: 0.8 if node == "n2" else 1.0)
    lab.play(3 * 24 * 60)
    hours = [hour for hour, node in lab.probes if node == "n2"]
    pauses = [later - earlier for earlier, later in pairwise(hours[1:])]
    assert [round(pause, 1) for pause in pauses[:5]] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(round(pause) == RECOVERY_LIMIT.total_seconds() / 3600 for pause in pauses[5:])
    assert lab.labelled() == ["n2"]


def test_a_family_of_two_says_only_what_it_can() -> None:
    """Nobody knows which of the two is typical: they are compared with their mean, so that only a large difference counts."""
    portraits = [make_portrait(name, bandwidth_megabytes_per_second={"main": value}, figures=()) for name, value in (("a", 9_500), ("b", 10_500))]
    assert {node: item.siblings_permille for node, item in assess_family(portraits).items()} == {"a": 950, "b": 1050}


def test_a_slow_sibling_that_is_known_hides_no_other() -> None:
    """The median is of those that are sound."""
    speeds = (("a", 7_000, "Degraded"), ("b", 9_000, "Healthy"), ("c", 10_000, "Healthy"), ("d", 10_000, "Healthy"))
    portraits = [make_portrait(name, bandwidth_megabytes_per_second={"main": speed}, figures=(), health=health) for name, speed, health in speeds]
    assert assess_family(portraits)["b"].siblings_permille == 900


def test_another_driver_is_no_fault_of_the_card() -> None:
    """Half of a family has a driver that is 15 % faster: cards are compared with those of their own driver, as soon as there are two others."""
    drivers = [("a", 1.0, "570.1"), ("b", 1.0, "570.1"), ("c", 1.0, "570.1"), ("d", 1.15, "580.1"), ("e", 1.15, "580.1"), ("f", 1.15, "580.1")]
    portraits = [
        make_portrait(name, bandwidth_megabytes_per_second={"main": round(10_000 * speed)}, figures=(), driver_version=driver)
        for name, speed, driver in drivers
    ]
    assert {item.siblings_permille for item in assess_family(portraits).values()} == {1000}


def judge_noisy(siblings: int, slower: float, noise: float, draw: random.Random) -> bool:
    """Whether a card that is so much slower ends up labelled, with siblings and probes that are that noisy."""
    others = sorted(draw.gauss(0.0, noise) for _ in range(siblings))
    half = siblings // 2
    typical = others[half] if siblings % 2 else (others[half - 1] + others[half]) / 2
    status = NodePortraitStatus(measured_at="2026-01-01T00:00:00Z", health="Healthy")
    for number in range(TRIAL_PROBES):
        speed = round(1000 * math.exp(math.log(1 - slower) + draw.gauss(0.0, noise) - typical))
        status = judge_health(status.model_copy(update={"probe_job": f"probe-{number}"}), speed)
        if status.trial is None or status.trial.probes == 0:
            break
    return status.health == "Degraded"


@pytest.mark.parametrize("nodes", [3, 5, 20])
def test_with_three_percent_noise_slow_cards_are_found_and_good_ones_left_alone(nodes: int) -> None:
    """At 10 % slower at least 95 % are found, at most 2 % of good ones are labelled, also in a family of three; the seed is fixed."""
    draw, runs = random.Random(7), 20_000  # noqa: S311 - a draw, no secret
    found = sum(judge_noisy(nodes - 1, 0.10, 0.03, draw) for _ in range(runs)) / runs
    false = sum(judge_noisy(nodes - 1, 0.0, 0.03, draw) for _ in range(runs)) / runs
    assert found >= 0.95
    assert false <= 0.02


def test_three_nodes_are_compared_without_the_one_in_question() -> None:
    """With itself in the median, a card 10 % slower would seem only as slow as the slower of the others lets it."""
    speeds: Sequence[tuple[str, int]] = (("a", 9_000), ("b", 9_700), ("c", 10_300))
    portraits = [make_portrait(name, bandwidth_megabytes_per_second={"main": speed}, figures=()) for name, speed in speeds]
    assert assess_family(portraits)["a"].siblings_permille == 900


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9])
def test_the_median_of_the_others_is_that_of_all_but_the_card(count: int) -> None:
    """Worked out from the middle alone; ties included."""
    draw = random.Random(count)  # noqa: S311 - a draw, no secret
    for _ in range(200):
        values = [float(draw.randint(1, 6)) * 1000 for _ in range(count)]
        portraits = [make_portrait(f"n{number}", bandwidth_megabytes_per_second={"main": round(value)}, figures=()) for number, value in enumerate(values)]
        found = assess_family(portraits)
        for number, value in enumerate(values):
            rest = sorted(values[:number] + values[number + 1 :])
            half = len(rest) // 2
            want = rest[half] if len(rest) % 2 else (rest[half - 1] + rest[half]) / 2
            assert found[f"n{number}"].siblings_permille == round(1000 * value / want)
