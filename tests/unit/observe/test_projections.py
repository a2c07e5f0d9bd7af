"""Objects on the wire become facts; what cannot be read is one typed error."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.watch.make_raw import (
    make_adaptation,
    make_condition,
    make_container,
    make_deployment,
    make_job,
    make_metadata,
    make_node,
    make_pod,
    make_pool,
    make_portrait,
)

from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.facts import EnvEntry, EnvFrom, KubeletProbe, NodeTerm, Requirement, Spread, Taint, Toleration
from metainfer.observe.projections import (
    ProjectionError,
    node_fingerprint,
    project_adaptation,
    project_job,
    project_node,
    project_pod,
    project_pool,
    project_portrait,
    project_runtime_class,
    project_target,
)

Raw = dict[str, Any]


def test_a_node_is_read_with_its_cards_and_conditions() -> None:
    """Everything that rules look at is there, in integers."""
    have = project_node(make_node(labels={"card": "ort"}, taints=[{"key": "gpu", "effect": "NoSchedule"}], unschedulable=True))
    assert have.allocatable == {"cpu": 4000, "memory": 8 << 30, "metainfer.dev/card": 1}
    assert have.taints == (Taint("gpu", "", "NoSchedule"),)
    assert have.conditions == {"Ready": "True", "DiskPressure": "False"}
    assert (have.ready, have.unschedulable, have.architecture) == (True, True, "arm64")
    assert have.image_bytes == {"a@sha256:1": 1000, "a:1": 1000}


def test_a_bare_node_is_not_ready_and_has_nothing() -> None:
    """A node that just registered has no status: it is no error, and not ready."""
    have = project_node({"metadata": {"name": "n1"}})
    assert (have.ready, dict(have.allocatable), have.uid) == (False, {}, "")


def _heartbeat(node: Raw) -> None:
    node["metadata"]["resourceVersion"] = "99999"
    node["metadata"]["annotations"] = {"hami.io/node-handshake-nvidia": "Reported_2026"}
    node["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-02-02T03:04:05Z"


def _relabel(node: Raw) -> None:
    node["metadata"]["labels"]["nvidia.com/gfd.timestamp"] = "2"


def _pull_image(node: Raw) -> None:
    node["status"]["images"].append({"names": ["b:1"], "sizeBytes": 7})


@pytest.mark.parametrize("touch", [_heartbeat, _relabel, _pull_image], ids=["heartbeat", "labeller restarted", "image pulled"])
def test_noise_of_a_node_leaves_its_fingerprint(touch: Callable[[Raw], None]) -> None:
    """What 5,000 idle kubelets report all day wakes nobody."""
    before = make_node(labels={"card": "ort", "nvidia.com/gfd.timestamp": "1"})
    after = copy.deepcopy(before)
    touch(after)
    assert node_fingerprint(project_node(before)) == node_fingerprint(project_node(after))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda node: node["metadata"]["labels"].update(driver="2"), id="label"),
        pytest.param(lambda node: node["spec"].update(unschedulable=True), id="cordon"),
        pytest.param(lambda node: node["spec"].update(taints=[{"key": "a", "effect": "NoExecute"}]), id="taint"),
        pytest.param(lambda node: node["status"]["allocatable"].update({"metainfer.dev/card": "0"}), id="card lost"),
        pytest.param(lambda node: node["status"]["conditions"][0].update(status="Unknown"), id="not ready"),
        pytest.param(lambda node: node["status"]["conditions"][1].update(status="True"), id="pressure"),
        pytest.param(lambda node: node["metadata"].update(uid="another"), id="replaced by a node of the same name"),
    ],
)
def test_a_change_that_matters_moves_a_nodes_fingerprint(change: Callable[[Raw], None]) -> None:
    """Labels, taints, cordon, cards, readiness, pressure and identity each count."""
    before = make_node(labels={"card": "ort"})
    after = copy.deepcopy(before)
    change(after)
    assert node_fingerprint(project_node(before)) != node_fingerprint(project_node(after))


def test_a_pods_requests_are_effective() -> None:
    """Limits stand in for requests, native sidecars add, overhead comes on top."""
    have = project_pod(
        make_pod(
            initContainers=[
                make_container("proxy", restartPolicy="Always", resources={"requests": {"cpu": "100m"}}),
                make_container("fetch", resources={"requests": {"memory": "1Gi"}}),
            ],
            containers=[make_container(resources={"limits": {"nvidia.com/gpu": "1", "cpu": "2"}, "requests": {"cpu": "1"}})],
            overhead={"cpu": "10m"},
        )
    )
    assert have.requests == {"cpu": 1110, "memory": 1 << 30, "nvidia.com/gpu": 1}


def test_resources_of_the_whole_pod_replace_the_sum() -> None:
    """A pod-level request is what the scheduler takes, cards of containers stay."""
    parts = {"resources": {"requests": {"cpu": "3"}}, "containers": [make_container(resources={"limits": {"cpu": "1", "nvidia.com/gpu": "1"}})]}
    assert project_pod(make_pod(**parts)).requests == {"cpu": 3000, "nvidia.com/gpu": 1}


def test_a_finished_job_pod_keeps_its_report() -> None:
    """The termination message of each container is there, with exit code and reason."""
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": '{"v":1}', "finishedAt": "2026-01-02T03:06:00Z"}}
    have = project_pod(make_pod(owner="Job/j1", status={"phase": "Failed", "containerStatuses": [{"name": "probe", "restartCount": 0, "state": ended}]}))
    assert (have.owner, have.phase, have.holds_resources) == ("Job/j1", "Failed", False)
    assert have.states[0].finished_at == datetime(2026, 1, 2, 3, 6, tzinfo=UTC)
    assert (have.states[0].exit_code, have.states[0].terminated_reason, have.states[0].termination_message) == (3, "Error", '{"v":1}')


def test_a_crash_loop_tells_why_the_last_try_ended() -> None:
    """Between two tries the reason stands in the last state; a running container has none."""
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    looping = {"name": "server", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}
    running = {"name": "server", "restartCount": 4, "state": {"running": {}}, "lastState": last}
    states = [project_pod(make_pod(status={"containerStatuses": [item]})).states[0] for item in (looping, running)]
    assert [(state.waiting_reason, state.terminated_reason) for state in states] == [("CrashLoopBackOff", "OOMKilled"), ("", "")]


def test_the_schedulers_words_are_kept() -> None:
    """A pod without a node says what the scheduler said."""
    status = {"phase": "Pending", "conditions": [make_condition("PodScheduled", "False", reason="Unschedulable", message="0/5 nodes: Insufficient card")]}
    assert project_pod(make_pod(nodeName=None, status=status)).unschedulable == "0/5 nodes: Insufficient card"


def test_env_entries_keep_where_their_value_comes_from() -> None:
    """A value, none at all, and each kind of source can be told apart."""
    sources = [
        {"name": "A", "value": "1"},
        {"name": "B"},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "K"}}},
        {"name": "D", "valueFrom": {"secretKeyRef": {"name": "app", "key": "K"}}},
        {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "F", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "G", "valueFrom": {"fileKeyRef": {"path": "x"}}},
    ]
    container = project_pod(make_pod(containers=[make_container(env=sources)])).containers[0]
    assert container.env == (
        EnvEntry("A", "1"),
        EnvEntry("B"),
        EnvEntry("C", source="configMap app/K"),
        EnvEntry("D", source="secret app/K"),
        EnvEntry("E", source="field metadata.name"),
        EnvEntry("F", source="resource limits.cpu"),
        EnvEntry("G", source="unknown fileKeyRef"),
    )


def test_env_from_keeps_its_order() -> None:
    """The last source wins, so the order matters."""
    sources = [{"configMapRef": {"name": "a", "optional": True}}, {"prefix": "X_", "secretRef": {"name": "b"}}]
    container = project_pod(make_pod(containers=[make_container(envFrom=sources)])).containers[0]
    assert container.env_from == (EnvFrom("ConfigMap", "a", optional=True), EnvFrom("Secret", "b", "X_"))


def test_restrictions_of_a_template_are_read() -> None:
    """All that can keep a pod off a node is there; no required affinity is not the same as an empty one."""
    term = {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}],
    }
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}, "preferredDuringSchedulingIgnoredDuringExecution": []}
    }
    pod = {
        "affinity": affinity,
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "1", "effect": "NoSchedule"}],
        "runtimeClassName": "nvidia",
        "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}, {"name": "e", "emptyDir": {}}],
    }
    have = project_target(make_deployment(pod=pod)).template
    assert have.required_terms == (NodeTerm((Requirement("zone", "In", ("a",)),), (Requirement("metadata.name", "NotIn", ("n9",)),)),)
    assert have.tolerations == (Toleration(operator="Exists"), Toleration("gpu", "Equal", "1", "NoSchedule"))
    assert (have.preferred_present, have.node_selector, have.runtime_class, have.claims) == (True, {"disk": "ssd"}, "nvidia", ("models",))
    assert project_target(make_deployment()).template.required_terms is None


def _apart(selector: Any, topology: str = "kubernetes.io/hostname", **more: Any) -> Raw:
    term = {"topologyKey": topology, "labelSelector": selector, **more}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.parametrize(
    ("image_id", "want"),
    [
        pytest.param("docker.io/library/server@sha256:ab12", "sha256:ab12", id="a repository's digest"),
        pytest.param("sha256:ab12", "", id="the runtime's own id"),
        pytest.param("", "", id="not pulled yet"),
    ],
)
def test_what_build_a_container_runs_is_its_repositorys_digest(image_id: str, want: str) -> None:
    """Ids that a runtime makes up are the same nowhere else."""
    (state,) = project_pod(make_pod(status={"containerStatuses": [{"name": "server", "imageID": image_id}]})).states
    assert state.image_digest == want


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(_apart({"matchLabels": {"app": "ocr"}}), True, id="selects itself by label"),
        pytest.param(_apart({}), True, id="selects every pod"),
        pytest.param(_apart({"matchExpressions": [{"key": "app", "operator": "In", "values": ["ocr", "x"]}]}), True, id="selects itself by expression"),
        pytest.param(_apart({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["ocr"]}]}), False, id="selects all others"),
        pytest.param(_apart({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), False, id="selects a label it lacks"),
        pytest.param(_apart({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), True, id="selects a lack it has"),
        pytest.param(_apart({"matchLabels": {"app": "other"}}), False, id="keeps away from another"),
        pytest.param(_apart(None), False, id="selects nothing"),
        pytest.param(_apart({}, topology="topology.kubernetes.io/zone"), False, id="one per zone"),
        pytest.param(_apart({}, namespaces=["elsewhere"]), False, id="looks at another namespace"),
        pytest.param(_apart({}, namespaces=["apps"]), True, id="looks at its own namespace by name"),
        pytest.param(_apart({}, namespaceSelector={}), True, id="looks at all namespaces"),
        pytest.param({"containers": [make_container(ports=[{"containerPort": 80, "hostPort": 8080}])]}, True, id="host port"),
        pytest.param({"containers": [make_container(ports=[{"containerPort": 80}])]}, False, id="container port"),
        pytest.param({"hostNetwork": True, "containers": [make_container(ports=[{"containerPort": 80}])]}, True, id="container port in the host's network"),
        pytest.param({"hostNetwork": True}, False, id="host's network without ports"),
    ],
)
def test_one_pod_per_host_is_found(pod: Raw, want: bool) -> None:
    """Anti-affinity against itself by hostname, or a host port, lets one pod onto a host."""
    assert project_target(make_deployment(pod=pod)).template.one_per_host is want


@pytest.mark.parametrize(
    ("replicas", "strategy", "want"),
    [
        pytest.param(4, {}, (1, 1), id="defaults of 25 %"),
        pytest.param(1, {}, (1, 0), id="one replica surges"),
        pytest.param(10, {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}, (3, 2), id="surge up, unavailable down"),
        pytest.param(3, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, (0, 1), id="counts"),
        pytest.param(3, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}, (0, 1), id="nothing may move, so one does"),
        pytest.param(2, {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}, (0, 2), id="no more than there are"),
        pytest.param(0, {}, (0, 0), id="scaled to zero"),
        pytest.param(4, {"type": "Recreate"}, (0, 4), id="recreate takes all down"),
    ],
)
def test_a_rollout_moves_as_many_pods_as_the_controller_moves(replicas: int, strategy: Raw, want: tuple[int, int]) -> None:
    """Surge and unavailable are resolved as the Deployment controller does it."""
    have = project_target(make_deployment(spec={"replicas": replicas, "strategy": strategy}))
    assert (have.max_surge, have.max_unavailable) == want


def test_how_long_a_start_may_take_is_read_with_kubernetes_defaults() -> None:
    """Probes, the settling time and the time to end, also where nobody wrote them."""
    probe = {"httpGet": {"path": "/", "port": 80}}
    slow = make_container("server", startupProbe=probe | {"failureThreshold": 180}, readinessProbe=probe | {"initialDelaySeconds": 5})
    have = project_target(make_deployment(pod={"containers": [slow], "terminationGracePeriodSeconds": 600}, spec={"minReadySeconds": 120}))
    (server,) = have.template.containers
    assert (server.startup_probe, server.readiness_probe) == (KubeletProbe(0, 10, 180, 1), KubeletProbe(5, 10, 3, 1))
    assert (have.min_ready_seconds, have.template.termination_grace_seconds) == (120, 600)
    bare = project_target(make_deployment())
    assert (bare.template.containers[0].startup_probe, bare.min_ready_seconds, bare.template.termination_grace_seconds) == (None, 0, 30)
    assert project_target(make_deployment(pod={"terminationGracePeriodSeconds": 0})).template.termination_grace_seconds == 0


def test_a_container_that_runs_says_since_when() -> None:
    """Its start-up time counts from there."""
    status = {"name": "server", "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}}}
    (state,) = project_pod(make_pod(status={"phase": "Running", "containerStatuses": [status]})).states
    assert state.started_at == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_who_owns_which_field_of_the_target_is_kept() -> None:
    """Managed fields come as they are on the wire, with manager, operation and subresource."""
    managed = [{"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {}}}, {"manager": "kcm", "operation": "Update", "subresource": "status"}]
    raw = make_deployment(metadata={"managedFields": managed, "ownerReferences": [{"kind": "Rollout", "name": "r", "controller": True}]})
    have = project_target(raw)
    assert [(item.manager, item.operation, item.subresource, dict(item.fields)) for item in have.managed] == [
        ("helm", "Update", "", {"f:spec": {}}),
        ("kcm", "Update", "status", {}),
    ]
    assert (have.controller, have.raw) == ("Rollout/r", raw)


def test_a_rollout_that_does_not_progress_says_why() -> None:
    """The Progressing condition's reason and message are there."""
    status = {"observedGeneration": 3, "replicas": 5, "conditions": [make_condition("Progressing", "False", reason="ProgressDeadlineExceeded", message="slow")]}
    have = project_target(make_deployment(status=status))
    assert (have.progressing_reason, have.progressing_message, have.status_replicas, have.available_replicas) == ("ProgressDeadlineExceeded", "slow", 5, 0)


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        pytest.param([], "", id="running"),
        pytest.param([make_condition("Complete")], "Complete", id="complete"),
        pytest.param([make_condition("FailureTarget")], "", id="failing, pods not ended yet"),
        pytest.param([make_condition("FailureTarget"), make_condition("Failed", reason="DeadlineExceeded")], "Failed", id="failed"),
        pytest.param([make_condition("Failed", "False")], "", id="condition that does not hold"),
    ],
)
def test_a_job_is_finished_when_the_controller_says_so(conditions: list[Raw], want: str) -> None:
    """Only Complete and Failed that are True end a Job."""
    have = project_job(make_job(conditions=conditions, startTime="2026-01-02T03:05:00Z"))
    assert (have.condition, have.finished, have.finished_at is not None) == (want, bool(want), bool(want))
    assert have.started_at == datetime(2026, 1, 2, 3, 5, tzinfo=UTC)


def test_a_job_that_is_being_ended_says_why_before_it_is_over() -> None:
    """The controller names its reason, then ends the pods, then the Job."""
    have = project_job(make_job(conditions=[make_condition("FailureTarget", reason="DeadlineExceeded", message="too long")]))
    assert (have.finished, have.condition_reason, have.condition_message, have.finished_at) == (False, "DeadlineExceeded", "too long", None)


def managed(manager: str) -> Raw:
    """A manager that set spec.suspend."""
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:suspend": {}}}}


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        pytest.param({"labels": {"kueue.x-k8s.io/queue-name": "lab"}}, "queue lab of kueue.x-k8s.io", id="the label of a queue system"),
        pytest.param({"annotations": {"scheduling.volcano.sh/queue-name": "a"}}, "queue a of scheduling.volcano.sh", id="the annotation of another"),
        pytest.param({"managedFields": [managed("metainfer"), managed("batch-gate")]}, "batch-gate", id="who set the field"),
        pytest.param({"managedFields": [managed("metainfer")]}, "", id="set while we created it: by a webhook, which leaves no name"),
    ],
)
def test_a_suspended_job_names_who_holds_it(metadata: Raw, want: str) -> None:
    """As far as it can be told; and since when."""
    raw = make_job(conditions=[make_condition("Suspended")])
    raw["metadata"] |= metadata
    assert project_job(raw).suspended_by == ""
    raw["spec"]["suspend"] = True
    have = project_job(raw)
    assert (have.suspended, have.suspended_by, have.suspended_at) == (True, want, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


ZONE = "topology.kubernetes.io/zone"
OWN = {"matchLabels": {"app": "ocr"}}


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"topologySpreadConstraints": [{"topologyKey": ZONE, "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": OWN,
                      "minDomains": 3}]}, (Spread(ZONE, 2, 3),), id="must spread over zones"),
        pytest.param({"topologySpreadConstraints": [{"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": OWN}]}, (),
                     id="would like to"),
        pytest.param({"topologySpreadConstraints": [{"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                      "labelSelector": {"matchLabels": {"app": "other"}}}]}, (), id="counts other pods than its own"),
        pytest.param({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": ZONE, "labelSelector": OWN}]}}},
                     (Spread(ZONE, one_per_domain=True),), id="one for each zone"),
        pytest.param({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                      {"topologyKey": "kubernetes.io/hostname", "labelSelector": OWN}]}}}, (), id="one for each host is another rule"),
    ],
)  # fmt: skip
def test_how_pods_must_spread_is_read(pod: Raw, want: tuple[Spread, ...]) -> None:
    """Only what the scheduler must keep."""
    assert project_target(make_deployment(pod=pod)).template.spreads == want


def test_what_a_runtime_takes_for_itself_is_read() -> None:
    """It counts on top of the containers' requests."""
    assert project_runtime_class({"metadata": {"name": "r"}, "overhead": {"podFixed": {"cpu": "250m", "memory": "128Mi"}}}).overhead == {
        "cpu": 250,
        "memory": 128 << 20,
    }


def test_a_runtime_class_restricts_its_pods() -> None:
    """Its selector and tolerations are read; one without scheduling restricts nothing."""
    have = project_runtime_class({"metadata": {"name": "r"}, "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}]}})
    assert (have.node_selector, have.tolerations) == ({"a": "b"}, (Toleration("k"),))
    assert project_runtime_class({"metadata": {"name": "r"}}).tolerations == ()


def test_our_own_kinds_are_read() -> None:
    """Pool, adaptation and portrait, with defaults for what is not set."""
    pool, adaptation, portrait = project_pool(make_pool()), project_adaptation(make_adaptation()), project_portrait(make_portrait())
    assert (pool.spec.families[0].name, pool.spec.probe.max_age, pool.status.observed_generation) == ("ort-cpu", "168h", -1)
    assert (adaptation.spec.target_ref.name, adaptation.created_at) == ("ocr", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert (portrait.node, portrait.spec.family) == ("n1", "ort-cpu")


def test_a_newer_schema_is_read_as_far_as_it_is_known() -> None:
    """Fields that this operator does not know are ignored."""
    assert project_adaptation(make_adaptation(someday={"x": 1}, load={"clients": 2, "shape": "sine"})).spec.load.clients == 2


@pytest.mark.parametrize(
    ("project", "raw", "want"),
    [
        pytest.param(project_adaptation, make_adaptation(model={}), "ModelAdaptation apps/ocr cannot be read: model.uri: Field required", id="field missing"),
        pytest.param(project_adaptation, make_adaptation(load={"clients": "many"}), "load.clients: Input should be a valid integer", id="wrong type"),
        pytest.param(project_pool, {"metadata": make_metadata("lab"), "spec": {"families": []}}, "AcceleratorPool lab cannot be read: families", id="too few"),
        pytest.param(project_pool, {"metadata": make_metadata("lab")}, "AcceleratorPool lab cannot be read: KeyError: 'spec'", id="no spec"),
        pytest.param(project_portrait, {"metadata": make_metadata("n1"), "spec": []}, "NodePortrait n1 cannot be read", id="spec of another type"),
        pytest.param(project_node, make_node(allocatable={"memory": "lots"}), "Node n1 cannot be read: ValueError: memory: not a quantity", id="quantity"),
        pytest.param(project_pod, {"metadata": {"name": "p"}}, "Pod p cannot be read: KeyError: 'namespace'", id="no namespace"),
    ],
)
def test_an_unreadable_object_is_one_typed_error_that_names_it(project: Callable[[Raw], object], raw: Raw, want: str) -> None:
    """Kind, name, field and reason are in the message."""
    with pytest.raises(ProjectionError) as caught:
        project(raw)
    assert want in str(caught.value)


def test_a_status_of_another_version_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Our own status can be rebuilt; the object stays usable, and the log says so."""
    with caplog.at_level(logging.WARNING):
        have = project_adaptation(make_adaptation(status={"observedGeneration": 3, "run": {"id": 7}}))
    assert have.status == ModelAdaptationStatus()
    assert caplog.messages == ["status of another version, starting from an empty one"]


_SCRAPS = st.sampled_from([None, True, 0, -1, "", "x", "1Gi", [], [None], ["x"], {}, {"x": "y"}, [{"name": "x"}], {"name": None}])


def _corrupt(data: st.DataObject, raw: Any) -> Any:
    """The object with one value somewhere in it replaced."""
    keys = list(raw) if isinstance(raw, dict) else list(range(len(raw))) if isinstance(raw, list) else []
    if not keys or data.draw(st.integers(0, 3)) == 0:
        return data.draw(_SCRAPS)
    key = data.draw(st.sampled_from(keys))
    raw[key] = _corrupt(data, raw[key])
    return raw


_SAMPLES: tuple[tuple[Callable[[Raw], object], Raw], ...] = (
    (project_node, make_node(labels={"a": "b"}, taints=[{"key": "gpu", "effect": "NoSchedule"}])),
    (project_pod, make_pod(owner="Job/j", initContainers=[make_container("i", restartPolicy="Always", env=[{"name": "A", "valueFrom": {"fieldRef": {}}}])])),
    (project_pod, make_pod(status={"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1}}}], "conditions": [make_condition("Ready")]})),
    (project_target, make_deployment(pod=_apart({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}))),
    (project_target, make_deployment(spec={"strategy": {"rollingUpdate": {"maxSurge": "25%"}}}, metadata={"managedFields": [{"manager": "m"}]})),
    (project_job, make_job(conditions=[make_condition("Complete")], startTime="2026-01-02T03:05:00Z", active=1)),
    (project_pool, make_pool()),
    (project_adaptation, make_adaptation()),
    (project_portrait, make_portrait()),
)


@given(st.data())
def test_nothing_but_a_projection_error_comes_out_of_a_strange_object(data: st.DataObject) -> None:
    """Whatever stands in one of its fields, the result is facts or ProjectionError, and the object itself is not changed."""
    project, sample = data.draw(st.sampled_from(_SAMPLES))
    raw = copy.deepcopy(sample)
    part = data.draw(st.sampled_from(["spec", "status"]))
    raw[part] = _corrupt(data, raw.get(part, {}))
    before = json.dumps(raw)
    with contextlib.suppress(ProjectionError):
        project(raw)
    assert json.dumps(raw) == before
