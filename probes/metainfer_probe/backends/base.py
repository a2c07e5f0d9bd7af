"""What a runtime must offer to be measured. A new vendor is one more file beside this one.

Everything above (node, profile, bench, the demo server) speaks only these words; nothing here imports a runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from metainfer_probe.contract import Failure, OpClass, Precision, Readback, TensorSpec

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]


class ProbeError(Exception):
    """A measurement that ends with a reason for the user, never with a traceback."""

    def __init__(self, reason: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable

    def failure(self) -> Failure:
        """The same, as it travels in a report (message cut to what the contract allows)."""
        return Failure(reason=self.reason, message=self.message[:512], retryable=self.retryable)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session is opened. ``precision`` is always explicit: OpenVINO would pick bf16 by itself on some CPUs."""

    precision: Precision = "fp32"
    threads: int = 1
    parallel_runs: int = 1
    """How many callers may be inside ``Session.run`` at once."""
    profiling: bool = False
    fixed_shapes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One executed node: its own time (without the branches of a control-flow node) and its work in one run."""

    node: str
    op_type: str
    provider: str
    duration_us: float
    op_class: OpClass
    macs: int = 0
    bytes_moved: int = 0
    kernel: str = ""
    """The implementation the runtime chose, where it says (``brgconv_avx512_f32``)."""


class Session(Protocol):
    """A loaded model. ``run`` is safe from ``parallel_runs`` threads at once."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """True inputs only: initialisers that old files list among their inputs are left out."""

    def run(self, feeds: Feeds) -> list[object]:
        """Outputs in graph order; arrays, or lists / dicts for sequence and map outputs. Raises ProbeError."""

    def readback(self) -> Readback:
        """What really runs where, in which precision; read from the runtime, never assumed."""

    def kernel_times(self) -> list[KernelTime]:
        """Per node, the median over the runs after the first; empty unless ``profiling``. To be called once, after the last run."""

    def activation_bytes(self) -> int:
        """Peak of live activations in one profiled run; 0 unless profiled. To be called after ``kernel_times``."""

    def close(self) -> None:
        """Free the session; it cannot be used afterwards."""


class Backend(Protocol):
    """One runtime on this machine."""

    provider: str
    """ONNX Runtime's name for it."""

    def runtime_version(self) -> str:
        """Version of the runtime library."""

    def native_precisions(self) -> tuple[Precision, ...]:
        """Precisions that this card computes in without emulation, in this runtime."""

    def file_precision(self, precision: Precision) -> Precision | None:
        """Which variant of the file this precision needs: None = the file as given (the runtime converts at load).

        OpenVINO makes bf16 from the fp32 file by a hint; int8 needs a quantised file everywhere.
        Raises ProbeError ``PrecisionUnsupported``.
        """

    def open(self, model: Path, options: SessionOptions) -> Session:
        """Load a file. Raises ProbeError: RuntimeTooOld, UnknownOperators, ProviderRanNothing, ModelInvalid, ..."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Samples to run a model on: each a feed with batch 1, unbatched requests as a client would send them."""

    samples: tuple[Feeds, ...]
    source: str
    """``calibration``, ``generated`` or ``zeros`` (see contract.ProfileReport.inputs_source)."""
    batch_axis_free: bool
    """Axis 0 of every input is free, so that requests can be joined."""
    ragged: bool = False
    notes: tuple[str, ...] = field(default=())
