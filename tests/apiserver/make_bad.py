"""From a schema to objects that break it at one place each: no bound can be added without a bad object for it.

Pure: builds values, sends nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Path = tuple[str | int, ...]

_GOOD_STRINGS = ("* * * * *", "/a", "http://a/b", "a", "5m", "a/b", "pvc://a/b", "2026-01-01T00:00:00Z")
_BAD_STRINGS = ("!", "-", " ")
_REFUSALS = {
    "required": "FieldValueRequired",
    "enum": "FieldValueNotSupported",
    "maxLength": "FieldValueTooLong",
    "maxItems": "FieldValueTooMany",
    "maxProperties": "FieldValueTooMany",
    "format": "FieldValueTypeInvalid",
    "x-kubernetes-list-type": "FieldValueDuplicate",
}


@dataclass(frozen=True, slots=True)
class BadObject:
    """An object that breaks one bound, and how the API server says so."""

    where: str
    keyword: str
    document: Schema

    @property
    def want_reason(self) -> str:
        """The machine-readable reason of the refusal."""
        return _REFUSALS.get(self.keyword, "FieldValueInvalid")


def make_good(schema: Schema) -> Any:
    """The smallest value that keeps every bound and no more."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: make_good(schema["properties"][name]) for name in schema.get("required", [])}
        case "array":
            return [make_good(schema["items"])] * schema.get("minItems", 0)
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            fit = re.compile(schema.get("pattern", ".*"))
            return next(text for text in reversed(_GOOD_STRINGS) if fit.search(text) and (schema.get("format") or len(text) < len(_GOOD_STRINGS[-1])))


def make_bad_objects(root: Schema, half: str) -> Iterator[BadObject]:
    """One object for each bound below ``spec`` or ``status``; everything else in it is good."""
    for path, schema, parents in _walk(root["properties"][half], (half,), ()):
        for keyword, value in _spoil(schema):
            document: Schema = {half: make_good(root["properties"][half])}
            _put(document, root, path, value)
            yield BadObject(_dotted(path), keyword, document)
        if parents and path[-1] in parents[-1].get("required", []):
            document = {half: make_good(root["properties"][half])}
            _put(document, root, path, make_good(schema))
            del _parent(document, path)[path[-1]]
            yield BadObject(_dotted(path), "required", document)


def _walk(schema: Schema, path: Path, parents: tuple[Schema, ...]) -> Iterator[tuple[Path, Schema, tuple[Schema, ...]]]:
    yield path, schema, parents
    below = (*parents, schema)
    for name, field in schema.get("properties", {}).items():
        yield from _walk(field, (*path, name), below)
    if "items" in schema:
        yield from _walk(schema["items"], (*path, 0), below)
    if "additionalProperties" in schema:
        yield from _walk(schema["additionalProperties"], (*path, "key"), below)


def _spoil(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Values that each break one bound of a field."""
    if "enum" in schema:
        yield "enum", "Other"
    if "minimum" in schema:
        yield "minimum", schema["minimum"] - 1
    if "maximum" in schema:
        yield "maximum", schema["maximum"] + 1
    if schema.get("minLength"):
        yield "minLength", ""
    if "maxLength" in schema and "enum" not in schema:
        yield "maxLength", "a" * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield "pattern", next(text for text in _BAD_STRINGS if not re.search(schema["pattern"], text))
    if "format" in schema and schema["type"] == "string":
        yield "format", "yesterday"
    if schema.get("minItems"):
        yield "minItems", []
    if "maxItems" in schema:
        yield "maxItems", [make_good(schema["items"])] * (schema["maxItems"] + 1)
    if "maxProperties" in schema:
        yield "maxProperties", {f"k{number}": make_good(schema["additionalProperties"]) for number in range(schema["maxProperties"] + 1)}
    if schema.get("x-kubernetes-list-type") in ("set", "map"):
        yield "x-kubernetes-list-type", [make_good(schema["items"])] * 2


def _put(document: Schema, root: Schema, path: Path, value: Any) -> None:
    """Set the value at ``path``; parents that are not there become the smallest good ones."""
    node: Any = document
    schema = root
    for step, following in zip(path, (*path[1:], None), strict=True):
        schema = schema["items"] if isinstance(step, int) else schema.get("properties", {}).get(step) or schema["additionalProperties"]
        new = copy.deepcopy(value) if following is None else make_good(schema)
        if isinstance(step, int):
            node[:] = node[:1] or [new]
            node[0] = new if following is None else node[0]
        elif following is None or step not in node:
            node[step] = new
        node = node[step]


def _parent(document: Schema, path: Path) -> Any:
    node: Any = document
    for step in path[:-1]:
        node = node[step]
    return node


def _dotted(path: Path) -> str:
    """As the API server writes it: spec.families[0].name."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
