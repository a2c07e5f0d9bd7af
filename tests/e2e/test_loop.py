"""The loop on real pods: what a user applies, and what the operator makes of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from infer_requests import difference, infer_request, outputs_of
from lab import IMAGES, SYSTEM_NAMESPACE, Lab, condition, describe_predictor, fill, predictor_of, wait_until
from scenarios.killing import find_operator
from tests.e2e.objects import make_adaptation, make_target, write_wide_model

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]
Settled = Callable[..., dict[str, Any]]
MANIFESTS = Path(__file__).resolve().parents[2] / "hack" / "demo" / "manifests"


def bench_jobs(lab: Lab, namespace: str) -> list[dict[str, Any]]:
    """Benchmark Jobs of a namespace, finished ones included."""
    return lab.list("jobs", namespace, "metainfer.dev/purpose=bench")


def running_pods(lab: Lab, namespace: str, app: str) -> list[dict[str, Any]]:
    """Pods of a Deployment that are not being deleted."""
    return [pod for pod in lab.list("pods", namespace, f"app={app}") if "deletionTimestamp" not in pod["metadata"]]


def start(lab: Lab, namespace: str, target: dict[str, Any]) -> None:
    """Apply a target and wait until it runs."""
    lab.apply_objects(target, namespace=namespace)
    lab.kubectl("-n", namespace, "rollout", "status", f"deployment/{target['metadata']['name']}", "--timeout=180s", timeout_seconds=190)


def test_a_served_model_ends_up_where_it_was_decided(lab: Lab, namespace: str, models: Path, settled: Settled) -> None:
    """A real server and model: decided, applied, read back, and still answering the same."""
    lab.apply(fill(MANIFESTS / "model.yaml", NAME="orientation", MODEL="orientation", IMAGE=IMAGES["demo-server"]), namespace)
    lab.kubectl("-n", namespace, "rollout", "status", "deployment/orientation", "--timeout=240s", timeout_seconds=250)
    request = infer_request(models / "orientation.npz")
    before = outputs_of(lab.post(namespace, "orientation", "/v2/models/orientation/infer", request))
    accuracy = {"calibration": {"uri": "pvc://models/orientation.npz"}}
    lab.apply_objects(
        make_adaptation("orientation", accuracy=accuracy, configSpace={"precisions": ["fp32", "bf16"], "batchSizes": [1, 4]}), namespace=namespace
    )
    item = settled("orientation", timeout_seconds=540)
    decided = item["status"]["recommendation"]["config"]
    assert len(item["status"]["candidates"]) >= 2
    assert sum(line["verdict"] in ("Selected", "Tie") for line in item["status"]["candidates"]) >= 1
    assert condition(item, "SettingsEffective")["status"] == "True"
    families = {node["metadata"]["name"]: node["metadata"]["labels"].get("metainfer.dev/family") for node in lab.list("nodes")}
    pods = running_pods(lab, namespace, "orientation")
    assert pods
    assert {families[pod["spec"]["nodeName"]] for pod in pods} == {decided["family"]}
    after = outputs_of(lab.post(namespace, "orientation", "/v2/models/orientation/infer", request))
    assert difference(before, after) <= 10_000
    columns = lab.kubectl("-n", namespace, "get", "modeladaptations", "orientation", "--no-headers").split()
    assert columns[:2] == ["orientation", "True"]


def operator_process() -> int:
    """Process id of the operator, seen from the host."""
    found = find_operator()
    if found is not None:
        return found
    pytest.fail("the operator's process was not found on this host")


def test_a_killed_operator_loses_nothing_and_does_nothing_twice(lab: Lab, namespace: str, settled: Settled) -> None:
    """SIGKILL while it profiles, while it validates and once it has decided: one run, no candidate measured twice, at most one rollout."""
    start(lab, namespace, make_target("killed"))
    generation = lab.find("deployment", "killed", namespace)["metadata"]["generation"]
    lab.apply_objects(make_adaptation("killed"), namespace=namespace)

    def profile_runs() -> bool | None:
        return True if any(job["status"].get("active") for job in lab.list("jobs", namespace, "metainfer.dev/purpose=profile")) else None

    def one_done_one_running() -> bool | None:
        jobs = bench_jobs(lab, namespace)
        return True if len(jobs) >= 2 and any(job["status"].get("active") for job in jobs) else None

    def decided() -> bool | None:
        return True if lab.find("modeladaptation", "killed", namespace)["status"].get("recommendation") else None

    wait_until("the profile under way", profile_runs, timeout_seconds=120, every_seconds=0.2)
    run_before = lab.find("modeladaptation", "killed", namespace)["status"]["run"]
    os.kill(operator_process(), signal.SIGKILL)
    wait_until("a second benchmark under way", one_done_one_running, timeout_seconds=300, every_seconds=0.5)
    known = {job["metadata"]["uid"] for job in bench_jobs(lab, namespace)}
    os.kill(operator_process(), signal.SIGKILL)
    wait_until("the decision", decided, timeout_seconds=600, every_seconds=0.2)
    os.kill(operator_process(), signal.SIGKILL)  # between the claim and the write, or during the rollout
    item = settled("killed")
    jobs = bench_jobs(lab, namespace)
    measured = Counter(job["metadata"]["annotations"]["metainfer.dev/candidate"] for job in jobs)
    assert set(measured.values()) == {1}, measured
    assert known <= {job["metadata"]["uid"] for job in jobs}
    assert item["status"]["run"]["id"] == run_before["id"]
    assert item["status"]["run"]["startedAt"] == run_before["startedAt"]
    deployment = lab.find("deployment", "killed", namespace)
    assert deployment["metadata"]["generation"] in (generation, generation + 1)
    assert len(lab.list("jobs", namespace, "metainfer.dev/purpose=profile")) == 1
    # The kubelet waits longer before each restart.
    lab.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment/meta-infer", "--timeout=170s", timeout_seconds=180)
    time.sleep(5)
    after = lab.find("deployment", "killed", namespace)
    assert (after["metadata"]["generation"], after["metadata"]["annotations"]) == (deployment["metadata"]["generation"], deployment["metadata"]["annotations"])


def test_a_model_too_big_for_its_container_is_refused_with_the_numbers(lab: Lab, namespace: str, models: Path, settled: Settled) -> None:
    """1.6 GB of weights under a limit of 1 GiB: nothing is benchmarked, nothing is written, the numbers are said."""
    write_wide_model(models)
    target = make_target("huge")
    target["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Gi"
    start(lab, namespace, target)
    before = lab.find("deployment", "huge", namespace)["metadata"]["generation"]
    lab.apply_objects(make_adaptation("huge", model="wide"), namespace=namespace)
    item = settled("huge", "Stalled")
    said = [f"{line['reason']}: {line['message']}" for line in item["status"].get("rejections", [])] + [condition(item, "Ready")["message"]]
    assert any("GiB" in words for words in said), said
    assert bench_jobs(lab, namespace) == []
    assert lab.find("deployment", "huge", namespace)["metadata"]["generation"] == before


def test_a_broken_model_file_is_named_and_tried_once(lab: Lab, namespace: str, models: Path, settled: Settled) -> None:
    """A Git-LFS pointer instead of weights: the reason says so, and one Job was enough."""
    (models / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 123456789\n", encoding="utf-8")
    start(lab, namespace, make_target("broken"))
    lab.apply_objects(make_adaptation("broken", model="pointer"), namespace=namespace)
    item = settled("broken", "Stalled")
    assert "LFS" in condition(item, "Ready")["message"]
    time.sleep(3)
    assert len(lab.list("jobs", namespace, "metainfer.dev/purpose=profile")) == 1


def test_fields_that_the_owner_declares_are_never_touched(lab: Lab, namespace: str, settled: Settled) -> None:
    """Declared settings are fixed before ranking; a declared affinity keeps placement a recommendation; both are named."""
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "card.metainfer.dev/product", "operator": "In", "values": ["ort-cpu"]}]}]
            }
        }
    }
    env = [{"name": "METAINFER_MAX_BATCH_SIZE", "value": "1"}, {"name": "OWN", "value": "x"}]
    target = make_target("owned", env=env, affinity=affinity)
    start(lab, namespace, target)
    lab.apply_objects(make_adaptation("owned"), namespace=namespace)
    item = settled("owned")
    assert {line["config"]["batchSize"] for line in item["status"]["candidates"]} == {1}
    template = lab.find("deployment", "owned", namespace)["spec"]["template"]["spec"]
    assert (
        template["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        == affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    )
    values = {entry["name"]: entry.get("value") for entry in template["containers"][0]["env"]}
    assert (values["METAINFER_MAX_BATCH_SIZE"], values["OWN"]) == ("1", "x")


def test_mode_off_recommends_with_a_ready_patch_and_writes_nothing(lab: Lab, namespace: str, settled: Settled) -> None:
    """The patch in the status is valid JSON for this Deployment; the Deployment itself stays as it was."""
    start(lab, namespace, make_target("advised"))
    before = lab.find("deployment", "advised", namespace)
    lab.apply_objects(make_adaptation("advised", updatePolicy={"mode": "Off"}), namespace=namespace)
    item = settled("advised", "PlacementDecided")
    patch = json.loads(item["status"]["recommendation"]["patch"])
    assert patch["spec"]["template"]["spec"]["containers"][0]["name"] == "server"
    after = lab.find("deployment", "advised", namespace)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"]


def test_what_was_measured_is_learned(lab: Lab, namespace: str, settled: Settled) -> None:
    """Benchmarks flow back: a newer predictor is trained on them and shows in the pool, with what it is worth; it ranks only where it won."""
    before = predictor_of(lab)
    start(lab, namespace, make_target("taught"))
    lab.apply_objects(make_adaptation("taught", updatePolicy={"mode": "Off"}), namespace=namespace)
    settled("taught", "PlacementDecided")

    def moved() -> dict[str, Any] | None:
        now = predictor_of(lab)
        return now if now.get("newestVersion", 0) > before.get("newestVersion", 0) else None

    after = wait_until("a newer predictor in the registry", moved, timeout_seconds=420, every_seconds=2)
    assert "regret" in after["newestVerdict"], describe_predictor(after)
    assert after.get("version", 0) <= after["newestVersion"]


def test_without_settings_nothing_is_written(lab: Lab, namespace: str, settled: Settled) -> None:
    """No mapping, no write: the reason says what is missing, unless what runs already turned out best, which a busy machine may measure."""
    start(lab, namespace, make_target("unmapped"))
    before = lab.find("deployment", "unmapped", namespace)["metadata"]["generation"]
    lab.apply_objects(make_adaptation("unmapped", settings=None), namespace=namespace)
    item = settled("unmapped", "PlacementDecided")
    is_better = item["status"]["recommendation"]["gainPercent"] > 0
    assert condition(item, "Applied")["reason"] == ("NoSettingsMapping" if is_better else "CurrentKept")
    assert lab.find("deployment", "unmapped", namespace)["metadata"]["generation"] == before
