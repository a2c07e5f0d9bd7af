"""Reading a model file: what it is, where its parts lie, and why it was refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto
from tests.data import models

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.contract import ModelSource
from metainfer_probe.ir_version import lowered_copy, needed_ir_version
from metainfer_probe.model_file import digest_files, fetch_model, memory_needed_bytes, read_model

REASONS = ["GitLfsPointer", "HtmlPage", "JsonDocument", "PyTorchCheckpoint", "ZipArchive", "OrtFormat", "GzipArchive", "TarArchive", "XmlDocument"]
REASONS += ["SafetensorsFile", "TextFile", "EmptyFile", "Truncated", "NotOnnx"]


def reason_of(call: object, *arguments: object, **named: object) -> ProbeError:
    """The ProbeError that a call ends in."""
    with pytest.raises(ProbeError) as caught:
        call(*arguments, **named)  # type: ignore[operator]
    return caught.value


@pytest.mark.parametrize("reason", REASONS)
def test_a_file_that_is_something_else_says_what_it_is(reason: str, tmp_path: Path) -> None:
    """Each kind of wrong file has its own reason, and the message names the file."""
    path = models.not_models(tmp_path)[reason]
    error = reason_of(read_model, path)
    assert error.reason == reason
    assert path.name in error.message
    assert not error.retryable


def test_a_pointer_file_says_how_large_the_real_one_is(tmp_path: Path) -> None:
    """Whoever forgot to pull sees from the size which file is meant."""
    assert f"{models.LFS_SIZE:,} bytes" in reason_of(read_model, models.not_models(tmp_path)["GitLfsPointer"]).message


@pytest.mark.parametrize("kept", [1, 3, 40, 200])
def test_a_file_cut_anywhere_is_truncated_or_no_model_but_never_read(kept: int, tmp_path: Path) -> None:
    """A partial upload is refused wherever it was cut."""
    whole = models.dense(tmp_path).read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[:kept])
    assert reason_of(read_model, path).reason in {"Truncated", "NotOnnx"}


def test_true_inputs_leave_weights_out(tmp_path: Path) -> None:
    """Old files list every weight among the inputs: one input is left, and weights are counted once."""
    model = read_model(models.weights_among_inputs(tmp_path))
    assert [(spec.name, spec.shape) for spec in model.inputs] == [("image", (-1, 3, 8, 8))]
    assert model.parameters == models.WEIGHTS_AMONG_INPUTS_PARAMETERS
    assert model.weight_bytes == 4 * models.WEIGHTS_AMONG_INPUTS_PARAMETERS


def test_an_unnamed_dimension_counts_as_free(tmp_path: Path) -> None:
    """Neither name nor value: free."""
    assert read_model(models.odd_outputs(tmp_path)).inputs[0].shape == (-1, 12)


def test_outputs_that_are_no_tensors_are_named_by_their_type(tmp_path: Path) -> None:
    """Sequences and maps have no shape; their type is spelled out."""
    outputs = {spec.name: (spec.dtype, spec.shape) for spec in read_model(models.odd_outputs(tmp_path)).outputs}
    assert outputs["label"] == ("string", (-1,))
    assert outputs["probabilities"] == ("sequence(map(string,float32))", None)


@pytest.mark.parametrize(
    ("build", "kind", "stored"),
    [
        (models.dense, "other", "fp32"),
        (models.half_dense, "other", "fp16"),
        (models.quantized_dense, "other", "int8"),
        (models.small_cnn, "cnn", "fp32"),
        (models.attention, "transformer", "fp32"),
        (models.recurrent, "recurrent", "fp32"),
    ],
    ids=["dense", "half", "quantised", "convolutions", "attention", "recurrent"],
)
def test_kind_and_precision_are_read_from_the_graph(build: object, kind: str, stored: str, tmp_path: Path) -> None:
    """Architecture and stored precision need no run."""
    model = read_model(build(tmp_path))  # type: ignore[operator]
    assert (model.architecture, model.stored_precision) == (kind, stored)


def test_a_real_network_is_recognised() -> None:
    """SqueezeNet v1.0 has 1.2 million parameters and is a convolutional network; its weights are made by the graph."""
    model = read_model(models.light("squeezenet"))
    assert model.architecture == "cnn"
    assert 1_230_000 < model.parameters < 1_260_000
    assert [spec.name for spec in model.inputs] == ["data_0"]


@pytest.mark.parametrize("input_name", ["p", "q", "r"])
def test_bounds_of_token_ids_come_from_the_tables_they_index(input_name: str, tmp_path: Path) -> None:
    """Table sizes, minus what the graph adds before the look-up."""
    found = read_model(models.token_tables(tmp_path)).value_ranges[input_name]
    assert (found.low, found.high) == models.TOKEN_TABLE_BOUNDS[input_name]


def test_a_table_stored_in_another_type_has_its_rows_all_the_same(tmp_path: Path) -> None:
    """Embeddings are often quantised."""
    found = read_model(models.quantized_table(tmp_path)).value_ranges["i"]
    assert (found.low, found.high) == (0, 49)


def test_an_index_that_cannot_be_traced_is_limited_to_zero_and_one(tmp_path: Path) -> None:
    """Between input and table lies what has no inverse here."""
    found = read_model(models.hidden_table(tmp_path)).value_ranges["i"]
    assert (found.low, found.high) == (0, 1)


def test_a_reshape_with_a_constant_batch_is_suspected(tmp_path: Path) -> None:
    """The node that fixes the batch is named without running anything."""
    assert read_model(models.batch_baked_in(tmp_path)).baked_batch_nodes == ("/head/Reshape_7",)
    assert read_model(models.dense(tmp_path)).baked_batch_nodes == ()


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/etc/hostname", "ExternalDataAbsolute"),
        ("C:\\weights.bin", "ExternalDataAbsolute"),
        ("../outside.bin", "ExternalDataOutside"),
        ("inner/../../outside.bin", "ExternalDataOutside"),
        ("absent.bin", "ExternalDataMissing"),
        ("n" * 300, "ExternalDataMissing"),
        ("", "ExternalDataMissing"),
    ],
)
def test_external_data_stays_in_the_folder(location: str, reason: str, tmp_path: Path) -> None:
    """A hostile or careless location is refused before any runtime opens it, and the weight is named."""
    (tmp_path / "outside.bin").write_bytes(bytes(1024))
    folder = tmp_path / "model"
    folder.mkdir()
    error = reason_of(read_model, models.external(folder, location))
    assert error.reason == reason
    assert "'w'" in error.message


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_external_data_behind_a_link_is_refused(linked: str, tmp_path: Path) -> None:
    """A link inside the folder leads out of it just as well, whether it is the file or a folder on the way."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights.bin").write_bytes(bytes(1024))
    folder = tmp_path / "model"
    folder.mkdir()
    if linked == "file":
        (folder / "weights.bin").symlink_to(outside / "weights.bin")
    else:
        (folder / "sub").symlink_to(outside)
    location = "weights.bin" if linked == "file" else "sub/weights.bin"
    assert reason_of(read_model, models.external(folder, location)).reason == "ExternalDataSymlink"


def test_external_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """Offset and length have to lie inside the file."""
    error = reason_of(read_model, models.external(tmp_path, "weights.bin", data_bytes=1000, offset=16))
    assert error.reason == "ExternalDataTruncated"
    assert "1040" in error.message
    assert "1000" in error.message


def test_external_weights_are_counted_without_being_loaded(tmp_path: Path) -> None:
    """Three gibibytes of sparse weights: the figure is right, the file is a few hundred bytes, and digest covers both."""
    width = 28378  # 4 · 28378² bytes are 3.0 GiB: past what one protobuf message can hold
    path = models.external(tmp_path, "weights.bin", data_bytes=0, width=4)
    small = read_model_size(path, tmp_path)
    assert small == 64
    big = models.external(tmp_path, "big.bin", data_bytes=4 * width * width, width=width)
    model = onnx.load(big, load_external_data=False)
    from metainfer_probe.static_facts import count_weights

    assert count_weights(model).total_bytes == 4 * width * width > 3 << 30
    assert big.stat().st_size < 1000


def read_model_size(path: Path, folder: Path) -> int:
    """Weight bytes of a model whose data file is filled up to what it needs."""
    (folder / "weights.bin").write_bytes(bytes(64))
    return read_model(path).weight_bytes


def test_memory_counts_external_weights_once_and_inner_ones_twice(tmp_path: Path) -> None:
    """Weights inside the file exist as file content and as tensors while loading."""
    inner, outer = read_model(models.dense(tmp_path, width=256)), read_model(models.external(tmp_path, "w.bin", data_bytes=262144, width=256))
    assert memory_needed_bytes(inner) - memory_needed_bytes(outer) == inner.file_bytes


def test_the_digest_covers_external_data(tmp_path: Path) -> None:
    """Other weights are another model although the file is the same."""
    path = models.external(tmp_path, "w.bin", data_bytes=1024)
    before = read_model(path).digest
    (tmp_path / "w.bin").write_bytes(b"\x01" * 1024)
    after = read_model(path).digest
    assert before != after
    assert after == digest_files((path, tmp_path / "w.bin"))


@pytest.mark.parametrize(
    ("kind", "ir", "limit", "lowers"),
    [
        (TensorProto.FLOAT, 14, 8, True),
        (TensorProto.FLOAT, 14, 3, False),
        (TensorProto.UINT4, 14, 9, False),
        (TensorProto.UINT4, 14, 10, True),
        (TensorProto.FLOAT8E4M3FN, 12, 9, True),
        (TensorProto.FLOAT8E4M3FN, 12, 8, False),
    ],
)
def test_the_format_number_is_lowered_only_where_nothing_needs_it(kind: int, ir: int, limit: int, *, lowers: bool, tmp_path: Path) -> None:
    """The features of each IR version decide; initialisers that are no inputs need version 4."""
    model = onnx.load(models.needs_type(tmp_path, kind, ir))
    copy = lowered_copy(model, limit)
    assert (copy is not None) == lowers
    assert copy is None or copy.ir_version == limit
    assert model.ir_version == ir


def test_fields_of_a_future_format_forbid_lowering(tmp_path: Path) -> None:
    """What this code does not know, it cannot call unneeded."""
    model = onnx.load(models.dense(tmp_path, ir=14))
    assert needed_ir_version(model) == 4
    future = onnx.load(models.from_the_future(tmp_path))
    assert needed_ir_version(future) == 20


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/hostname", "PathOutsideVolume"),
        ("../x.onnx", "PathOutsideVolume"),
        ("a/../../x.onnx", "PathOutsideVolume"),
        ("", "PathOutsideVolume"),
        ("no.onnx", "ModelNotFound"),
        (".", "PathOutsideVolume"),
        ("sub", "ModelNotFound"),
        ("n" * 300, "ModelNotFound"),
        ("/".join(["n" * 200] * 8), "ModelNotFound"),
    ],
)
def test_a_path_stays_below_the_volume(path: str, reason: str, tmp_path: Path) -> None:
    """Absolute paths, ``..``, nothing, a missing file and a folder each end in a reason."""
    (tmp_path / "sub").mkdir()
    assert reason_of(fetch_model, ModelSource(path=path), tmp_path, tmp_path).reason == reason


@pytest.mark.parametrize("depth", ["file", "folder"])
def test_a_path_through_a_link_is_refused(depth: str, tmp_path: Path) -> None:
    """A link in the volume may lead anywhere, so none is followed."""
    real = tmp_path / "real"
    real.mkdir()
    models.dense(real)
    volume = tmp_path / "volume"
    volume.mkdir()
    if depth == "file":
        (volume / "model.onnx").symlink_to(real / "dense.onnx")
    else:
        (volume / "folder").symlink_to(real)
    path = "model.onnx" if depth == "file" else "folder/dense.onnx"
    assert reason_of(fetch_model, ModelSource(path=path), volume, tmp_path).reason == "PathIsSymlink"


def test_a_model_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    """The message gives both numbers."""
    path = models.dense(tmp_path)
    error = reason_of(fetch_model, ModelSource(path=path.name, max_bytes=100), tmp_path, tmp_path)
    assert error.reason == "ModelTooLarge"
    assert str(path.stat().st_size) in error.message


def test_a_source_needs_exactly_one_place(tmp_path: Path) -> None:
    """Neither both nor none."""
    assert reason_of(fetch_model, ModelSource(), tmp_path, tmp_path).reason == "SourceInvalid"
    assert reason_of(fetch_model, ModelSource(path="a", url="http://h/a"), tmp_path, tmp_path).reason == "SourceInvalid"


def test_a_pinned_digest_is_checked_with_and_without_external_data(tmp_path: Path) -> None:
    """A pin may be of the file or of the file with its data; any other content is a mismatch."""
    path = models.external(tmp_path, "w.bin", data_bytes=1024)
    for pin in (digest_files((path,)), digest_files((path, tmp_path / "w.bin"))):
        assert fetch_model(ModelSource(path=path.name, sha256=pin.upper()), tmp_path, tmp_path) == path
    assert reason_of(fetch_model, ModelSource(path=path.name, sha256="0" * 64), tmp_path, tmp_path).reason == "DigestMismatch"


def test_content_that_is_no_model_any_more_has_changed_as_well(tmp_path: Path) -> None:
    """A pinned file that was replaced by something else: looked at in a process of its own, and called what it is."""
    path = models.not_models(tmp_path)["Truncated"]
    assert reason_of(fetch_model, ModelSource(path=path.name, sha256="0" * 64), tmp_path, tmp_path).reason == "DigestMismatch"
