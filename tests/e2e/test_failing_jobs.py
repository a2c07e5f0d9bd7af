"""Measuring Jobs that fail on a real cluster: what its controllers and kubelets really leave behind, and what is made of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from lab import IMAGES, Lab, condition, wait_until
from tests.e2e.objects import make_adaptation, make_target
from tests.unit.act.make_actions import make_bench_job

from metainfer.act.jobs import build_job
from metainfer.decide.facts import JobFacts, MeasuringLimits, Told
from metainfer.observe.failures import Remains, find_failure
from metainfer.observe.projections import project_job, project_pod
from metainfer.observe.reports import Moment, find_ending

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]
Object = dict[str, Any]
Settled = Callable[..., Object]
PYTHON = "/opt/venv/bin/python"
LIMITS = MeasuringLimits(probe_image=IMAGES["probe"], image_pull_policy="IfNotPresent", priority_class="")
START_SECONDS = 6.0
"""Short, so that a Job that does not start is called one soon."""
QUOTA: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}


def make_job(name: str, *command: str, limits: Mapping[str, int] | None = None, **container: Any) -> Object:
    """A benchmark Job as the operator makes it, without a card and with another program in it; nobody's, so that the operator leaves it alone."""
    action = make_bench_job(
        name=name, namespace="", owner={"apiVersion": "v1", "kind": "Pod", "name": "nobody", "uid": "nobody", "namespace": "elsewhere"},
        node=None, resource="cpu", volume=None, requests={}, limits=limits or {}, annotations={},
    )  # fmt: skip
    job = build_job(action, LIMITS)
    del job["metadata"]["namespace"], job["metadata"]["annotations"]  # with them what its container was to get
    (only,) = job["spec"]["template"]["spec"]["containers"]
    only |= {"resources": {"requests": {"cpu": "10m"}, "limits": {"memory": str((limits or {}).get("memory", 256 << 20))}}} | container
    if command:
        only |= {"command": list(command), "args": []}
    return job


ALLOCATE = "data = bytearray(300 << 20); data[::4096] = b'x' * len(data[::4096])"
FILL = "import time; open('/tmp/file', 'wb').write(b'x' * (40 << 20)); time.sleep(120)"
SLEEP = "import signal; signal.pause()"


def make_jobs() -> dict[str, Object]:
    """One Job for each way to fail, by the reason that it should get."""
    missing_claim = make_job("claim", PYTHON, "-c", SLEEP)
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "absent"}}
    missing_claim["spec"]["template"]["spec"]["volumes"].append(volume)
    late = make_job("late", PYTHON, "-c", SLEEP)
    late["spec"]["activeDeadlineSeconds"] = 4
    full = make_job("full", PYTHON, "-c", FILL)
    full["spec"]["template"]["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "8Mi"
    card = make_job("card", PYTHON, "-c", SLEEP)
    card["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["metainfer.dev/card"] = 99
    return {
        "ImagePullFailed": make_job("image", image="localhost/meta-infer/absent:1"),
        "OutOfMemory": make_job("memory", PYTHON, "-c", ALLOCATE, limits={"memory": 64 << 20}),
        "DeadlineExceeded": late,
        "ClaimMissing": missing_claim,
        "Unschedulable": card,
        "StartFailed": make_job("program", "/no/such/program"),
        "ReportMissing": make_job("crash", PYTHON, "-c", "raise SystemExit('no space left')"),
        "Evicted": full,
    }


def facts_of(lab: Lab, namespace: str, name: str) -> JobFacts:
    """The Job and its pods as the cluster has them now."""
    pods = tuple(project_pod(item) for item in lab.list("pods", namespace, f"job-name={name}"))
    found = lab.find("job", name, namespace)
    assert found is not None
    return replace(project_job(found), pods=pods)


def reason_of(job: JobFacts) -> tuple[str, str] | None:
    """Reason and message of a Job that has ended."""
    ending = find_ending(job, Moment(datetime.now(UTC), START_SECONDS))
    remains = ending.remains if ending is not None else None
    if remains is None:
        return None
    failure = find_failure(remains)
    return failure.reason, failure.message


def test_what_a_real_cluster_leaves_of_failed_jobs_has_the_right_names(lab: Lab, namespace: str) -> None:
    """Eight Jobs at once, each with its own reason and words; and one whose pod somebody deletes."""
    jobs = make_jobs()
    lab.apply_objects(*jobs.values(), make_job("deleted", PYTHON, "-c", SLEEP), namespace=namespace)
    wait_until(
        "the pod that is to be deleted runs",
        lambda: True if [pod for pod in lab.list("pods", namespace, "job-name=deleted") if pod["status"].get("phase") == "Running"] else None,
        timeout_seconds=60,
    )
    lab.kubectl("-n", namespace, "delete", "pods", "-l", "job-name=deleted", "--force", "--grace-period=0")
    wanted = {job["metadata"]["name"]: reason for reason, job in jobs.items()} | {"deleted": "PodDisappeared"}
    seen: dict[str, tuple[str, str] | None] = {}

    def all_named() -> bool | None:
        seen.update({name: reason_of(facts_of(lab, namespace, name)) for name in wanted if (seen.get(name) or ("",))[0] != wanted[name]})
        return True if all((seen[name] or ("",))[0] == reason for name, reason in wanted.items()) else None

    try:
        wait_until("every Job has its reason", all_named, timeout_seconds=90)
    finally:
        sys.stdout.write("".join(f"{name}: {found}\n" for name, found in seen.items()))
    assert {name: found[0] for name, found in seen.items() if found is not None} == wanted
    words = {name: found[1] for name, found in seen.items() if found is not None}
    assert "absent:1" in words["image"]
    assert "limit of 64 MiB" in words["memory"]
    assert 'persistentvolumeclaim "absent" not found' in words["claim"]
    assert "Insufficient metainfer.dev/card" in words["card"]
    assert "no space left" in words["crash"]
    assert "exceeds the limit" in words["full"]


def test_a_quota_on_pods_is_told_with_its_numbers_by_the_job_controller(lab: Lab, namespace: str) -> None:
    """The Job is made and its pod is not: the newest Event about the Job says why."""
    lab.apply_objects(QUOTA | {"spec": {"hard": {"pods": "0"}}}, namespace=namespace)
    wait_until("the quota is in force", lambda: (lab.find("resourcequota", "team", namespace) or {}).get("status", {}).get("hard"), timeout_seconds=30)
    lab.apply_objects(make_job("quota", PYTHON, "-c", SLEEP), namespace=namespace)

    def told() -> Object | None:
        events = [item for item in lab.list("events", namespace) if item["involvedObject"]["kind"] == "Job" and item["reason"] == "FailedCreate"]
        return events[-1] if events else None

    event = wait_until("the Job controller complains", told, timeout_seconds=30)
    job = replace(facts_of(lab, namespace, "quota"), told=Told(event["reason"], event["message"]))
    failure = find_failure(Remains(job))
    assert failure.reason == "QuotaExceeded"
    assert "limited: pods=0" in failure.message


def test_a_refused_job_is_a_condition_and_goes_on_when_the_quota_has_room(lab: Lab, namespace: str, settled: Settled) -> None:
    """Through the operator: named with the numbers within seconds, one Event, and started by itself after the quota is gone."""
    lab.apply_objects(make_target("refused"), namespace=namespace)
    lab.kubectl("-n", namespace, "rollout", "status", "deployment/refused", "--timeout=120s", timeout_seconds=130)
    lab.apply_objects(QUOTA | {"spec": {"hard": {"count/jobs.batch": "0"}}}, namespace=namespace)
    wait_until("the quota is in force", lambda: (lab.find("resourcequota", "team", namespace) or {}).get("status", {}).get("hard"), timeout_seconds=30)
    lab.apply_objects(make_adaptation("refused"), namespace=namespace)

    def said(reason: str) -> Callable[[], Object | None]:
        def ask() -> Object | None:
            state = condition(lab.find("modeladaptation", "refused", namespace), "Profiled")
            return state if state["reason"] == reason else None

        return ask

    found = wait_until("the condition says so", said("QuotaExceeded"), timeout_seconds=60)
    assert "limited: count/jobs.batch=0" in found["message"]
    assert lab.list("jobs", namespace) == []
    lab.kubectl("-n", namespace, "delete", "resourcequota", "team")
    wait_until("it goes on", lambda: lab.list("jobs", namespace, "metainfer.dev/purpose=profile") or None, timeout_seconds=90)
    item = lab.find("modeladaptation", "refused", namespace)
    wait_until("the refusal is over", lambda: None if "refusal" in (lab.find("modeladaptation", "refused", namespace) or {})["status"]["run"] else True,
               timeout_seconds=30)  # fmt: skip
    assert item is not None
    events = [event for event in lab.list("events", namespace) if event["reason"] == "QuotaExceeded" and event["involvedObject"]["kind"] == "ModelAdaptation"]
    assert [event.get("count") for event in events] == [1]


def test_a_profile_that_needs_more_memory_than_the_target_has_is_named_and_tried_once(lab: Lab, namespace: str, settled: Settled) -> None:
    """Through the operator: the kernel kills it at the target's own limit, and the same limit would kill it again."""
    target = make_target("small")
    target["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"] = "40Mi"
    target["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "40Mi"
    lab.apply_objects(target, namespace=namespace)
    lab.kubectl("-n", namespace, "rollout", "status", "deployment/small", "--timeout=120s", timeout_seconds=130)
    lab.apply_objects(make_adaptation("small"), namespace=namespace)
    item = settled("small", "Stalled", timeout_seconds=120)
    assert condition(item, "Stalled")["reason"] == "OutOfMemory"
    assert "limit of 40 MiB" in condition(item, "Stalled")["message"]
    assert len(lab.list("jobs", namespace, "metainfer.dev/purpose=profile")) == 1
