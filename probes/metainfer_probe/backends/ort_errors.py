"""ONNX Runtime's error texts, turned into reasons that name the thing.

The wheel's exceptions carry one long string with source paths and C++ signatures; what the user needs is the operator,
the node, the version. Texts were read from onnxruntime 1.31 and 1.32.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import onnxruntime as ort

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.graph import iter_nodes
from metainfer_probe.model_file import parse_model

_IR_LIMIT = re.compile(r"Unsupported model IR version: \d+, max supported IR version: (\d+)")
_OPSET_LIMIT = re.compile(r"Opset (\d+) is under development.*official support for domain (\S+) is till opset (\d+)", re.DOTALL)
_NODE = re.compile(r"running (\S+) node\. Name:'([^']*)'")
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ")
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ (?:[^()]*\([^()]*\)(?: const)? )?")
_ALLOCATION = ("bad allocation", "bad_alloc", "Failed to allocate memory")


def find_ir_limit(text: str) -> int | None:
    """The highest IR version the runtime reads, when that is what it complains about."""
    match = _IR_LIMIT.search(text)
    return int(match.group(1)) if match else None


def explain_load(error: Exception, path: Path) -> ProbeError:
    """Why a file could not be loaded: ``RuntimeTooOld``, ``UnknownOperators``, ``KernelMissing``, ``OutOfMemory``, ``ModelInvalid``."""
    text = str(error)
    runtime = f"onnxruntime {ort.__version__}"
    opset = _OPSET_LIMIT.search(text)
    if opset:
        said = f"{runtime} knows operator set {opset.group(2)} up to {opset.group(3)}; {path.name} asks for {opset.group(1)}"
        return ProbeError("RuntimeTooOld", f"{said}; export it with an older operator set, or offer another provider")
    if any(sign in text for sign in _ALLOCATION):
        return ProbeError("OutOfMemory", f"{runtime} could not get the memory it needs for {path.name}")
    unknown = find_unknown_operators(path)
    if unknown:
        domains = sorted({name.rpartition(".")[0] for name in unknown})
        return ProbeError(
            "UnknownOperators",
            f"{runtime} does not know {', '.join(unknown)[:250]} (domain {', '.join(domains)[:60]}); export it without them, no library of operators is loaded",
        )
    if "NOT_IMPLEMENTED" in text:
        return ProbeError("KernelMissing", f"{runtime} has no kernel: {_clean(text, path)}; another provider or precision may have one")
    return ProbeError("ModelInvalid", f"{runtime} cannot load {path.name}: {_clean(text, path)}; export it again")


def explain_run(error: Exception) -> ProbeError:
    """Why a run failed: ``InputOutOfRange``, ``InputShapeRefused``, ``InputsUnsupported``, ``OutOfMemory``, or ``NodeFailed`` naming node and operator."""
    text = str(error)
    node = _NODE.search(text)
    where = f"node {node.group(2) or '(unnamed)'} ({node.group(1)}): " if node else ""
    said = _clean(text.split("Status Message:", 1)[-1], None)
    if any(sign in text for sign in _ALLOCATION):
        return ProbeError("OutOfMemory", f"{where}{said}")
    if "can't be converted to MLDataType" in text:
        return ProbeError("InputsUnsupported", "onnxruntime takes no arrays of a type that numpy lacks (bfloat16, 8-bit floats, 4 bits and less)")
    if "out of data bounds" in text or "out of bounds" in text or "out of range" in text:
        return ProbeError("InputOutOfRange", f"{where}{said}")
    if node:
        return ProbeError("NodeFailed", f"{where}{said}")
    return ProbeError("InputShapeRefused" if "invalid dimensions" in text or "Invalid rank" in text else "RunFailed", said)


def find_unknown_operators(path: Path) -> list[str]:
    """``domain.Operator`` of the file for which this runtime has no schema and the file no function."""
    try:
        model = parse_model(path)
    except ProbeError:
        return []
    own = {(function.domain, function.name) for function in model.functions}
    used = {("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in iter_nodes(model)}
    return sorted(f"{domain or 'ai.onnx'}.{name}" for domain, name in used - own - _known_operators())


@cache
def _known_operators() -> frozenset[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    return frozenset((schema.domain, schema.name) for schema in native.get_all_operator_schema())


def _clean(text: str, path: Path | None) -> str:
    text = _SOURCE.sub("", _PREFIX.sub("", text))
    if path is not None:
        text = text.replace(str(path), path.name)
    return " ".join(text.split())[:300]
