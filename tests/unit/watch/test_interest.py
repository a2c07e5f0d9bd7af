"""Which foreign objects are kept, and that nothing is missed that matters only later."""

from __future__ import annotations

import copy
import gc
import tracemalloc
from typing import Any

import pytest
from tests.unit.watch.make_raw import make_adaptation, make_container, make_deployment, make_job, make_pod
from tests.unit.watch.make_watch import Watch, make_watch

from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, POD

Raw = dict[str, Any]
CARD = {"limits": {"metainfer.dev/card": "1"}}


def _again(raw: Raw) -> Raw:
    """The same version once more, as a list shows it."""
    return copy.deepcopy(raw)


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(make_pod(), False, id="nobody's"),
        pytest.param(make_pod(containers=[make_container(resources={"requests": {"cpu": "1", "hugepages-2Mi": "1"}})]), False, id="native resources"),
        pytest.param(make_pod(containers=[make_container(resources=CARD)]), True, id="holds a card"),
        pytest.param(make_pod(initContainers=[make_container("i", resources=CARD)]), True, id="an init container holds a card"),
        pytest.param(make_pod(nodeName=None, containers=[make_container(resources=CARD)], status={"phase": "Pending"}), True, id="waits for a card"),
        pytest.param(make_pod(containers=[make_container(resources=CARD)], status={"phase": "Succeeded"}), False, id="finished with its card"),
        pytest.param(make_pod(labels={"metainfer.dev/purpose": "probe"}, status={"phase": "Failed"}), True, id="ours, finished"),
        pytest.param(make_pod(labels={"app": "ocr", "x": "y"}), True, id="of a target"),
        pytest.param(make_pod(labels={"app": "ocr"}, status={"phase": "Failed", "reason": "UnexpectedAdmissionError"}), False, id="of a target, refused"),
        pytest.param(make_pod(labels={"app": "ocr"}, namespace="elsewhere"), False, id="as a target's, in another namespace"),
    ],
)
def test_pods_that_matter_are_kept(pod: Raw, want: bool) -> None:
    """Ours, those of targets, and those that have or want a card; of all others nothing is kept."""
    watch = make_watch(modeladaptations=(make_adaptation(),), deployments=(make_deployment(),)).show(POD, pod)
    assert watch.cluster.count(POD) == int(want)


AVALANCHE = 4800
"""Pods that one broken card leaves in an hour; the cluster deletes none of them below 12,500."""
GROWTH_LIMIT_BYTES = 5 << 20
"""A tenth of what the whole process may grow by."""


def test_an_avalanche_of_failed_pods_leaves_nothing_behind() -> None:
    """Each is created, bound, refused and replaced: afterwards no pod is kept, and next to no memory."""
    watch = make_watch(modeladaptations=(make_adaptation(),), deployments=(make_deployment(),))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(AVALANCHE):
            pod = make_pod(f"ocr-{number}", labels={"app": "ocr"}, containers=[make_container(resources=CARD)], owner="ReplicaSet/ocr-1")
            watch.show(POD, pod)
            refused = _later(pod)
            refused["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: Allocate failed: GPU is lost"}
            watch.show(POD, refused)
            watch.let_timers_end()
            watch.queue.take()
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (watch.cluster.count(POD), watch.cluster.card_pods(), watch.cluster.pods_matching("apps", {"app": "ocr"})) == (0, (), ())
    assert grown < GROWTH_LIMIT_BYTES


def test_deployments_that_matter_are_kept() -> None:
    """Targets, and those that we wrote to: the latter may have to be restored."""
    written = make_deployment("written", metadata={"annotations": {"metainfer.dev/pre-image": "{}"}})
    decided = make_deployment("decided")
    decided["spec"]["template"]["metadata"]["annotations"] = {"metainfer.dev/decision": "d1"}
    recorded = make_deployment("recorded", metadata={"managedFields": [{"manager": "metainfer", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]})
    watch = make_watch(modeladaptations=(make_adaptation(),), deployments=(make_deployment(), make_deployment("nobodys"), written, decided, recorded))
    kept = [name for name in ("ocr", "nobodys", "written", "decided", "recorded") if watch.cluster.deployment("apps", name) is not None]
    assert kept == ["ocr", "written", "decided", "recorded"]


def test_a_target_that_was_dropped_before_it_was_named_is_asked_for() -> None:
    """Its namespace is listed again, then that of its pods; what the lists show closes the gap at the same version."""
    target, pod = make_deployment(), make_pod(labels={"app": "ocr"})
    watch = make_watch(deployments=(target,), pods=(pod,))
    assert (watch.cluster.count(DEPLOYMENT), watch.cluster.count(POD)) == (0, 0)
    watch.show(ADAPTATION, make_adaptation())
    assert watch.gaps == [("Deployment", "apps")]
    watch.intake.take_page(DEPLOYMENT, [_again(target)])
    assert ("Pod", "apps") in watch.gaps
    watch.intake.take_page(POD, [_again(pod)])
    assert [found.name for found in watch.cluster.pods_matching("apps", {"app": "ocr"})] == ["p1"]


def test_a_gap_that_opened_during_a_list_stays_open() -> None:
    """The list may have passed the object before it mattered."""
    watch = make_watch(modeladaptations=(make_adaptation(),))
    seen = watch.cluster.interest.gaps_in(DEPLOYMENT, None)
    watch.show(ADAPTATION, make_adaptation("second", target="other"))
    watch.cluster.interest.close_gaps(seen)
    assert dict(watch.cluster.interest.gaps_in(DEPLOYMENT, "apps"))
    watch.cluster.interest.close_gaps(watch.cluster.interest.gaps_in(DEPLOYMENT, "apps"))
    assert not watch.cluster.interest.gaps


def test_a_target_that_nobody_names_any_more_is_let_go() -> None:
    """Its pods too, at their next event; two adaptations of one target keep it until both are gone."""
    target, pod = make_deployment(), make_pod(labels={"app": "ocr"})
    first, second = make_adaptation(), make_adaptation("second")
    watch = make_watch(modeladaptations=(first, second), deployments=(target,), pods=(pod,))

    def kept() -> tuple[int, int]:
        for kind, raw in ((DEPLOYMENT, target), (POD, pod)):
            raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 100_000)
            watch.show(kind, _again(raw))
        return watch.cluster.count(DEPLOYMENT), watch.cluster.count(POD)

    watch.intake.watch(ADAPTATION, "DELETED", _later(first))
    assert kept() == (1, 1)
    watch.intake.watch(ADAPTATION, "DELETED", _later(second))
    assert kept() == (0, 0)


def _later(raw: Raw) -> Raw:
    after = copy.deepcopy(raw)
    after["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 100_000)
    return after


def test_pods_of_a_job_come_oldest_first_and_leave_no_trace() -> None:
    """The index by Job follows every deletion."""
    young, old = (
        make_pod("young", owner="Job/j1", labels={"metainfer.dev/purpose": "bench"}),
        make_pod("old", owner="Job/j1", labels={"metainfer.dev/purpose": "bench"}),
    )
    old["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    watch = make_watch(jobs=(make_job(),), pods=(young, old))
    assert [pod.name for pod in watch.cluster.pods_of_job("apps", "j1")] == ["old", "young"]
    for pod in (young, old):
        watch.intake.watch(POD, "DELETED", _later(pod))
    assert watch.cluster.pods_of_job("apps", "j1") == ()
    assert (watch.cluster._job_pods, watch.cluster._job_of) == ({}, {})


def test_jobs_are_as_last_seen_after_every_event() -> None:
    """They are kept with their pods, because every pass reads all of them: a pod that comes, changes or goes, and the Job itself, are seen at once."""
    job, labels = make_job(), {"metainfer.dev/purpose": "bench"}
    pod = make_pod("p1", owner="Job/j1", labels=labels)
    watch = make_watch(jobs=(job,))

    def seen() -> tuple[bool, list[tuple[str, str]]]:
        (found,) = watch.cluster.jobs()
        return found.finished, [(item.name, item.phase) for item in found.pods]

    assert seen() == (False, [])
    watch.show(POD, pod)
    assert seen() == (False, [("p1", "Running")])
    ended = _later(pod)
    ended["status"]["phase"] = "Succeeded"
    watch.show(POD, ended)
    assert seen() == (False, [("p1", "Succeeded")])
    done = _later(job)
    done["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    watch.show(JOB, done)
    assert seen() == (True, [("p1", "Succeeded")])
    watch.intake.watch(POD, "DELETED", _later(ended))
    assert seen() == (True, [])
    watch.intake.watch(JOB, "DELETED", _later(done))
    assert (watch.cluster.jobs(), watch.cluster._jobs_with_pods) == ((), {})


def test_our_own_writes_are_remembered_by_what_they_say_they_are() -> None:
    """An answer of the API server names its kind; kinds that are not watched are let pass."""
    watch = Watch()
    watch.intake.remember({"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", **make_adaptation()})
    watch.intake.remember({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "apps"}})
    assert watch.cluster.adaptation("apps", "ocr") is not None
    watch.intake.forget(ADAPTATION, "apps", "ocr")
    assert watch.cluster.adaptation("apps", "ocr") is None
