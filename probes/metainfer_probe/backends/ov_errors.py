"""OpenVINO's error texts, turned into reasons that name the thing. Texts were read from OpenVINO 2026.4."""

from __future__ import annotations

import re
from pathlib import Path

from metainfer_probe.backends.base import ProbeError

_UNCONVERTED = re.compile(r"No conversion rule found for operations: ([^\n]+)")
_VALUE_TYPE = re.compile(r"Unsupported value_info type: (\S+)")
_SOURCE = re.compile(r"(?:Exception from|Check '.*?' failed at) src/\S+:\s*")


def explain_load(error: Exception, path: Path, runtime: str) -> ProbeError:
    """Why a file could not be read or compiled: ``UnknownOperators``, ``OutputsUnsupported``, ``OutOfMemory``, ``RuntimeCannotLoad``.

    OpenVINO reads fewer models than ONNX Runtime, so a refusal says nothing about the file.
    """
    text = str(error)
    unconverted = _UNCONVERTED.search(text)
    if unconverted:
        names = [name.strip() for name in unconverted.group(1).split(",")]
        domains = sorted({name.rpartition(".")[0] or "ai.onnx" for name in names})
        return ProbeError("UnknownOperators", f"{runtime} cannot convert {', '.join(names)[:300]} (domain {', '.join(domains)})")
    value = _VALUE_TYPE.search(text)
    if value:
        return ProbeError("OutputsUnsupported", f"{runtime} takes tensors only; {value.group(1)} is a sequence, map or optional")
    if "bad_alloc" in text or "bad allocation" in text:
        return ProbeError("OutOfMemory", f"{runtime} could not get the memory it needs for {path.name}")
    return ProbeError("RuntimeCannotLoad", f"{runtime} cannot load {path.name}: {_clean(text, path)}")


def explain_run(error: Exception) -> ProbeError:
    """Why a run failed: ``InputShapeRefused``, ``OutOfMemory`` or ``NodeFailed`` with what the runtime says."""
    text = str(error)
    if "bad_alloc" in text or "bad allocation" in text:
        return ProbeError("OutOfMemory", "OpenVINO could not get the memory it needs to run")
    if "doesn't match" in text or "not compatible" in text or ("incompatible with" in text and "tensor" in text):
        return ProbeError("InputShapeRefused", _clean(text, None))
    return ProbeError("NodeFailed", _clean(text, None))


def _clean(text: str, path: Path | None) -> str:
    text = _SOURCE.sub("", text)
    if path is not None:
        text = text.replace(str(path), path.name)
    return " ".join(text.split())[:300]
