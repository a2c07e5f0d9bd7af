"""Recognises files that are called ``.onnx`` and are something else, before anything parses them.

A download that went wrong leaves a sign-in page, an error document or a pointer where weights should be; a parser
answers all of these with the same "protobuf parsing failed". This module looks at the first bytes only, so that the user
reads what the file is. It must not import a runtime or a parser.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.wire import iter_fields, nested_graphs

HEAD_BYTES = 4096
"""Enough for a pointer file (under 1 KiB by its specification) and for the first entry's name of an archive."""

_LFS_PREFIX = b"version https://git-lfs.github.com/spec/"
GRAPHS_IN_GRAPHS_LIMIT = 33
"""Protobuf reads 100 messages inside each other; a graph inside a node's attribute is the third one further in."""
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
    for find in (_find_zeros, _find_pointer, _find_archive, _find_magic, _find_text):
        found = find(head)
        if found is not None:
            reason, what = found
            raise ProbeError(reason, f"model file {path.name} ({size} bytes) is not ONNX: it is {what}")


def explain_parse_failure(path: Path) -> ProbeError:
    """Why the protobuf parser refused a file.

    ``Truncated`` when a field announces more bytes than the file has, ``NestedTooDeeply`` when graphs inside graphs pass the
    parser's limit, else ``NotOnnx``.
    """
    size = path.stat().st_size
    whole = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            for field in iter_fields(content, 0, size):
                if field.number not in _KNOWN_FIELDS:
                    return _not_onnx(path, size)
                if field.end > size:
                    return _truncated(path, size, field.end)
                whole = field.end
        except IndexError:
            return _truncated(path, size, size + 1) if whole else _not_onnx(path, size)
        except ValueError:
            return _not_onnx(path, size)
    depth = nested_graphs(path)
    return _not_onnx(path, size) if depth <= GRAPHS_IN_GRAPHS_LIMIT else _nested_too_deeply(path, depth)


def _truncated(path: Path, size: int, announced: int) -> ProbeError:
    return ProbeError("Truncated", f"model file {path.name} is cut off: {size} bytes are there, its own fields announce at least {announced}; upload it again")


def _nested_too_deeply(path: Path, depth: int) -> ProbeError:
    return ProbeError(
        "NestedTooDeeply",
        f"model file {path.name} nests graphs {depth} deep (branches inside branches), parsers read {GRAPHS_IN_GRAPHS_LIMIT}; export a flatter model",
    )


def _not_onnx(path: Path, size: int) -> ProbeError:
    return ProbeError("NotOnnx", f"model file {path.name} ({size} bytes) is not an ONNX model: the protobuf parser refuses it")


def _find_pointer(head: bytes) -> tuple[str, str] | None:
    if not head.startswith(_LFS_PREFIX):
        return None
    size = re.search(rb"^size (\d{1,20})\s*$", head, re.MULTILINE)
    stands_for = f"{int(size.group(1)):,} bytes" if size else "an unknown number of bytes"
    return "GitLfsPointer", f"a Git-LFS pointer that stands for {stands_for}; run `git lfs pull` where it was copied from"


def _find_zeros(head: bytes) -> tuple[str, str] | None:
    return None if head.strip(b"\x00") else ("ZeroFilled", "zero bytes only, as a copy leaves them that was broken off; upload it again")


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
