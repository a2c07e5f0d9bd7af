from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CPU_PROVIDER, OPENVINO_PROVIDER, make_config, make_family, make_node
from tests.unit.decide.make_runs import make_candidate

from metainfer.decide.candidates import (
    DEFAULT_BATCH_SIZES,
    DEFAULT_CONCURRENCIES,
    MAXIMUM_CANDIDATES,
    Choice,
    ChoiceRefused,
    build_candidates,
    joins_requests,
)
from metainfer.decide.families import FamilyOption
from metainfer.decide.settings_mapping import FixedSettings

BOTH = (CPU_PROVIDER, OPENVINO_PROVIDER)


def make_option(name: str = "ort-cpu", pool: str = "cards", **fields: object) -> FamilyOption:
    """A family with one node."""
    return FamilyOption(pool, make_family(name, **fields), (make_node(),))


def make_choice(*options: FamilyOption, **fields: object) -> Choice:
    return replace(Choice(families=options or (make_option(),)), **fields)  # type: ignore[arg-type]


def shapes_of(choice: Choice) -> set[tuple[int, int]]:
    return {(item.config.batch_size, item.config.concurrency) for item in build_candidates(choice)}


def test_without_bounds_every_precision_and_every_shape_that_the_load_can_form_is_a_point() -> None:
    """Eight requests in flight: batches up to 8, and a second execution only while the first leaves it a request."""
    points = build_candidates(make_choice(load_clients=8))
    assert {item.config.precision for item in points} == {"fp32", "bf16", "fp16", "int8"}
    assert {(item.config.batch_size, item.config.concurrency) for item in points} == {(1, 1), (1, 2), (4, 1), (4, 2), (8, 1)}
    assert len(points) == len(set(points)) == 4 * 5


@pytest.mark.parametrize(("clients", "want_batches"), [(1, {1}), (3, {1}), (4, {1, 4}), (16, {1, 4, 8, 16}), (256, {1, 4, 8, 16})])
def test_a_batch_larger_than_the_requests_in_flight_is_not_built(clients: int, want_batches: set[int]) -> None:
    """It could never form under the load that counts."""
    assert {batch for batch, _ in shapes_of(make_choice(load_clients=clients))} == want_batches


def test_parallel_executions_that_never_get_a_request_are_not_built() -> None:
    """One client cannot keep two executions busy."""
    assert shapes_of(make_choice(load_clients=1)) == {(1, 1)}


def test_batches_need_dynamic_batching_and_single_requests_go_without() -> None:
    """The load is single requests: nothing else joins them."""
    for item in build_candidates(make_choice(load_clients=8)):
        assert item.config.dynamic_batching == (item.config.batch_size > 1) == joins_requests(item.config)


@pytest.mark.parametrize(("allowed", "want_batches"), [((False,), {1}), ((True,), {4}), ((), {1, 4}), ((True, False), {1, 4})])
def test_dynamic_batching_bounds_the_batch(allowed: tuple[bool, ...], want_batches: set[int]) -> None:
    """configSpace.dynamicBatching says which of the two may be chosen."""
    assert {batch for batch, _ in shapes_of(make_choice(dynamic_batching=allowed))} == want_batches


def test_a_declared_delay_of_zero_rules_batches_out() -> None:
    """A server without time to wait joins nothing, whatever its batch size."""
    assert {batch for batch, _ in shapes_of(make_choice(fixed=FixedSettings(max_batch_delay_us=0), load_clients=16))} == {1}


def test_a_declared_delay_replaces_ours() -> None:
    """What the owner declares is what runs."""
    delays = {item.config.max_batch_delay_us for item in build_candidates(make_choice(fixed=FixedSettings(max_batch_delay_us=7000)))}
    assert delays == {0, 7000}


def test_values_that_the_owner_declares_are_taken_even_where_they_make_no_sense_under_the_load() -> None:
    """They are what runs, so they are what must be measured."""
    fixed = FixedSettings(precision="bf16", batch_size=64, concurrency=8, execution_provider=OPENVINO_PROVIDER)
    (point,) = build_candidates(make_choice(fixed=fixed, precisions=("fp32",), dynamic_batching=(False,), load_clients=2))
    assert (point.config.precision, point.config.batch_size, point.config.concurrency) == ("bf16", 64, 8)
    assert point.config.execution_provider == OPENVINO_PROVIDER


def test_a_declared_value_out_of_range_is_refused_with_a_sentence() -> None:
    """Nothing outside the contract's bounds can be measured."""
    with pytest.raises(ChoiceRefused, match="batch size 5000") as caught:
        build_candidates(make_choice(fixed=FixedSettings(batch_size=5000)))
    assert caught.value.reason == "FixedValueUnsupported"


def test_a_family_takes_the_providers_that_the_image_serves_too() -> None:
    """In the family's order, best first."""
    points = build_candidates(make_choice(make_option(execution_providers=BOTH), providers=(OPENVINO_PROVIDER,)))
    assert {item.config.execution_provider for item in points} == {OPENVINO_PROVIDER}


def test_a_family_without_a_common_provider_still_has_points_so_that_its_rejection_is_shown() -> None:
    """A family that vanished without a word would look like a bug."""
    points = build_candidates(make_choice(make_option("gpu", execution_providers=("CUDAExecutionProvider",)), providers=BOTH))
    assert {(item.family, item.config.execution_provider) for item in points} == {("gpu", CPU_PROVIDER)}


def test_the_present_configuration_is_the_first_point_and_appears_once() -> None:
    """It is measured in any case, also when it is outside configSpace."""
    inside, outside = make_candidate(), make_candidate(batch_size=32, concurrency=7)
    for current in (inside, outside):
        points = build_candidates(make_choice(current=current))
        assert points[0] == current
        assert points.count(current) == 1


def test_a_point_that_does_the_same_as_the_present_configuration_is_left_out() -> None:
    """A batch size that never forms is no difference: both would be measured, and tie."""
    current = make_candidate(batch_size=8, dynamic_batching=False, max_batch_delay_us=0)
    points = build_candidates(make_choice(current=current, precisions=("fp32",), concurrencies=(1,)))
    assert [(item.config.batch_size, item.config.dynamic_batching) for item in points] == [(8, False), (4, True)]


def test_the_order_of_families_does_not_matter() -> None:
    """The same choice gives the same points in the same order."""
    one, two = make_option("a"), make_option("b", execution_providers=BOTH)
    assert build_candidates(make_choice(one, two)) == build_candidates(make_choice(two, one))


def test_too_many_points_are_refused_with_their_number() -> None:
    """Beyond 4096 the lists are a mistake."""
    batches = tuple(range(1, 17))
    options = tuple(make_option(f"family-{number}", execution_providers=BOTH) for number in range(32))
    with pytest.raises(ChoiceRefused, match=r"gives 65\d\d\d candidates") as caught:
        build_candidates(make_choice(*options, batch_sizes=batches, concurrencies=batches, load_clients=256))
    assert caught.value.reason == "TooManyCandidates"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"batch_sizes": (8, 16)}, id="batches beyond the load"),
        pytest.param({"batch_sizes": (4,), "dynamic_batching": (False,)}, id="batches without dynamic batching"),
        pytest.param({"concurrencies": (64,)}, id="more executions than requests"),
    ],
)
def test_a_choice_without_any_point_is_refused_with_what_to_do(fields: dict[str, object]) -> None:
    """Silence would read as 'no better configuration exists'."""
    with pytest.raises(ChoiceRefused, match=r"load\.clients") as caught:
        build_candidates(make_choice(**fields))
    assert caught.value.reason == "EmptyConfigSpace"


@given(
    batches=st.lists(st.integers(1, 1024), max_size=6),
    concurrencies=st.lists(st.integers(1, 256), max_size=4),
    clients=st.integers(1, 256),
    dynamic=st.lists(st.booleans(), max_size=2),
)
def test_every_point_is_bounded_and_can_form(batches: list[int], concurrencies: list[int], clients: int, dynamic: list[bool]) -> None:
    """Whatever configSpace says: points only from its lists, formable, unique, not more than the bound, or a typed refusal."""
    choice = make_choice(batch_sizes=tuple(batches), concurrencies=tuple(concurrencies), load_clients=clients, dynamic_batching=tuple(dynamic))
    reason = ""
    try:
        points = build_candidates(choice)
    except ChoiceRefused as refused:
        points, reason = (), refused.reason
    assert points or reason == "EmptyConfigSpace"
    assert len(set(points)) == len(points) <= MAXIMUM_CANDIDATES
    for item in points:
        assert item.config.batch_size in (batches or DEFAULT_BATCH_SIZES)
        assert item.config.concurrency in (concurrencies or DEFAULT_CONCURRENCIES)
        assert item.config.batch_size <= clients
        assert (item.config.concurrency - 1) * item.config.batch_size < clients


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"batch_size": 4, "dynamic_batching": True, "max_batch_delay_us": 1}, True),
        ({"batch_size": 1, "dynamic_batching": True, "max_batch_delay_us": 1}, False),
        ({"batch_size": 4, "dynamic_batching": False, "max_batch_delay_us": 1}, False),
        ({"batch_size": 4, "dynamic_batching": True, "max_batch_delay_us": 0}, False),
    ],
)
def test_requests_are_joined_only_with_batching_room_and_time(config: dict[str, object], want: bool) -> None:
    """The server's own rule."""
    assert joins_requests(make_config(**config)) == want
