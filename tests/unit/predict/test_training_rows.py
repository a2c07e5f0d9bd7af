from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from tests.unit.predict.make_samples import OPENVINO, Fleet, make_config, make_measured

from metainfer.decide.learning import Sample
from metainfer.predict.learned.rows import Rows
from metainfer.predict.training_rows import build_training_rows


def make_samples(**fields: object) -> tuple[Sample, ...]:
    return replace(Fleet(models=2, families=("slow",), factor=lambda _: 1.0, noise=0.0), **fields).build().join()  # type: ignore[arg-type]


def slowed(sample: Sample, factor: float, *, key: str = "", with_reference: bool = False) -> Sample:
    """The same run, slower; with its reference where the whole card was."""
    reference = make_measured(10_000.0 * (factor if with_reference else 1.0))
    return replace(sample, key=key or sample.key, measured=make_measured(sample.measured.mean_us * factor), reference=reference)


def log_ratios(rows: Rows) -> list[float]:
    return [float(value) for value in np.log(rows["latency_us"] / rows["base_us"])]


def test_a_fleet_that_follows_physics_teaches_nothing() -> None:
    """The base of a row is the very prediction that a candidate would get."""
    rows = build_training_rows(make_samples())
    assert len(rows) == 16
    assert log_ratios(rows) == pytest.approx([0.0] * 16, abs=1e-9)
    assert set(rows["weight"]) == {1.0}
    assert set(rows["instance"]) == {"slow-0"}
    assert set(rows["family"]) == {"lab/slow"}


def test_the_same_job_twice_is_one_row() -> None:
    """A table that was written twice, or a store that was copied into itself, weighs no more."""
    samples = make_samples()
    assert build_training_rows([*samples, *samples]).tobytes() == build_training_rows(samples).tobytes()


def test_the_order_of_samples_does_not_matter() -> None:
    """Two operators with the same store train the same model."""
    samples = list(make_samples(noise=0.1))
    assert build_training_rows([*samples[1::2], *samples[::2]]).tobytes() == build_training_rows(samples).tobytes()


def test_repeated_runs_become_their_median_and_weigh_more() -> None:
    """Three runs of one configuration, one of them disturbed, say what two agree on."""
    samples = make_samples()
    again = [slowed(samples[0], factor, key=f"again-{factor}") for factor in (1.02, 1.6)]
    rows = build_training_rows([*samples, *(replace(item, finished_at=item.finished_at + timedelta(hours=1)) for item in again)])
    assert len(rows) == 16
    assert max(log_ratios(rows)) == pytest.approx(math.log(1.02), abs=1e-6)
    assert max(rows["weight"]) == pytest.approx(math.sqrt(3), rel=0.01)


def test_a_slow_moment_of_the_card_is_not_a_slow_candidate() -> None:
    """Where the reference of the same Job was slower by the same factor, the card was."""
    samples = make_samples()
    rows = build_training_rows([slowed(samples[0], 1.8, with_reference=True), *samples[1:]])
    assert log_ratios(rows) == pytest.approx([0.0] * 16, abs=1e-6)


def test_a_run_that_contradicts_its_like_is_kept_and_weighs_more() -> None:
    """Mispredictions are the most valuable samples: never filtered as outliers."""
    samples = make_samples(noise=0.03)
    odd = slowed(samples[3], 4.0)
    rows = build_training_rows([*samples[:3], odd, *samples[4:]])
    assert len(rows) == 16
    surprising = int(np.argmax(log_ratios(rows)))
    assert log_ratios(rows)[surprising] == pytest.approx(math.log(4.0), abs=0.2)
    assert rows["weight"][surprising] == 3.0


def test_a_thousandfold_figure_is_kept_but_not_believed_more() -> None:
    """A unit mistaken for another looks like a contradiction, too."""
    samples = make_samples(noise=0.03)
    rows = build_training_rows([slowed(samples[3], 1000.0), *samples[:3], *samples[4:]])
    assert rows["weight"][int(np.argmax(log_ratios(rows)))] == 1.0


def test_a_run_at_another_clock_is_told_at_the_portraits() -> None:
    """The micro-probe before each run says how fast the card was then."""
    (sample, *_) = make_samples()
    slower = replace(sample, speed=0.8, measured=make_measured(sample.measured.mean_us / 0.8))
    assert log_ratios(build_training_rows([slower])) == pytest.approx([0.0], abs=1e-9)


def test_nothing_gives_an_empty_table() -> None:
    """A store without benchmarks is no error here; training refuses it with a reason."""
    assert len(build_training_rows([])) == 0


def test_configurations_and_loads_are_told_apart() -> None:
    """Only the very same thing is a repetition."""
    (sample, *_) = make_samples()
    others = [
        replace(sample, key="load", question=replace(sample.question, load_clients=8)),
        replace(sample, key="node", node="slow-9"),
        replace(sample, key="provider", question=replace(sample.question, candidate=replace(sample.question.candidate, config=make_config(OPENVINO)))),
    ]
    assert len(build_training_rows([sample, *others])) == 4
