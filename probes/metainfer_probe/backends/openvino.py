"""Native OpenVINO on the CPU as a backend, under the name ``OpenVINOExecutionProvider``.

Precision is always set and read back: left alone, OpenVINO computes an fp32 file in bf16 on CPUs that have it. bf16 and
(where the CPU has it) fp16 come from the fp32 file by a hint; int8 needs a quantised file. OpenVINO has no fallback:
either the plugin runs the whole graph or it refuses it.
"""

from __future__ import annotations

import queue
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import openvino as ov

from metainfer_probe.backends.base import Feeds, KernelTime, ProbeError, Session, SessionOptions
from metainfer_probe.backends.ov_errors import explain_load, explain_run
from metainfer_probe.backends.ov_work import count_original_macs, layer_macs, seen
from metainfer_probe.classify import op_class
from metainfer_probe.contract import Precision, Readback, TensorSpec
from metainfer_probe.dtypes import from_runtime
from metainfer_probe.work import TensorSeen, count_bytes

_DEVICE = "CPU"
_HINT = "INFERENCE_PRECISION_HINT"
_CAPABILITY: dict[Precision, str] = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
_PRECISION_OF: dict[str, Precision] = {
    "f32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "f16": "fp16", "float16": "fp16", "u8": "int8", "i8": "int8",
}  # fmt: skip
_NOT_EXECUTED = frozenset(("Const", "Input", "Output", "Parameter", "Result"))
_COMPUTE_CLASSES = frozenset(("matmul", "convolution", "attention", "recurrent"))


class OpenVinoBackend:
    """The CPU plugin of the installed OpenVINO. Raises ProbeError ``ProviderMissing`` when there is no such device."""

    provider = "OpenVINOExecutionProvider"

    def __init__(self) -> None:
        self._core = ov.Core()
        ov.Type.f32.to_dtype()  # builds a static table; two threads that meet in its first use wait for each other for ever (2026.4.1)
        if _DEVICE not in self._core.available_devices:
            raise ProbeError("ProviderMissing", f"{self.runtime_version()} finds no {_DEVICE} device here")

    def runtime_version(self) -> str:
        """Version of the openvino wheel."""
        return f"openvino {ov.__version__.split('-')[0]}"

    def native_precisions(self) -> tuple[Precision, ...]:
        """What the plugin says this CPU computes in (``OPTIMIZATION_CAPABILITIES``)."""
        return tuple(precision for precision, name in _CAPABILITY.items() if name in self._capabilities)

    def file_precision(self, precision: Precision) -> Precision | None:
        """None for what a hint makes from the fp32 file; ``int8`` and, on CPUs without fp16, ``fp16`` are files.

        Raises ``PrecisionUnsupported`` for bf16 on a CPU without it.
        """
        if precision == "bf16" and "bf16" not in self.native_precisions():
            raise ProbeError("PrecisionUnsupported", f"this CPU has no bf16 ({self.runtime_version()} offers {', '.join(self.native_precisions())})")
        if precision == "fp16" and "fp16" not in self.native_precisions():
            return "fp16"
        return "int8" if precision == "int8" else None

    def open(self, model: Path, options: SessionOptions) -> Session:
        """Load a file; see ``Backend.open``."""
        hint = {"bf16": "bf16", "fp16": "f16"}.get(options.precision, "f32")
        if self.file_precision(options.precision) == "fp16":
            hint = "f32"
        properties = {
            _HINT: hint,
            "NUM_STREAMS": options.parallel_runs,
            "INFERENCE_NUM_THREADS": options.threads * options.parallel_runs,
            "ENABLE_CPU_PINNING": False,  # several containers of one host would pin themselves to the same core
            "PERF_COUNT": options.profiling,
        }
        try:
            graph = self._core.read_model(model)
            if options.fixed_shapes:
                graph.reshape({_find_port(graph.inputs, name): ov.PartialShape(list(shape)) for name, shape in options.fixed_shapes.items()})
            compiled = self._core.compile_model(graph, _DEVICE, properties)
        except ProbeError:
            raise
        except Exception as error:
            raise explain_load(error, model, self.runtime_version()) from error
        return _OpenSession(self.provider, compiled, graph if options.profiling else None, options)

    @cached_property
    def _capabilities(self) -> tuple[str, ...]:
        return tuple(self._core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES"))


@dataclass(slots=True)
class _LayerTimes:
    """Times of one executed layer, one per run after the first."""

    layer_type: str
    kernel: str
    times_us: list[float] = field(default_factory=list)


class _OpenSession:
    """See ``Session``; one infer request per parallel caller."""

    def __init__(self, provider: str, compiled: ov.CompiledModel, graph: ov.Model | None, options: SessionOptions) -> None:
        self._provider, self._compiled, self._profiling = provider, compiled, options.profiling
        self._graph = graph
        self._last_feeds: Feeds | None = None
        self._ports = {name: port for port in compiled.inputs for name in port.names}
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(options.parallel_runs):
            self._requests.put(compiled.create_infer_request())
        self._layers: dict[str, _LayerTimes] = {}
        self._runs = 0
        self._activation_bytes = 0

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """See ``Session.inputs``; an unnamed input goes by its friendly name."""
        return [_spec(port) for port in self._compiled.inputs]

    def run(self, feeds: Feeds) -> list[object]:
        """See ``Session.run``."""
        request = self._requests.get()
        try:
            by_port = {self._port(name): value for name, value in feeds.items()}
            results = request.infer(by_port, share_inputs=True, share_outputs=False)
            if self._profiling:
                self._last_feeds = feeds
                self._record(request)
            return [results[port] for port in self._compiled.outputs]
        except ProbeError:
            raise
        except Exception as error:
            raise explain_run(error) from error
        finally:
            self._requests.put(request)

    def readback(self) -> Readback:
        """Precision that most computing layers got (or the compiled model's own setting, without such layers)."""
        layers = [_rt_info(node) for node in self._compiled.get_runtime_model().get_ops()]
        executed = [layer for layer in layers if layer["layerType"] not in _NOT_EXECUTED]
        ran_in = Counter(_PRECISION_OF.get(layer.get("runtimePrecision", ""), "fp32") for layer in executed if op_class(layer["layerType"]) in _COMPUTE_CLASSES)
        setting = _PRECISION_OF.get(self._compiled.get_property(_HINT).get_type_name(), "fp32")
        precision = ran_in.most_common(1)[0][0] if ran_in else setting
        return Readback(provider=self._provider, precision=precision, coverage_permille=1000, assigned_nodes=len(executed))

    def kernel_times(self) -> list[KernelTime]:
        """Medians over the runs after the first, with the work of the original operations each layer stands for."""
        if not self._profiling:
            return []
        nodes = {node.get_friendly_name(): node for node in self._compiled.get_runtime_model().get_ops()}
        originals = count_original_macs(self._graph, self._last_feeds) if self._graph is not None and self._last_feeds is not None else {}
        times = []
        for name, layer in self._layers.items():
            inputs, outputs = _shapes(nodes[name]) if name in nodes else ((), ())
            self._activation_bytes = max(self._activation_bytes, _live_bytes(nodes[name]) if name in nodes else 0)
            stands_for = _rt_info(nodes[name]).get("originalLayersNames", "") if name in nodes else ""
            shapes = ([tensor.shape for tensor in inputs], [tensor.shape for tensor in outputs])
            times.append(
                KernelTime(
                    node=name,
                    op_type=layer.layer_type,
                    provider=self._provider,
                    duration_us=statistics.median(layer.times_us),
                    op_class=op_class(layer.layer_type),
                    macs=layer_macs(layer.layer_type, stands_for, shapes, originals),
                    bytes_moved=count_bytes(inputs, outputs),
                    kernel=layer.kernel,
                )
            )
        return times

    def activation_bytes(self) -> int:
        """See ``Session.activation_bytes``: inputs and outputs of the widest layer, a lower bound."""
        return self._activation_bytes

    def close(self) -> None:
        """See ``Session.close``."""
        self._requests = queue.SimpleQueue()
        self._ports = {}
        self._graph = None
        del self._compiled

    def _port(self, name: str) -> Any:
        try:
            return self._ports[name]
        except KeyError:
            known = ", ".join(sorted(self._ports))
            raise ProbeError("InputMissing", f"the model has no input {name!r}; it has: {known}") from None

    def _record(self, request: ov.InferRequest) -> None:
        self._runs += 1
        if self._runs == 2:
            self._layers = {}  # the first run sets up memory and kernels
        for layer in request.profiling_info:
            if layer.status == layer.status.EXECUTED:
                entry = self._layers.setdefault(layer.node_name, _LayerTimes(layer.node_type, layer.exec_type))
                entry.times_us.append(layer.real_time.total_seconds() * 1e6)


def _find_port(ports: Any, name: str) -> Any:
    """By any of a port's names: ``any_name`` may be an internal one after a conversion to fp16."""
    for port in ports:
        if name in port.names:
            return port
    raise ProbeError("InputMissing", f"the model has no input {name!r}")


def _spec(port: Any) -> TensorSpec:
    partial = port.get_partial_shape()
    shape = None if partial.rank.is_dynamic else tuple(size.get_length() if size.is_static else -1 for size in partial)
    name = min(port.names) if port.names else port.get_node().get_friendly_name()
    return TensorSpec(name=name[:512], dtype=from_runtime(port.get_element_type().get_type_name()), shape=shape)


def _rt_info(node: Any) -> dict[str, str]:
    return {key: str(getattr(value, "value", value)) for key, value in node.get_rt_info().items()}


def _shapes(node: Any) -> tuple[tuple[TensorSeen, ...], tuple[TensorSeen, ...]]:
    inputs = tuple(seen(port.get_source_output()) for port in node.inputs())
    return tuple(tensor for tensor in inputs if tensor is not None), tuple(tensor for tensor in map(seen, node.outputs()) if tensor is not None)


def _live_bytes(node: Any) -> int:
    """Activations alive while a layer runs: computed inputs and outputs; 0 for a layer that only prepares weights."""
    sources = [port.get_source_output() for port in node.inputs()]
    computed = [seen(source) for source in sources if _rt_info(source.get_node()).get("layerType") != "Const"]
    if not computed:
        return 0
    return count_bytes([tensor for tensor in computed if tensor is not None], [tensor for tensor in map(seen, node.outputs()) if tensor is not None])
