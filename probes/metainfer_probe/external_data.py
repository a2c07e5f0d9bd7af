"""Weights that lie outside the model file, confined to the model's own folder.

A model file names its data files freely; a hostile one names ``/etc/passwd``. Every location is checked before a runtime
sees the file: no absolute path, no way out of the folder, no symbolic link, nothing missing, nothing cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.dtypes import tensor_bytes


def check_external_data(tensors: Iterable[TensorProto], folder: Path) -> tuple[str, ...]:
    """Locations of all external data, in name order.

    Raises ProbeError ``ExternalDataAbsolute``, ``ExternalDataOutside``, ``ExternalDataSymlink``, ``ExternalDataMissing``,
    ``ExternalDataTruncated`` or ``WeightSizeDiffers``, each naming tensor and location.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if location not in sizes:
            sizes[location] = _confined_size(location, folder, tensor.name)
        _check_extent(tensor, entries, sizes[location])
    return tuple(sorted(sizes))


def _confined_size(location: str, folder: Path, tensor: str) -> int:
    said = f"weight {tensor[:100]!r} lies in {location[:100]!r}"
    if not location or "\x00" in location:
        raise ProbeError("ExternalDataMissing", f"weight {tensor!r} names no external file")
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ProbeError("ExternalDataAbsolute", f"{said}, an absolute path; external data must lie in the model's own folder")
    if ".." in PurePosixPath(location).parts or "\\" in location:
        raise ProbeError("ExternalDataOutside", f"{said}, outside the model's own folder")
    path = folder
    try:
        for part in PurePosixPath(location).parts:
            path = path / part
            if path.is_symlink():
                raise ProbeError("ExternalDataSymlink", f"{said}, which is reached through a symbolic link; put the file itself there")
        if not path.is_file():
            raise ProbeError("ExternalDataMissing", f"{said}, which is not there; copy it into the model's folder")
        return path.stat().st_size
    except OSError as error:  # a name longer than any
        raise ProbeError("ExternalDataMissing", f"{said}, which cannot be opened: {error.strerror}") from error


def _check_extent(tensor: TensorProto, entries: dict[str, str], file_bytes: int) -> None:
    elements = 1
    for size in tensor.dims:
        elements *= size
    claimed = tensor_bytes(tensor.data_type, elements)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or claimed)
    except ValueError:
        offset, length = -1, 0
    if 0 <= length < claimed:
        said = f"weight {tensor.name!r} claims {elements} elements, {claimed} bytes, and its external data is {length} bytes long"
        raise ProbeError("WeightSizeDiffers", f"{said}; export the model again")
    if offset < 0 or length < 0 or offset + length > file_bytes:
        raise ProbeError(
            "ExternalDataTruncated",
            f"weight {tensor.name!r} should end at byte {max(offset, 0) + length} of {entries['location']!r}, which has {file_bytes} bytes; upload it again",
        )
