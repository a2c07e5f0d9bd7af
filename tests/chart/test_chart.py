"""The Helm chart as it is rendered, and the render as a real API server takes it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.api_server import ApiServer, find_binary, run_api_server

from metainfer.api.v1alpha1.kinds import KINDS
from metainfer.settings import PREFIX, Settings

pytestmark = pytest.mark.chart

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "meta-infer"
NAMESPACE = "meta-infer-system"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_binary("helm"), *arguments], capture_output=True, text=True, check=False)


@cache
def render_text(*values: str) -> str:
    sets = [argument for value in values for argument in ("--set-json", value)]
    rendered = helm("template", "meta-infer", str(CHART), "--namespace", NAMESPACE, *sets)
    assert rendered.returncode == 0, rendered.stderr
    return rendered.stdout


def render(*values: str) -> list[dict[str, Any]]:
    """Every object of the chart with these values (path=JSON)."""
    return [document for document in yaml.safe_load_all(render_text(*values)) if document]


def find_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in objects if document["kind"] == kind]


def find_one(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    (found,) = (document for document in find_kind(objects, kind) if document["metadata"]["name"].endswith(suffix))
    return found


def operator_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = find_one(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def operator_env(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in operator_pod(objects)["containers"][0]["env"]}


def granted(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Every (resource, verb) that a bound ClusterRole of the operator gives."""
    bound = {document["roleRef"]["name"] for kind in ("ClusterRoleBinding", "RoleBinding") for document in find_kind(objects, kind)}
    roles = [role for role in find_kind(objects, "ClusterRole") if role["metadata"]["name"] in bound]
    return {(resource, verb) for role in roles for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_helm_lint_finds_nothing() -> None:
    """Warnings are errors here: users see them at each install."""
    linted = helm("lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout


def test_roles_have_no_wildcards_and_never_read_secrets() -> None:
    """Least privilege: every group, resource and verb is named."""
    roles = find_kind(render(), "ClusterRole")
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}, role["metadata"]["name"]
            assert "secrets" not in rule["resources"], role["metadata"]["name"]


def test_trials_need_rights_of_their_own_that_are_off_by_default() -> None:
    """Creating and deleting workloads is nothing that an operator gets unasked."""
    want = {("deployments", "create"), ("deployments", "delete"), ("services", "list"), ("poddisruptionbudgets", "list")}
    assert granted(render("rbac.canary.enabled=true")) - granted(render()) == want
    bound = find_kind(render("rbac.canary.enabled=true", 'rbac.targetNamespaces=["vision"]'), "RoleBinding")
    assert {"meta-infer-canary"} == {item["roleRef"]["name"] for item in bound if item["roleRef"]["name"].endswith("canary")}


def test_every_role_of_the_operator_is_bound_to_its_service_account() -> None:
    """A role that is not bound gives nothing; a binding to somebody else gives too much."""
    objects = render()
    own = {role["metadata"]["name"] for role in find_kind(objects, "ClusterRole")} - {"meta-infer-view", "meta-infer-edit"}
    bindings = find_kind(objects, "ClusterRoleBinding")
    assert {binding["roleRef"]["name"] for binding in bindings} == own
    want_subjects = [{"kind": "ServiceAccount", "name": "meta-infer", "namespace": NAMESPACE}]
    assert all(binding["subjects"] == want_subjects for binding in bindings)


def test_only_apply_changes_deployments() -> None:
    """Changing other people's objects is one role with one verb."""
    (role,) = (role for role in find_kind(render(), "ClusterRole") for rule in role["rules"] if "deployments" in rule["resources"] and "patch" in rule["verbs"])
    assert role["metadata"]["name"] == "meta-infer-apply"
    assert role["rules"] == [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"]}]


def test_recommending_only_needs_no_right_to_change_deployments() -> None:
    """With rbac.apply.enabled=false no verb is left that changes a workload."""
    without = granted(render("rbac.apply.enabled=false"))
    assert {verb for resource, verb in without if resource == "deployments"} == {"get", "list", "watch"}
    assert granted(render()) - without == {("deployments", "patch")}


def test_target_namespaces_bind_measuring_and_applying_there_only() -> None:
    """Jobs start, and Deployments change, only where the administrator said so; node probes run beside the operator."""
    objects = render('rbac.targetNamespaces=["vision","speech"]')
    where: dict[str, list[str]] = {}
    for binding in find_kind(objects, "RoleBinding"):
        where.setdefault(binding["roleRef"]["name"], []).append(binding["metadata"]["namespace"])
    assert where == {
        "meta-infer-measure": ["vision", "speech", NAMESPACE],
        "meta-infer-apply": ["vision", "speech"],
        "meta-infer-events": ["vision", "speech", "default"],
    }
    clusterwide = {binding["roleRef"]["name"] for binding in find_kind(objects, "ClusterRoleBinding")}
    assert clusterwide == {"meta-infer-framework", "meta-infer-observe", "meta-infer-kinds", "meta-infer-nodes"}


def test_outside_the_target_namespaces_nothing_of_others_is_written_but_labels_of_nodes() -> None:
    """What is bound in the whole cluster beside reading: its own kinds and nodes. Recommending only takes nothing more away there."""
    for values in (('rbac.targetNamespaces=["vision"]',), ('rbac.targetNamespaces=["vision"]', "rbac.apply.enabled=false")):
        objects = render(*values)
        bound = {binding["roleRef"]["name"] for binding in find_kind(objects, "ClusterRoleBinding")}
        rules = [rule for role in find_kind(objects, "ClusterRole") if role["metadata"]["name"] in bound for rule in role["rules"]]
        written = {resource for rule in rules for resource in rule["resources"] if {*rule["verbs"]} - {"get", "list", "watch"}}
        assert written == {"acceleratorpools/status", "modeladaptations/status", "nodeportraits/status", "nodeportraits", "nodes"}


def test_the_rights_are_exactly_these() -> None:
    """A golden list: who adds a right has to say so here, with the role's comment saying what for."""
    assert sorted(f"{resource} {verb}" for resource, verb in granted(render())) == sorted(
        f"{resource} {verb}"
        for resource, verbs in {
            "acceleratorpools": "get list watch",
            "acceleratorpools/status": "patch",
            "configmaps": "get",
            "customresourcedefinitions": "get list watch",
            "deployments": "get list watch patch",
            "events": "get list create patch",
            "jobs": "get list watch create delete",
            "modeladaptations": "get list watch",
            "modeladaptations/status": "patch",
            "namespaces": "get list watch",
            "nodeportraits": "get list watch create patch delete",
            "nodeportraits/status": "patch",
            "nodes": "get list watch patch",
            "persistentvolumeclaims": "get",
            "persistentvolumes": "get",
            "pods": "list watch",
            "pods/log": "get",
            "runtimeclasses": "get",
        }.items()
        for verb in verbs.split()
    )


def test_operator_pod_meets_pod_security_restricted() -> None:
    """The strictest of Kubernetes' own levels, and a read-only root on top."""
    pod = operator_pod(render())
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_two_operators_never_run_at_once() -> None:
    """One replica, replaced by stopping it first."""
    spec = find_one(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_probes_ask_the_port_that_the_operator_is_told_to_open() -> None:
    """One number in three places."""
    objects = render()
    (container,) = operator_pod(objects)["containers"]
    (port,) = container["ports"]
    assert operator_env(objects)["METAINFER_HEALTH_PORT"] == str(port["containerPort"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert find_one(render(), "Service", "-metrics")["spec"]["ports"][0]["targetPort"] == port["name"]


def read_rendered_settings(objects: list[dict[str, Any]]) -> Settings:
    """What the operator would read in that pod."""
    env = {name.removeprefix(PREFIX).lower(): value for name, value in operator_env(objects).items() if name.startswith(PREFIX)}
    assert env.pop("operator_namespace") == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    return Settings.model_validate(env)


def test_every_setting_is_in_the_pod_and_has_the_operators_own_default() -> None:
    """The chart documents the defaults, so they have to be the real ones."""
    settings = read_rendered_settings(render())
    assert settings == Settings(probe_image="meta-infer/probe:0.1.0")
    assert settings.model_fields_set | {"operator_namespace"} == set(Settings.model_fields)


def test_every_setting_of_the_values_can_be_overridden() -> None:
    """Through the chart's schema, Helm's numbers and the operator's own check."""
    given: dict[str, Any] = {
        "logLevel": "DEBUG",
        "storeKeepSamples": 20,
        "storeKeepDecisions": 2,
        "storeKeepDays": 7,
        "storeKeepDetailDays": 1,
        "storeCompactSeconds": 60,
        "learnAfterSamples": 3,
        "imageBytes": 5_000_000_000,
        "jobUserId": 1000,
        "benchWindowSeconds": 0.25,
        "benchRounds": 3,
        "profileBudgetSeconds": 60,
        "jobStartSeconds": 90,
        "driverSettleSeconds": 12,
        "threadsPerCard": 2,
        "workers": 4,
        "resyncSeconds": 30,
        "requestsPerSecond": 12.5,
        "requestBurst": 25,
    }
    assert given.keys() == yaml.safe_load((CHART / "values.yaml").read_text())["settings"].keys()
    settings = read_rendered_settings(render(f"settings={json.dumps(given)}"))
    for name, want in given.items():
        assert getattr(settings, re.sub("([A-Z])", r"_\1", name).lower()) == want


def test_a_setting_of_null_leaves_the_operators_default() -> None:
    """For who wants to follow the operator's defaults over upgrades."""
    assert "METAINFER_WORKERS" not in operator_env(render("settings.workers=null"))


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ('{"tag":"v9"}', "meta-infer/{}:v9"),
        ('{"repository":"registry.example.com/x"}', "registry.example.com/x:0.1.0"),
        (f'{{"tag":"v9","digest":"sha256:{"a" * 64}"}}', f"meta-infer/{{}}@sha256:{'a' * 64}"),
    ],
    ids=["tag", "repository", "digest wins over tag"],
)
def test_both_images_can_be_overridden(value: str, want: str) -> None:
    """Repository, tag and digest of the operator's and of the measuring Jobs' image."""
    assert operator_pod(render(f"image={value}"))["containers"][0]["image"] == want.format("operator")
    assert operator_env(render(f"probeImage={value}"))["METAINFER_PROBE_IMAGE"] == want.format("probe")


def test_measuring_jobs_never_push_anything_aside() -> None:
    """Below the autoscaler's cut-off of -10, and without preemption; the operator is told the same name."""
    objects = render('priorityClass.name="calm"')
    priority = find_one(objects, "PriorityClass")
    assert (priority["metadata"]["name"], priority["value"], priority["preemptionPolicy"]) == ("calm", -1000, "Never")
    assert operator_env(objects)["METAINFER_PRIORITY_CLASS"] == "calm"


def test_measuring_jobs_can_leave_their_user_to_the_clusters_policy() -> None:
    """OpenShift's restricted-v2 refuses any user id outside the namespace's own range: 0 names none, and the operator's own pod can do so too."""
    assert operator_env(render())["METAINFER_JOB_USER_ID"] == "65532"
    null = "runAsUser=null", "runAsGroup=null", "fsGroup=null"
    objects = render("settings.jobUserId=0", *(f"podSecurityContext.{item}" for item in null))
    assert operator_env(objects)["METAINFER_JOB_USER_ID"] == "0"
    assert operator_pod(objects)["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_without_a_priority_class_the_operator_is_told_so() -> None:
    """A pod that names a class that does not exist is refused: empty means none."""
    objects = render("priorityClass.create=false", 'priorityClass.name=""')
    assert find_kind(objects, "PriorityClass") == []
    assert operator_env(objects)["METAINFER_PRIORITY_CLASS"] == ""


@pytest.mark.parametrize(
    ("values", "want_claims", "want_volume"),
    [
        ((), ["meta-infer-store"], {"persistentVolumeClaim": {"claimName": "meta-infer-store"}}),
        (('store.persistence.existingClaim="mine"',), [], {"persistentVolumeClaim": {"claimName": "mine"}}),
        (("store.persistence.enabled=false",), [], {"emptyDir": {}}),
    ],
    ids=["claim of its own", "existing claim", "no claim"],
)
def test_store_is_on_the_volume_that_was_asked_for(values: tuple[str, ...], want_claims: list[str], want_volume: dict[str, Any]) -> None:
    """What was measured outlives the pod unless somebody decides otherwise."""
    objects = render(*values)
    assert [claim["metadata"]["name"] for claim in find_kind(objects, "PersistentVolumeClaim")] == want_claims
    (store,) = (volume for volume in operator_pod(objects)["volumes"] if volume["name"] == "store")
    assert {key: value for key, value in store.items() if key != "name"} == want_volume


def test_a_database_takes_the_place_of_the_volume() -> None:
    """Its URL comes from a Secret and stands nowhere else; the pod needs no claim, and reaches the database through the policy."""
    objects = render('store.urlSecret={"name":"database","key":"uri"}', 'store.tlsSecret.name="database-tls"', "networkPolicy.enabled=true")
    assert operator_env(objects)["METAINFER_STORE_URL"] == {"secretKeyRef": {"name": "database", "key": "uri"}}
    assert find_kind(objects, "PersistentVolumeClaim") == []
    pod = operator_pod(objects)
    assert [volume["name"] for volume in pod["volumes"]] == ["store-tls", "tmp"]
    assert pod["volumes"][0]["secret"] == {"secretName": "database-tls", "defaultMode": 0o440}
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["store-tls", "tmp"]
    ports = [port["port"] for rule in find_one(objects, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 443, 6443, 5432]
    without = [port["port"] for rule in find_one(render("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert without == [53, 53, 443, 6443]


def test_crds_are_the_generated_ones_and_are_kept() -> None:
    """The same specs as in crds/, and an uninstall does not take everybody's objects along."""
    rendered = {crd["metadata"]["name"]: crd for crd in find_kind(render(), "CustomResourceDefinition")}
    generated = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert len(generated) == len(rendered) == len(KINDS)
    for crd in generated:
        assert rendered[crd["metadata"]["name"]]["spec"] == crd["spec"]
        assert rendered[crd["metadata"]["name"]]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_crds_can_be_left_out_or_left_to_go() -> None:
    """For who installs them otherwise, and for throw-away clusters."""
    assert find_kind(render("crds.install=false"), "CustomResourceDefinition") == []
    assert [crd["metadata"].get("annotations") for crd in find_kind(render("crds.keep=false"), "CustomResourceDefinition")] == [None] * len(KINDS)


OPTIONAL = {
    "ServiceMonitor": "prometheus.servicemonitor.enabled=true",
    "NetworkPolicy": "networkPolicy.enabled=true",
    "PodDisruptionBudget": "podDisruptionBudget.enabled=true",
    "Job": "uninstall.restore=true",
    "PrometheusRule": "prometheus.rules.enabled=true",
    "ConfigMap": "prometheus.dashboard.enabled=true",
}
NEEDS_PROMETHEUS_OPERATOR = (OPTIONAL["ServiceMonitor"], OPTIONAL["PrometheusRule"])


@pytest.mark.parametrize("kind", OPTIONAL)
def test_optional_objects_are_off_until_asked_for(kind: str) -> None:
    """The names of the switches are the ones that users know from other charts."""
    assert find_kind(render(), kind) == []
    assert len(find_kind(render(OPTIONAL[kind]), kind)) == 1


EVERYTHING = (
    *OPTIONAL.values(),
    'rbac.targetNamespaces=["vision"]',
    'commonLabels={"team":"ml"}',
    'imagePullSecrets=[{"name":"pull"}]',
    'nodeSelector={"kubernetes.io/os":"linux"}',
    'tolerations=[{"operator":"Exists"}]',
    'affinity={"nodeAffinity":{}}',
    'podLabels={"a":"b"}',
    'podAnnotations={"a":"b"}',
    'extraEnv=[{"name":"HTTPS_PROXY","value":"proxy:3128"}]',
    'serviceAccount.annotations={"a":"b"}',
    'priorityClassName="system-cluster-critical"',
    'networkPolicy.ingressFrom=[{"namespaceSelector":{}}]',
    'store.persistence.storageClassName="fast"',
    'prometheus.servicemonitor.labels={"release":"prometheus"}',
    'prometheus.rules.labels={"release":"prometheus"}',
    'prometheus.dashboard.annotations={"grafana_folder":"ML"}',
)


def test_rules_and_dashboard_arrive_as_they_are_in_the_files() -> None:
    """Helm must not take Prometheus' and Grafana's own braces for its; the sidecar finds the dashboard by its label."""
    objects = render(*EVERYTHING)
    rule, dashboard = find_one(objects, "PrometheusRule"), find_one(objects, "ConfigMap")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert json.loads(dashboard["data"]["meta-infer.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "ML"}


def test_every_object_has_the_labels_that_tools_look_for() -> None:
    """Including those that the user adds."""
    for document in render(*EVERYTHING):
        labels = document["metadata"]["labels"]
        want = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart", "team"}
        assert want <= labels.keys(), document["kind"]


def test_what_runs_before_an_uninstall_ends_and_serves_nobody() -> None:
    """A Job that helm waits for must have an end, and its pod must not be among those of the operator's Service."""
    objects = render(*EVERYTHING)
    job = find_one(objects, "Job")
    assert job["metadata"]["annotations"] == {"helm.sh/hook": "pre-delete", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["backoffLimit"]) == (120, 2)
    labels = job["spec"]["template"]["metadata"]["labels"]
    selector = find_one(objects, "Service")["spec"]["selector"]
    assert not selector.items() <= labels.items()
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == operator_pod(objects)["serviceAccountName"]
    assert pod["containers"][0]["args"] == ["restore", "--all", "--accept-left"]
    assert find_kind(render("uninstall.restore=true", "rbac.apply.enabled=false"), "Job") == [], "without the right there is nothing to give back"


def test_selectors_do_not_change_over_upgrades() -> None:
    """A Deployment's selector is immutable: a version in it would break every upgrade."""
    want = {"app.kubernetes.io/name": "meta-infer", "app.kubernetes.io/instance": "meta-infer"}
    for objects in (render(), render(*EVERYTHING)):
        assert find_one(objects, "Deployment")["spec"]["selector"]["matchLabels"] == want


def test_long_release_names_stay_within_the_limit() -> None:
    """Names of Services end at 63 characters."""
    rendered = helm("template", "r" * 53, str(CHART))
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(rendered.stdout) if document and document["kind"] != "CustomResourceDefinition"]
    assert names
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize(
    ("value", "want_words"),
    [
        ("settings.logLevel=LOUD", "settings/logLevel"),
        ("settings.benchRounds=0", "settings/benchRounds"),
        ("settings.unknown=1", "unknown"),
        ("priorityClass.value=0", "priorityClass/value"),
        ("image.digest=latest", "image/digest"),
        ("rbac.targetNamespaces={Not_A_Name}", "rbac/targetNamespaces"),
        ("replicas=2", "replicas"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_installed(value: str, want_words: str) -> None:
    """A typo in a value name is an error too."""
    refused = helm("template", "meta-infer", str(CHART), "--set", value)
    assert refused.returncode != 0
    assert want_words in refused.stderr


def test_schema_and_values_name_the_same_things() -> None:
    """Each value has a schema and a comment that the README shows."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
    assert list(missing_in_readme(values, schema, "")) == []


def missing_in_readme(values: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    readme = (CHART / "README.md").read_text()
    for name, value in values.items():
        below = schema["properties"][name]
        if "properties" in below:
            yield from missing_in_readme(value, below, f"{path}{name}.")
        elif f"| `{path}{name}` |" not in readme:
            yield f"{path}{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An empty API server."""
    with run_api_server(tmp_path_factory.mktemp("api")) as server:
        for namespace in (NAMESPACE, "vision"):
            server.kubectl("create", "namespace", namespace)
        server.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted")
        yield server


@pytest.mark.apiserver
@pytest.mark.parametrize("values", [(), tuple(value for value in EVERYTHING if value not in NEEDS_PROMETHEUS_OPERATOR)], ids=["defaults", "everything"])
def test_the_api_server_takes_the_render_as_it_is(server: ApiServer, values: tuple[str, ...]) -> None:
    """Strictly validated, no warning, and Pod Security has nothing to say; what needs kinds of the Prometheus operator is left out."""
    applied = server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=render_text(*values))
    assert applied.returncode == 0, applied.stderr
    assert applied.stderr == ""


@pytest.mark.apiserver
def test_the_service_account_may_do_what_its_roles_say_and_no_more(server: ApiServer) -> None:
    """Asked of the authorizer itself, with namespaces restricted."""
    installed = server.kubectl("apply", "-f", "-", stdin=render_text('rbac.targetNamespaces=["vision"]'))
    assert installed.returncode == 0, installed.stderr
    account = f"--as=system:serviceaccount:{NAMESPACE}:meta-infer"
    questions = {
        ("create", "jobs", "vision"): "yes",
        ("create", "jobs", NAMESPACE): "yes",
        ("create", "jobs", "default"): "no",
        ("patch", "deployments", "vision"): "yes",
        ("patch", "deployments", NAMESPACE): "no",
        ("update", "deployments", "vision"): "no",
        ("delete", "deployments", "vision"): "no",
        ("get", "secrets", "vision"): "no",
        ("get", "configmaps", "vision"): "yes",
        ("list", "configmaps", "vision"): "no",
        ("get", "configmaps", "default"): "no",
        ("list", "pods", "default"): "yes",
        ("create", "pods", "vision"): "no",
    }
    answers = {
        (verb, resource, namespace): server.kubectl("auth", "can-i", verb, resource, "-n", namespace, account).stdout.strip()
        for verb, resource, namespace in questions
    }
    assert answers == questions


def test_where_latency_is_read_travels_into_the_settings() -> None:
    """An address in the open, or one with a password and a token out of Secrets; lists and switches as they are written."""
    env = operator_env(render('prometheus.url="http://prometheus:9090"', 'prometheus.allowedUrls=["http://a","http://b"]', "prometheus.allowQueries=true"))
    assert (env["METAINFER_PROMETHEUS_URL"], env["METAINFER_PROMETHEUS_AUTHORIZATION"]) == ("http://prometheus:9090", "")
    assert (env["METAINFER_PROMETHEUS_ALLOWED_URLS"], env["METAINFER_PROMETHEUS_ALLOW_QUERIES"]) == ("http://a,http://b", "true")
    env = operator_env(render('prometheus.urlSecret.name="prom"', 'prometheus.authorizationSecret.name="token"'))
    assert env["METAINFER_PROMETHEUS_URL"] == {"secretKeyRef": {"name": "prom", "key": "url"}}
    assert env["METAINFER_PROMETHEUS_AUTHORIZATION"] == {"secretKeyRef": {"name": "token", "key": "authorization"}}


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ((), set()),
        (('prometheus.url="http://prometheus:9090"',), {9090}),
        (('prometheus.allowedUrls=["http://prometheus:9091"]', "networkPolicy.prometheusPorts=[9091]"), {9091}),
        (("networkPolicy.scrapePorts=[8082, 8000]",), {8082, 8000}),
    ],
    ids=["no source", "the operator's", "allowed ones", "pods"],
)
def test_the_network_policy_opens_what_latency_is_read_from(values: tuple[str, ...], want: set[int]) -> None:
    """Ports of Prometheus where one is configured, ports of metrics pages where they are listed, and no other."""
    rules = find_one(render("networkPolicy.enabled=true", *values), "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} - {53, 443, 6443} == want
