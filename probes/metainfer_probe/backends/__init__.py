"""The runtimes of this image, by ONNX Runtime's provider name. A new vendor is one file and one line in ``_FACTORIES``.

Whatever loads a runtime comes through this package, so this is where the runtimes' reports to their makers are switched off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache

from metainfer_probe.backends.base import Backend, ProbeError


def _keep_runtimes_from_reporting() -> None:
    """No usage data leaves the user's cluster; and on a read-only root neither runtime complains about a file it cannot write.

    onnxruntime (since 1.31 also on Linux) reads ``ORT_DISABLE_TELEMETRY`` when its library is loaded, before anything of its
    interface can be called. ``import openvino`` sends an event through the package ``openvino_telemetry`` if that can be imported,
    and has no switch; with ``None`` in its place the import fails and openvino takes its own stub.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # Python's way to say: cannot be imported


_keep_runtimes_from_reporting()


def _onnxruntime(provider: str) -> Callable[[], Backend]:
    def make() -> Backend:
        from metainfer_probe.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(provider)

    return make


def _openvino() -> Backend:
    from metainfer_probe.backends.openvino import OpenVinoBackend

    return OpenVinoBackend()


_FACTORIES: Mapping[str, Callable[[], Backend]] = {
    "CPUExecutionProvider": _onnxruntime("CPUExecutionProvider"),
    "CUDAExecutionProvider": _onnxruntime("CUDAExecutionProvider"),
    "TensorrtExecutionProvider": _onnxruntime("TensorrtExecutionProvider"),
    "OpenVINOExecutionProvider": _openvino,
}
"""Imports happen inside: an image may hold one runtime only, and importing one costs up to a second."""


@cache
def find_backend(provider: str) -> Backend:
    """The backend of a provider; raises ProbeError ``ProviderMissing`` naming what this image has."""
    factory = _FACTORIES.get(provider)
    if factory is None:
        raise _missing(provider, "")
    try:
        return factory()
    except (ImportError, ProbeError) as error:
        raise _missing(provider, f" ({error})") from error


@cache
def available_providers() -> tuple[str, ...]:
    """Providers whose runtime is installed here and offers them, in order of registration."""
    return tuple(provider for provider in _FACTORIES if _is_available(provider))


def is_registered(provider: str) -> bool:
    """Whether this code knows the provider at all; costs no import."""
    return provider in _FACTORIES


def _is_available(provider: str) -> bool:
    try:
        _FACTORIES[provider]()
    except (ImportError, ProbeError):
        return False
    return True


def _missing(provider: str, detail: str) -> ProbeError:
    have = ", ".join(available_providers()) or "none"
    return ProbeError("ProviderMissing", f"this probe image has no {provider}{detail}; it has: {have}")
