"""The generated CRDs on a real API server: accepted as structural, and every bound and rule really refuses a bad object."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.api_server import ApiServer, run_api_server
from tests.apiserver.make_bad import BadObject, make_bad_objects, make_good

from metainfer.api.crd import build_crd
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec
from metainfer.api.v1alpha1.common import GROUP, VERSION
from metainfer.api.v1alpha1.kinds import CATEGORY, KINDS
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = {definition.kind: definition for definition in KINDS}
NAMESPACE = "default"


@cache
def root_of(kind: str) -> dict[str, Any]:
    crd = build_crd(DEFINITIONS[kind], group=GROUP, version=VERSION, category=CATEGORY)
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server of its own with the CRDs as they are in the repository."""
    with run_api_server(tmp_path_factory.mktemp("api")) as server:
        applied = server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        assert applied.returncode == 0, applied.stderr
        waited = server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        assert waited.returncode == 0, waited.stderr
        yield server


def make_object(kind: str, name: str, spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def path_of(kind: str, name: str = "", query: str = "dryRun=All") -> str:
    definition = DEFINITIONS[kind]
    scope = f"/namespaces/{NAMESPACE}" if definition.scope == "Namespaced" else ""
    return f"/apis/{GROUP}/{VERSION}{scope}/{definition.plural}{f'/{name}' if name else ''}?{query}"


def create(server: ApiServer, kind: str, spec: Any, name: str = "case") -> tuple[int, Any]:
    return server.send("POST", path_of(kind), make_object(kind, name, spec))


def causes_of(answer: Any) -> list[dict[str, str]]:
    causes: list[dict[str, str]] = answer.get("details", {}).get("causes", [])
    return causes


BAD_SPECS = [(kind, bad) for kind in DEFINITIONS for bad in make_bad_objects(root_of(kind), "spec")]
BAD_STATUSES = [(kind, bad) for kind in DEFINITIONS for bad in make_bad_objects(root_of(kind), "status")]


def identify(cases: list[tuple[str, BadObject]]) -> list[str]:
    return [f"{kind}.{bad.where} breaks {bad.keyword}" for kind, bad in cases]


def refuses(answer: Any, bad: BadObject) -> bool:
    """Whether the refusal names the field and the kind of breach; a missing field is named by its parent on some paths."""
    return any(cause["reason"] == bad.want_reason and cause["field"].startswith(bad.where) for cause in causes_of(answer))


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_crds_are_established_without_complaint(server: ApiServer, kind: str) -> None:
    """A schema that is not structural, or a name that is taken, shows up as a condition."""
    status, crd = server.send("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITIONS[kind].plural}.{GROUP}")
    assert status == 200
    want_conditions = {"NamesAccepted": "True", "Established": "True"}
    assert {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]} == want_conditions


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_the_smallest_good_object_is_accepted(server: ApiServer, kind: str) -> None:
    """The objects that the bad ones are made from are good: whatever is refused is refused for its one flaw."""
    status, answer = create(server, kind, make_good(root_of(kind)["properties"]["spec"]))
    assert status == 201, answer


@pytest.mark.parametrize(("kind", "bad"), BAD_SPECS, ids=identify(BAD_SPECS))
def test_each_bound_of_the_spec_refuses_a_bad_object(server: ApiServer, kind: str, bad: BadObject) -> None:
    """Every length, range, pattern, choice and required field, from the schema itself."""
    status, answer = create(server, kind, bad.document["spec"])
    assert status == 422, answer
    assert refuses(answer, bad), causes_of(answer)


@pytest.fixture(scope="module")
def objects(server: ApiServer) -> dict[str, str]:
    """One stored object of each kind, to write status to."""
    for kind in DEFINITIONS:
        status, answer = server.send("POST", path_of(kind, query=""), make_object(kind, "stored", make_good(root_of(kind)["properties"]["spec"])))
        assert status == 201, answer
    return dict.fromkeys(DEFINITIONS, "stored")


@pytest.mark.parametrize(("kind", "bad"), BAD_STATUSES, ids=identify(BAD_STATUSES))
def test_each_bound_of_the_status_refuses_a_bad_object(server: ApiServer, objects: dict[str, str], kind: str, bad: BadObject) -> None:
    """The operator's own writes are bounded too: one object cannot fill etcd."""
    path = path_of(kind, f"{objects[kind]}/status")
    status, answer = server.send("PATCH", path, {"status": bad.document["status"]}, "application/merge-patch+json")
    assert status == 422, answer
    assert refuses(answer, bad), causes_of(answer)


def test_status_of_a_new_object_says_that_nobody_looked(server: ApiServer, objects: dict[str, str]) -> None:
    """Tools that wait (kstatus) must see a brand-new object as unfinished."""
    for kind, name in objects.items():
        _, answer = server.send("GET", path_of(kind, name, ""))
        assert answer["status"] == {"observedGeneration": -1}, kind


FAMILY = {"name": "l4", "selector": {}, "resource": "nvidia.com/gpu", "executionProviders": ["CUDAExecutionProvider"]}
ADAPTATION = {"targetRef": {"name": "ocr"}, "model": {"uri": "pvc://models/ocr.onnx"}}


def make_pool(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "AcceleratorPool", {"families": [FAMILY]} | fields


def make_family(**fields: Any) -> tuple[str, dict[str, Any]]:
    return make_pool(families=[FAMILY | fields])


def make_requirement(**fields: Any) -> tuple[str, dict[str, Any]]:
    return make_pool(nodeSelector={"matchExpressions": [{"key": "zone"} | fields]})


def make_adaptation(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "ModelAdaptation", ADAPTATION | fields


RULES = {
    "must be longer than 0, for example 300us, 30ms, 10m or 168h": [
        make_pool(probe={"maxAge": "0s"}),
        make_adaptation(slo={"p99": "0h0us"}),
    ],
    "must be between 5s and 10m": [make_pool(probe={"duration": "4999ms"}), make_pool(probe={"duration": "10m1us"})],
    "must be between 1m and 8760h": [make_adaptation(updatePolicy={"cooldown": "59s"}), make_adaptation(updatePolicy={"cooldown": "8760h1us"})],
    "must be between 1m and 168h": [
        make_adaptation(updatePolicy={"maintenanceWindows": [{"schedule": "0 2 * * *", "duration": duration}]}) for duration in ("59s", "168h1s")
    ],
    "must be between 10s and 24h": [make_adaptation(drift={"window": "9s"}), make_adaptation(drift={"window": "24h1s"})],
    "set prometheus or scrape, not both": [make_adaptation(drift={"source": {"prometheus": {}, "scrape": {}}})],
    "set preset (a known server) or histogram (its metric), not both": [make_adaptation(drift={"source": {"preset": "vLLM", "histogram": {"name": "x"}}})],
    "a query of your own needs neither preset nor histogram: remove them": [
        make_adaptation(drift={"source": {"preset": "vLLM", "prometheus": {"query": {"buckets": "x"}}}}),
        make_adaptation(drift={"source": {"histogram": {"name": "x"}, "prometheus": {"query": {"buckets": "x"}}}}),
    ],
    "must be between 1m and 1h": [make_adaptation(validation={"budget": "59s"}), make_adaptation(validation={"budget": "1h1s"})],
    "each key must be a label key such as example.com/name": [
        make_family(selector={"matchLabels": {"not a key": "x"}}),
        make_pool(nodeSelector={"matchLabels": {"": "x"}}),
        make_adaptation(poolSelector={"matchLabels": {"k" * 318: "x"}}),
    ],
    "In and NotIn compare with values: list at least one": [make_requirement(operator="In"), make_requirement(operator="NotIn", values=[])],
    "Exists and DoesNotExist look at the key only: remove values": [
        make_requirement(operator="Exists", values=["a"]),
        make_requirement(operator="DoesNotExist", values=["a"]),
    ],
    "Gt and Lt compare with one integer: put exactly one into values": [
        make_requirement(operator="Gt"),
        make_requirement(operator="Gt", values=["1", "2"]),
        make_requirement(operator="Lt", values=["many"]),
    ],
    "must stay inside the volume or site: remove '..'": [
        make_adaptation(model={"uri": "pvc://models/../secret.onnx"}),
        make_adaptation(accuracy={"calibration": {"uri": "pvc://models/a/.."}}),
    ],
    "must not carry credentials, everybody who may read the object would see them: use pvc://": [
        make_adaptation(model={"uri": "https://me:secret@models.example.com/ocr.onnx"}),
    ],
    "a batch size above 1 needs dynamic batching: add true to dynamicBatching, or leave dynamicBatching out": [
        make_adaptation(configSpace={"batchSizes": [1, 4], "dynamicBatching": [False]}),
    ],
    "a measuring Job mounts one claim: keep the calibration file in the model's own, or give it by http(s)": [
        make_adaptation(model={"uri": "pvc://models/a.onnx"}, accuracy={"calibration": {"uri": "pvc://others/a.npz"}}),
        make_adaptation(model={"uri": "https://models.example.com/a.onnx"}, accuracy={"calibration": {"uri": "pvc://models/a.npz"}}),
    ],
    "set p99, minThroughputPerSecond or both, or remove slo": [make_adaptation(slo={})],
    "set exactly one of preset (a known server) and env (the names of its environment variables)": [
        make_adaptation(settings={}),
        make_adaptation(settings={"preset": "MLServer", "env": {"precision": "P"}}),
    ],
    "map at least one setting to an environment variable, or remove settings to get a recommendation only": [make_adaptation(settings={"env": {}})],
    "must be a variable of the server's own: loaders, shells and language runtimes read this one before the server does": [
        make_adaptation(settings={"env": {"precision": name}})
        for name in ("PATH", "HOME", "LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "_JAVA_OPTIONS", "KUBERNETES_SERVICE_HOST")
    ],
    "each setting needs a variable of its own: name no variable twice": [
        make_adaptation(settings={"env": {"precision": "SAME", "concurrency": "SAME"}}),
        make_adaptation(settings={"env": {"maxBatchSize": "A", "maxBatchDelay": "B", "executionProviders": "A"}}),
    ],
}
RULE_CASES = [(message, kind, spec) for message, cases in RULES.items() for kind, spec in cases]


@pytest.mark.parametrize(("message", "kind", "spec"), RULE_CASES, ids=[f"{message} ({number})" for number, (message, _, _) in enumerate(RULE_CASES)])
def test_each_rule_refuses_a_bad_object_and_says_what_to_do(server: ApiServer, message: str, kind: str, spec: Any) -> None:
    """The sentence reaches the person who wrote the object."""
    status, answer = create(server, kind, spec)
    assert status == 422, answer
    assert message in answer["message"]


def test_no_rule_is_without_a_bad_object() -> None:
    """A rule that nothing was refused by may never refuse anything."""
    found = {rule["message"] for kind in DEFINITIONS for rule in walk_rules(root_of(kind))}
    assert found == set(RULES)


def walk_rules(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from schema.get("x-kubernetes-validations", [])
    below = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for field in (*schema.get("properties", {}).values(), *below):
        yield from walk_rules(field)


GOOD = {
    "batches without a word on dynamic batching": make_adaptation(configSpace={"batchSizes": [1, 8]}),
    "batches with dynamic batching among the choices": make_adaptation(configSpace={"batchSizes": [8], "dynamicBatching": [False, True]}),
    "latency by a query of one's own": make_adaptation(drift={"source": {"prometheus": {"query": {"buckets": "x", "total": "y", "unit": "ms"}}}}),
    "latency by a histogram of one's own, from the pods": make_adaptation(
        drift={"source": {"histogram": {"name": "a:b", "unit": "us"}, "scrape": {"port": 9}}}
    ),
    "single requests without dynamic batching": make_adaptation(configSpace={"batchSizes": [1], "dynamicBatching": [False]}),
    "one environment variable is enough": make_adaptation(settings={"env": {"precision": "PRECISION"}}),
    "variables that only begin like forbidden ones": make_adaptation(settings={"env": {"precision": "PATH_PRECISION", "concurrency": "PYTHON_WORKERS"}}),
    "a throughput alone is an objective to keep": make_adaptation(slo={"minThroughputPerSecond": 1}),
    "an address with an at sign in its path": make_adaptation(model={"uri": "https://models.example.com/ocr@v4.onnx"}),
    "two dots inside a name": make_adaptation(model={"uri": "pvc://models/ocr..v4.onnx"}),
    "bounds are included": make_adaptation(validation={"budget": "1h", "topK": 5}),
    "a duration of several parts": make_pool(probe={"duration": "1m30s", "maxAge": "1h1m1s1ms1us"}),
    "a label key with a prefix and an empty value": make_family(selector={"matchLabels": {"example.com/Some_key.x": ""}}),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_allowed_is_accepted(server: ApiServer, case: str) -> None:
    """The rules refuse no more than they say."""
    kind, spec = GOOD[case]
    status, answer = create(server, kind, spec)
    assert status == 201, answer


def test_the_api_server_fills_in_the_defaults_of_a_pool(server: ApiServer) -> None:
    """What is stored is complete and is what the operator's own types say."""
    kind, spec = make_pool()
    _, answer = create(server, kind, spec)
    assert answer["spec"] == spec | {
        "families": [family | {"shareable": False} for family in spec["families"]],
        "probe": {"duration": "30s", "maxAge": "168h"},
        "calibration": {"period": "168h", "thresholdPercent": 10},
        "limits": {"maxConcurrentProbes": 4, "maxConcurrentMeasurements": 8, "maxConcurrentRollouts": 4},
    }
    assert AcceleratorPoolSpec.model_validate(answer["spec"]) == AcceleratorPoolSpec.model_validate(spec)


def test_the_api_server_fills_in_the_defaults_of_an_adaptation(server: ApiServer) -> None:
    """Nobody types a performance number: model and target are enough."""
    kind, spec = make_adaptation()
    _, answer = create(server, kind, spec)
    assert answer["spec"] == spec | {
        "targetRef": {"kind": "Deployment", "name": "ocr"},
        "load": {"clients": 4},
        "accuracy": {"budgetPermille": 10, "metric": "RelativeL2", "allowUnverified": False},
        "validation": {"topK": 4, "budget": "10m"},
        "updatePolicy": {"mode": "Apply", "minimumGainPercent": 5, "cooldown": "24h"},
        "deletionPolicy": "Restore",
        "drift": {"p99IncreasePercent": 20, "windows": 3, "window": "15m", "minRequests": 1000},
        "freshness": "168h",
        "rollout": {"autoRollback": True, "watch": "30m"},
        "suspend": False,
    }
    assert ModelAdaptationSpec.model_validate(answer["spec"]) == ModelAdaptationSpec.model_validate(spec)


EXAMPLES = [*sorted((ROOT / "docs" / "examples").glob("*.yaml")), *sorted((ROOT / "hack" / "demo" / "manifests").glob("[ap]*.yaml"))]


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_every_example_is_accepted(server: ApiServer, example: Path) -> None:
    """Readers copy them."""
    namespaces = {document["metadata"].get("namespace", NAMESPACE) for document in yaml.safe_load_all(example.read_text())}
    for namespace in namespaces:
        server.kubectl("create", "namespace", namespace)
    applied = server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(example))
    assert applied.returncode == 0, applied.stderr


@pytest.mark.parametrize(
    ("kind", "want_columns"),
    [
        ("AcceleratorPool", "NAME READY NODES PROBED REASON FAMILIES UNASSIGNED AGE"),
        ("ModelAdaptation", "NAME READY FAMILY PRECISION BATCH P99 GAIN REASON PROVIDER CONCURRENCY TARGET STEP AGE"),
        ("NodePortrait", "NAME POOL FAMILY CARD FACTOR HEALTH FAILURE DRIVER MEASURED AGE"),
    ],
)
def test_kubectl_get_shows_the_columns(server: ApiServer, objects: dict[str, str], kind: str, want_columns: str) -> None:
    """A misspelt path shows nothing at all, so each column has to exist and the values have to be there."""
    shown = server.kubectl("get", DEFINITIONS[kind].short_names[0], objects[kind], "-o", "wide")
    assert shown.stdout.splitlines()[0].split() == want_columns.split(), shown.stderr


def test_columns_show_what_status_says(server: ApiServer) -> None:
    """The one line that answers which cards, which precision, which batch size, and why."""
    server.send("POST", path_of("ModelAdaptation", query=""), make_object("ModelAdaptation", "shown", ADAPTATION))
    condition = {"type": "Ready", "status": "True", "reason": "Placed", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    config = {"family": "openvino-cpu", "precision": "bf16", "batchSize": 8, "executionProvider": "OpenVINOExecutionProvider", "concurrency": 2}
    recommendation = {"decisionId": "d1", "config": config, "expected": {"p99": "4100us"}, "gainPercent": 34, "decidedAt": "2026-01-01T00:00:00Z"}
    run = {"id": "r1", "inputsHash": "h", "startedAt": "2026-01-01T00:00:00Z", "step": "Done", "progress": "done"}
    written = {"status": {"conditions": [condition], "recommendation": recommendation, "run": run}}
    status, answer = server.send("PATCH", path_of("ModelAdaptation", "shown/status", ""), written, "application/merge-patch+json")
    assert status == 200, answer
    shown = server.kubectl("get", "madapt", "shown", "-o", "wide", "--no-headers").stdout.split()
    assert shown[:-1] == ["shown", "True", "openvino-cpu", "bf16", "8", "4100us", "34", "Placed", "OpenVINOExecutionProvider", "2", "ocr", "done"]


def test_columns_of_a_pool_list_all_families(server: ApiServer) -> None:
    """A path with several hits shows all of them."""
    families = [FAMILY, FAMILY | {"name": "a100"}]
    server.send("POST", path_of("AcceleratorPool", query=""), make_object("AcceleratorPool", "two", {"families": families}))
    assert "l4 a100" in server.kubectl("get", "accpool", "two", "-o", "jsonpath={.spec.families[*].name}").stdout
    assert "l4" in server.kubectl("get", "accpool", "two", "-o", "wide").stdout


def test_one_category_lists_all_kinds(server: ApiServer, objects: dict[str, str]) -> None:
    """`kubectl get metainfer` is the overview."""
    shown = server.kubectl("get", CATEGORY, "-o", "name").stdout
    for kind, name in objects.items():
        assert f"{DEFINITIONS[kind].singular}.{GROUP}/{name}" in shown


@pytest.mark.parametrize(
    ("field", "want_words"),
    [
        ("modeladaptation.spec.settings", "env maps settings to the server's own environment variables."),
        ("acceleratorpool.spec.families.selector", "matchLabels lists labels and the exact values they must have."),
        ("nodeportrait.status", "instance's speed against its family's median"),
    ],
)
def test_kubectl_explain_describes_the_fields(server: ApiServer, field: str, want_words: str) -> None:
    """The reference that everybody has at hand."""
    explained = server.kubectl("explain", field)
    assert want_words in " ".join(explained.stdout.split()), explained.stderr
