from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.public.make_tables import make_kernel_table, make_serving_table, make_task

from metainfer.predict.learned.rows import Rows
from metainfer.predict.public.columns import Columns, take
from metainfer.predict.public.groups import Group, make_kernel_groups, true_utilities
from metainfer.predict.public.metrics import bootstrap, judge, kendall_tau
from metainfer.predict.public.serving import engine_cards
from metainfer.predict.public.tasks import Task

MODELS = ("Llama-3.1-8B", "Qwen3-30B-A3B", "StarCoder2-7B")


@pytest.fixture(scope="module")
def table() -> Columns:
    return make_kernel_table(MODELS, ("chat", "rag"))


def changed(table: Columns, **columns: object) -> Columns:
    return {**table, **{name: np.broadcast_to(np.asarray(value), len(table["batch"])) for name, value in columns.items()}}


@settings(deadline=None, max_examples=20)
@given(st.floats(1.0, 64.0), st.sampled_from(["batch", "isl", "osl"]))
def test_more_work_is_never_faster(table: Columns, factor: float, name: str) -> None:
    """A larger batch, a longer prompt or a longer answer never lower the base of either latency."""
    some = take(table, np.arange(0, len(table["batch"]), 37))
    before, after = make_task().build_rows(some), make_task().build_rows({**some, name: some[name] * factor})
    for less, more in zip(before, after, strict=True):
        assert np.all(more["base_us"] >= less["base_us"] * (1 - 1e-9))


@settings(deadline=None, max_examples=15)
@given(st.floats(1.0, 8.0))
def test_a_faster_card_is_never_slower(table: Columns, factor: float) -> None:
    """All probe times divided by the same factor: no base grows, and all shrink by exactly that factor."""
    task = make_task()
    assert task.probes is not None
    some = take(table, np.arange(0, len(table["batch"]), 37))
    faster = {name: values / factor if name.startswith("probe_") else values for name, values in task.probes.items()}
    for slow, fast in zip(task.build_rows(some), make_task_with(faster).build_rows(some), strict=True):
        assert fast["base_us"] == pytest.approx(slow["base_us"] / factor)


def make_task_with(probes: Columns) -> Task:
    return replace(make_task(), probes=probes)


def spread(rows: Rows) -> float:
    return float(np.std(np.log(rows["latency_us"] / rows["base_us"])))


def test_the_base_is_close_to_what_was_measured(table: Columns) -> None:
    """Physics on probed peaks explains all but a quarter (one standard deviation) of latencies that differ by e^0.8 and more."""
    for rows in make_task().build_rows(table):
        assert spread(rows) < 0.35
        assert np.std(np.log(rows["latency_us"])) > 0.8


def test_a_spec_sheet_stands_in_for_a_probe_and_says_so(table: Columns) -> None:
    """Without probes the base is worse, finite, and marked."""
    probed, unprobed = make_task().build_rows(table)[1], make_task(probed=False).build_rows(table)[1]
    assert spread(probed) < spread(unprobed) < 1.0
    assert set(probed["is_probed"].tolist()) == {1.0}
    assert set(unprobed["is_probed"].tolist()) == {0.0}


def test_a_precision_that_was_not_probed_is_carried_over_from_one_that_was(table: Columns) -> None:
    """Another runtime's or precision's probes of the same card, by the ratio of the spec sheets: half a confidence."""
    task = make_task()
    assert task.probes is not None
    bf16 = make_task_with(take(task.probes, task.probes["precision"] == "bf16"))
    rows = bf16.build_rows(table)[1]
    assert set(rows["is_probed"][rows["precision"] == "fp8"].tolist()) == {0.5}
    assert spread(rows) < 0.8


def test_serving_rows_say_what_the_table_says() -> None:
    """The request's latency is that which the throughput implies; the base is in the same region."""
    table = make_serving_table(("Llama-3.1-8B", "Llama-3.1-70B"))
    token, request = make_task(serves=True).build_rows(table)
    assert token["latency_us"] == pytest.approx(table["tpot_ms"] * 1000)
    assert table["conc"] * table["osl"] / request["latency_us"] * 1e6 / table["gpus"] == pytest.approx(table["tok_s_gpu"])
    assert spread(token) < 0.4


def test_experts_spread_over_cards_count_each_card_once() -> None:
    """gpus is 1, ep x ep or the true number, depending on who wrote the row."""
    columns = {"gpus": np.array([1.0, 64.0, 8.0, 4.0, 1.0]), "ep": np.array([8.0, 8.0, 8.0, 1.0, 1.0])}
    assert engine_cards(columns).tolist() == [8.0, 8.0, 8.0, 4.0, 1.0]


def test_groups_follow_the_recipe(table: Columns) -> None:
    """Enough candidates, enough feasible ones, precision floors and card pools respected, the same groups each time."""
    cards = sorted(set(table["card"].tolist()))
    groups = make_kernel_groups(table, cards)
    assert [group.name for group in groups] == [group.name for group in make_kernel_groups(table, cards)]
    assert len({group.name for group in groups}) == len(groups)
    for group in groups:
        assert len(group.members) >= 8
        assert np.count_nonzero(true_utilities(table, group)) >= 5
        if group.name.split("/")[3] == "16":
            assert set(table["precision"][group.members].tolist()) == {"bf16"}
    close_race = next(group for group in groups if group.name.endswith("/3"))
    assert set(table["card"][close_race.members].tolist()) <= {"a100_sxm", "l40s", "h100_sxm"}


def test_a_broken_limit_is_worth_nothing(table: Columns) -> None:
    """Utility is throughput where both limits hold, else zero."""
    members = np.flatnonzero(table["model"] == MODELS[0])
    free, limited = (true_utilities(table, Group("g", MODELS[0], members, np.inf, limit)) for limit in (np.inf, 20.0))
    kept = table["tpot_ms"][members] <= 20.0
    assert np.array_equal(limited, np.where(kept, free, 0.0))
    assert 0 < kept.sum() < len(kept)


def test_quality_of_a_known_order() -> None:
    """By hand: best 100, the order picks 80 first and has 100 among its four."""
    utilities, scores = np.array([100.0, 80.0, 0.0, 50.0, 10.0]), np.array([4.0, 5.0, 3.0, 2.0, 1.0])
    quality = judge("m", utilities, scores)
    assert quality.top1_regret == pytest.approx(0.2)
    assert quality.top4_regret == 0.0
    assert quality.kendall_tau == pytest.approx((5 - 1) / 6)
    assert judge("m", utilities, scores, picks=[1, 3, 3]).top4_regret == pytest.approx(0.2)
    assert judge("m", utilities, scores, picks=[1, 3, 3]).picks == 2
    assert judge("m", utilities, utilities).ndcg4 == 1.0


def test_an_interval_resamples_models_not_groups() -> None:
    """A hundred groups of one model are one observation of it."""
    models = np.array(["a"] * 100 + ["b"] * 100)
    found = bootstrap(np.array([0.0] * 100 + [10.0] * 100), models)
    assert (found.mean, found.low, found.high) == (5.0, 0.0, 10.0)


def test_tau_of_a_constant_is_zero() -> None:
    """Nothing can be said of an order that there is none of."""
    assert kendall_tau(np.ones(5), np.arange(5.0)) == 0.0
