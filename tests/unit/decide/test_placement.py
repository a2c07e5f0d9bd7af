from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import (
    FAMILY_LABEL_OF_VENDOR,
    OPENVINO_PROVIDER,
    make_config,
    make_container,
    make_env_owner,
    make_family,
    make_managed,
    make_target,
    make_template,
)

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FAMILY_LABEL, HEALTH_LABEL, PREIMAGE_ANNOTATION, LabelSelector
from metainfer.api.v1alpha1.model_adaptation import Settings, SettingsEnv
from metainfer.decide.facts import ContainerFacts, EnvEntry, EnvFrom, NodeTerm, TargetFacts
from metainfer.decide.ownership import PREFERRED_AFFINITY, REQUIRED_AFFINITY
from metainfer.decide.placement import PlacementPlan, PlacementRequest, build_placement, family_label_value
from metainfer.decide.pre_image import read_pre_image
from metainfer.decide.settings_mapping import PRESETS, SettingsMapping, render_settings, resolve_mapping

METAINFER, MLSERVER = PRESETS["MetaInfer"], PRESETS["MLServer"]
CHOSEN = make_config(execution_provider=OPENVINO_PROVIDER, precision="bf16", batch_size=8, dynamic_batching=True, max_batch_delay_us=2_000)
VALUE_ONLY: dict[str, object] = {"f:value": {}}


def make_request(container: ContainerFacts | None = None, target: TargetFacts | None = None, **fields: Any) -> PlacementRequest:
    container = container or make_container()
    defaults: dict[str, Any] = {
        "family": make_family("openvino-cpu", execution_providers=(OPENVINO_PROVIDER,)),
        "pool": "cards",
        "config": CHOSEN,
        "mapping": METAINFER,
        "config_maps": {},
        "decision_id": "d41d8cd98f00",
        "adaptation_uid": "uid-adaptation-ocr",
    }
    return PlacementRequest(target=target or make_target("ocr", container), container=container, **(defaults | fields))


def body_of(plan: PlacementPlan) -> Mapping[str, Any]:
    assert plan.apply is not None, plan
    return plan.apply.body


def pod_spec(plan: PlacementPlan) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = body_of(plan)["spec"]["template"]["spec"]
    return spec


def env_of(plan: PlacementPlan, kind: str = "containers") -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod_spec(plan)[kind][0]["env"]}


def terms_of(plan: PlacementPlan) -> list[dict[str, tuple[str, list[str]]]]:
    required = pod_spec(plan)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [{item["key"]: (item["operator"], item.get("values", [])) for item in term["matchExpressions"]} for term in required["nodeSelectorTerms"]]


# --- what is written ---


def test_a_choice_is_written_as_env_entries_of_its_container() -> None:
    """All mapped settings, precision among them, and nothing else of the container."""
    plan = build_placement(make_request())
    assert env_of(plan) == render_settings(METAINFER, CHOSEN)
    assert plan.env == render_settings(METAINFER, CHOSEN)
    assert set(pod_spec(plan)["containers"][0]) == {"name", "env"}
    assert (plan.withheld, plan.reason) == ((), "")


def test_a_node_belongs_by_the_vendors_labels_or_by_ours_and_is_not_degraded() -> None:
    """Two alternatives, each of them without degraded nodes; a node without a health label passes."""
    by_vendor, by_us = terms_of(build_placement(make_request()))
    healthy = ("NotIn", ["degraded"])
    assert by_vendor == {FAMILY_LABEL_OF_VENDOR: ("In", ["openvino-cpu"]), HEALTH_LABEL: healthy}
    assert by_us == {FAMILY_LABEL: ("In", [family_label_value("cards", "openvino-cpu")]), HEALTH_LABEL: healthy}


def test_a_node_outside_the_pool_is_no_place_whatever_its_labels() -> None:
    """The pool's own selector bounds the vendor's alternative; an expression without values has none."""
    selector = LabelSelector.model_validate({"matchExpressions": [{"key": "site/cards", "operator": "Exists"}]})
    by_vendor, _ = terms_of(build_placement(make_request(pool_selector=selector)))
    assert by_vendor["site/cards"] == ("Exists", [])


def test_nodes_that_we_have_measured_are_preferred() -> None:
    """The weakest preference there is, for nodes that carry our family label."""
    preferred = pod_spec(build_placement(make_request()))["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [item["weight"] for item in preferred] == [1]
    assert preferred[0]["preference"]["matchExpressions"][0]["key"] == FAMILY_LABEL


def test_the_body_names_the_object_the_decision_and_the_pre_image() -> None:
    """Everything that finding, restoring and reading back needs travels with the Deployment."""
    body = body_of(build_placement(make_request()))
    assert (body["apiVersion"], body["kind"], body["metadata"]["name"], body["metadata"]["namespace"]) == ("apps/v1", "Deployment", "ocr", "default")
    assert body["metadata"]["annotations"][DECISION_ANNOTATION] == "d41d8cd98f00"
    assert body["spec"]["template"]["metadata"]["annotations"] == {DECISION_ANNOTATION: "d41d8cd98f00"}
    text = body["metadata"]["annotations"][PREIMAGE_ANNOTATION]
    assert ": " not in text
    assert json.loads(text)["adaptation"] == "uid-adaptation-ocr"
    assert json.loads(text)["deletionPolicy"] == "Restore"
    assert set(body["spec"]) == {"template"}
    assert set(body["spec"]["template"]) == {"metadata", "spec"}


def test_settings_of_a_native_sidecar_go_to_the_init_containers() -> None:
    """An entry under `containers` would be a container without an image; a mapped name elsewhere in the pod is not ours to mind."""
    fetch = make_container("fetch", init=True, env={"METAINFER_PRECISION": "fp32"})
    server = make_container("model-server", init=True, restartable=True, env={"MODEL_DIR": "/m"})
    target = make_target(template=make_template(fetch, server, make_container("app")), managed=(make_env_owner(fetch, "METAINFER_PRECISION", manager="chart"),))
    plan = build_placement(make_request(server, target))
    assert "containers" not in pod_spec(plan)
    assert pod_spec(plan)["initContainers"][0]["name"] == "model-server"
    assert env_of(plan, "initContainers")["METAINFER_PRECISION"] == "bf16"
    assert plan.withheld == ()


def test_a_dollar_in_a_value_is_escaped() -> None:
    """The kubelet would expand it."""
    mapping = SettingsMapping({"execution_providers": "PROVIDERS"})
    plan = build_placement(make_request(config=make_config(execution_provider="$(HOME)"), mapping=mapping))
    assert env_of(plan) == {"PROVIDERS": "$$(HOME)"}
    assert plan.env == {"PROVIDERS": "$(HOME)"}


def test_a_patch_for_people_is_what_would_be_written_to_the_pod_spec() -> None:
    """Without our annotations: whoever applies it by hand owns it."""
    plan = build_placement(make_request())
    assert json.loads(plan.patch_json) == {"spec": {"template": {"spec": pod_spec(plan)}}}


# --- what is withheld ---


def test_equal_values_of_the_owner_are_left_alone() -> None:
    """What the owner declares is never written, also when it is what we would choose; the rest of the choice is."""
    container = make_container(env={"METAINFER_PRECISION": "bf16"})
    target = make_target("ocr", container, managed=(make_env_owner(container, "METAINFER_PRECISION", manager="chart"),))
    plan = build_placement(make_request(container, target))
    assert "METAINFER_PRECISION" not in env_of(plan)
    assert "METAINFER_PRECISION" not in plan.env
    assert len(env_of(plan)) == 4


def test_a_choice_against_a_declared_value_is_not_written_at_all() -> None:
    """Half a choice was never measured: path, manager and name are reported, and the patch still shows the rest."""
    container = make_container(env={"METAINFER_PRECISION": "fp32"})
    target = make_target("ocr", container, managed=(make_env_owner(container, "METAINFER_PRECISION", manager="chart"),))
    plan = build_placement(make_request(container, target))
    assert plan.apply is None
    assert plan.reason == "FieldContested"
    assert len(plan.withheld) == 1
    assert plan.withheld[0].manager == "chart"
    assert plan.withheld[0].path.endswith('env[name="METAINFER_PRECISION"]')
    assert "METAINFER_PRECISION has another value" in plan.withheld[0].why
    assert plan.env == {}
    assert "METAINFER_CONCURRENCY" in plan.patch_json


def test_a_setting_in_a_config_map_is_never_shadowed() -> None:
    """An env entry would beat the owner's ConfigMap without any conflict: so the ConfigMap and key are named instead."""
    container = replace(make_container("embed"), env_from=(EnvFrom("ConfigMap", "site"),))
    maps = {"site": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "16"}}
    plan = build_placement(make_request(container, mapping=MLSERVER, config_maps=maps))
    assert plan.apply is None
    assert "ConfigMap site, key MLSERVER_MODEL_MAX_BATCH_SIZE" in plan.withheld[0].why
    agreed = build_placement(make_request(container, mapping=MLSERVER, config_maps=maps, config=CHOSEN.model_copy(update={"batch_size": 16})))
    assert "MLSERVER_MODEL_MAX_BATCH_SIZE" not in env_of(agreed)
    assert env_of(agreed)["MLSERVER_MODEL_MAX_BATCH_TIME"] == "0.002"


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(replace(make_container(), env_from=(EnvFrom("Secret", "keys"),)), id="a Secret that may hold it"),
        pytest.param(replace(make_container(), env=(EnvEntry("METAINFER_PRECISION", source="field metadata.name"),)), id="a field"),
        pytest.param(make_container(env={"METAINFER_PRECISION": "mixed"}), id="a word of another server"),
    ],
)
def test_nothing_is_written_beside_a_value_that_cannot_be_read(container: ContainerFacts) -> None:
    """What would run was not what was measured."""
    plan = build_placement(make_request(container, config=make_config()))
    assert plan.apply is None
    assert plan.reason == "FieldContested"
    assert any("METAINFER_PRECISION" in item.why and "cannot be read" in item.why for item in plan.withheld)


def test_empty_values_of_the_owner_stay_empty() -> None:
    """They are read as the defaults; a choice that needs nothing else is written around them."""
    container = replace(
        make_container(), env=(EnvEntry("METAINFER_PRECISION"), EnvEntry("METAINFER_MAX_BATCH_SIZE", ""), EnvEntry("METAINFER_CONCURRENCY", "1"))
    )
    names = ("METAINFER_PRECISION", "METAINFER_MAX_BATCH_SIZE", "METAINFER_CONCURRENCY")
    target = make_target("ocr", container, managed=(make_env_owner(container, *names, manager="chart", operation="Update"),))
    plan = build_placement(make_request(container, target, config=make_config(execution_provider=OPENVINO_PROVIDER)))
    assert env_of(plan) == {"METAINFER_MAX_BATCH_DELAY": "0ms", "METAINFER_EXECUTION_PROVIDERS": OPENVINO_PROVIDER}


def test_a_setting_without_a_variable_keeps_its_default() -> None:
    """A choice that needs another value for it cannot be written."""
    mapping = resolve_mapping(Settings(env=SettingsEnv(concurrency="MI_MAX_NUM_SEQS")))
    plan = build_placement(make_request(mapping=mapping, config=make_config(precision="int8", concurrency=4)))
    assert plan.apply is None
    assert "precision has no variable" in plan.withheld[0].why
    fine = build_placement(make_request(mapping=mapping, config=make_config(concurrency=4)))
    assert env_of(fine) == {"MI_MAX_NUM_SEQS": "4"}


def test_without_a_mapping_only_the_placement_is_shown() -> None:
    """NoSettingsMapping: nothing is written, the patch has the affinity."""
    plan = build_placement(make_request(mapping=None))
    assert (plan.apply, plan.reason) == (None, "NoSettingsMapping")
    assert "spec.settings" in plan.withheld[0].path
    assert "nodeAffinity" in plan.patch_json
    assert "containers" not in plan.patch_json


def owner_affinity(*paths: tuple[str, ...]) -> TargetFacts:
    template = make_template(
        make_container(),
        required_terms=(NodeTerm(),) if REQUIRED_AFFINITY in paths else None,
        preferred_present=PREFERRED_AFFINITY in paths,
    )
    return make_target(template=template, managed=tuple(make_managed(*path, manager="chart", operation="Update") for path in paths))


def test_the_owners_affinity_is_not_touched_and_settings_are_written_where_its_pods_run_anyway() -> None:
    """Both halves belong to the owner, and by its own rule every node is of the chosen family."""
    plan = build_placement(make_request(target=owner_affinity(REQUIRED_AFFINITY, PREFERRED_AFFINITY)))
    assert "affinity" not in pod_spec(plan)
    assert env_of(plan)["METAINFER_PRECISION"] == "bf16"
    assert [(item.manager, item.path.rpartition(".")[2]) for item in plan.withheld] == [
        ("chart", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("chart", "preferredDuringSchedulingIgnoredDuringExecution"),
    ]
    assert "affinity" not in plan.patch_json


def test_no_settings_for_a_family_that_the_owners_rule_may_leave() -> None:
    """The owner's affinity also allows a node of another family: settings chosen for this one would run there too."""
    plan = build_placement(make_request(target=owner_affinity(REQUIRED_AFFINITY), other_nodes=("t4-1", "t4-2", "t4-3", "t4-4", "t4-5")))
    assert plan.apply is None
    assert plan.reason == "FieldContested"
    assert "t4-1, t4-2, t4-3 and 2 more" in plan.withheld[0].why
    assert "METAINFER_PRECISION" in plan.patch_json


def test_a_few_other_nodes_are_all_named() -> None:
    """Three fit into the message."""
    plan = build_placement(make_request(target=owner_affinity(REQUIRED_AFFINITY), other_nodes=("t4-1", "t4-2", "t4-3")))
    assert "(t4-1, t4-2, t4-3)" in plan.withheld[0].why


def test_other_nodes_do_not_matter_where_we_place_the_pods() -> None:
    """Our own required terms keep them away."""
    assert build_placement(make_request(other_nodes=("t4-1",))).apply is not None


def test_one_half_of_the_owner_leaves_the_other_to_us() -> None:
    """A preference of the owner stays, our requirement is added."""
    plan = build_placement(make_request(target=owner_affinity(PREFERRED_AFFINITY)))
    assert set(pod_spec(plan)["affinity"]["nodeAffinity"]) == {"requiredDuringSchedulingIgnoredDuringExecution"}
    assert [item.manager for item in plan.withheld] == ["chart"]


def test_a_contested_entry_is_released_and_left_out() -> None:
    """A client-side owner has put its value, the same as ours, under our entry: the entry is given back without deleting it."""
    container = make_container(env={"METAINFER_PRECISION": "bf16"})
    owners = (
        make_env_owner(container, "METAINFER_PRECISION"),
        make_env_owner(container, "METAINFER_PRECISION", manager="argocd-controller", operation="Update", leaf=VALUE_ONLY),
    )
    plan = build_placement(make_request(container, make_target("ocr", container, managed=owners)))
    assert plan.apply is not None
    assert plan.apply.release_env == (("server", "METAINFER_PRECISION"),)
    assert "METAINFER_PRECISION" not in env_of(plan)


def test_entries_left_in_another_container_are_released_too() -> None:
    """The adaptation may have named another container before."""
    old, new = make_container("old", env={"METAINFER_PRECISION": "fp32"}), make_container("new")
    owners = (make_env_owner(old, "METAINFER_PRECISION"), make_env_owner(old, "METAINFER_PRECISION", manager="kubectl", operation="Update", leaf=VALUE_ONLY))
    plan = build_placement(make_request(new, make_target("ocr", old, new, managed=owners)))
    assert plan.apply is not None
    assert plan.apply.release_env == (("old", "METAINFER_PRECISION"),)


# --- the pre-image ---


def applied(request: PlacementRequest) -> TargetFacts:
    """The target as it would be after the apply, as far as these rules look at it."""
    plan = build_placement(request)
    container = replace(request.container, env=request.container.env + tuple(EnvEntry(name, value) for name, value in env_of(plan).items()))
    managed = (make_env_owner(container, *plan.env), make_managed(*REQUIRED_AFFINITY), make_managed(*PREFERRED_AFFINITY))
    template = replace(request.target.template, containers=(container,), required_terms=(NodeTerm(),), preferred_present=True)
    raw = {"spec": {"template": {"spec": {"affinity": pod_spec(plan)["affinity"]}}}}
    return replace(request.target, template=template, managed=managed, annotations=body_of(plan)["metadata"]["annotations"], raw=raw)


def test_nothing_was_there_where_we_write() -> None:
    """Every touched path is listed with null: what the owner has is never touched."""
    found = read_pre_image(applied(make_request()).annotations)
    assert found is not None
    assert set(found.before.values()) == {None}
    assert 'spec.template.spec.containers[name="server"].env[name="METAINFER_PRECISION"]' in found.before
    assert "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution" in found.before
    assert len(found.before) == 7


@pytest.mark.parametrize(
    ("affinity", "want_path"),
    [
        pytest.param({}, "spec.template.spec.affinity", id="affinity: {}"),
        pytest.param({"nodeAffinity": {}}, "spec.template.spec.affinity.nodeAffinity", id="nodeAffinity: {}"),
        pytest.param({"podAntiAffinity": {"x": []}, "nodeAffinity": {}}, "spec.template.spec.affinity.nodeAffinity", id="beside pod affinity"),
    ],
)
def test_an_empty_parent_of_the_owner_is_remembered(affinity: dict[str, Any], want_path: str) -> None:
    """Server-side apply drops it together with our part, so restoring has to put it back."""
    target = make_target("ocr", make_container(), raw={"spec": {"template": {"spec": {"affinity": affinity}}}})
    before = json.loads(body_of(build_placement(make_request(target=target)))["metadata"]["annotations"][PREIMAGE_ANNOTATION])["before"]
    assert {path: value for path, value in before.items() if value is not None} == {want_path: {}}


def test_a_second_choice_keeps_what_the_first_one_remembered() -> None:
    """The live object holds our own fields by then: they are no pre-image."""
    target = make_target("ocr", make_container(), raw={"spec": {"template": {"spec": {"affinity": {}}}}})
    first = applied(make_request(target=target))
    second = build_placement(make_request(first.template.containers[0], first, config=make_config(), decision_id="another"))
    remembered = read_pre_image(body_of(second)["metadata"]["annotations"])
    assert remembered == read_pre_image(first.annotations)


def test_the_deletion_policy_travels_with_the_deployment() -> None:
    """Whoever finds the Deployment without its adaptation knows what was wished."""
    found = read_pre_image(applied(make_request(deletion_policy="Retain")).annotations)
    assert found is not None
    assert (found.deletion_policy, found.adaptation_uid) == ("Retain", "uid-adaptation-ocr")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"adaptation": 1, "before": 7}', "not json"])
def test_an_annotation_that_is_not_ours_is_no_pre_image(text: str) -> None:
    """Somebody may have copied or edited it; it must not stop anything."""
    target = make_target("ocr", make_container(), annotations={PREIMAGE_ANNOTATION: text})
    assert read_pre_image(target.annotations) is None
    assert build_placement(make_request(target=target)).apply is not None


def test_applying_the_same_decision_twice_is_the_same_body() -> None:
    """The second apply changes nothing, so it starts no rollout."""
    request = make_request()
    target = applied(request)
    again = replace(request, target=target, container=target.template.containers[0])
    assert body_of(build_placement(again)) == body_of(build_placement(request))


# --- for every owner ---

NAMES = tuple(METAINFER.names.values())
declared_values = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("", "fp32", "int8", "1", "8", "0ms", "2ms", OPENVINO_PROVIDER, "junk")), max_size=4)


@given(
    entries=declared_values,
    site=declared_values,
    halves=st.sets(st.sampled_from((REQUIRED_AFFINITY, PREFERRED_AFFINITY))),
    operation=st.sampled_from(("Apply", "Update")),
    config=st.sampled_from((CHOSEN, make_config(), make_config(execution_provider=OPENVINO_PROVIDER, precision="int8"))),
)
def test_the_body_never_contains_what_the_owner_declares(
    entries: Mapping[str, str], site: Mapping[str, str], halves: set[tuple[str, ...]], operation: str, config: Any
) -> None:
    """Whatever is declared, in env or in a ConfigMap, in either half of affinity: it is not in the apply, and a choice is whole or absent."""
    container = replace(make_container(env=entries), env_from=(EnvFrom("ConfigMap", "site"),))
    template = make_template(container, required_terms=(NodeTerm(),) if REQUIRED_AFFINITY in halves else None, preferred_present=PREFERRED_AFFINITY in halves)
    managed = [make_managed(*path, manager="chart", operation=operation) for path in sorted(halves)]
    managed.append(make_env_owner(container, *entries, manager="chart", operation=operation))
    plan = build_placement(make_request(container, make_target(template=template, managed=tuple(managed)), config_maps={"site": site}, config=config))
    in_force = {**site, **entries}
    wanted = render_settings(METAINFER, config)
    if plan.apply is None:
        assert plan.withheld
        assert any(in_force[name] != wanted[name] for name in in_force)
        return
    spec = pod_spec(plan)
    written = {entry["name"]: entry["value"] for item in spec.get("containers", ()) for entry in item["env"]}
    assert not set(written) & set(in_force)
    assert not {f"f:{half}" for half in spec.get("affinity", {}).get("nodeAffinity", {})} & {path[-1] for path in halves}
    assert written == {name: value for name, value in wanted.items() if name not in in_force}
