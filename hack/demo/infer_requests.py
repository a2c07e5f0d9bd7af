"""The same request before and after: Open Inference Protocol bodies from a calibration file, and how far two answers differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATATYPES = {"float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64", "float16": "FP16", "uint8": "UINT8", "bool": "BOOL"}


def infer_request(calibration: Path) -> dict[str, Any]:
    """The first sample of an ``INPUT/INDEX`` file as a request."""
    with np.load(calibration) as arrays:
        first = {name.rpartition("/")[0]: arrays[name] for name in arrays.files if name.endswith("/0")}
    return {
        "inputs": [
            {"name": name, "shape": list(value.shape), "datatype": DATATYPES[str(value.dtype)], "data": value.ravel().tolist()} for name, value in first.items()
        ]
    }


def outputs_of(answer: Mapping[str, Any]) -> list[np.ndarray]:
    """The answer's tensors, in order."""
    return [np.asarray(output["data"], dtype=np.float64).reshape(output["shape"]) for output in answer["outputs"]]


def difference(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> int:
    """Relative L2 over all outputs, in millionths; a million where shapes differ."""
    if [item.shape for item in before] != [item.shape for item in after]:
        return 1_000_000
    error = sum(float(((new - old) ** 2).sum()) for old, new in zip(before, after, strict=True))
    size = sum(float((old**2).sum()) for old in before)
    return round(1e6 * (error / size) ** 0.5) if size > 0 else 0
