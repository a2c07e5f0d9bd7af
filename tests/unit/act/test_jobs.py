from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.act.make_actions import ADAPTATION_OWNER, CARD, LIMITS, POOL_OWNER, make_bench_job, make_probe_job

from metainfer.act.jobs import NODE_SCRATCH_BYTES, build_arguments, build_job
from metainfer.decide.facts import NodeTerm, Requirement, Toleration
from metainfer.decide.plan import CreateJob
from metainfer_probe.contract import ModelSource, decode_request


def pod_spec(action: CreateJob, **limits: Any) -> dict[str, Any]:
    spec: dict[str, Any] = build_job(action, replace(LIMITS, **limits))["spec"]["template"]["spec"]
    return spec


def container(action: CreateJob) -> dict[str, Any]:
    (only,) = pod_spec(action)["containers"]
    assert isinstance(only, dict)
    return only


def expand_as_kubelet(argument: str, variables: dict[str, str]) -> str:
    """Kubernetes' expansion: ``$$`` is a dollar, ``$(NAME)`` a variable (left alone when unknown), any other dollar itself."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]), argument)


def test_it_runs_once_and_is_cleaned_up() -> None:
    """No retry behind our back, a deadline, and no finished Jobs piling up."""
    spec = build_job(make_probe_job(), LIMITS)["spec"]
    assert {key: spec[key] for key in ("backoffLimit", "completions", "parallelism", "activeDeadlineSeconds", "ttlSecondsAfterFinished")} == {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": 120,
        "ttlSecondsAfterFinished": 3600,
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("action", [make_probe_job(), make_bench_job()], ids=["probe", "bench"])
def test_it_meets_pod_security_restricted(action: CreateJob) -> None:
    """Every Job, whoever's namespace it is in."""
    pod, only = pod_spec(action), container(action)
    assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName", "serviceAccountName", "initContainers"} & pod.keys()
    assert all(volume.keys() <= {"name", "emptyDir", "persistentVolumeClaim"} for volume in pod["volumes"])


def test_nobody_is_named_where_the_clusters_policy_names_the_user() -> None:
    """OpenShift's restricted-v2 gives each namespace a range of its own and refuses any other number; root is out all the same."""
    assert pod_spec(make_bench_job(), job_user_id=0)["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod_spec(make_bench_job(), job_user_id=1000)["securityContext"]["runAsUser"] == 1000


def test_the_end_of_the_log_stands_in_for_a_report_that_could_not_be_written() -> None:
    """A program that never ran writes no termination message: 'exec format error' is in its log only."""
    assert container(make_bench_job())["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_it_gains_nothing_from_the_cluster() -> None:
    """Untrusted models are parsed in there: no token, no addresses of Services."""
    pod = pod_spec(make_bench_job())
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)


def test_the_models_owner_keeps_the_groups_of_his_files() -> None:
    """fsGroup would change the group of every file on the volume."""
    assert "fsGroup" not in pod_spec(make_bench_job())["securityContext"]


def test_it_never_evicts_anybody() -> None:
    """Lowest priority, no preemption; without a class neither is set, because they must fit together."""
    assert (pod_spec(make_probe_job())["priorityClassName"], pod_spec(make_probe_job())["preemptionPolicy"]) == ("meta-infer-probe", "Never")
    assert not {"priorityClassName", "preemptionPolicy"} & pod_spec(make_probe_job(), priority_class="").keys()


def test_it_is_pinned_by_affinity_to_the_nodes_name() -> None:
    """nodeName bypasses the scheduler; the hostname label may differ from the name."""
    (term,) = pod_spec(make_probe_job())["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}


def test_each_of_the_given_terms_is_narrowed_to_the_node() -> None:
    """Terms are OR-ed: a pin in only one of them would pin nothing."""
    terms = (NodeTerm((Requirement("zone", "In", ("a", "b")),)), NodeTerm((Requirement("gpu", "Exists"),)))
    wanted = pod_spec(make_probe_job(terms=terms))["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    pin = [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    assert wanted == [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}], "matchFields": pin},
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}], "matchFields": pin},
    ]


def test_without_a_node_the_terms_alone_hold() -> None:
    """A profile may run on any card of the family."""
    free = make_probe_job(node=None)
    assert "affinity" not in pod_spec(free)
    terms = (NodeTerm((Requirement("gpu", "Exists"),)),)
    required = pod_spec(replace(free, terms=terms))["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}


def test_a_benchmark_has_the_targets_own_resources_and_one_card() -> None:
    """Under other limits its figures would mean nothing; cards are never overcommitted."""
    assert container(make_bench_job())["resources"] == {
        "requests": {"cpu": "4000m", "memory": str(2 << 30), CARD: "1"},
        "limits": {"cpu": "4000m", "memory": str(4 << 30), CARD: "1"},
    }


def test_a_job_beside_the_server_asks_for_no_card() -> None:
    """Where pods reach a card without asking, the one that holds it keeps it."""
    assert CARD not in str(container(make_bench_job(resource=""))["resources"])


def test_tolerations_and_runtime_class_are_the_actions() -> None:
    """Empty parts of a toleration are left out, as the API server would."""
    tolerations = (Toleration("gpu", "Exists", "", "NoSchedule"), Toleration("team", "Equal", "ml"))
    pod = pod_spec(make_bench_job(tolerations=tolerations, runtime_class="nvidia"))
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"key": "team", "operator": "Equal", "value": "ml"}]
    assert pod["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_spec(make_bench_job())


def test_the_job_carries_the_resources_that_its_container_was_given() -> None:
    """A webhook's change shows when pod and annotation are compared."""
    job = build_job(make_bench_job(), LIMITS)
    assert json.loads(job["metadata"]["annotations"]["metainfer.dev/resources"]) == container(make_bench_job())["resources"]


def test_no_sidecar_is_injected() -> None:
    """Its processor time would be measured, and the Job would never end."""
    metadata = build_job(make_bench_job(), LIMITS)["spec"]["template"]["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert {key: metadata["annotations"][key] for key in ("sidecar.istio.io/inject", "linkerd.io/inject", "consul.hashicorp.com/connect-inject")} == {
        "sidecar.istio.io/inject": "false",
        "linkerd.io/inject": "disabled",
        "consul.hashicorp.com/connect-inject": "false",
    }
    assert "hami.io/webhook" not in metadata["labels"]


def test_only_our_own_labels_and_annotations_travel() -> None:
    """With a copied tracking label Argo CD would take the Job for its own and prune it."""
    tracking = {"app.kubernetes.io/instance": "ocr", "argocd.argoproj.io/tracking-id": "x", "metainfer.dev/pool": "lab"}
    job = build_job(make_bench_job(labels=tracking, annotations=tracking), LIMITS)
    assert job["metadata"]["labels"] == {"metainfer.dev/pool": "lab", "metainfer.dev/purpose": "bench"}
    assert job["metadata"]["annotations"].keys() == {"metainfer.dev/pool", "metainfer.dev/resources"}
    template = job["spec"]["template"]["metadata"]
    assert not {"app.kubernetes.io/instance", "argocd.argoproj.io/tracking-id"} & (template["labels"].keys() | template["annotations"].keys())


def test_the_pod_carries_the_jobs_labels() -> None:
    """Pods of ours are found by label too."""
    job = build_job(make_bench_job(), LIMITS)
    assert job["metadata"]["labels"].items() <= job["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("owner", "want_uid"),
    [
        pytest.param(POOL_OWNER, "uid-lab", id="a cluster-scoped pool may own a namespaced Job"),
        pytest.param(ADAPTATION_OWNER, "uid-ocr", id="an adaptation owns a Job of its own namespace"),
        pytest.param(ADAPTATION_OWNER | {"namespace": "models"}, "uid-ocr", id="its own namespace, said aloud"),
        pytest.param(ADAPTATION_OWNER | {"namespace": "elsewhere"}, None, id="never across namespaces"),
    ],
)
def test_it_is_owned_where_kubernetes_allows_it(owner: dict[str, str], want_uid: str | None) -> None:
    """A reference into another namespace would get the Job collected as garbage at once."""
    references = build_job(make_bench_job(owner=owner), LIMITS)["metadata"].get("ownerReferences", [])
    assert [item["uid"] for item in references] == ([] if want_uid is None else [want_uid])
    assert all(item.keys() == {"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"} for item in references)
    assert not any(item["blockOwnerDeletion"] for item in references)


def test_the_image_comes_from_the_settings_only() -> None:
    """No field of a custom resource reaches it."""
    only = container(make_bench_job())
    assert (only["name"], only["image"], only["imagePullPolicy"], only["terminationMessagePolicy"]) == (
        "probe",
        "probe:1",
        "IfNotPresent",
        "FallbackToLogsOnError",
    )
    assert "command" not in only


def test_the_arguments_are_the_subcommand_the_request_and_the_volume() -> None:
    """The probe image parses exactly what was asked."""
    for action in (make_probe_job(), make_bench_job()):
        arguments = build_arguments(action)
        assert arguments[0] == action.request.kind
        assert decode_request(arguments[2]) == action.request
    assert build_arguments(make_bench_job())[3:] == ["--volume", "/models"]
    assert len(build_arguments(make_probe_job())) == 3


@given(path=st.text(alphabet=st.sampled_from('$()AB/_ é"\\\n'), min_size=1, max_size=30))
def test_the_request_survives_the_kubelets_expansion(path: str) -> None:
    """A user's path with $(HOME) in it must reach the probe as it is, and reveal no variable."""
    request = make_bench_job().request.model_copy(update={"model": ModelSource(path=path)})
    argument = build_arguments(make_bench_job(request=request))[2]
    assert decode_request(expand_as_kubelet(argument, {"A": "SECRET", "B": "SECRET", "AB": "SECRET"})) == request


def test_libraries_take_as_many_threads_as_the_card_has() -> None:
    """Otherwise they take every processor of the node, and measure each other."""
    environment = {item["name"]: item["value"] for item in container(make_probe_job())["env"]}
    assert {environment[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")} == {"2"}


def test_it_writes_into_a_bounded_folder_only() -> None:
    """The root file system is read-only; the scratch folder holds the model and its copies, not the node's whole disk."""

    def scratch(action: CreateJob) -> str:
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod_spec(action)["volumes"] if "emptyDir" in volume]
        assert len(sizes) == 1
        return str(sizes[0])

    assert scratch(make_probe_job()) == str(NODE_SCRATCH_BYTES)
    assert scratch(make_bench_job()) == str(NODE_SCRATCH_BYTES + (3 << 20))
    environment = {item["name"]: item["value"] for item in container(make_bench_job())["env"]}
    mount = next(item["mountPath"] for item in container(make_bench_job())["volumeMounts"] if item["name"] == "scratch")
    assert environment["HOME"] == environment["TMPDIR"] == mount


def test_the_model_is_mounted_read_only() -> None:
    """Twice: the claim, and the mount."""
    (volume,) = [item for item in pod_spec(make_bench_job())["volumes"] if item["name"] == "models"]
    (mount,) = [item for item in container(make_bench_job())["volumeMounts"] if item["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert (mount["mountPath"], mount["readOnly"]) == ("/models", True)
    assert not [item for item in pod_spec(make_probe_job())["volumes"] if item["name"] == "models"]


def test_the_manifest_is_plain_json() -> None:
    """Mappings of facts may be read-only views; the API wants objects."""
    assert json.loads(json.dumps(build_job(make_bench_job(), LIMITS)))["kind"] == "Job"
