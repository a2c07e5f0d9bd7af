"""Inputs that a model accepts: the user's own requests, or generated ones that respect what the graph says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data import models

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Backend, Inputs, ProbeError
from metainfer_probe.inputs import batch_feeds, generate, make_inputs
from metainfer_probe.model_file import read_model

CPU = find_backend("CPUExecutionProvider")
OPENVINO = find_backend("OpenVINOExecutionProvider")


def inputs_for(path: Path, calibration: Path | None = None, count: int = 3) -> Inputs:
    return make_inputs(read_model(path), CPU, calibration, count)


def write_npz(folder: Path, **arrays: object) -> Path:
    path = folder / "requests.npz"
    np.savez(path, **{name.replace("__", "/"): np.asarray(array) for name, array in arrays.items()})
    return path


def refused(folder: Path, model: Path, **arrays: object) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        inputs_for(model, write_npz(folder, **arrays))
    return caught.value


def test_generated_requests_are_the_same_every_time_and_differ_from_each_other(tmp_path: Path) -> None:
    """Candidates are compared on equal inputs, and a batch of equal rows would hide mixed-up answers."""
    path = models.dense(tmp_path)
    first, second = inputs_for(path), inputs_for(path)
    assert first.source == "generated"
    for one, other in zip(first.samples, second.samples, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
    assert not np.array_equal(first.samples[0]["x"], first.samples[1]["x"])


@pytest.mark.parametrize("name", ["p", "q", "r"])
def test_generated_token_ids_stay_inside_their_tables(name: str, tmp_path: Path) -> None:
    """And use them: not only 0 and 1 where more is allowed."""
    low, high = models.TOKEN_TABLE_BOUNDS[name]
    drawn = np.concatenate([sample[name].ravel() for sample in inputs_for(models.token_tables(tmp_path), count=20).samples])
    assert drawn.dtype == np.int64
    assert low <= drawn.min()
    assert drawn.max() <= high
    assert drawn.max() >= high // 2


def test_a_refused_value_leads_to_zero_and_one_and_a_note(tmp_path: Path) -> None:
    """Where reading the graph finds no table, the runtime's refusal is the last hint: never 'broken model'."""
    made = inputs_for(models.local_function_table(tmp_path))
    assert made.source == "zeros"
    assert set(np.unique(made.samples[0]["i"])) <= {0, 1}
    assert "refused" in made.notes[0]


def test_a_constant_that_an_input_is_compared_with_is_fed(tmp_path: Path) -> None:
    """Sample rates and modes: any other value would run another branch, or none."""
    made = inputs_for(models.compared_with(tmp_path))
    assert made.source == "generated"
    assert made.samples[0]["rate"] == 16000


def test_a_one_hot_encoding_written_out_bounds_its_input(tmp_path: Path) -> None:
    """Values beyond the last column would all look alike."""
    drawn = inputs_for(models.one_hot_by_hand(tmp_path), count=30).samples
    values = np.concatenate([sample["bytes"].ravel() for sample in drawn])
    assert (values.min(), values.max()) == (0, 40)


@pytest.mark.parametrize("backend", [CPU, OPENVINO], ids=["checks itself", "does not check"])
def test_sizes_that_do_not_fit_are_replaced_whatever_runtime_is_measured(backend: Backend, tmp_path: Path) -> None:
    """A runtime that does not check must not get impossible sizes: the same ones are found for both."""
    made = make_inputs(read_model(models.text_line(tmp_path)), backend, None, 1)
    assert made.samples[0]["x"].shape == (1, 3, 48, 320)
    assert "48 high" in made.notes[0]


@pytest.mark.parametrize(
    ("build", "free"),
    [(models.dense, True), (models.odd_outputs, True), (models.recurrent, False), (models.compared_with, False)],
    ids=["free axis", "unnamed free axis", "fixed axis", "a scalar among the inputs"],
)
def test_the_batch_axis_is_free_only_when_it_is_free_in_every_input(build: Callable[[Path], Path], free: bool, tmp_path: Path) -> None:
    """A scalar or a fixed first dimension cannot be joined."""
    assert inputs_for(build(tmp_path)).batch_axis_free is free


@pytest.mark.parametrize(
    ("shape", "names", "want"),
    [
        ((-1, 3, -1, -1), ("n", "", "h", "w"), (1, 3, 224, 224)),
        ((-1, 3, 48, -1), ("n", "", "", "w"), (1, 3, 48, 320)),
        ((-1, -1), ("b", "s"), (1, 1024)),
        ((-1, 80, -1), ("b", "", "t"), (1, 80, 1024)),
    ],
    ids=["image", "text line", "signal", "spectrum"],
)
def test_free_sizes_are_sane_for_what_the_input_looks_like(shape: tuple[int, ...], names: tuple[str, ...], want: tuple[int, ...], tmp_path: Path) -> None:
    """A 1-pixel image would say nothing about speed."""
    dims = [name or size for name, size in zip(names, shape, strict=True)]
    net = models.graph([models.node("Relu", ["x"], ["y"])], [models.value("x", models.FLOAT, dims)], [models.value("y", models.FLOAT, dims)])
    model = read_model(models.save(tmp_path / "m.onnx", net))
    assert generate(model, 0)["x"].shape == want


def test_equal_names_get_equal_sizes_and_sums_their_sum(tmp_path: Path) -> None:
    """Key caches: the mask is as long as past and present together."""
    values = [
        models.value("ids", models.INT64, ["b", "seq"]),
        models.value("past", models.FLOAT, ["b", 2, "kept", 4]),
        models.value("mask", models.INT64, ["b", "kept + seq"]),
    ]
    nodes = [models.node("Cast", ["mask"], ["m"], to=1), models.node("Identity", ["past"], ["p"]), models.node("Cast", ["ids"], ["i"], to=1)]
    net = models.graph(nodes, values, [models.value(name, models.FLOAT, None) for name in ("m", "p", "i")])
    feeds = generate(read_model(models.save(tmp_path / "m.onnx", net)), 0)
    assert feeds["mask"].shape[1] == feeds["ids"].shape[1] + feeds["past"].shape[2]
    assert feeds["mask"].min() == 1


def test_strings_and_booleans_can_be_fed(tmp_path: Path) -> None:
    """Text goes in as text."""
    values = [models.value("s", models.STRING, ["n"]), models.value("b", 9, ["n"])]
    net = models.graph(
        [models.node("Identity", ["s"], ["t"]), models.node("Not", ["b"], ["c"])],
        values,
        [models.value("t", models.STRING, ["n"]), models.value("c", 9, ["n"])],
    )
    made = inputs_for(models.save(tmp_path / "m.onnx", net))
    assert made.samples[0]["s"].tolist() == ["text"]


def test_calibration_requests_are_taken_as_they_are(tmp_path: Path) -> None:
    """One array per INPUT/INDEX, in the order of the index, ragged or not."""
    path = models.token_tables(tmp_path)
    arrays = {f"{name}__{index}": np.full((1, 4 + index % 3), index % 2) for name in "pqr" for index in range(12)}
    made = make_inputs(read_model(path), CPU, write_npz(tmp_path, **arrays), 12)
    assert made.source == "calibration"
    assert made.ragged
    assert [sample["p"].shape[1] for sample in made.samples] == [4 + index % 3 for index in range(12)]


def test_few_of_many_requests_are_spread_over_the_file(tmp_path: Path) -> None:
    """The first ones may all be alike."""
    arrays = {f"x__{index}": np.full((1, 32), index) for index in range(100)}
    made = inputs_for(models.dense(tmp_path), write_npz(tmp_path, **arrays), count=3)
    assert [float(sample["x"][0, 0]) for sample in made.samples] == [0, 50, 99]


def test_an_array_per_input_is_read_row_by_row(tmp_path: Path) -> None:
    """A common way to save requests; the note says how it was understood."""
    made = inputs_for(models.dense(tmp_path), write_npz(tmp_path, x=np.ones((5, 32), np.float32)), count=10)
    assert len(made.samples) == 5
    assert made.samples[0]["x"].shape == (1, 32)
    assert "row" in made.notes[0]


def test_arrays_under_other_names_serve_a_model_with_one_input(tmp_path: Path) -> None:
    """There is only one thing they can mean; the note says so."""
    made = inputs_for(models.dense(tmp_path), write_npz(tmp_path, r00=np.ones((1, 32)), r01=np.zeros((1, 32))))
    assert len(made.samples) == 2
    assert "x/INDEX" in made.notes[0]


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    """The user reads which array to add."""
    error = refused(tmp_path, models.token_tables(tmp_path), p__0=np.zeros((1, 4), np.int64), q__0=np.zeros((1, 4), np.int64))
    assert error.reason == "CalibrationInputMissing"
    assert "'r'" in error.message
    assert "r/0" in error.message


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    """Requests come as a client would send them, batch dimension included."""
    error = refused(tmp_path, models.dense(tmp_path), x__0=np.zeros(32, np.float32))
    assert error.reason == "CalibrationShape"
    assert "[32]" in error.message
    assert "[any, 32]" in error.message


@pytest.mark.parametrize(
    ("array", "want"),
    [
        (np.zeros((1, 32), np.float64), None),
        (np.zeros((1, 32), np.int32), None),
        (np.full((1, 32), "a"), "CalibrationType"),
        (np.zeros((1, 32), complex), "CalibrationType"),
    ],
    ids=["wider float", "integer", "text", "complex"],
)
def test_types_are_converted_only_where_that_is_natural(array: np.ndarray, want: str | None, tmp_path: Path) -> None:
    """Numpy saves float64 by default; text is no number."""
    path, npz = models.dense(tmp_path), write_npz(tmp_path, x__0=array)
    if want is None:
        assert inputs_for(path, npz).samples[0]["x"].dtype == np.float32
    else:
        assert refused(tmp_path, path, x__0=array).reason == want


def test_values_that_do_not_survive_the_conversion_are_refused(tmp_path: Path) -> None:
    """A token id of 2.5 is a mistake, not 2."""
    path = models.token_tables(tmp_path)
    error = refused(tmp_path, path, p__0=np.full((1, 4), -1, np.int64), q__0=np.zeros((1, 4), np.int64), r__0=np.full((1, 4), 2.5))
    assert error.reason == "CalibrationType"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"hello"], ids=["empty", "cut off", "text"])
def test_a_file_that_is_no_npz_ends_in_a_reason(content: bytes, tmp_path: Path) -> None:
    """Damaged archives do not end in a traceback."""
    path = tmp_path / "requests.npz"
    path.write_bytes(content)
    with pytest.raises(ProbeError) as caught:
        inputs_for(models.dense(tmp_path), path)
    assert caught.value.reason == "CalibrationInvalid"


def test_a_single_array_is_no_set_of_requests(tmp_path: Path) -> None:
    """numpy.save instead of numpy.savez."""
    np.save(tmp_path / "requests.npy", np.zeros((1, 32)))
    with pytest.raises(ProbeError) as caught:
        inputs_for(models.dense(tmp_path), tmp_path / "requests.npy")
    assert caught.value.reason == "CalibrationInvalid"
    assert "savez" in caught.value.message


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    """A calibration file is as untrusted as the model."""
    np.savez(tmp_path / "requests.npz", **{"x/0": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(ProbeError) as caught:
        inputs_for(models.dense(tmp_path), tmp_path / "requests.npz")
    assert caught.value.reason == "CalibrationInvalid"


def test_requests_are_joined_along_axis_zero(tmp_path: Path) -> None:
    """Row by row, in order."""
    samples = inputs_for(models.dense(tmp_path)).samples
    joined = batch_feeds(samples)
    assert joined["x"].shape == (3, 32)
    np.testing.assert_array_equal(joined["x"][1], samples[1]["x"][0])


def test_requests_of_different_sizes_are_not_joined() -> None:
    """Padding changes answers and costs time: said, not done silently."""
    with pytest.raises(ProbeError) as caught:
        batch_feeds([{"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}])
    assert caught.value.reason == "RaggedInputs"
    assert "'x'" in caught.value.message


def test_a_runtime_that_does_not_check_still_gets_valid_ids(tmp_path: Path) -> None:
    """OpenVINO answers rubbish for ids outside a table instead of refusing: bounds must come from the graph."""
    made = make_inputs(read_model(models.token_tables(tmp_path)), OPENVINO, None, 3)
    assert made.source == "generated"
    assert max(int(sample["p"].max()) for sample in made.samples) <= 22
