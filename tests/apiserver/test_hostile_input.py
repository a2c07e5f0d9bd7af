"""A user who may only write adaptations in one namespace: every field with values that are meant to reach further.

Either the schema refuses the object, or the rules answer with a status; the Jobs that follow are created on the API server and
are ours in everything but the request they carry.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.apiserver.api_server import ROOT, find_binary
from tests.apiserver.delete_all import delete_all
from tests.apiserver.make_bad import make_good
from tests.apiserver.make_cluster import connect_limited, ensure_kinds, ensure_priority_class, make, make_deployment, make_pool
from tests.apiserver.merge_patch import patch_merge
from tests.unit.decide.check_plan import LIMITS, check_adaptation_plan, check_job
from tests.unit.decide.make_world import World, make_world
from tests.unit.probe.hostile_documents import paths_of, with_value

from metainfer.act.jobs import build_job
from metainfer.api.crd import build_crd
from metainfer.api.v1alpha1.common import GROUP, VERSION
from metainfer.api.v1alpha1.kinds import CATEGORY, KINDS
from metainfer.decide.plan import ApplyTarget, CreateJob
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import ApiError, Forbidden, Invalid
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, POD, POOL, Kind
from metainfer.observe.projections import project_adaptation

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
GOOD: Raw = {
    "targetRef": {"kind": "Deployment", "name": "ocr", "container": "server"},
    "model": {"uri": "pvc://models/ocr.onnx"},
    "poolSelector": {"matchLabels": {"tier": "gpu"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu"]}]},
    "configSpace": {"executionProviders": ["CPUExecutionProvider"], "precisions": ["fp32"], "batchSizes": [1, 4], "dynamicBatching": [True]},
    "objective": {"goal": "Latency"},
    "load": {"clients": 4},
    "slo": {"p99": "30ms", "minThroughputPerSecond": 3},
    "accuracy": {"budgetPermille": 10, "metric": "RelativeL2", "calibration": {"uri": "pvc://models/ocr.npz"}, "allowUnverified": True},
    "settings": {"env": {"precision": "P", "maxBatchSize": "B", "maxBatchDelay": "D", "concurrency": "C", "executionProviders": "E"}},
    "validation": {"topK": 2, "budget": "5m"},
    "updatePolicy": {"mode": "Apply", "minimumGainPercent": 5},
    "suspend": False,
}


ALTERNATIVES = ("preset", "scrape", "histogram")
"""Each stands in place of another field: of settings.env, of drift.source.prometheus and of its query."""


def complete(document: Raw, schema: Raw) -> Raw:
    """The document with every field that its schema has and it leaves out, so that a new field is tried without anybody thinking of it."""
    filled = dict(document)
    for name, field in schema.get("properties", {}).items():
        if name not in ALTERNATIVES:
            filled[name] = complete(filled.get(name, make_good(field)), field) if field["type"] == "object" else filled.get(name, make_good(field))
    return filled


def read_schema() -> Raw:
    definition = next(item for item in KINDS if item.kind == ADAPTATION.kind)
    crd = build_crd(definition, group=GROUP, version=VERSION, category=CATEGORY)
    schema: Raw = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


SPEC = complete(GOOD, read_schema())
SCRAPED = GOOD | {"drift": {"source": {"histogram": {"name": "a", "unit": "s", "modelLabel": "m"}, "scrape": {"port": 9, "path": "/a"}}}}
FIELDS = (*((SPEC, path) for path in paths_of(SPEC)), *((SCRAPED, path) for path in paths_of(SCRAPED) if path[0] == "drift"))
HOSTILE = (
    "ocr\nimage: evil/miner", "ocr\r\x1b[2J", "ocr\x00", "$(HOME)", "$$(KUBERNETES_SERVICE_HOST)", "{{ .Values.image }}", "'; rm -rf / ;'",
    "../../kube-system", "a/../b", "kube-system/coredns", "system:serviceaccount:kube-system:default",
    "\uff4f\uff43\uff52", "\u043ecr", "ocr\u202exnno", "ocr\u200b", "\u0663",
    "- a", "&a *a", "!!python/object:os.system", "null", "true", '"},"image":"evil',
    " ocr", "ocr ", "OCR", "-ocr", "ocr-", "", "x" * 20_000, "1e9", "0x10", "9" * 40 + "h",
    "http://169.254.169.254/latest", "file:///etc/shadow", "hostPath:/etc", "nvidia.com/gpu", "metainfer.dev/health",
    "LD_PRELOAD", "PATH", "PYTHONPATH", "KUBERNETES_SERVICE_HOST",
)  # fmt: skip
"""Line breaks, expansions, YAML, templates, shells, other namespaces, look-alikes (full-width, Cyrillic, invisible, Arabic digits), lengths."""
URI_FORMS = ("pvc://models/{}", "pvc://{}/x.onnx", "https://h/{}", "https://{}/x.onnx", "http://u:p@{}/x")
SMUGGLED: Raw = {
    "image": "evil/miner", "command": ["sh"], "args": ["-c", "id"], "env": [{"name": "A"}], "value": "x",
    "hostPath": "/etc", "volumes": [{"name": "h", "hostPath": {"path": "/"}}], "securityContext": {"privileged": True}, "hostNetwork": True,
    "serviceAccountName": "default", "priorityClassName": "system-node-critical", "runtimeClassName": "x",
    "nodeName": "n", "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "namespace": "kube-system", "apiVersion": "v1",
}  # fmt: skip


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def make_adaptation(namespace: str, spec: Any, **metadata: Any) -> Raw:
    return make(ADAPTATION, "", namespace, metadata={"generateName": "hostile-", **metadata}, spec=spec)


async def try_to_create(kube: KubeClient, document: Raw) -> Raw | None:
    """The stored object; None when the API server refuses it, which has to be for what it is and not for a fault of its own."""
    try:
        return await kube.create(ADAPTATION, document)
    except ApiError as error:
        if error.status not in (400, 413, 422):
            raise
        return None


async def play(kube: KubeClient, raw: Raw, namespace: str, turns: int = 10) -> World:
    """The rules' answer to a stored adaptation, its Jobs really created."""
    world = make_world()
    target = world.snapshot.target
    assert target is not None
    pools = tuple(replace(pool, labels={"tier": "gpu"}) for pool in world.snapshot.pools)
    world.snapshot = replace(world.snapshot, adaptation=project_adaptation(raw), target=replace(target, namespace=namespace), pools=pools)
    started = 0
    for _ in range(turns):
        plan = world.turn()
        check_adaptation_plan(plan, namespace)
        for action in world.jobs_started[started:]:
            check_job(action, await kube.create(JOB, build_job(action, LIMITS)), namespace)
        started = len(world.jobs_started)
        if plan.requeue_after_seconds is None or plan.requeue_after_seconds > 60:
            break
    return world


@pytest.fixture
async def ready(kube: KubeClient, namespace: str) -> AsyncIterator[str]:
    """A namespace on a server that knows our kinds and the class of our Jobs; empty afterwards, as every other operator here would see thousands."""
    await ensure_kinds(kube)
    await ensure_priority_class(kube, LIMITS.priority_class)
    yield namespace
    for kind in (ADAPTATION, JOB):
        await delete_all(kube, kind, namespace)


@pytest.mark.parametrize(("spec", "path"), FIELDS, ids=[f"{dotted(path)} {number}" for number, (_, path) in enumerate(FIELDS)])
async def test_no_value_of_a_field_reaches_further(kube: KubeClient, ready: str, spec: Raw, path: tuple[str | int, ...]) -> None:
    """Newlines, expansions, YAML, templates, look-alikes, other namespaces, other types, 20,000 characters."""
    forms = URI_FORMS if path[-1] == "uri" else ("{}", "http://{}") if path[-1] == "url" else ("{}",)
    values: list[Any] = [form.replace("{}", text) for form in forms for text in HOSTILE]
    values += [SMUGGLED, [SMUGGLED], 10**20, -1, 1.5]
    taken = 0
    for value in values:
        raw = await try_to_create(kube, make_adaptation(ready, with_value(spec, path, value)))
        if raw is None:
            continue
        taken += 1
        if taken <= 4 or taken % 16 == 0:  # what was taken differs in one text only
            await play(kube, raw, ready)


async def test_fields_that_do_not_exist_are_not_kept(kube: KubeClient, ready: str) -> None:
    """At every level of the spec: no image, command, path, account, selector or namespace survives the schema."""
    levels = [(), *(path for path in paths_of(SPEC) if isinstance(_at(SPEC, path), dict) and path[-1] != "matchLabels")]
    spec = SPEC
    for path in levels:
        spec = with_value({"spec": spec}, ("spec", *path), SMUGGLED | _at(spec, path))["spec"]
    raw = await try_to_create(kube, make_adaptation(ready, spec))
    assert raw is not None
    plain = await try_to_create(kube, make_adaptation(ready, SPEC))
    assert plain is not None
    assert raw["spec"] == plain["spec"]
    world = await play(kube, raw, ready)
    assert world.jobs_started
    assert "evil" not in json.dumps([build_job(action, LIMITS) for action in world.jobs_started])


def _at(document: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


async def test_metadata_is_not_copied_into_jobs(kube: KubeClient, ready: str) -> None:
    """Labels and annotations steer controllers, webhooks and GitOps tools; our own keys would make a Job somebody else's."""
    labels = {"metainfer.dev/run": "other", "metainfer.dev/purpose": "probe", "app.kubernetes.io/instance": "argo", "sidecar.istio.io/inject": "true"}
    annotations = {"metainfer.dev/node": "other", "metainfer.dev/candidate": "{}", "container.apparmor.security.beta.kubernetes.io/probe": "unconfined"}
    raw = await try_to_create(kube, make_adaptation(ready, SPEC, labels=labels, annotations=annotations))
    assert raw is not None
    world = await play(kube, raw, ready)
    jobs = [build_job(action, LIMITS)["metadata"] for action in world.jobs_started]
    assert jobs
    assert all(job["labels"]["metainfer.dev/run"] == world.status.run.id for job in jobs if world.status.run is not None)
    foreign = {"app.kubernetes.io/instance", "container.apparmor.security.beta.kubernetes.io/probe"}
    assert not any(foreign & {*job["labels"], *job["annotations"]} for job in jobs)
    assert all(job["annotations"]["metainfer.dev/node"] != "other" for job in jobs)


@pytest.mark.parametrize("secret", ["user:s3cret@", "s3cret@", ":s3cret@", "user:s3cret%40x@"])
async def test_an_address_with_credentials_is_refused(kube: KubeClient, ready: str, secret: str) -> None:
    """Everybody who may read the object would see them; the refusal says what to use instead."""
    with pytest.raises(Invalid) as caught:
        await kube.create(ADAPTATION, make_adaptation(ready, with_value(SPEC, ("model", "uri"), f"https://{secret}models.example/ocr.onnx")))
    assert "must not carry credentials" in caught.value.message


async def test_a_query_that_is_a_credential_is_in_no_status_and_no_event(kube: KubeClient, ready: str) -> None:
    """Presigned addresses: the Job needs the query, nobody else is told."""
    spec = with_value(with_value(SPEC, ("model", "uri"), "https://models.example/ocr.onnx?sig=t0ken"), ("accuracy",), {})
    raw = await try_to_create(kube, make_adaptation(ready, spec))
    assert raw is not None
    world = await play(kube, raw, ready)
    said = [action for action in world.actions if not isinstance(action, CreateJob)]
    assert world.jobs_started
    assert all("t0ken" in action.request.model_dump_json() for action in world.jobs_started)
    assert "t0ken" not in repr(said) + world.status.model_dump_json()


async def test_what_is_applied_stays_in_the_namespace_and_within_the_fields_of_the_design(kube: KubeClient, ready: str) -> None:
    """Affinity of nodes, environment entries of the named container and our annotations, of the one Deployment."""
    providers = {"executionProviders": ["CPUExecutionProvider", "OpenVINOExecutionProvider"]}
    at_once = {key: value for key, value in SPEC.items() if key != "rollout"}  # without a canary first
    raw = await try_to_create(kube, make_adaptation(ready, with_value(with_value(at_once, ("configSpace",), providers), ("slo", "p99"), "1h")))
    assert raw is not None
    world = await play(kube, raw, ready, turns=25)
    applied = [action for action in world.actions if isinstance(action, ApplyTarget)]
    assert [(action.namespace, action.name) for action in applied] == [(ready, "ocr")]
    containers = applied[0].body["spec"]["template"]["spec"]["containers"]
    assert [item["name"] for item in containers] == ["server"]
    assert {entry["name"] for entry in containers[0]["env"]} <= {"P", "B", "D", "C", "E"}


# --- The chart's role for users --------------------------------------------------------------------------------------


def user_rules() -> list[Raw]:
    """What the chart adds to ``edit``: the rules of its two roles for users, and nothing else."""
    command = [find_binary("helm"), "template", "meta-infer", ROOT / "charts" / "meta-infer"]
    rendered = [item for item in yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout) if item]
    return [rule for item in rendered if item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith(("-view", "-edit")) for rule in item["rules"]]


@pytest.fixture
async def user(kube: KubeClient, ready: str) -> AsyncIterator[KubeClient]:
    client = await connect_limited(kube, ready, user_rules())
    yield client
    await client.close()


@pytest.mark.chart
async def test_a_user_of_adaptations_may_write_their_spec_and_nothing_else(kube: KubeClient, ready: str, user: KubeClient) -> None:
    """Not the status, which the operator believes; not pools, Jobs, pods, nodes or Deployments."""
    await kube.create(DEPLOYMENT, make_deployment("ocr", ready))
    raw = await user.create(ADAPTATION, make_adaptation(ready, SPEC))
    name = raw["metadata"]["name"]
    assert "recommendation" not in raw.get("status", {})
    await patch_merge(user, ADAPTATION, name, ready, {"spec": {"suspend": True}})
    job = make(JOB, "j", ready, spec={"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}})
    portrait = Kind("metainfer.dev", "v1alpha1", "NodePortrait", "nodeportraits", namespaced=False)
    for attempt in (
        patch_merge(user, ADAPTATION, name, ready, {"status": {"observedGeneration": 9}}, subresource="status"),
        user.create(POOL, make_pool("mine")),
        user.create(JOB, job),
        user.create(POD, make(POD, "p", ready, spec={"containers": [{"name": "c", "image": "i"}]})),
        user.get(DEPLOYMENT, "ocr", ready),
        patch_merge(user, DEPLOYMENT, "ocr", ready, {"spec": {"replicas": 0}}),
        user.create(portrait, make(portrait, "n", spec={"nodeUid": "u", "pool": "p", "family": "f"})),
    ):
        with pytest.raises(Forbidden):
            await attempt


@pytest.mark.chart
async def test_a_status_in_a_created_object_is_dropped(ready: str, user: KubeClient) -> None:
    """A forged decision would be applied as ours."""
    document = make_adaptation(ready, SPEC) | {"status": {"observedGeneration": 7, "candidateCount": 9}}
    raw = await user.create(ADAPTATION, document)
    assert raw["status"] == {"observedGeneration": -1}
