"""The model as a file: fetched from where the user keeps it, recognised, and read without running anything.

Model files are untrusted. ``fetch_model`` confines paths to the mounted volume; ``read_model`` looks at the first bytes
before it parses, confines external data, and returns plain figures: no protobuf object leaves this module, so that a
result can cross a process boundary. ``read_model`` belongs into a child process (see ``isolate``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.classify import Architecture, network_kind, operator_histogram
from metainfer_probe.contract import ModelSource, Precision, TensorSpec
from metainfer_probe.download import download
from metainfer_probe.external_data import check_external_data
from metainfer_probe.graph import dimension_names, iter_nodes, iter_tensors, spec, true_inputs
from metainfer_probe.graph_faults import refuse_faulty_graph
from metainfer_probe.isolate import run_in_child
from metainfer_probe.not_onnx import explain_parse_failure, refuse_other_formats
from metainfer_probe.static_facts import count_weights, find_baked_batch, longest_path, stored_precision
from metainfer_probe.value_ranges import ValueRange, find_value_ranges

PROTOBUF_LIMIT_BYTES = (1 << 31) - 1
"""No protobuf message can be larger; weights beyond it have to lie in external data."""
PARSE_MEMORY_FACTOR = 3
"""File bytes to resident bytes while parsing: the read buffer, the message, and one copied tensor."""
DIGEST_SECONDS = 120.0
"""16 GiB of external data at 140 MB/s."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a model file says about itself; sizes in bytes, free dimensions -1."""

    path: Path
    digest: str
    file_bytes: int
    weight_bytes: int
    parameters: int
    nodes: int
    depth: int
    """Nodes on the longest path from an input to an output."""
    ir_version: int
    opset: int
    opsets: Mapping[str, int]
    architecture: Architecture
    stored_precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dimension_names: Mapping[str, tuple[str, ...]]
    value_ranges: Mapping[str, ValueRange]
    operators: Mapping[str, int]
    external_files: tuple[str, ...]
    baked_batch_nodes: tuple[str, ...]
    """Nodes whose constant target shape fixes the first dimension although the input's is free."""

    @property
    def is_quantized(self) -> bool:
        """The file computes in int8 already."""
        return self.stored_precision == "int8"


def fetch_model(source: ModelSource, volume: Path, workdir: Path) -> Path:
    """The local path of a source: checked below ``volume``, or downloaded into ``workdir``.

    Raises ProbeError: ``SourceInvalid``, ``PathOutsideVolume``, ``PathIsSymlink``, ``ModelNotFound``, ``ModelTooLarge``,
    ``DigestMismatch``, or what ``download`` raises.
    """
    if (source.path is None) == (source.url is None):
        raise ProbeError("SourceInvalid", "a source needs exactly one of a path below the volume and a URL")
    if source.url is not None:
        path = download(source.url, workdir, max_bytes=source.max_bytes)
    else:
        path = _confined(source.path or "", volume)
        size = path.stat().st_size
        if size > source.max_bytes:
            raise ProbeError("ModelTooLarge", f"{source.path} has {size} bytes, the limit is {source.max_bytes}")
    if source.sha256 is not None:
        _check_digest(path, source.sha256.lower())
    return path


def read_model(path: Path) -> ModelFile:
    """Parse a model file without its external data and state what it holds.

    Raises ProbeError: the reasons of ``not_onnx``, ``external_data`` and ``graph_faults``, ``OutOfMemory``, ``ModelTooLarge``,
    ``GraphUnreadable``.
    """
    model = parse_model(path)
    try:
        refuse_faulty_graph(model)
        return _describe(model, path)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # A stranger's file: what nobody thought of must not end as a fault of ours.
        raise ProbeError("GraphUnreadable", f"model file {path.name} parses, but its graph makes no sense: {type(error).__name__}: {error}"[:512]) from error


def _describe(model: ModelProto, path: Path) -> ModelFile:
    folder = path.parent
    external = check_external_data(iter_tensors(model), folder)
    weights = count_weights(model)
    inputs = true_inputs(model)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    return ModelFile(
        path=path,
        digest=digest_files((path, *(folder / name for name in external))),
        file_bytes=path.stat().st_size,
        weight_bytes=weights.total_bytes,
        parameters=weights.elements,
        nodes=sum(1 for _ in iter_nodes(model)),
        depth=longest_path(model.graph),
        ir_version=max(0, model.ir_version),
        opset=max(0, opsets.get("ai.onnx", 0)),
        opsets=opsets,
        architecture=network_kind(model),
        stored_precision=stored_precision(model),
        inputs=tuple(spec(value) for value in inputs),
        outputs=tuple(spec(value) for value in model.graph.output),
        dimension_names={value.name: dimension_names(value) for value in inputs},
        value_ranges=find_value_ranges(model, tuple(value.name for value in inputs)),
        operators=operator_histogram(model),
        external_files=external,
        baked_batch_nodes=find_baked_batch(model),
    )


def parse_model(path: Path) -> ModelProto:
    """The parsed file, external data left where it is. Raises the reasons of ``not_onnx``, ``OutOfMemory``, ``ModelTooLarge``."""
    refuse_other_formats(path)
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT_BYTES:
        raise ProbeError("ModelTooLarge", f"model file {path.name} has {size} bytes; one ONNX file holds at most 2 GiB, save its weights as external data")
    limit = memory_limit_bytes()
    if size * PARSE_MEMORY_FACTOR > limit:
        raise ProbeError(
            "OutOfMemory", f"reading {path.name} needs about {size * PARSE_MEMORY_FACTOR / 2**30:.2f} GiB of memory, the limit here is {limit / 2**30:.2f} GiB"
        )
    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise explain_parse_failure(path) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ProbeError("NotOnnx", f"model file {path.name} ({size} bytes) parses but holds no graph")
    return model


def memory_needed_bytes(model: ModelFile) -> int:
    """Resident bytes to load and run once, at least: weights twice while a runtime repacks them is not counted, the file is.

    Weights in the file itself exist as file content and as tensors at the same time; external ones are mapped once.
    """
    base = 150 << 20  # measured: an idle onnxruntime or openvino process with numpy and onnx
    return base + model.weight_bytes + (0 if model.external_files else model.file_bytes)


def find_memory_shortage(model: ModelFile, limit_bytes: int) -> ProbeError | None:
    """Said before anything is loaded: an out-of-memory kill would tell nobody how much is needed, and be tried again."""
    needed = memory_needed_bytes(model)
    if needed <= limit_bytes:
        return None
    said = f"the model needs about {needed / 2**30:.2f} GiB of memory to load, {limit_bytes / 2**30:.2f} GiB are allowed here"
    return ProbeError("OutOfMemory", f"{said}: give the target's container more")


def digest_files(paths: tuple[Path, ...]) -> str:
    """sha256 (hex) over the contents of the files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _check_digest(path: Path, wanted: str) -> None:
    """A pin may be the digest of the file alone, or of the model with its external data (``ProfileReport.digest``)."""
    found = digest_files((path,))
    if found == wanted or _digest_with_external_data(path) == wanted:
        return
    raise ProbeError(
        "DigestMismatch", f"{path.name} has changed: sha256 is {found[:16]}…, {wanted[:16]}… was asked for; put that file back, or start from the new one"
    )


def _digest_with_external_data(path: Path) -> str:
    """In a process of its own, because it parses the file; empty where that cannot be done."""
    if path.suffix != ".onnx":
        return ""
    try:
        return str(run_in_child(model_digest, (path,), timeout_seconds=DIGEST_SECONDS, memory_limit_bytes=memory_limit_bytes() // 2))
    except ProbeError:
        return ""


def model_digest(path: Path) -> str:
    """sha256 (hex) of a model and its external data. Parses the file: for a child process."""
    external = check_external_data(iter_tensors(parse_model(path)), path.parent)
    return digest_files((path, *(path.parent / name for name in external)))


def _confined(relative: str, volume: Path) -> Path:
    parts = Path(relative).parts
    if not parts or "\x00" in relative:
        raise ProbeError("PathOutsideVolume", "the path of the model is empty")
    if Path(relative).is_absolute() or ".." in parts:
        raise ProbeError("PathOutsideVolume", f"{relative} leads outside the volume; give a path below it, without '..'")
    path = volume
    try:
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise ProbeError("PathIsSymlink", f"{relative} is reached through a symbolic link ({part}); give the real path")
        if not path.exists():
            raise ProbeError("ModelNotFound", f"{relative} is not on the volume")
        if not path.is_file():
            raise ProbeError("ModelNotFound", f"{relative} is not a file")
    except OSError as error:  # a name longer than any, a folder that may not be entered
        raise ProbeError("ModelNotFound", f"{relative[:200]} cannot be opened on the volume: {error.strerror}") from error
    return path
