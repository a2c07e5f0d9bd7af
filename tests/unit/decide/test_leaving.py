"""Who still wants a Deployment that we wrote to, and what of it is ours."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decide.make_facts import make_adaptation, make_container, make_env_owner, make_snapshot, make_target, make_template

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FIELD_MANAGER, PREIMAGE_ANNOTATION
from metainfer.decide.facts import ManagedFields, TargetFacts
from metainfer.decide.leaving import Claim, LeavingSnapshot, awaits_restoring, decide_leaving, select_fields
from metainfer.decide.plan import ApplyTarget, RestoreTarget
from metainfer.decide.pre_image import PreImage, encode_pre_image, read_pre_image
from metainfer.decide.target import check_target

MINE = Claim("uid-1", "ocr")


def make_marked(policy: str = "Restore", *, uid: str = "uid-1", ours: bool = True) -> TargetFacts:
    """A Deployment that we wrote to for one adaptation."""
    container = make_container()
    annotations = {PREIMAGE_ANNOTATION: encode_pre_image(PreImage(uid, "Retain" if policy == "Retain" else "Restore", {}))}
    managed = (make_env_owner(container, "METAINFER_PRECISION"),) if ours else ()
    template = make_template(container, annotations={DECISION_ANNOTATION: "d1"})
    raw = {"metadata": {"annotations": annotations}, "spec": {"template": {"spec": {"containers": []}}}}
    return make_target("ocr", template=template, annotations=annotations, managed=managed, raw=raw)


def unmarked(target: TargetFacts) -> TargetFacts:
    """After a rollout undo: the annotations are gone with the fields."""
    return replace(target, annotations={}, template=replace(target.template, annotations={}))


@pytest.mark.parametrize(
    ("target", "claims", "want_restored"),
    [
        pytest.param(make_target(), (), False, id="never written to"),
        pytest.param(make_marked(), (MINE,), False, id="its adaptation lives"),
        pytest.param(make_marked(), (), True, id="nobody lives"),
        pytest.param(make_marked(), (Claim("uid-2", "ocr"),), True, id="another adaptation lives"),
        pytest.param(make_marked(), (Claim("uid-1", "another"),), True, id="its adaptation names another Deployment"),
        pytest.param(make_marked("Retain"), (), False, id="it was to be retained"),
        pytest.param(make_marked(ours=False), (), True, id="nothing is recorded as ours: looked at, and told"),
        pytest.param(replace(make_marked(), annotations={}), (Claim("uid-2", "ocr"),), False, id="pre-image lost, somebody claims it"),
        pytest.param(replace(make_marked(), annotations={}), (), True, id="pre-image lost, nobody claims it"),
        pytest.param(unmarked(make_marked()), (), True, id="only the record of ownership is left"),
        pytest.param(unmarked(make_marked(ours=False)), (), False, id="nothing is left"),
        pytest.param(replace(make_marked(), annotations={PREIMAGE_ANNOTATION: "{"}), (MINE,), False, id="pre-image broken, somebody claims it"),
    ],
)
def test_what_nobody_claims_is_given_back(target: TargetFacts, claims: tuple[Claim, ...], want_restored: bool) -> None:
    """By the UID that the Deployment carries, and the name that the adaptation has."""
    actions = decide_leaving(LeavingSnapshot(target, claims))
    assert [type(action) for action in actions] == ([RestoreTarget] if want_restored else [])


def test_another_policy_is_written_into_the_pre_image_with_all_that_is_ours() -> None:
    """The body is the whole of ours, else it would give something up; an unchanged policy writes nothing."""
    raw = {
        "metadata": {"annotations": {PREIMAGE_ANNOTATION: "old", DECISION_ANNOTATION: "d1", "team": "vision"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "server", "image": "x", "env": [{"name": "P", "value": "int8"}]}]}}},
    }
    annotations = {".": {}, f"f:{PREIMAGE_ANNOTATION}": {}, f"f:{DECISION_ANNOTATION}": {}}
    entry = {'k:{"name":"P"}': {".": {}, "f:name": {}, "f:value": {}}}
    containers = {'k:{"name":"server"}': {".": {}, "f:name": {}, "f:env": entry}}
    fields = {"f:metadata": {"f:annotations": annotations}, "f:spec": {"f:template": {"f:spec": {"f:containers": containers}}}}
    target = replace(make_marked(), raw=raw, managed=(ManagedFields(FIELD_MANAGER, "Apply", fields),))
    (action,) = decide_leaving(LeavingSnapshot(target, (replace(MINE, deletion_policy="Retain"),)))
    assert isinstance(action, ApplyTarget)
    written = action.body["metadata"]["annotations"]
    pre_image = read_pre_image(written)
    assert pre_image is not None
    assert (pre_image.deletion_policy, written[DECISION_ANNOTATION], set(written)) == ("Retain", "d1", {PREIMAGE_ANNOTATION, DECISION_ANNOTATION})
    assert action.body["spec"] == {"template": {"spec": {"containers": [{"name": "server", "env": [{"name": "P", "value": "int8"}]}]}}}
    assert decide_leaving(LeavingSnapshot(target, (MINE,))) == ()


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({}, {"a": {"b": 1}, "c": [2]}, id="a leaf is taken whole"),
        pytest.param({"f:a": {".": {}}}, {"a": {"b": 1}}, id="the item itself"),
        pytest.param({"f:a": {"f:b": {}}, "f:gone": {}}, {"a": {"b": 1}}, id="what is not there any more is left out"),
        pytest.param({"f:c": {}}, {"c": [2]}, id="an atomic list"),
        pytest.param({"f:d": {'k:{"name":"x"}': {}, 'k:{"name":"y"}': {}}}, {"d": [{"name": "y"}, {"name": "x"}]}, id="a list keeps its order"),
    ],
)
def test_fields_are_selected_by_their_owners_tree(fields: dict[str, Any], want: Any) -> None:
    """FieldsV1 against the object."""
    assert select_fields({"a": {"b": 1}, "c": [2]} | ({"d": [{"name": "y"}, {"name": "x"}]} if "f:d" in fields else {}), fields) == want


@pytest.mark.parametrize(
    ("target", "want_reason"),
    [
        pytest.param(make_marked(uid="uid-dead"), "TargetNotRestored", id="a dead one's fields are still on it"),
        pytest.param(make_marked("Retain", uid="uid-dead"), None, id="retained ones are the present configuration"),
        pytest.param(make_marked(uid="uid-dead", ours=False), None, id="what is left of lost records is nobody's to take off"),
        pytest.param(make_marked(uid="uid-adaptation-ocr"), None, id="its own"),
    ],
)
def test_a_successor_waits_until_its_predecessor_has_left(target: TargetFacts, want_reason: str | None) -> None:
    """Else its baseline would be the predecessor's choice, which is about to go."""
    problem = check_target(make_snapshot(adaptation=make_adaptation(), target=target))
    assert (problem.reason if problem is not None else None) == want_reason


def test_a_deleting_adaptation_claims_nothing() -> None:
    """Somebody's finalizer may hold it for ever."""
    snapshot = make_snapshot(adaptation=make_adaptation(deleting=True), target=make_marked(uid="uid-adaptation-ocr"))
    assert snapshot.target is not None
    assert awaits_restoring(snapshot.target, ())
    assert json.loads(snapshot.target.annotations[PREIMAGE_ANNOTATION])["adaptation"] == "uid-adaptation-ocr"
