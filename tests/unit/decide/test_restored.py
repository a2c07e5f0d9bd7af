"""What differs after restoring, and which of it is the owner's own doing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FIELD_MANAGER
from metainfer.decide.ownership import LAST_APPLIED
from metainfer.decide.pre_image import PreImage
from metainfer.decide.restored import find_left

ENV = 'spec.template.spec.containers[name="server"].env[name="P"]'
AFFINITY = "spec.template.spec.affinity"
DECLARES_AFFINITY = {"manager": "chart", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {"f:spec": {"f:affinity": {}}}}}}
WHOLE = {".": {}, "f:name": {}, "f:value": {}}


def owner(manager: str, operation: str, entry: dict[str, Any]) -> dict[str, Any]:
    """A managedFields item that owns parts of the env entry."""
    containers = {'k:{"name":"server"}': {"f:env": {'k:{"name":"P"}': entry}}}
    return {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:template": {"f:spec": {"f:containers": containers}}}}}


def make_deployment(*managed: dict[str, Any], marked: bool = False, env: bool = True, affinity: Any = None, annotations: Any = None) -> dict[str, Any]:
    """A Deployment after restoring."""
    server = {"name": "server", "env": [{"name": "P", "value": "int8"}] if env else []}
    pod = {"containers": [server]} | ({"affinity": affinity} if affinity is not None else {})
    template = {"metadata": {"annotations": {DECISION_ANNOTATION: "d1"} if marked else {}}, "spec": pod}
    return {"metadata": {"managedFields": list(managed), "annotations": annotations or {}}, "spec": {"template": template}}


@pytest.mark.parametrize(
    ("deployment", "before", "want_paths"),
    [
        pytest.param(make_deployment(env=False), {ENV: None}, [], id="gone"),
        pytest.param(make_deployment(), {ENV: None}, [ENV], id="there, and nobody is recorded"),
        pytest.param(make_deployment(owner("helm", "Update", {"f:value": {}})), {ENV: None}, [], id="the owner's value"),
        pytest.param(make_deployment(owner("chart", "Apply", WHOLE)), {ENV: None}, [], id="the owner's entry"),
        pytest.param(make_deployment(owner("kubectl", "Update", WHOLE), marked=True), {ENV: None}, [ENV, "mark"], id="back by rollout undo"),
        pytest.param(make_deployment(owner("before-first-apply", "Update", WHOLE), marked=True), {ENV: None}, [ENV, "mark"], id="records lost"),
        pytest.param(make_deployment(owner("chart", "Apply", WHOLE), marked=True), {ENV: None}, ["mark"], id="records lost, declared since"),
        pytest.param(make_deployment(owner(FIELD_MANAGER, "Apply", WHOLE)), {ENV: None}, [ENV], id="still ours"),
        pytest.param(make_deployment(DECLARES_AFFINITY, env=False), {AFFINITY: {}}, [AFFINITY], id="an empty parent that is missing"),
        pytest.param(make_deployment(env=False), {AFFINITY: {}}, [], id="an empty parent that nobody declares any more"),
        pytest.param(make_deployment(env=False, affinity={}), {AFFINITY: {}}, [], id="an empty parent that is there"),
    ],
)
def test_what_is_left_is_named(deployment: dict[str, Any], before: dict[str, Any], want_paths: list[str]) -> None:
    """Not what somebody has come to declare; whoever took it without declaring anything does not count."""
    paths = [item.path for item in find_left(deployment, PreImage("uid", "Restore", before))]
    assert ["mark" if path.endswith(DECISION_ANNOTATION) else path for path in paths] == want_paths


def test_what_the_last_client_side_apply_declares_is_the_owners() -> None:
    """Nothing else tells of a value that was there already."""
    server = {"name": "server", "env": [{"name": "P", "value": "int8"}]}
    said = json.dumps({"spec": {"template": {"spec": {"containers": [server]}}}})
    assert find_left(make_deployment(annotations={LAST_APPLIED: said}), PreImage("uid", "Restore", {ENV: None})) == ()


def test_without_a_pre_image_the_marks_are_looked_for() -> None:
    """Somebody removed the annotation."""
    assert [str(item) for item in find_left(make_deployment(marked=True), None)] == [
        f"spec.template.metadata.annotations.{DECISION_ANNOTATION} (manager unknown)"
    ]
