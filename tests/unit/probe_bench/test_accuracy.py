"""The measure that gates precisions, number by number."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.data import models

from metainfer_probe.accuracy import PPM_LIMIT, Comparison, compare_answers, join_outputs
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import ProbeError, SessionOptions

NAN, INF = float("nan"), float("inf")
EMPTY = np.zeros((0, 2), np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("answer", "reference", "want"),
    [
        pytest.param([floats(3, 4)], [floats(3, 4)], 0.0, id="equal"),
        pytest.param([floats(0, 4)], [floats(3, 4)], 0.6, id="three of five"),
        pytest.param([floats(6, 8)], [floats(3, 4)], 1.0, id="doubled"),
        pytest.param([floats(0, 0)], [floats(0, 0)], 0.0, id="both zero"),
        pytest.param([floats(0, 1)], [floats(0, 0)], 1.0, id="something where the reference has nothing"),
        pytest.param([floats(3, 4), floats(0, 4)], [floats(3, 4), floats(3, 4)], 0.6, id="the worst output counts"),
        pytest.param([floats(1000, 0), floats(0, 0.1)], [floats(1000, 0), floats(0.1, 0)], 2**0.5, id="large boxes do not hide broken scores"),
        pytest.param([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])], 0.25, id="integers by the share that differs"),
        pytest.param([np.array(["a", "b"], object)], [np.array(["a", "c"], object)], 0.5, id="strings by the share that differs"),
        pytest.param([np.array([True, False])], [np.array([True, False])], 0.0, id="booleans"),
        pytest.param([EMPTY], [EMPTY], 0.0, id="empty equals empty"),
        pytest.param([np.zeros((1, 2), np.int64)], [EMPTY], 1.0, id="a row where the reference has none"),
        pytest.param([floats(1, 2)], [floats(1, 2, 3)], 1.0, id="another shape"),
        pytest.param([[{"a": 0.3, "b": 0.4}]], [[{"a": 0.3, "b": 0.4}]], 0.0, id="equal maps"),
        pytest.param([[{"a": 0.0, "b": 4.0}]], [[{"a": 3.0, "b": 4.0}]], 0.6, id="numbers in maps"),
        pytest.param([[{"a": 1.0}]], [[{"b": 1.0}]], 1.0, id="other keys"),
        pytest.param([[{"a": 1.0}]], [[{"a": 1.0}, {"a": 1.0}]], 1.0, id="shorter sequence"),
        pytest.param([[floats(3, 4)], np.array([7])], [[floats(3, 4)], np.array([7])], 0.0, id="sequence of tensors"),
        pytest.param([floats(NAN, INF, 4)], [floats(NAN, INF, 4)], 0.0, id="NaN and Inf in the same places"),
        pytest.param([floats(1, 2, 4)], [floats(NAN, INF, 4)], 1.0, id="finite where the reference is not"),
        pytest.param([np.array([3 + 4j])], [np.array([3 + 0j])], 4 / 3, id="complex numbers"),
        pytest.param([], [], 0.0, id="no outputs"),
    ],
)
def test_difference_of_one_answer(answer: list[object], reference: list[object], want: float) -> None:
    """sqrt(sum |a-b|^2 / sum |b|^2) for numbers, shares for everything else, the worst output for the model."""
    difference = compare_answers([(answer, reference)])
    assert difference.relative == pytest.approx(want, rel=1e-6)
    assert difference.ppm == round(difference.relative * 1e6)
    assert not difference.invalid_values


def test_sums_run_over_samples_before_the_root() -> None:
    """Not a mean of ratios: a sample with small outputs weighs little."""
    pairs = [([floats(10, 1)], [floats(10, 0)]), ([floats(0.1)], [floats(0.2)])]
    assert compare_answers(pairs).relative == pytest.approx(((1 + 0.01) / (100 + 0.04)) ** 0.5, rel=1e-6)


def test_a_sample_of_another_shape_leaves_the_sums_alone() -> None:
    """One sample in four differs in shape: a quarter, whatever its numbers."""
    good = ([floats(1, 1)], [floats(1, 1)])
    assert compare_answers([good, good, good, ([floats(9)], [floats(1, 1)])]).relative == 0.25


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_or_inf_where_the_reference_has_none_is_invalid(bad: float) -> None:
    """Never an average: it is a flag of its own, and the rest is still a number."""
    difference = compare_answers([([floats(bad, 4)], [floats(3, 4)])])
    assert difference.invalid_values
    assert difference.relative == 0


def test_nothing_compared_is_no_difference() -> None:
    """Empty outputs in every sample: zero, not the NaN of a mean of nothing."""
    difference = compare_answers([([EMPTY, floats()], [EMPTY, floats()])] * 3)
    assert difference.per_output == (0.0, 0.0)
    assert Comparison().difference().ppm == 0


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_compared_as_numbers(kind: type) -> None:
    """Squares of 300 do not fit into fp16: the sums are in float64."""
    reference = np.full(100, 300, np.float32)
    difference = compare_answers([([reference.astype(kind)], [reference])])
    assert not difference.invalid_values
    assert difference.relative < 0.01


def test_an_absurd_difference_is_capped() -> None:
    """The report holds an integer."""
    assert compare_answers([([floats(1e30)], [floats(1e-30)])]).ppm == PPM_LIMIT


def test_a_lost_output_is_a_reason() -> None:
    """Not an IndexError."""
    with pytest.raises(ProbeError, match="1 outputs, the reference has 2"):
        compare_answers([([floats(1)], [floats(1), floats(2)])])


@given(
    arrays.arrays(np.float32, arrays.array_shapes(max_side=4), elements=st.floats(allow_nan=True, allow_infinity=True, width=32)),
    arrays.arrays(np.float32, arrays.array_shapes(max_side=4), elements=st.floats(allow_nan=True, allow_infinity=True, width=32)),
)
def test_any_two_tensors_have_a_finite_difference(answer: np.ndarray, reference: np.ndarray) -> None:
    """Whatever the values; and every tensor equals itself."""
    difference = compare_answers([([answer], [reference])])
    assert np.isfinite(difference.relative)
    assert difference.relative >= 0
    itself = compare_answers([([reference], [reference])])
    assert itself.relative == 0
    assert not itself.invalid_values


def test_joined_outputs_follow_axis_zero() -> None:
    """Tensors are concatenated, sequences appended; what cannot be joined never equals a batched answer."""
    left: list[object] = [floats(1, 2).reshape(1, 2), [{"a": 1.0}], np.float32(3), floats(1).reshape(1, 1)]
    right: list[object] = [floats(3, 4).reshape(1, 2), [{"a": 2.0}], np.float32(3), floats(1, 2).reshape(1, 2)]
    joined = join_outputs([left, right])
    assert np.array_equal(joined[0], [[1, 2], [3, 4]])  # type: ignore[arg-type]
    assert joined[1] == [{"a": 1.0}, {"a": 2.0}]
    batched: list[object] = [joined[0], joined[1], np.float32(3), floats(1, 1, 2, 2).reshape(2, 2)]
    assert compare_answers([(batched, joined)]).per_output == (0, 0, 1, 1)


def test_odd_outputs_of_a_real_session_compare(tmp_path: Path) -> None:
    """Strings, a list of maps and an empty tensor, as ONNX Runtime returns them."""
    session = find_backend("CPUExecutionProvider").open(models.odd_outputs(tmp_path), SessionOptions())
    samples = [{"x": np.random.default_rng(index).standard_normal((1, 12)).astype(np.float32)} for index in range(4)]
    answers = [session.run(feeds) for feeds in samples]
    assert compare_answers(zip(answers, answers, strict=True)).per_output == (0, 0, 0)
    assert compare_answers([(answers[0], answers[1])]).per_output[1] > 0
    session.close()
