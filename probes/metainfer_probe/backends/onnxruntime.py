"""ONNX Runtime as a backend, for any of its providers.

What a session says is read back from it: which provider took which node (``record_ep_graph_assignment_info``), and
whether half precision is computed or only stored (one profiled node). Precisions come as files (``file_precision``), but for
TensorRT, which makes fp16 at load. Node times under CUDA are those of the launches unless CUDA_LAUNCH_BLOCKING=1 is set.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper

from metainfer_probe.backends.base import Feeds, KernelTime, ProbeError, Session, SessionOptions
from metainfer_probe.backends.ort_convolutions import find_convolution_weights
from metainfer_probe.backends.ort_errors import explain_load, explain_run, find_ir_limit
from metainfer_probe.backends.ort_profile import NodeEvent, StaticKnowledge, median_kernel_times, peak_live_bytes, read_profile
from metainfer_probe.backends.ort_providers import COMPUTES_INT8, CONVERTS_AT_LOAD, build_provider_chain
from metainfer_probe.contract import Precision, Readback, TensorSpec
from metainfer_probe.dtypes import from_runtime
from metainfer_probe.ir_version import lowered_copy, needed_ir_version
from metainfer_probe.model_file import parse_model
from metainfer_probe.static_facts import stored_precision, weights_of_nodes

COUNTING_LIMIT_BYTES = 1 << 30
"""Loading more weights once again only to count them takes longer than the portrait may; shapes then come from the file."""
_LOG_FATAL_ONLY = 4
_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_NO_PREPACKING = "session.disable_prepacking"


class OnnxRuntimeBackend:
    """One provider of the installed ONNX Runtime. Raises ProbeError ``ProviderMissing`` when the wheel lacks it."""

    def __init__(self, provider: str) -> None:
        if provider not in ort.get_available_providers():
            raise ProbeError("ProviderMissing", f"onnxruntime {ort.__version__} here was built without {provider}")
        self.provider = provider

    def runtime_version(self) -> str:
        """Version of the onnxruntime wheel."""
        return f"onnxruntime {ort.__version__}"

    def native_precisions(self) -> tuple[Precision, ...]:
        """fp32; fp16 where a profiled product of two fp16 matrices really ran on fp16 operands, or the provider makes it at load; int8 with kernels."""
        half: tuple[Precision, ...] = ("fp16",) if self._converts("fp16") or _computes_half(self.provider) else ()
        integer: tuple[Precision, ...] = ("int8",) if self.provider in COMPUTES_INT8 else ()
        return ("fp32", *half, *integer)

    def file_precision(self, precision: Precision) -> Precision | None:
        """fp32 is the file as given; fp16 and int8 are files of their own. Raises ``PrecisionUnsupported`` for bf16."""
        if precision == "bf16":
            raise ProbeError("PrecisionUnsupported", f"{self.runtime_version()} has no bf16 kernels for {self.provider}")
        return None if precision == "fp32" or self._converts(precision) else precision

    def _converts(self, precision: Precision) -> bool:
        return precision in CONVERTS_AT_LOAD.get(self.provider, ())

    def open(self, model: Path, options: SessionOptions) -> Session:
        """Load a file; see ``Backend.open``."""
        self.file_precision(options.precision)
        session = _OpenSession(self.provider, model, options)
        assigned = session.readback().assigned_nodes
        if assigned == 0 and session.all_nodes > 0:
            raise ProbeError("ProviderRanNothing", f"{self.provider} was accepted but no node of the model runs on it")
        return session


class _OpenSession:
    """See ``Session``. ``all_nodes`` counts the nodes that were given to any provider."""

    def __init__(self, provider: str, model: Path, options: SessionOptions) -> None:
        self._provider, self._model, self._options = provider, model, options
        self._folder = tempfile.TemporaryDirectory(prefix="metainfer-ort-") if options.profiling else None
        self._last_feeds: Feeds | None = None
        self._precision: Precision | None = None
        self._session = _load(model, self._session_options(), provider, options)
        self._names = [value.name for value in self._session.get_outputs()]
        self._assignment = [(part.ep_name, len(part.get_nodes())) for part in self._session.get_provider_graph_assignment_info()]
        self.all_nodes = sum(count for _, count in self._assignment)
        self._activation_bytes = 0

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """See ``Session.inputs``: ONNX Runtime lists overridable initialisers elsewhere."""
        return [_spec(value) for value in self._session.get_inputs()]

    def run(self, feeds: Feeds) -> list[object]:
        """See ``Session.run``."""
        self._last_feeds = feeds
        try:
            return list(self._session.run(self._names, dict(feeds)))
        except Exception as error:
            raise explain_run(error) from error

    def readback(self) -> Readback:
        """Nodes on the provider, share of all nodes, and the precision that this file computes in here."""
        assigned = sum(count for name, count in self._assignment if name == self._provider)
        if self._precision is None:
            converted = self._options.precision in CONVERTS_AT_LOAD.get(self._provider, ())
            self._precision = self._options.precision if converted else _effective_precision(self._model, self._provider)
        coverage = round(1000 * assigned / self.all_nodes) if self.all_nodes else 1000
        return Readback(provider=self._provider, precision=self._precision, coverage_permille=coverage, assigned_nodes=assigned)

    def kernel_times(self) -> list[KernelTime]:
        """Medians over the runs after the first. A second session without prepacking supplies the shapes of weights."""
        if self._folder is None:
            return []
        runs = read_profile(Path(self._session.end_profiling()))
        graph = parse_model(self._model)
        stored = weights_of_nodes(graph)
        shapes: dict[str, NodeEvent] = {}
        if self._last_feeds is not None and sum(stored.values()) < COUNTING_LIMIT_BYTES:
            del self._session  # both at once would double the memory
            for event in self._counting_run(self._last_feeds):
                shapes.setdefault(event.node, event)
        self._activation_bytes = peak_live_bytes(shapes.values() or runs[0])
        return median_kernel_times(runs, StaticKnowledge(shapes, stored, find_convolution_weights(graph)))

    def activation_bytes(self) -> int:
        """See ``Session.activation_bytes``."""
        return self._activation_bytes

    def close(self) -> None:
        """See ``Session.close``."""
        with contextlib.suppress(AttributeError):
            del self._session
        if self._folder is not None:
            self._folder.cleanup()

    def _session_options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = _LOG_FATAL_ONLY
        options.intra_op_num_threads = self._options.threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
        if self._folder is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        return options

    def _counting_run(self, feeds: Feeds) -> list[NodeEvent]:
        options = self._session_options()
        options.add_session_config_entry(_NO_PREPACKING, "1")
        try:
            session = _load(self._model, options, self._provider, self._options)
            session.run(self._names, dict(feeds))
            return read_profile(Path(session.end_profiling()))[0]
        except Exception:  # noqa: BLE001 - counting is an extra: without it, weights that were repacked are not counted
            return []


def _load(path: Path, options: ort.SessionOptions, provider: str, wanted: SessionOptions) -> ort.InferenceSession:
    """Open the file, or a copy of it with fixed shapes or with an older IR version where that suffices."""
    source: str | bytes = str(path)
    if wanted.fixed_shapes:
        source = _serialized(_with_shapes(parse_model(path), wanted.fixed_shapes), path, options)
    try:
        return _new_session(source, options, provider, wanted.precision)
    except ProbeError:
        raise
    except Exception as error:
        limit = find_ir_limit(str(error))
        if limit is None:
            raise explain_load(error, path) from error
        source = _serialized(_lowered(path, wanted, limit), path, options)
    try:
        return _new_session(source, options, provider, wanted.precision)
    except Exception as error:
        raise explain_load(error, path) from error


def _new_session(source: str | bytes, options: ort.SessionOptions, provider: str, precision: Precision) -> ort.InferenceSession:
    return ort.InferenceSession(source, options, providers=build_provider_chain(provider, precision))


def _lowered(path: Path, wanted: SessionOptions, limit: int) -> ModelProto:
    model = parse_model(path)
    lowered = lowered_copy(model, limit)
    if lowered is None:
        raise ProbeError(
            "RuntimeTooOld",
            f"onnxruntime {ort.__version__} reads IR versions up to {limit}; {path.name} has {model.ir_version} and needs {needed_ir_version(model)}",
        )
    return _with_shapes(lowered, wanted.fixed_shapes) if wanted.fixed_shapes else lowered


def _serialized(model: ModelProto, path: Path, options: ort.SessionOptions) -> bytes:
    """Bytes to load instead of the file; external data is still looked up in the file's folder."""
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(path.parent))
    return bytes(model.SerializeToString())


def _with_shapes(model: ModelProto, shapes: Any) -> ModelProto:
    for value in model.graph.input:
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape
            del dimensions.dim[:]
            for size in shapes[value.name]:
                dimensions.dim.add().dim_value = size
    return model


def _spec(value: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) and size > 0 else -1 for size in value.shape) if value.shape is not None else None
    return TensorSpec(name=value.name[:512], dtype=from_runtime(value.type)[:32], shape=shape)


def _effective_precision(model: Path, provider: str) -> Precision:
    stored = stored_precision(parse_model(model))
    return "fp32" if stored in ("fp16", "bf16") and not (stored == "fp16" and _computes_half(provider)) else stored


@cache
def _computes_half(provider: str) -> bool:
    """Runs one product of two fp16 matrices under the profiler and looks at the types its kernel got."""
    size = 32
    weight = helper.make_tensor("w", TensorProto.FLOAT16, [size, size], np.zeros((size, size), np.float16).tobytes(), raw=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [size, size]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "half")], "half", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory(prefix="metainfer-half-") as folder:
        options = ort.SessionOptions()
        options.log_severity_level = _LOG_FATAL_ONLY
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "half")
        try:
            session = _new_session(model.SerializeToString(), options, provider, "fp16")
            session.run(None, {"x": np.zeros((size, size), np.float16)})
        except Exception:  # noqa: BLE001 - a provider that refuses fp16 does not compute in it
            return False
        events = read_profile(Path(session.end_profiling()))[0]
    return any(event.op_type in ("MatMul", "FusedMatMul", "Gemm") and event.provider == provider and event.inputs[0].dtype == "float16" for event in events)
