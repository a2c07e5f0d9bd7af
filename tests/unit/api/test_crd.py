"""What the generated schemas promise, checked on the schemas themselves; the API server's own opinion is in tests/apiserver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from metainfer.api.crd import build_crd, build_schema
from metainfer.api.v1alpha1.common import GROUP, VERSION, keyed_by, rules
from metainfer.api.v1alpha1.kinds import CATEGORY, KINDS

CRDS = {definition.kind: build_crd(definition, group=GROUP, version=VERSION, category=CATEGORY) for definition in KINDS}


def root_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every field below with its path and JSON name."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", name, field
        yield from walk(field, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if below in schema:
            yield f"{path}[]", "", schema[below]
            yield from walk(schema[below], f"{path}[]")


def fields_of(kind: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for half in ("spec", "status"):
        yield from walk(root_of(kind)["properties"][half], half)


EVERY_KIND = pytest.mark.parametrize("kind", CRDS)


def is_bounded(field: dict[str, Any]) -> bool:
    match field["type"]:
        case "string":
            return "maxLength" in field or "enum" in field
        case "array":
            return "maxItems" in field
        case "object":
            return "properties" in field or "maxProperties" in field
        case _:
            return True


@EVERY_KIND
def test_every_field_is_described_and_starts_with_its_json_name(kind: str) -> None:
    """A reader of kubectl explain sees for each field what it is, under the name it has on the wire."""
    assert [path for path, name, field in fields_of(kind) if name and field.get("description", "").split()[:1] != [name]] == []


@EVERY_KIND
def test_every_value_is_bounded(kind: str) -> None:
    """Without bounds one object can fill etcd, and the API server cannot estimate what a rule costs."""
    assert [path for path, _, field in fields_of(kind) if not is_bounded(field)] == []


@EVERY_KIND
def test_only_structural_keywords_are_used(kind: str) -> None:
    """No keyword that the API server would refuse, and no floats, which have no exact form on the wire."""
    foreign = {"title", "$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "nullable", "patternProperties", "propertyNames"}
    types = {"string", "integer", "boolean", "array", "object"}
    assert [path for path, _, field in fields_of(kind) if field["type"] not in types or field.keys() & foreign] == []


@EVERY_KIND
def test_every_rule_has_a_message_that_says_what_to_do(kind: str) -> None:
    """A failed rule without a message shows its expression, which helps nobody."""
    messages = [rule.get("message", "") for _, _, field in fields_of(kind) for rule in field.get("x-kubernetes-validations", [])]
    assert [message for message in messages if len(message.split()) < 4] == []


@EVERY_KIND
def test_conditions_are_a_map_by_type(kind: str) -> None:
    """Two writers of conditions must not overwrite each other's."""
    conditions = root_of(kind)["properties"]["status"]["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert {"type", "status", "reason", "lastTransitionTime"} <= set(conditions["items"]["required"])


@EVERY_KIND
def test_status_claims_nothing_before_the_first_look(kind: str) -> None:
    """Only observedGeneration -1 is defaulted, by which kstatus knows that nobody looked yet."""
    status = root_of(kind)["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    assert [path for path, _, field in walk(status, "status") if "default" in field] == []


class Inner(BaseModel):
    """Inner thing."""

    model_config = ConfigDict(json_schema_extra=rules(("has(self.size)", "say how big it is")))

    size: int = Field(default=3, ge=1, le=9, description="size of it.")
    label: str | None = Field(default=None, max_length=5, description="label on it.")


class Outer(BaseModel):
    """Outer thing."""

    inner: Inner = Field(default=Inner(), description="inner one.", json_schema_extra=rules(("true", "be there at all")))
    maybe: Inner | None = Field(default=None, description="maybe another.")
    many: tuple[Inner, ...] = Field(default=(), max_length=4, description="many of them.", json_schema_extra=keyed_by("size"))
    big: int = Field(description="big number.")


def test_references_are_inlined_with_their_own_rules_and_the_fields() -> None:
    """A rule on a type and a rule on the field that uses it both hold."""
    inner = build_schema(Outer)["properties"]["inner"]
    assert [rule["message"] for rule in inner["x-kubernetes-validations"]] == ["say how big it is", "be there at all"]
    assert inner["properties"]["size"] == {"description": "size of it.", "type": "integer", "minimum": 1, "maximum": 9, "format": "int32", "default": 3}


def test_defaults_of_nested_fields_apply_when_the_parent_is_left_out() -> None:
    """The parent defaults to {}, and the API server fills in what is below."""
    fields = build_schema(Outer)["properties"]
    assert fields["inner"]["default"] == {}
    assert "default" not in fields["maybe"]
    assert "default" not in fields["many"]


def test_optional_fields_are_not_required_and_not_null() -> None:
    """Null is no value of the API: what is not there is left out."""
    schema = build_schema(Outer)
    assert schema["required"] == ["big"]
    assert schema["properties"]["maybe"]["type"] == "object"
    assert schema["properties"]["inner"]["properties"]["label"] == {"description": "label on it.", "type": "string", "maxLength": 5}
