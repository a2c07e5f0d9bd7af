from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.learned.make_measured import make_measured

from metainfer.predict.learned.document import model_to_document
from metainfer.predict.learned.errors import Untrainable
from metainfer.predict.learned.features import NUMERIC, numeric_features
from metainfer.predict.learned.model import Model
from metainfer.predict.learned.newcomers import train_with_newcomers
from metainfer.predict.learned.rows import ROW, Rows, make_rows
from metainfer.predict.learned.training import FAMILY_ROWS, NETWORK_ROWS, train

COLUMNS_OF_TIME = ("compute_us", "traffic_us", "launch_us", "wait_us", "base_us", "latency_us", "launch_floor_us")
RATES = ("flop_per_us", "bytes_per_us")


@pytest.fixture(scope="module")
def rows() -> Rows:
    return make_measured()


@pytest.fixture(scope="module")
def model(rows: Rows) -> Model:
    return train(rows, seed=1)


def error(model: Model, rows: Rows) -> float:
    """Root mean square of log(true / predicted)."""
    return float(np.sqrt(np.mean((model.predict(rows).log_latency_us - np.log(rows["latency_us"])) ** 2)))


def test_what_physics_does_not_know_is_learned_and_carries_over_to_another_model(rows: Rows) -> None:
    """A runtime that takes half as long again is found, and holds for a model that was left out."""
    held = rows["model"] == "model-3"
    found = train(rows[~held], seed=1)
    assert error(found, rows[held]) < 0.06
    assert np.sqrt(np.mean(np.log(rows["latency_us"] / rows["base_us"])[held] ** 2)) > 0.2


def test_sigma_covers_what_was_missed(model: Model, rows: Rows) -> None:
    """Two sigma hold for about nineteen rows in twenty; far more or far fewer would make every probability wrong."""
    forecast = model.predict(rows)
    inside = np.mean(np.abs(forecast.log_latency_us - np.log(rows["latency_us"])) < 2 * forecast.sigma)
    assert 0.85 < inside <= 1.0
    assert np.all((forecast.sigma > 0) & (forecast.sigma < 0.2))


def test_a_model_unlike_all_others_is_doubted(model: Model, rows: Rows) -> None:
    """Another kind of architecture has a wider sigma than one that resembles what was learned."""
    strange = rows[:5].copy()
    strange["model"], strange["macs"], strange["weight_bytes"] = "strange", np.roll(strange["macs"], 4, axis=1), np.roll(strange["weight_bytes"], 4, axis=1)
    assert np.all(model.portraits.distance(strange) > model.portraits.distance(rows[:5]) + 1)
    assert np.all(model.predict(strange).sigma >= model.predict(rows[:5]).sigma)


@settings(deadline=None, max_examples=5)
@given(st.permutations(range(120)))
def test_the_order_of_the_rows_never_matters(order: list[int]) -> None:
    """Training is a function of a set of rows, and of the seed."""
    rows = make_measured(120)
    assert model_to_document(train(rows, seed=3)) == model_to_document(train(rows[order], seed=3))


def test_rows_that_occur_twice_count_once(rows: Rows, model: Model) -> None:
    """The store may deliver a sample twice."""
    assert model_to_document(train(np.concatenate([rows, rows[:200]]), seed=1)) == model_to_document(model)


@settings(deadline=None, max_examples=5)
@given(st.floats(min_value=0.01, max_value=100.0))
def test_another_unit_of_time_moves_every_latency_and_nothing_else(factor: float) -> None:
    """All times in another unit give the same predictions in that unit: no feature hides a scale."""
    rows = make_measured(200)
    scaled = rows.copy()
    for name in COLUMNS_OF_TIME:
        scaled[name] = rows[name] * factor
    for name in RATES:
        scaled[name] = rows[name] / factor
    plain, other = train(rows, seed=1).predict(rows), train(scaled, seed=1).predict(scaled)
    # Ties between equal features may fall to the other side of a split, so single rows differ by about their noise of 2 %.
    difference = np.abs(other.log_latency_us - np.log(factor) - plain.log_latency_us)
    assert difference.mean() < 0.005
    assert difference.max() < 0.1


@settings(deadline=None, max_examples=20)
@given(row=st.integers(0, 599), factors=st.tuples(*[st.floats(1.0, 64.0)] * 2))
def test_sharing_a_card_or_spreading_over_more_never_makes_one_execution_faster(model: Model, rows: Rows, row: int, factors: tuple[float, float]) -> None:
    """With the same base, more parallel executions and more devices never lower the latency: the trees are constrained."""
    pair = np.repeat(rows[[row]], 2)
    pair["concurrency"][1] *= factors[0]
    pair["devices"][1] *= factors[1]
    predicted = model.predict(pair).log_latency_us
    assert predicted[1] >= predicted[0] - 1e-9


def one_model() -> Rows:
    rows = make_measured(200)
    rows["model"] = "only"
    return rows


def without(name: str, value: float) -> Callable[[], Rows]:
    def build() -> Rows:
        rows = make_measured(200)
        rows[name] = value
        return rows

    return build


@pytest.mark.parametrize(
    ("build", "want_reason"),
    [
        pytest.param(lambda: make_rows(0), "NoRows", id="no rows"),
        pytest.param(lambda: make_measured(40), "TooFewRows", id="too few rows"),
        pytest.param(lambda: np.repeat(make_measured(1), 500), "TooFewRows", id="one row five hundred times"),
        pytest.param(one_model, "OneModel", id="one model"),
        pytest.param(without("latency_us", np.nan), "NoRows", id="latencies that are NaN"),
        pytest.param(without("latency_us", np.inf), "NoRows", id="latencies that are infinite"),
        pytest.param(without("latency_us", -1.0), "NoRows", id="latencies below zero"),
        pytest.param(without("latency_us", 1e30), "NoRows", id="latencies of millions of years"),
        pytest.param(without("base_us", 0.0), "NoRows", id="no base"),
        pytest.param(without("weight", 0.0), "NoRows", id="no weight"),
        pytest.param(lambda: np.zeros(100, dtype=[("model", "U8")]), "BadColumns", id="another table"),
    ],
)
def test_what_teaches_nothing_is_refused_with_a_reason(build: Callable[[], Rows], want_reason: str) -> None:
    """No model comes out of rows that cannot tell anything, and the reason says why."""
    with pytest.raises(Untrainable) as refused:
        train(build(), seed=1)
    assert refused.value.reason == want_reason


def constant_target() -> Rows:
    rows = make_measured(200)
    rows["latency_us"] = 5_000.0
    return rows


def one_card() -> Rows:
    rows = make_measured(400)
    return rows[rows["card"] == "small"]


def odd_figures() -> Rows:
    rows = make_measured(300)
    rows["macs"][::7], rows["bytes_per_us"][::5], rows["compute_us"][::3], rows["batch"][::11] = np.nan, np.inf, 1e300, 0.0
    return rows


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(constant_target, id="one latency for everything"),
        pytest.param(one_card, id="one card"),
        pytest.param(odd_figures, id="NaN, infinite and huge features"),
        pytest.param(without("precision", 0.0), id="one precision"),
    ],
)
def test_odd_rows_still_give_finite_predictions(build: Callable[[], Rows]) -> None:
    """A model that is trained at all answers every row with a figure."""
    rows = build()
    forecast = train(rows, seed=1).predict(rows)
    assert np.all(np.isfinite(forecast.log_latency_us))
    assert np.all(np.isfinite(forecast.sigma))


def test_noise_without_any_rule_leaves_about_the_base() -> None:
    """Where held-out models gain nothing, what is kept of the members' opinion is small."""
    rows = make_measured(600, noise=0.5)
    rows["latency_us"] = rows["base_us"] * np.exp(0.5 * np.random.default_rng(5).standard_normal(600))
    forecast = train(rows, seed=1).predict(rows)
    assert np.sqrt(np.mean((forecast.log_latency_us - np.log(rows["base_us"])) ** 2)) < 0.15
    assert np.median(forecast.sigma) == pytest.approx(0.5, rel=0.25)


def test_one_bad_instance_does_not_move_its_family() -> None:
    """An instance that is four times too slow in all of its rows is known as such; the others' predictions stay."""
    rows = make_measured(600)
    rows["instance"] = np.where(np.arange(600) % 8 == 0, "bad", np.char.add("good-", (np.arange(600) % 7).astype(np.str_)))
    poisoned = rows.copy()
    poisoned["latency_us"][rows["instance"] == "bad"] *= 4.0
    good = rows[rows["instance"] != "bad"]
    assert error(train(poisoned, seed=1), good) < error(train(rows, seed=1), good) + 0.03


def test_a_poisoned_row_does_not_move_its_neighbours(rows: Rows, model: Model) -> None:
    """The loss is robust: a few rows a thousand times off change nothing for the others."""
    poisoned = rows.copy()
    poisoned["latency_us"][::100] *= 1000.0
    assert error(train(poisoned, seed=1), rows) < error(model, rows) + 0.03


def test_rows_that_weigh_more_are_believed_more() -> None:
    """A benchmark that contradicts the prediction is kept and counts: weight decides between rows that say different things."""
    rows = make_measured(400)
    contradicting = rows[rows["runtime"] == "first"].copy()
    contradicting["latency_us"] *= 1.3
    light, heavy = contradicting.copy(), contradicting.copy()
    light["weight"], heavy["weight"] = 0.1, 10.0
    asked = rows[rows["runtime"] == "first"]
    little, much = (train(np.concatenate([rows, extra]), seed=1).predict(asked).log_latency_us for extra in (light, heavy))
    assert np.mean(much - little) > 0.1


def test_a_family_gets_trees_of_its_own_from_five_hundred_rows() -> None:
    """Fewer are better answered together with the other families."""
    assert [name for name in train(make_measured(FAMILY_ROWS - 1), seed=1).members if name.startswith("family")] == []
    assert "family family" in train(make_measured(FAMILY_ROWS + 1), seed=1).members


def test_the_network_joins_from_a_few_thousand_rows() -> None:
    """Fewer rows than weights teach it nothing."""
    assert "network" not in train(make_measured(NETWORK_ROWS - 1), seed=1).members
    assert "network" in train(make_measured(NETWORK_ROWS), seed=1).members


def test_a_card_with_three_rows_is_shifted_not_learned() -> None:
    """What three rows say moves the card's predictions by a shrunken shift, and no tree."""
    rows = make_measured(600)
    new = rows[rows["card"] == "large"].copy()
    new["card"] = "new"
    new["latency_us"] *= 2.0
    model, shifts = train_with_newcomers(np.concatenate([rows, new[:3]]), seed=1)
    assert model_to_document(model) == model_to_document(train(rows, seed=1))
    assert shifts.by_card["new", "execution"] == pytest.approx(np.log(2.0) * 3 / 5.5, abs=0.1)
    plain = model.predict(new[3:]).log_latency_us
    assert model.predict(new[3:], shifts).log_latency_us - plain == pytest.approx(shifts.by_card["new", "execution"])


def test_an_unknown_base_is_ranked_last(model: Model, rows: Rows) -> None:
    """A row without a base gets an infinite latency, never a tempting one."""
    asked = rows[:3].copy()
    asked["base_us"] = [np.nan, 0.0, -1.0]
    assert np.all(model.predict(asked).latency_us == np.inf)


def test_thousands_of_instances_share_their_familys_residual(model: Model, rows: Rows) -> None:
    """Each instance has its own base; what was learned is asked once per configuration."""
    typical, like = rows[:24], np.tile(np.arange(24), 50)
    base_us = np.tile(typical["base_us"], 50) * np.repeat(np.linspace(0.8, 1.2, 50), 24)
    forecast = model.predict_like(base_us, typical, like)
    want = model.predict(typical).log_latency_us[like] + np.log(base_us / typical["base_us"][like])
    assert forecast.log_latency_us == pytest.approx(want)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=len(ROW.names or ()), max_size=len(ROW.names or ())))
def test_features_are_finite_whatever_a_row_holds(values: list[float]) -> None:
    """Nothing that a report can contain reaches the learner as NaN or infinity."""
    rows = make_rows(1)
    for name, value in zip(ROW.names or (), values, strict=True):
        if ROW[name].base.kind == "f":
            rows[name] = value
    with np.errstate(all="ignore"):
        features = numeric_features(rows)
    assert features.shape == (1, len(NUMERIC))
    assert np.all(np.isfinite(features))
