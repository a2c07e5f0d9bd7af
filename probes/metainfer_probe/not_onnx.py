"""Recognises files that are called ``.onnx`` and are something else, before anything parses them.

A download that went wrong leaves a sign-in page, an error document or a pointer where weights should be; a parser
answers all of these with the same "protobuf parsing failed". This module looks at the first bytes only, so that the user
reads what the file is. It must not import a runtime or a parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from metainfer_probe.backends.base import ProbeError

HEAD_BYTES = 4096
"""Enough for a pointer file (under 1 KiB by its specification) and for the first entry's name of an archive."""

_LFS_PREFIX = b"version https://git-lfs.github.com/spec/"
_GRAPH_FIELD, _IR_FIELD = 7, 1
_KNOWN_FIELDS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
"""Field numbers of ``ModelProto`` (onnx.proto); 26 is its ``configuration``."""

_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (4, b"ORTM", "OrtFormat", "a model in ONNX Runtime's own .ort format; give the .onnx file it was converted from"),
    (0, b"\x1f\x8b", "GzipArchive", "compressed with gzip; unpack it first"),
    (0, b"BZh", "CompressedArchive", "compressed with bzip2; unpack it first"),
    (0, b"\xfd7zXZ\x00", "CompressedArchive", "compressed with xz; unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "CompressedArchive", "compressed with zstd; unpack it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "CompressedArchive", "a 7z archive; unpack it first"),
    (0, b"Rar!\x1a\x07", "CompressedArchive", "a rar archive; unpack it first"),
    (257, b"ustar", "TarArchive", "a tar archive; unpack it first"),
    (0, b"\x89HDF\r\n\x1a\n", "Hdf5File", "an HDF5 file (Keras); export the model to ONNX"),
    (0, b"GGUF", "GgufFile", "a GGUF file; export the model to ONNX"),
    (4, b"TFL3", "TfliteFile", "a TensorFlow Lite model; convert it to ONNX"),
    (0, b"\x80\x02", "PyTorchCheckpoint", "a Python pickle (older PyTorch checkpoint); export the model to ONNX"),
    (0, b"\x80\x04", "PyTorchCheckpoint", "a Python pickle (older PyTorch checkpoint); export the model to ONNX"),
    (0, b"%PDF", "PdfDocument", "a PDF document"),
)


def refuse_other_formats(path: Path) -> None:
    """Raise ProbeError when the first bytes belong to another format; reads at most ``HEAD_BYTES``."""
    size = path.stat().st_size
    if size == 0:
        raise ProbeError("EmptyFile", f"model file {path.name} is empty")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for find in (_find_pointer, _find_archive, _find_magic, _find_text):
        found = find(head)
        if found is not None:
            reason, what = found
            raise ProbeError(reason, f"model file {path.name} ({size} bytes) is not ONNX: it is {what}")


def explain_parse_failure(path: Path) -> ProbeError:
    """Why the protobuf parser refused a file: ``Truncated`` when a field announces more bytes than the file has.

    Walks the top-level fields of the wire format (tag, then varint, length or fixed width), skipping their content.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        position = 0
        while position < size:
            file.seek(position)
            head = file.read(20)
            try:
                tag, used = _varint(head, 0)
                skip, used = _field_length(head, tag & 7, used)
            except IndexError:
                return _truncated(path, size, position + 10) if position else _not_onnx(path, size)
            if skip is None or tag >> 3 not in _KNOWN_FIELDS:
                return _not_onnx(path, size)
            if position + used + skip > size:
                return _truncated(path, size, position + used + skip)
            position += used + skip
    return _not_onnx(path, size)


def _truncated(path: Path, size: int, announced: int) -> ProbeError:
    return ProbeError("Truncated", f"model file {path.name} is cut off: {size} bytes are there, its own fields announce at least {announced}; upload it again")


def _not_onnx(path: Path, size: int) -> ProbeError:
    return ProbeError("NotOnnx", f"model file {path.name} ({size} bytes) is not an ONNX model: the protobuf parser refuses it")


def _varint(head: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = head[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80 or shift > 63:
            return value, at


def _field_length(head: bytes, wire_type: int, used: int) -> tuple[int | None, int]:
    """Bytes to skip after the ``used`` ones; None for wire types that ModelProto does not have."""
    if wire_type == 0:
        return 0, _varint(head, used)[1]
    if wire_type == 2:
        return _varint(head, used)
    return None, used


def _find_pointer(head: bytes) -> tuple[str, str] | None:
    if not head.startswith(_LFS_PREFIX):
        return None
    size = re.search(rb"^size (\d{1,20})\s*$", head, re.MULTILINE)
    stands_for = f"{int(size.group(1)):,} bytes" if size else "an unknown number of bytes"
    return "GitLfsPointer", f"a Git-LFS pointer that stands for {stands_for}; run `git lfs pull` where it was copied from"


def _find_archive(head: bytes) -> tuple[str, str] | None:
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None
    if b"data.pkl" in head or b"/version" in head or b"constants.pkl" in head:
        return "PyTorchCheckpoint", "a PyTorch checkpoint (zip archive with pickles); export the model to ONNX"
    return "ZipArchive", "a zip archive; unpack it first"


def _find_magic(head: bytes) -> tuple[str, str] | None:
    for offset, magic, reason, what in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return reason, what
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32 and b'"dtype"' in head:
        return "SafetensorsFile", "a safetensors file (weights without a graph); export the model to ONNX"
    return None


def _find_text(head: bytes) -> tuple[str, str] | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lowered = text[:512].lower()
    rules: tuple[tuple[Callable[[], bool], str, str], ...] = (
        (
            lambda: lowered.startswith((b"<!doctype html", b"<html")) or (b"<html" in lowered and lowered.startswith(b"<")),
            "HtmlPage",
            "an HTML page, probably a sign-in or error page",
        ),
        (lambda: lowered.startswith((b"<?xml", b"<")), "XmlDocument", "an XML document"),
        (lambda: text.startswith((b"{", b"[")) and _is_printable(text), "JsonDocument", "a JSON document, probably an error message"),
        (lambda: _is_printable(text), "TextFile", "a text file"),
    )
    for matches, reason, what in rules:
        if matches():
            return reason, what
    return None


def _is_printable(text: bytes) -> bool:
    if not text:
        return False
    try:
        decoded = text.decode("utf-8", errors="strict" if len(text) < HEAD_BYTES - 4 else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\r\n\t" for character in decoded)
