"""Reads the user's own requests from an ``.npz`` file: one array per ``INPUT/INDEX``, as a client would send them.

Two shorter spellings are accepted and noted: one array per ``INPUT`` whose rows are requests, and, for a model with a
single input, arrays under any names, one request each. Pickled objects are never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from metainfer_probe.backends.base import Array, Feeds, ProbeError
from metainfer_probe.contract import TensorSpec

_NATURAL_CASTS = frozenset((("f", "f"), ("i", "i"), ("u", "u"), ("u", "i"), ("i", "u"), ("b", "b"), ("i", "f"), ("u", "f"), ("b", "i"), ("U", "U"), ("S", "U")))
"""Kinds of numpy types that may be converted to what the model takes; values are checked to survive."""


def read_calibration(path: Path, inputs: Sequence[TensorSpec], count: int) -> tuple[tuple[Feeds, ...], tuple[str, ...]]:
    """At most ``count`` requests, spread evenly over the file, and notes about how the file was understood.

    Raises ProbeError ``CalibrationInvalid``, ``CalibrationInputMissing``, ``CalibrationShape`` or ``CalibrationType``,
    each naming input and index.
    """
    try:
        with path.open("rb") as file:
            return _load(file, inputs, count, path.name)
    except ProbeError:
        raise
    except MemoryError as error:
        raise ProbeError("CalibrationInvalid", f"{path.name} announces arrays larger than the memory here") from error
    except Exception as error:  # zip, four decompressors and numpy's header parser: each has errors of its own for a damaged file
        raise ProbeError("CalibrationInvalid", f"{path.name} cannot be read as .npz: {str(error)[:200]}; save the requests with numpy.savez") from error


def _load(file: BinaryIO, inputs: Sequence[TensorSpec], count: int, file_name: str) -> tuple[tuple[Feeds, ...], tuple[str, ...]]:
    arrays = np.load(file, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ProbeError("CalibrationInvalid", f"{file_name} holds a single array; save the requests with numpy.savez")
    with arrays:
        return _read(arrays, inputs, count, file_name)


def _read(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec], count: int, file_name: str) -> tuple[tuple[Feeds, ...], tuple[str, ...]]:
    keys = list(arrays)
    if not keys:
        raise ProbeError("CalibrationInvalid", f"{file_name} holds no arrays")
    indexed = _indexed_keys(keys, inputs)
    if indexed:
        chosen = _spread(sorted(indexed, key=_index_order), count)
        return tuple(_indexed_feed(arrays, indexed[index], index, inputs) for index in chosen), ()
    if all(spec.name in keys for spec in inputs):
        return _row_feeds(arrays, inputs, count), (f"{file_name}: one array per input, each row taken as a request",)
    if len(inputs) == 1:
        chosen = _spread(keys, count)
        note = f"{file_name}: no array is named {inputs[0].name}/INDEX; each array taken as a request for {inputs[0].name}"
        return tuple({inputs[0].name: _fit(arrays[key], inputs[0], key)} for key in chosen), (note,)
    missing = next(spec.name for spec in inputs if spec.name not in keys)
    raise ProbeError("CalibrationInputMissing", f"{file_name} has no arrays for input {missing!r} (expected {missing}/0, {missing}/1, …)")


def _indexed_keys(keys: Sequence[str], inputs: Sequence[TensorSpec]) -> dict[str, dict[str, str]]:
    """Per index, the key of each input; input names may contain slashes themselves."""
    names = {spec.name for spec in inputs}
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        name, slash, index = key.rpartition("/")
        if slash and name in names:
            found.setdefault(index, {})[name] = key
    return found


def _index_order(index: str) -> tuple[int, int, str]:
    return (0, int(index), "") if index.isdigit() else (1, 0, index)


def _spread(items: Sequence[str], count: int) -> list[str]:
    if len(items) <= count:
        return list(items)
    return [items[round(position * (len(items) - 1) / max(1, count - 1))] for position in range(count)]


def _indexed_feed(arrays: Mapping[str, Array], keys: Mapping[str, str], index: str, inputs: Sequence[TensorSpec]) -> Feeds:
    for spec in inputs:
        if spec.name not in keys:
            raise ProbeError("CalibrationInputMissing", f"request {index} has no array for input {spec.name!r} (expected {spec.name}/{index})")
    return {spec.name: _fit(arrays[keys[spec.name]], spec, keys[spec.name]) for spec in inputs}


def _row_feeds(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec], count: int) -> tuple[Feeds, ...]:
    loaded = {spec.name: arrays[spec.name] for spec in inputs}
    lengths = {name: len(array) if array.ndim else 0 for name, array in loaded.items()}
    rows = min(lengths.values())
    if rows == 0 or len(set(lengths.values())) > 1:
        raise ProbeError("CalibrationShape", f"arrays per input need the same number of rows, at least one: {lengths}")
    chosen = [int(row) for row in _spread([str(row) for row in range(rows)], count)]
    return tuple({spec.name: _fit(loaded[spec.name][row : row + 1], spec, f"{spec.name}[{row}]") for spec in inputs} for row in chosen)


def _fit(array: Array, spec: TensorSpec, key: str) -> Array:
    """The array with the model's element type, after its shape was checked against the declared one."""
    if spec.shape is not None:
        fits = len(array.shape) == len(spec.shape) and all(want in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True))
        if not fits:
            raise ProbeError("CalibrationShape", f"{key} has shape {list(array.shape)}, input {spec.name!r} takes {_shown(spec.shape)}")
    return _cast(array, spec, key)


def _cast(array: Array, spec: TensorSpec, key: str) -> Array:
    wanted = numpy_type(spec.dtype)
    if array.dtype == wanted or (wanted.kind == "U" and array.dtype.kind == "U"):
        return np.ascontiguousarray(array)
    if (array.dtype.kind, wanted.kind) not in _NATURAL_CASTS and wanted.kind != "V":
        raise ProbeError("CalibrationType", f"{key} holds {array.dtype}, input {spec.name!r} takes {spec.dtype}")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if wanted.kind in "iu" and not np.array_equal(cast, array):
        raise ProbeError("CalibrationType", f"{key} holds values that do not fit into {spec.dtype}, which input {spec.name!r} takes")
    return np.ascontiguousarray(cast)


def numpy_type(name: str) -> np.dtype[np.generic]:
    """Numpy's type of an element type's name. Raises ProbeError ``InputsUnsupported`` for sequences, maps and the like."""
    if name == "string":
        return np.dtype(np.str_)
    if not name.isalnum():
        raise ProbeError("InputsUnsupported", f"the model takes {name[:100]}; only tensors can be fed, so it can be neither measured nor compared")
    try:
        if name in ("bfloat16", "int4", "uint4") or name.startswith("float8"):
            import ml_dtypes

            extended: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
            return extended
        return np.dtype(name)
    except (TypeError, AttributeError) as error:
        raise ProbeError("InputsUnsupported", f"inputs of type {name} cannot be fed: no array has it; put a Cast behind an fp32 input") from error


def _shown(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"
