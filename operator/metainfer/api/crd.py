"""From the frozen types to CustomResourceDefinitions: a structural schema, columns, names.

pydantic writes JSON schema of 2020; the API server wants the structural subset of OpenAPI 3.0. This file knows both, and no
kind: those are declared in ``v1alpha1/kinds.py``. Everything here is pure; ``hack/generate`` writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
_VALIDATIONS = "x-kubernetes-validations"
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column; ``wide`` ones show only with ``-o wide``."""

    name: str
    path: str
    description: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class KindDefinition:
    """Everything a CustomResourceDefinition says about one kind."""

    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    scope: Literal["Cluster", "Namespaced"]
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]


def build_crd(definition: KindDefinition, *, group: str, version: str, category: str) -> Schema:
    """The CustomResourceDefinition of one kind, as the API server wants it."""
    names = {
        "kind": definition.kind,
        "listKind": f"{definition.kind}List",
        "plural": definition.plural,
        "singular": definition.singular,
        "shortNames": list(definition.short_names),
        "categories": [category],
    }
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_build_column(column) for column in definition.columns],
        "schema": {"openAPIV3Schema": _build_root(definition)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": definition.scope, "versions": [served]},
    }


def _build_column(column: Column) -> Schema:
    built = {"name": column.name, "type": column.type, "jsonPath": column.path, "description": column.description}
    return built | {"priority": 1} if column.wide else built


def _build_root(definition: KindDefinition) -> Schema:
    spec, status = build_schema(definition.spec), _without_defaults(build_schema(definition.status))
    spec["description"] = f"spec of the {definition.kind}. {spec['description']}"
    status["description"] = f"status of the {definition.kind}, written by the operator only. {status['description']}"
    # A brand-new object must not read as finished before the first look: kstatus compares this with metadata.generation.
    status["default"] = {"observedGeneration": -1}
    properties = {
        "apiVersion": {"type": "string", "description": "apiVersion is the group and version of this representation of the object."},
        "kind": {"type": "string", "description": "kind is the type of the object."},
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    }
    return {"type": "object", "description": definition.description, "required": ["spec"], "properties": properties}


def build_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of one model: references inlined, no titles, no nulls, descriptions and rules kept."""
    raw = model.model_json_schema(by_alias=True)
    return _structural(raw, raw.get("$defs", {}))


def _structural(raw: Schema, defs: Mapping[str, Schema]) -> Schema:
    raw = _unwrapped(raw, defs)
    node: Schema = {"description": raw["description"]} if "description" in raw else {}
    node |= {key: raw[key] for key in _KEPT if key in raw}
    if "const" in raw:
        node["enum"] = [raw["const"]]
    if node["type"] == "integer":
        node["format"] = "int32" if node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    if "items" in raw:
        node["items"] = _structural(raw["items"], defs)
    rules = list(raw.get(_VALIDATIONS, []))
    if "properties" in raw:
        node |= _structural_fields(raw, defs)
    elif node["type"] == "object":
        values, key_rules = _split_map(raw)
        node["additionalProperties"] = _structural(values, defs)
        rules += key_rules
    if rules:
        node[_VALIDATIONS] = rules
    default = raw.get("default")
    if isinstance(default, str | int) or (isinstance(default, dict) and _has_defaults(node)):
        # {} lets the API server fill in the defaults of the fields below.
        node["default"] = {} if isinstance(default, dict) else default
    return node


def _structural_fields(raw: Schema, defs: Mapping[str, Schema]) -> Schema:
    fields: Schema = {"required": list(raw["required"])} if raw.get("required") else {}
    return fields | {"properties": {name: _structural(field, defs) for name, field in raw["properties"].items()}}


def _unwrapped(raw: Schema, defs: Mapping[str, Schema]) -> Schema:
    """``X | None`` as X, and a reference as what it refers to; what stands beside them wins, rules add up."""
    inner: Schema
    if "anyOf" in raw:
        (inner,) = (option for option in raw["anyOf"] if option.get("type") != "null")
    elif "$ref" in raw:
        inner = defs[raw["$ref"].removeprefix("#/$defs/")]
    else:
        return raw
    outer = {key: value for key, value in raw.items() if key not in ("anyOf", "$ref")}
    inner = _unwrapped(inner, defs)
    rules = [*inner.get(_VALIDATIONS, []), *outer.get(_VALIDATIONS, [])]
    return inner | outer | ({_VALIDATIONS: rules} if rules else {})


def _split_map(raw: Schema) -> tuple[Schema, list[Schema]]:
    """The schema of a map's values, and what JSON schema says about its keys as CEL rules: structural schemas cannot."""
    if "patternProperties" not in raw:
        return raw["additionalProperties"], []
    ((pattern, values),) = raw["patternProperties"].items()
    longest = raw["propertyNames"]["maxLength"]
    return values, [
        {"rule": f"self.all(key, size(key) <= {longest} && key.matches('{pattern}'))", "message": "each key must be a label key such as example.com/name"}
    ]


def _has_defaults(node: Schema) -> bool:
    return any("default" in field for field in node.get("properties", {}).values())


def _without_defaults(node: Schema) -> Schema:
    """Status is written by us, whole: a default would only claim what nobody found."""
    kept = {key: value for key, value in node.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {name: _without_defaults(field) for name, field in kept["properties"].items()}
    for below in ("items", "additionalProperties"):
        if below in kept:
            kept[below] = _without_defaults(kept[below])
    return kept
