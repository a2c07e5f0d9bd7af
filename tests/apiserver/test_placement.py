"""The apply of a decision on a real API server: owners keep what is theirs, and giving everything back leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.api_server import ApiServer, find_binary
from tests.unit.decide.make_facts import OPENVINO_PROVIDER, make_config, make_family

from metainfer.act.release import build_release
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FIELD_MANAGER
from metainfer.api.v1alpha1.model_adaptation import Settings, SettingsEnv
from metainfer.decide.declared import contested_env, find_declaration, reads_setting
from metainfer.decide.environment import ConfigMaps
from metainfer.decide.facts import ContainerFacts, TargetFacts
from metainfer.decide.placement import PlacementPlan, PlacementRequest, build_placement
from metainfer.decide.pre_image import read_pre_image
from metainfer.decide.room import cards_requested
from metainfer.decide.settings_mapping import PRESETS, SettingsMapping, read_baseline, render_settings, resolve_mapping
from metainfer.decide.target import find_container
from metainfer.observe.projections import project_target
from metainfer_probe.contract import ServingConfig

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
METAINFER, MLSERVER = PRESETS["MetaInfer"], PRESETS["MLServer"]
ENGINE = resolve_mapping(Settings(env=SettingsEnv(concurrency="SEQS")))
FAST = make_config(execution_provider=OPENVINO_PROVIDER, precision="bf16", concurrency=2)


@pytest.fixture(scope="module")
def server(kubeconfig: Path) -> Iterator[ApiServer]:
    """The session's API server, as raw as a test of patches wants it."""
    with closing(ApiServer(kubeconfig, find_binary("kubectl"))) as server:
        yield server


@dataclass(frozen=True)
class Owner:
    """How somebody else writes their Deployment."""

    name: str
    flags: tuple[str, ...]

    def write(self, server: ApiServer, *objects: Raw) -> None:
        """Create or update the objects as this owner does it."""
        for item in objects:
            done = server.kubectl("apply", *self.flags, "-f", "-", stdin=json.dumps(item))
            assert done.returncode == 0, done.stderr


CLIENT_SIDE = Owner("client", ())
SERVER_SIDE = Owner("server", ("--server-side", "--field-manager=chart"))
by_both_owners = pytest.mark.parametrize("owner", [pytest.param(CLIENT_SIDE, id="client-side owner"), pytest.param(SERVER_SIDE, id="server-side owner")])


def make_deployment(name: str, pod: Raw, **spec: Any) -> Raw:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": {"team": "vision"}},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}, **spec},
    }


def path_of(name: str) -> str:
    return f"/apis/apps/v1/namespaces/default/deployments/{name}"


def read(server: ApiServer, name: str) -> Raw:
    status, raw = server.send("GET", path_of(name))
    assert status == 200, raw
    found: Raw = raw
    return found


def apply_ours(server: ApiServer, name: str, body: Mapping[str, Any]) -> tuple[int, Raw]:
    query = f"?fieldManager={FIELD_MANAGER}&force=false"
    return server.send("PATCH", path_of(name) + query, dict(body), "application/apply-patch+yaml")


def give_all_back(server: ApiServer, name: str) -> Raw:
    status, raw = apply_ours(server, name, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}})
    assert status == 200, raw
    return raw


def what_counts(raw: Raw) -> Raw:
    """All of a Deployment that anybody declares."""
    metadata = raw["metadata"]
    return {"spec": raw["spec"], "labels": metadata.get("labels"), "annotations": metadata.get("annotations")}


@dataclass(frozen=True)
class Placed:
    """A Deployment with a choice for it."""

    target: TargetFacts
    container: ContainerFacts
    plan: PlacementPlan


def plan_for(raw: Raw, mapping: SettingsMapping | None, config: ServingConfig, *, container: str | None = None, maps: ConfigMaps | None = None) -> Placed:
    target = project_target(raw)
    found = find_container(target.template, container)
    assert found is not None
    request = PlacementRequest(
        target=target,
        container=found,
        family=make_family("openvino-cpu", execution_providers=(OPENVINO_PROVIDER,)),
        pool="cards",
        config=config,
        mapping=mapping,
        config_maps=maps or {},
        decision_id="d41d8cd98f00",
        adaptation_uid="uid-adaptation",
    )
    return Placed(target, found, build_placement(request))


def apply_plan(server: ApiServer, raw: Raw, plan: PlacementPlan) -> Raw:
    """What `act` does: release what is contested, then apply."""
    assert plan.apply is not None, plan.withheld
    release = build_release(raw, plan.apply.release_env)
    if release:
        status, answer = server.send("PATCH", path_of(plan.apply.name), release, "application/json-patch+json")
        assert status == 200, answer
    status, answer = apply_ours(server, plan.apply.name, plan.apply.body)
    assert status == 200, answer
    return answer


def env_of(raw: Raw, container: str) -> list[Raw]:
    spec = raw["spec"]["template"]["spec"]
    found: Raw = next(item for key in ("initContainers", "containers") for item in spec.get(key, ()) if item["name"] == container)
    entries: list[Raw] = found.get("env", [])
    return entries


EMPTY_VALUES = make_deployment(
    "ocr",
    {
        "containers": [
            {
                "name": "server",
                "image": "reader:1",
                "env": [
                    {"name": "METAINFER_PRECISION"},
                    {"name": "METAINFER_MAX_BATCH_SIZE", "value": ""},
                    {"name": "METAINFER_CONCURRENCY", "value": "1"},
                    {"name": "OMP_NUM_THREADS", "value": "2"},
                ],
            }
        ]
    },
)
FROM_MAPS = make_deployment(
    "embed",
    {
        "containers": [
            {
                "name": "embedder",
                "image": "embed:1",
                "envFrom": [
                    {"configMapRef": {"name": "embed-base"}},
                    {"configMapRef": {"name": "embed-site"}},
                    {"prefix": "MLSERVER_MODEL_", "configMapRef": {"name": "embed-site"}},
                    {"configMapRef": {"name": "embed-absent", "optional": True}},
                ],
            }
        ]
    },
)
MAPS: ConfigMaps = {
    "embed-base": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "8", "MLSERVER_MODEL_MAX_BATCH_TIME": "0.005"},
    "embed-site": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "16", "MAX_BATCH_TIME": "0.02"},
    "embed-absent": None,
}
DUPLICATES = make_deployment(
    "engine",
    {
        "containers": [
            {
                "name": "engine",
                "image": "engine:1",
                "command": ["serve", "--host", "$(POD_IP)", "--max-seqs", "$(SEQS)", "--kind", "$$(LITERAL)"],
                "env": [
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "CACHE", "value": "off"},
                    {"name": "CACHE_SIZE", "value": "0"},
                    {"name": "HOME", "value": "/data"},
                    {"name": "CACHE", "value": "on"},
                    {"name": "CACHE_SIZE", "value": "60"},
                ],
            }
        ]
    },
)
SIDECAR = make_deployment(
    "assist",
    {
        "initContainers": [
            {"name": "fetch", "image": "fetch:1", "env": [{"name": "METAINFER_PRECISION", "value": "fp32"}]},
            {
                "name": "onnx",
                "image": "onnx:1",
                "restartPolicy": "Always",
                "env": [{"name": "MODEL_DIR", "value": "/models"}],
                "resources": {"limits": {"example.com/card": 1}},
            },
        ],
        "containers": [{"name": "app", "image": "app:1"}],
    },
)
OWN_AFFINITY = make_deployment(
    "rank",
    {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "card", "operator": "In", "values": ["t4"]}]},
                        {"matchExpressions": [{"key": "memory", "operator": "Gt", "values": ["20000"]}]},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
                ],
            }
        },
        "containers": [{"name": "server", "image": "rank:1"}],
    },
)
PLAIN = make_deployment("plain", {"containers": [{"name": "server", "image": "plain:1", "env": [{"name": "LOG_LEVEL", "value": "info"}]}]})
POD_APART = make_deployment(
    "apart",
    {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}}
                ]
            }
        },
        "containers": [{"name": "server", "image": "apart:1"}],
    },
)


@by_both_owners
@pytest.mark.parametrize(
    ("deployment", "mapping", "config", "container", "want_added"),
    [
        pytest.param(PLAIN, METAINFER, FAST, None, list(METAINFER.names.values()), id="nothing declared"),
        pytest.param(POD_APART, METAINFER, FAST, None, list(METAINFER.names.values()), id="pod anti-affinity declared"),
        pytest.param(
            EMPTY_VALUES,
            METAINFER,
            make_config(execution_provider=OPENVINO_PROVIDER),
            None,
            ["METAINFER_MAX_BATCH_DELAY", "METAINFER_EXECUTION_PROVIDERS"],
            id="names declared without a value",
        ),
        pytest.param(SIDECAR, METAINFER, FAST, "onnx", list(METAINFER.names.values()), id="a native sidecar serves"),
        pytest.param(OWN_AFFINITY, METAINFER, FAST, None, list(METAINFER.names.values()), id="both halves of affinity declared"),
    ],
)
def test_a_choice_is_added_and_given_back_without_a_trace(
    server: ApiServer, owner: Owner, deployment: Raw, mapping: SettingsMapping, config: ServingConfig, container: str | None, want_added: list[str]
) -> None:
    """Owner's values, number and order of entries stay; the second apply changes nothing; the empty apply restores the very same object."""
    name = f"{deployment['metadata']['name']}-{owner.name}"
    mine = deployment | {"metadata": deployment["metadata"] | {"name": name}}
    owner.write(server, mine)
    before = read(server, name)
    first = plan_for(before, mapping, config, container=container)
    after = apply_plan(server, before, first.plan)

    old, new = env_of(before, first.container.name), env_of(after, first.container.name)
    assert new[: len(old)] == old
    assert [entry["name"] for entry in new[len(old) :]] == want_added
    assert {entry["name"]: entry["value"] for entry in new[len(old) :]} == first.plan.env
    others = [item.name for item in first.target.template.containers if item.name != first.container.name]
    assert all(env_of(after, other) == env_of(before, other) for other in others)
    assert after["spec"]["template"]["metadata"]["annotations"] == {DECISION_ANNOTATION: "d41d8cd98f00"}

    owner.write(server, mine)
    second = plan_for(read(server, name), mapping, config, container=container)
    assert second.plan.env == first.plan.env
    again = apply_plan(server, read(server, name), second.plan)
    assert again["metadata"]["generation"] == after["metadata"]["generation"]
    assert what_counts(again) == what_counts(after)

    assert what_counts(give_all_back(server, name)) == what_counts(before)


@by_both_owners
def test_the_owners_affinity_is_left_as_it_is(server: ApiServer, owner: Owner) -> None:
    """Both halves are named with path and manager, and only settings are written."""
    name = f"rank-affinity-{owner.name}"
    owner.write(server, OWN_AFFINITY | {"metadata": OWN_AFFINITY["metadata"] | {"name": name}})
    before = read(server, name)
    placed = plan_for(before, METAINFER, FAST)
    after = apply_plan(server, before, placed.plan)
    assert after["spec"]["template"]["spec"]["affinity"] == before["spec"]["template"]["spec"]["affinity"]
    assert {item.manager for item in placed.plan.withheld} == {"chart" if owner is SERVER_SIDE else "kubectl-client-side-apply"}
    assert len(placed.plan.withheld) == 2


@by_both_owners
def test_settings_in_config_maps_are_not_shadowed(server: ApiServer, owner: Owner) -> None:
    """The baseline is the owner's; a choice with another batch is not written, one with the same batch leaves the names alone."""
    name = f"embed-maps-{owner.name}"
    owner.write(server, FROM_MAPS | {"metadata": FROM_MAPS["metadata"] | {"name": name}})
    before = read(server, name)
    target = project_target(before)
    baseline = read_baseline(MLSERVER, target, target.template.containers[0], MAPS)
    assert (baseline.config.batch_size, baseline.config.max_batch_delay_us) == (16, 20_000)

    refused = plan_for(before, MLSERVER, FAST.model_copy(update={"batch_size": 8, "dynamic_batching": True, "max_batch_delay_us": 5_000}), maps=MAPS).plan
    assert refused.apply is None
    assert "ConfigMap embed-site, key MAX_BATCH_TIME" in " ".join(item.why for item in refused.withheld)

    agreed = baseline.config.model_copy(update={"precision": "bf16"})
    after = apply_plan(server, before, plan_for(before, MLSERVER, agreed, maps=MAPS).plan)
    names = [entry["name"] for entry in env_of(after, "embedder")]
    assert names == ["METAINFER_PRECISION", "METAINFER_CONCURRENCY", "METAINFER_EXECUTION_PROVIDERS"]
    assert what_counts(give_all_back(server, name)) == what_counts(before)


@by_both_owners
def test_empty_declarations_are_seen_where_the_server_sees_no_conflict(server: ApiServer, owner: Owner) -> None:
    """An apply over an entry without a value answers 200: a 409 cannot be the test for what the owner declares."""
    name = f"ocr-empty-{owner.name}"
    owner.write(server, EMPTY_VALUES | {"metadata": EMPTY_VALUES["metadata"] | {"name": name}})
    target = project_target(read(server, name))
    container = target.template.containers[0]
    found = [find_declaration(target, container, variable, {}) for variable in ("METAINFER_PRECISION", "METAINFER_MAX_BATCH_SIZE")]
    assert [item and item.value for item in found] == ["", ""]
    pod = {"containers": [{"name": "server", "env": [{"name": "METAINFER_PRECISION", "value": "int8"}]}]}
    over = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"template": {"spec": pod}}}
    assert apply_ours(server, name, over)[0] == 200


@by_both_owners
def test_a_native_sidecar_is_written_where_it_stands(server: ApiServer, owner: Owner) -> None:
    """Its card is the pod's card; an entry under `containers` would be refused for want of an image."""
    name = f"assist-place-{owner.name}"
    owner.write(server, SIDECAR | {"metadata": SIDECAR["metadata"] | {"name": name}})
    before = read(server, name)
    placed = plan_for(before, METAINFER, FAST, container="onnx")
    assert cards_requested(placed.target.template) == {"example.com/card": 1}
    assert placed.plan.apply is not None
    wrong = json.loads(json.dumps(placed.plan.apply.body).replace('"initContainers"', '"containers"'))
    status, answer = apply_ours(server, name, wrong)
    assert (status, answer["reason"]) == (422, "Invalid")
    after = apply_plan(server, before, placed.plan)
    assert {"name": "METAINFER_PRECISION", "value": "bf16"} in env_of(after, "onnx")


def test_a_name_that_is_declared_twice_stays_twice(server: ApiServer) -> None:
    """Six entries in their order, ours behind them; the setting that the command reads was not set before (server-side apply refuses such a manifest)."""
    CLIENT_SIDE.write(server, DUPLICATES)
    before = read(server, "engine")
    placed = plan_for(before, ENGINE, make_config(concurrency=4))
    assert reads_setting(placed.container, "SEQS")
    assert not reads_setting(placed.container, "LITERAL")
    baseline = read_baseline(ENGINE, placed.target, placed.container, {})
    assert baseline.fixed == {}
    assert any("SEQS" in note and "is not set" in note for note in baseline.notes)
    cache = find_declaration(placed.target, placed.container, "CACHE", {})
    assert cache is not None
    assert cache.value == "on"

    after = apply_plan(server, before, placed.plan)
    assert env_of(after, "engine") == [*env_of(before, "engine"), {"name": "SEQS", "value": "4"}]
    applied = project_target(after)
    assert read_baseline(ENGINE, applied, applied.template.containers[0], {}).config.concurrency == 4
    assert what_counts(give_all_back(server, "engine")) == what_counts(before)


@by_both_owners
@pytest.mark.parametrize("value", [pytest.param("fp32", id="another value"), pytest.param("bf16", id="our value")])
def test_an_owner_that_starts_to_declare_a_setting_gets_it(server: ApiServer, owner: Owner, value: str) -> None:
    """It wins, its entry survives that we leave it out, and after everything is given back the object is what the owner declares."""
    name = f"late-{owner.name}-{value}"
    mine = PLAIN | {"metadata": PLAIN["metadata"] | {"name": name}}
    owner.write(server, mine)
    apply_plan(server, read(server, name), plan_for(read(server, name), METAINFER, FAST).plan)

    container = mine["spec"]["template"]["spec"]["containers"][0]
    declaring = json.loads(json.dumps(mine))
    declaring["spec"]["template"]["spec"]["containers"][0]["env"] = [*container["env"], {"name": "METAINFER_PRECISION", "value": value}]
    forcing = Owner(owner.name, (*owner.flags, *(("--force-conflicts",) if owner is SERVER_SIDE else ())))
    forcing.write(server, declaring)
    live = read(server, name)
    target = project_target(live)
    found = find_declaration(target, target.template.containers[0], "METAINFER_PRECISION", {})
    assert found is not None
    assert found.value == value
    if owner is CLIENT_SIDE and value == "bf16":
        assert found.manager == "client-side apply", "nothing in managedFields tells of it: the owner's annotation does"
    assert contested_env(target, target.template.containers[0]) == (("METAINFER_PRECISION",) if owner is CLIENT_SIDE else ())

    refused = plan_for(live, METAINFER, FAST).plan
    assert (refused.apply is None) == (value == "fp32")
    after = apply_plan(server, live, plan_for(live, METAINFER, FAST.model_copy(update={"precision": value})).plan)
    assert {entry["name"]: entry["value"] for entry in env_of(after, "server")}["METAINFER_PRECISION"] == value

    restored = give_all_back(server, name)
    fresh = json.loads(json.dumps(declaring))
    fresh["metadata"]["name"] = f"{name}-fresh"
    owner.write(server, fresh)
    assert restored["spec"]["template"] == read(server, f"{name}-fresh")["spec"]["template"]


@by_both_owners
def test_an_empty_affinity_of_the_owner_is_remembered(server: ApiServer, owner: Owner) -> None:
    """The one thing that giving everything back cannot restore by itself: the pre-image has it."""
    name = f"hollow-{owner.name}"
    hollow = make_deployment(name, {"affinity": {}, "containers": [{"name": "server", "image": "hollow:1"}]})
    owner.write(server, hollow)
    before = read(server, name)
    after = apply_plan(server, before, plan_for(before, METAINFER, FAST).plan)
    found = read_pre_image(after["metadata"]["annotations"])
    assert found is not None
    remembered = {path: value for path, value in found.before.items() if value is not None}
    assert remembered == {"spec.template.spec.affinity": {}}
    restored = give_all_back(server, name)["spec"]["template"]["spec"]
    assert restored | {"affinity": {}} == before["spec"]["template"]["spec"]


@by_both_owners
def test_the_owners_fields_are_never_in_the_body(server: ApiServer, owner: Owner) -> None:
    """A declared value against the choice: nothing at all is written, and the object is not touched."""
    name = f"fixed-{owner.name}"
    declared = make_deployment(name, {"containers": [{"name": "server", "image": "x:1", "env": [{"name": "METAINFER_PRECISION", "value": "fp32"}]}]})
    owner.write(server, declared)
    before = read(server, name)
    assert plan_for(before, METAINFER, FAST).plan.apply is None
    agreed = FAST.model_copy(update={"precision": "fp32"})
    placed = plan_for(before, METAINFER, agreed)
    after = apply_plan(server, before, placed.plan)
    assert set(placed.plan.env) == set(render_settings(METAINFER, agreed)) - {"METAINFER_PRECISION"}
    assert env_of(after, "server")[0] == {"name": "METAINFER_PRECISION", "value": "fp32"}
    assert what_counts(give_all_back(server, name)) == what_counts(before)
