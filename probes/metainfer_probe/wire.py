"""Looks at a file that the protobuf parser refuses: where its fields end, and how deep its graphs are nested.

Reads tags and lengths only, never a field's content, so that the reason costs nothing even for gigabytes. Field numbers are
those of onnx.proto. Knows nothing of reasons; ``not_onnx`` words them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FIXED_BYTES: Mapping[int, int] = {1: 8, 5: 4}
_VARINT, _LENGTH = 0, 2
_INNER: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
"""Message -> field number -> message inside, on the way from a model to its innermost graph."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its content lies in ``start:end``, which may reach beyond what is there."""

    number: int
    wire_type: int
    start: int
    end: int


def iter_fields(content: mmap.mmap | bytes, start: int, end: int) -> Iterator[Field]:
    """The fields between two positions. Raises ValueError where there is none, IndexError where the bytes end inside a tag or length."""
    at = start
    while at < end:
        tag, at = _read_varint(content, at, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, stop = _read_varint(content, at, end)
        elif wire_type == _LENGTH:
            length, at = _read_varint(content, at, end)
            stop = at + length
        elif wire_type in FIXED_BYTES:
            stop = at + FIXED_BYTES[wire_type]
        else:
            msg = f"wire type {wire_type}"
            raise ValueError(msg)
        yield Field(number, wire_type, at, stop)
        at = stop


def nested_graphs(path: Path) -> int:
    """Graphs inside each other on the longest way; what cannot be read counts for nothing."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        deepest, stack = 0, [("model", 0, len(content), 0)]
        while stack:
            kind, start, end, depth = stack.pop()
            deepest = max(deepest, depth)
            for inner, field in _inner_messages(content, kind, start, end):
                stack.append((inner, field.start, field.end, depth + (inner == "graph")))
    return deepest


def _inner_messages(content: mmap.mmap, kind: str, start: int, end: int) -> list[tuple[str, Field]]:
    found = []
    try:
        for field in iter_fields(content, start, end):
            inner = _INNER[kind].get(field.number)
            if inner is not None and field.wire_type == _LENGTH and field.end <= end:
                found.append((inner, field))
    except (ValueError, IndexError):
        pass
    return found


def _read_varint(content: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= end:
            raise IndexError(at)
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80 or shift > 63:
            return value, at
