"""Quantities are exact, rounded up, and added as the scheduler adds them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.decide.facts import ContainerFacts
from metainfer.observe.quantities import add_requests, is_extended_resource, parse_quantities, parse_quantity, resolve_share


@pytest.mark.parametrize(
    ("text", "want_value"),
    [
        ("0", 0),
        ("2", 2),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-3", -3),
        ("100m", Fraction(1, 10)),
        ("1u", Fraction(1, 10**6)),
        ("250n", Fraction(250, 10**9)),
        ("1k", 1000),
        ("3M", 3_000_000),
        ("2G", 2 * 10**9),
        ("1T", 10**12),
        ("1E", 10**18),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("2Pi", 2 * 2**50),
        ("8Ei", 8 * 2**60),
        ("1e3", 1000),
        ("12E-1", Fraction(6, 5)),
        ("1.25e2", 125),
    ],
)
def test_every_notation_of_a_quantity_is_read_exactly(text: str, want_value: Fraction) -> None:
    """A quantity is its exact value: 1E is an exa, 1E3 an exponent."""
    assert parse_quantity(text) == want_value


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1ki", "1K", "0x10", "1e", "1.2.3", "nan", "1Gib", "--1"])
def test_what_is_no_quantity_is_named(text: str) -> None:
    """A text that the API server would refuse raises, naming it."""
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


def test_cpu_is_in_millicores_and_fractions_round_up() -> None:
    """Cpu counts in millicores, memory in bytes; a fraction of a unit takes a whole one."""
    have = parse_quantities({"cpu": "1.5", "memory": "1500m", "metainfer.dev/card": "1", "ephemeral-storage": "1e3"})
    assert have == {"cpu": 1500, "memory": 2, "metainfer.dev/card": 1, "ephemeral-storage": 1000}
    assert parse_quantities({"cpu": "100u"}) == {"cpu": 1}


def test_a_wrong_quantity_names_its_resource() -> None:
    """The error says which resource it was."""
    with pytest.raises(ValueError, match="memory: not a quantity: 'lots'"):
        parse_quantities({"cpu": "1", "memory": "lots"})


@given(st.integers(0, 10**15), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_whole_numbers_survive_unchanged(number: int, suffix: str) -> None:
    """No number is bent by floating point."""
    factor = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[suffix]
    assert parse_quantities({"memory": f"{number}{suffix}"}) == {"memory": number * factor}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("nvidia.com/gpu", True),
        ("metainfer.dev/card", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("kubernetes.io/batch-cpu", False),
        ("example.kubernetes.io/thing", False),
        ("notkubernetes.io/thing", True),
    ],
)
def test_extended_resources_have_a_domain_that_is_not_kubernetes_own(name: str, want: bool) -> None:
    """Native names and those of kubernetes.io are no cards."""
    assert is_extended_resource(name) is want


def _container(cpu: int, **other: bool) -> ContainerFacts:
    return ContainerFacts("c", requests={"cpu": cpu}, **other)


@pytest.mark.parametrize(
    ("containers", "want_cpu"),
    [
        pytest.param([_container(100), _container(50)], 150, id="containers add up"),
        pytest.param([_container(500, init=True), _container(100)], 500, id="an init container counts as a maximum"),
        pytest.param([_container(80, init=True, restartable=True), _container(100)], 180, id="a native sidecar runs beside the containers"),
        pytest.param(
            [_container(80, init=True, restartable=True), _container(500, init=True), _container(100)],
            580,
            id="an init container runs beside the sidecars started before it",
        ),
        pytest.param(
            [_container(500, init=True), _container(80, init=True, restartable=True), _container(100)],
            500,
            id="a sidecar that starts later does not add to an earlier init container",
        ),
        pytest.param([], 0, id="no containers"),
    ],
)
def test_a_pod_requests_what_the_scheduler_counts(containers: list[ContainerFacts], want_cpu: int) -> None:
    """Effective requests follow the scheduler's rule for init containers and native sidecars."""
    assert add_requests(containers).get("cpu", 0) == want_cpu


@given(st.lists(st.builds(_container, st.integers(0, 1000), init=st.booleans(), restartable=st.booleans()), max_size=6))
def test_effective_requests_lie_between_the_largest_and_the_sum(containers: list[ContainerFacts]) -> None:
    """No order of containers requests less than the largest one or more than all together."""
    each = [container.requests["cpu"] for container in containers]
    assert max(each, default=0) <= add_requests(containers).get("cpu", 0) <= sum(each)


@pytest.mark.parametrize(
    ("value", "round_up", "want"),
    [(3, True, 3), ("25%", True, 3), ("25%", False, 2), ("0%", True, 0), ("100%", False, 10), ("1%", True, 1), ("1%", False, 0), (None, True, 0)],
)
def test_shares_of_ten_round_as_asked(value: int | str | None, round_up: bool, want: int) -> None:
    """A surge rounds up, what may be unavailable rounds down."""
    assert resolve_share(value, 10, round_up=round_up) == want
