"""Which passes a change wakes: those for which it can make a difference, at once or soon."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.watch.make_raw import make_adaptation, make_condition, make_container, make_deployment, make_job, make_node, make_pod, make_pool, make_portrait
from tests.unit.watch.make_watch import Watch, make_watch

from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, NODE, POD, POOL, PORTRAIT, Kind
from metainfer.reconcile import ORPHANS, Request
from metainfer.watch.intake import SOON_SECONDS
from metainfer.watch.routes import find_members

Raw = dict[str, Any]
CARD = {"limits": {"metainfer.dev/card": "1"}}
READY = {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "Applied", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}
CONFIG = {"pool": "lab", "family": "ort", "executionProvider": "CPUExecutionProvider"}
EVERYBODY = {"lab", "apps/ocr"}
NOBODY: tuple[set[str], set[str]] = (set(), set())


def _changed(raw: Raw, change: Callable[[Raw], Any]) -> Raw:
    after = copy.deepcopy(raw)
    after["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 100_000)
    change(after)
    return after


def _watch() -> Watch:
    """A pool, an adaptation that waits, one that is ready, one that is suspended, and their targets."""
    return make_watch(
        acceleratorpools=(make_pool(),),
        modeladaptations=(
            make_adaptation(),
            make_adaptation("done", target="other", status=READY),
            make_adaptation("off", target="third", suspend=True),
        ),
        deployments=(make_deployment(), make_deployment("other"), make_deployment("third")),
        nodes=(make_node(labels={"card": "ort"}),),
    )


def _nothing(_: Raw) -> None:
    """A version that differs in nothing that is read."""


def test_a_nodes_heartbeat_wakes_nobody() -> None:
    """What is the same as before for every rule is no news."""
    watch, node = _watch(), make_node(labels={"card": "ort"})
    assert watch.wakes_of(NODE, _changed(node, _nothing)) == NOBODY


@pytest.mark.parametrize("event", ["MODIFIED", "DELETED"])
def test_a_nodes_change_wakes_pools_and_who_waits_soon(event: str) -> None:
    """Adaptations that are ready, or suspended, are not woken by it."""
    watch, node = _watch(), make_node(labels={"card": "ort"})
    after = _changed(node, lambda raw: raw["metadata"]["labels"].update(driver="2"))
    assert watch.wakes_of(NODE, after, event) == (set(), EVERYBODY)


def test_a_new_node_wakes_pools_and_who_waits_soon() -> None:
    """A hundred nodes of a new rack wake them once, a second later."""
    assert _watch().wakes_of(NODE, make_node("n2")) == (set(), EVERYBODY)


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({"metainfer.dev/adaptation": "apps/ocr", "metainfer.dev/pool": "lab"}, {"apps/ocr"}, id="benchmark"),
        pytest.param({"metainfer.dev/pool": "lab"}, {"lab"}, id="probe"),
        pytest.param({}, set(), id="nobody's"),
    ],
)
def test_a_job_wakes_who_asked_for_it(annotations: dict[str, str], want: set[str]) -> None:
    """At once; that a measuring Job less runs then concerns all that wait for a place."""
    watch, job = _watch(), make_job()
    job["metadata"]["annotations"] = annotations
    assert watch.wakes_of(JOB, job) == (want, set())
    ended = _changed(job, lambda raw: raw["status"].update(conditions=[{"type": "Complete", "status": "True"}]))
    assert watch.wakes_of(JOB, ended) == (want, EVERYBODY - want)


def test_a_job_without_annotations_is_found_by_the_adaptations_uid() -> None:
    """The label alone is enough."""
    watch = _watch()
    uid = next(item.uid for item in watch.cluster.adaptations() if item.name == "done")
    assert watch.wakes_of(JOB, make_job(labels={"metainfer.dev/adaptation-uid": uid})) == ({"apps/done"}, set())


def test_a_pod_of_a_job_wakes_who_asked_for_the_job() -> None:
    """Its termination message may be the report."""
    watch, job = _watch(), make_job()
    job["metadata"]["annotations"] = {"metainfer.dev/pool": "lab"}
    pod = make_pod(owner="Job/j1", labels={"metainfer.dev/purpose": "probe"}, containers=[make_container(resources=CARD)])
    watch.show(JOB, job)
    assert watch.wakes_of(POD, pod) == ({"lab"}, {"apps/ocr"})
    assert [found.name for found in watch.cluster.jobs()[0].pods] == ["p1"]


def test_a_targets_pod_wakes_the_adaptation() -> None:
    """Readiness and crashes of the served pods are what a rollout is watched by."""
    watch, pod = _watch(), make_pod(labels={"app": "ocr", "pod-template-hash": "x"})
    assert watch.wakes_of(POD, pod) == ({"apps/ocr"}, set())
    ready = _changed(pod, lambda raw: raw["status"].update(conditions=[make_condition("Ready")]))
    assert watch.wakes_of(POD, ready) == ({"apps/ocr"}, set())
    failed = _changed(ready, lambda raw: raw["status"].update(phase="Failed"))
    assert watch.wakes_of(POD, failed) == ({"apps/ocr"}, set())
    assert watch.wakes_of(POD, _changed(failed, _nothing)) == (set(), set()), "what is over is over"
    other = make_pod("p2", labels={"app": "ocr"})
    watch.show(POD, other)
    assert watch.wakes_of(POD, _changed(other, _nothing), "DELETED") == ({"apps/ocr"}, set())


def test_a_card_that_is_taken_or_freed_concerns_all_that_wait() -> None:
    """Bound, and then finished: both change what is free; a label in between does not."""
    watch, pod = _watch(), make_pod("foreign", containers=[make_container(resources=CARD)])
    assert watch.wakes_of(POD, pod) == (set(), EVERYBODY)
    labelled = _changed(pod, lambda raw: raw["metadata"]["labels"].update(x="y"))
    assert watch.wakes_of(POD, labelled) == NOBODY
    assert watch.wakes_of(POD, _changed(labelled, lambda raw: raw["status"].update(phase="Succeeded"))) == (set(), EVERYBODY)
    assert watch.cluster.card_pods() == ()


def test_a_deployment_wakes_the_adaptations_that_name_it() -> None:
    """Status included; a new version without a difference does not."""
    watch, target = _watch(), make_deployment()
    rolled = _changed(target, lambda raw: raw["status"].update(updatedReplicas=1))
    assert watch.wakes_of(DEPLOYMENT, rolled) == ({"apps/ocr"}, set())
    assert watch.wakes_of(DEPLOYMENT, _changed(rolled, _nothing), "DELETED") == ({"apps/ocr"}, set())
    assert watch.wakes_of(DEPLOYMENT, make_deployment("nobodys")) == NOBODY


def test_a_pools_spec_concerns_every_adaptation() -> None:
    """The pool itself at once; the ready ones too, as their choice may no longer be one."""
    watch = _watch()
    after = _changed(make_pool(), lambda raw: raw["metadata"].update(generation=2))
    assert watch.wakes_of(POOL, after) == ({"lab"}, {"apps/ocr", "apps/done", "apps/off"})
    assert watch.wakes_of(POOL, make_pool("second")) == ({"second"}, {"lab", "apps/ocr", "apps/done", "apps/off"})


def test_a_status_that_we_wrote_does_not_wake_its_own_object() -> None:
    """Else every pass would cause another one. What a pool says about itself concerns those that wait for it."""
    watch = _watch()
    counted = _changed(make_pool(), lambda raw: raw.update(status={"observedGeneration": 1, "nodes": 5}))
    assert watch.wakes_of(POOL, counted) == NOBODY
    said = _changed(counted, lambda raw: raw["status"].update(conditions=READY["conditions"]))
    assert watch.wakes_of(POOL, said) == (set(), {"apps/ocr"})
    assert watch.wakes_of(ADAPTATION, _changed(make_adaptation(), lambda raw: raw.update(status={"observedGeneration": 1}))) == NOBODY


def test_a_card_that_a_check_found_slow_is_news_for_its_pool() -> None:
    """The pool marks its node before the pods are placed anew. Other verdicts, and the same one again, are news for nobody."""
    watch = _watch()
    decided = {"decisionId": "d1", "config": CONFIG, "expected": {}, "decidedAt": "2026-01-02T03:04:05Z"}
    verdict = {"reason": "P99Drift", "verdict": "Card", "node": "node-1", "judgedAt": "2026-01-02T04:04:05Z"}

    def say(**changes: str) -> Callable[[Raw], Any]:
        return lambda raw: raw.update(status={"observedGeneration": 1, "recommendation": decided, "check": {"verdict": verdict | changes}})

    found = _changed(make_adaptation(), say(verdict="Nothing"))
    assert watch.wakes_of(ADAPTATION, found) == NOBODY
    slow = _changed(found, say())
    assert watch.wakes_of(ADAPTATION, slow) == (set(), {"lab"})
    assert watch.wakes_of(ADAPTATION, _changed(slow, say())) == NOBODY


def _status(step: str, ready: str, *, suspected_at: str = "") -> Raw:
    """A status of an adaptation that is worked out anew because of a driver, or was."""
    at = "2026-01-02T03:04:05Z"
    condition = {"type": "Ready", "status": "True" if step == "Done" else "False", "reason": ready, "lastTransitionTime": at}
    suspicion = {"suspicion": {"reason": "DriverVersionChanged", "message": "it is 2", "noticedAt": suspected_at}} if suspected_at else None
    return {
        "observedGeneration": 1,
        "conditions": [condition],
        "run": {"id": "r1", "inputsHash": "h", "startedAt": at, "step": step, "trigger": "DriverVersionChanged: it is 2"},
        "recommendation": {"decisionId": "d1", "config": CONFIG, "expected": {}, "decidedAt": at},
        **({"check": suspicion} if suspicion else {}),
    }


def _fleet() -> Watch:
    """One that is worked out anew, and others: waiting to be written, suspected and held back, at peace, suspended."""
    statuses = {
        "busy": _status("Validating", "Validating"),
        "late": _status("Done", "Applied", suspected_at="2026-01-02T05:00:00Z"),
        "early": _status("Done", "Applied", suspected_at="2026-01-02T04:00:00Z"),
        "decided": _status("Validating", "WaitingForTurn"),
        "calm": _status("Done", "Applied"),
    }
    held = make_adaptation("off", target="off", status=_status("Done", "Applied", suspected_at="2026-01-02T04:00:00Z"), suspend=True)
    return make_watch(modeladaptations=(*(make_adaptation(name, target=name, status=status) for name, status in statuses.items()), held))


@pytest.mark.parametrize(("before", "after"), [("Validating", "Applying"), ("Applying", "Done"), ("RollingOut", "Done")])
def test_a_turn_that_becomes_free_wakes_who_waits_for_one(before: str, after: str) -> None:
    """Soon, and whoever has waited longest first; who is at peace or suspended is left alone, and a step that frees nothing wakes nobody."""
    watch = _fleet()
    busy = _changed(make_adaptation("busy", target="busy"), lambda raw: raw.update(status=_status(before, before)))
    watch.show(ADAPTATION, busy)
    freed = _changed(busy, lambda raw: raw.update(status=_status(after, after)))
    assert watch.wakes_of(ADAPTATION, freed) == (set(), {"apps/late", "apps/early", "apps/decided"})
    watch.show(ADAPTATION, _changed(freed, lambda raw: raw.update(status=_status("Validating", "Validating"))))
    assert watch.wakes_of(ADAPTATION, _changed(freed, lambda raw: raw.update(status=_status("Validating", "Profiling")))) == NOBODY
    assert [request.name for request in find_members("turns", watch.cluster)] == ["decided", "early", "late"]


def test_a_turn_is_free_when_its_holder_goes_or_is_suspended() -> None:
    """Then no status says so."""
    watch = _fleet()
    busy = make_adaptation("busy", target="busy", status=_status("RollingOut", "RollingOut"))
    watch.show(ADAPTATION, busy)
    assert watch.wakes_of(ADAPTATION, _changed(busy, _nothing), "DELETED")[1] == {"apps/late", "apps/early", "apps/decided"}
    watch = _fleet()
    suspended = _changed(busy, lambda raw: (raw["metadata"].update(generation=2), raw["spec"].update(suspend=True)))
    assert watch.wakes_of(ADAPTATION, suspended)[1] == {"apps/late", "apps/early", "apps/decided"}


def test_turns_that_become_free_together_wake_each_waiter_once() -> None:
    """Two hundred may wait for eight: each freed turn alone would be two hundred passes."""
    watch = _fleet()
    for number in range(8):
        watch.show(ADAPTATION, make_adaptation(f"m{number}", target=f"m{number}", status=_status("Applying", "Applying")))
    watch.let_timers_end()
    watch.queue.take()
    for number in range(8):
        watch.show(ADAPTATION, make_adaptation(f"m{number}", target=f"m{number}", status=_status("Done", "Applied")))
    assert len(watch.timers) == 1
    watch.let_timers_end()
    assert [request.name for request in watch.queue.now] == ["decided", "early", "late"]


def test_an_adaptation_wakes_itself_and_its_rivals() -> None:
    """Those of its target, the old one and the new one: who is older may have changed."""
    watch = _watch()
    moved = _changed(make_adaptation(), lambda raw: (raw["metadata"].update(generation=2), raw["spec"]["targetRef"].update(name="other")))
    assert watch.wakes_of(ADAPTATION, moved) == ({"apps/ocr"}, {"apps/done"})
    assert watch.wakes_of(ADAPTATION, _changed(moved, _nothing), "DELETED") == ({"apps/ocr"}, {"apps/done"})


def test_an_annotation_that_goes_back_to_a_decision_wakes_its_adaptation() -> None:
    """kubectl annotate moves no generation. Whatever else is annotated is nobody's business here."""
    watch = _watch()
    told = _changed(make_adaptation(), lambda raw: raw["metadata"].update(annotations={"metainfer.dev/rollback-to": "d41d8cd98f00"}))
    assert "apps/ocr" in watch.wakes_of(ADAPTATION, told)[0]
    other = _changed(told, lambda raw: raw["metadata"]["annotations"].update({"example.com/note": "x"}))
    assert watch.wakes_of(ADAPTATION, other) == NOBODY


def _marked(name: str = "ocr") -> Raw:
    """A Deployment that we wrote to."""
    raw = make_deployment(name)
    raw["metadata"]["annotations"] = {"metainfer.dev/pre-image": "{}"}
    return raw


def test_a_deployment_that_we_wrote_to_gets_a_look_of_its_own() -> None:
    """When it changes, and when an adaptation that named it goes or names another one; then whether anybody still wants it is asked."""
    watch = make_watch(modeladaptations=(make_adaptation(),), deployments=(make_deployment("other"),))
    itself = Request("target", "apps", "ocr")
    watch.show(DEPLOYMENT, _marked())
    assert itself in watch.queue.now
    watch.queue.take()
    moved = _changed(make_adaptation(), lambda raw: (raw["metadata"].update(generation=2), raw["spec"]["targetRef"].update(name="other")))
    watch.show(ADAPTATION, moved)
    assert itself in watch.queue.now
    assert Request("target", "apps", "other") not in watch.queue.now
    watch.queue.take()
    watch.wakes_of(ADAPTATION, _changed(moved, _nothing), "DELETED")
    assert list(find_members("marked", watch.cluster)) == [itself], "kept without an adaptation: it may have to be given back"


def test_a_pool_that_goes_has_its_leftovers_looked_for() -> None:
    """Portraits and labels; a pool that only changes has none."""
    watch = _watch()
    watch.show(POOL, _changed(make_pool(), lambda raw: raw["metadata"].update(generation=2)))
    watch.let_timers_end()
    assert ORPHANS not in watch.queue.now
    watch.intake.watch(POOL, "DELETED", _changed(make_pool(), lambda raw: raw["metadata"].update(resourceVersion="999999")))
    watch.let_timers_end()
    assert ORPHANS in watch.queue.now


def test_a_portrait_wakes_its_pool_and_who_waits() -> None:
    """A decision may have waited for it."""
    assert _watch().wakes_of(PORTRAIT, make_portrait()) == (set(), EVERYBODY)


@pytest.mark.parametrize(("kind", "raw", "want"), [(POOL, make_pool(families=[]), {"lab"}), (ADAPTATION, make_adaptation(model={}), {"apps/ocr"})])
def test_an_object_that_cannot_be_read_wakes_its_own_pass(kind: Kind, raw: Raw, want: set[str]) -> None:
    """It is dropped from the cache, and said once per version."""
    watch = _watch()
    after = _changed(raw, _nothing)
    assert watch.wakes_of(kind, after) == (want, set())
    assert watch.wakes_of(kind, after) == NOBODY
    assert [problem.name for problem in watch.cluster.problems(kind)] == [raw["metadata"]["name"]]
    key = (raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
    assert watch.cluster.problem(kind, key) == watch.cluster.problems(kind)[0].message
    assert watch.cluster.pool("lab") is None or kind != POOL
    watch.wakes_of(kind, _changed(after, _nothing), "DELETED")
    assert (watch.cluster.problems(kind), watch.cluster.problem(kind, key)) == ((), None)


def test_a_hundred_changes_wake_everybody_once() -> None:
    """They are collected while a timer runs, longer where there is more to look at; the next change starts another one."""
    watch = _watch()
    for number in range(100):
        watch.show(NODE, make_node(f"rack-{number}"))
    assert len(watch.timers) == 2  # pools, and who waits
    assert all(seconds > SOON_SECONDS for seconds, _ in watch.timers)
    assert watch.queue.take() == NOBODY
    watch.let_timers_end()
    assert sorted(request.name for request in watch.queue.now) == ["lab", "ocr"]
    few, many = _watch().show(NODE, make_node("a")), watch.show(NODE, make_node("late"))
    assert max(seconds for seconds, _ in few.timers) < min(seconds for seconds, _ in many.timers)
