from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import LONG_AGO, make_container, make_pod, make_target, make_template

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.decide.facts import ContainerFacts, ContainerState, EnvEntry, PodFacts, TargetFacts
from metainfer.decide.readback import Expected, Moment, ReadBack, is_rolled_out, read_back

DECISION = "d41d8cd98f00"
FROM_SECRET = EnvEntry("METAINFER_PRECISION", source="secret s/k")
WANT = {"METAINFER_PRECISION": "bf16", "METAINFER_CONCURRENCY": "2"}


def make_rollout(**fields: Any) -> TargetFacts:
    template = make_template(make_container(env=WANT), annotations={DECISION_ANNOTATION: fields.pop("decision", DECISION)})
    return make_target(template=template, **fields)


def make_new_pod(name: str = "ocr-1", container: ContainerFacts | None = None, **fields: Any) -> PodFacts:
    return make_pod(name, container or make_container(env=WANT), annotations={DECISION_ANNOTATION: fields.pop("decision", DECISION)}, **fields)


def read(target: TargetFacts, *pods: PodFacts, want_env: dict[str, str] | None = None, nodes: tuple[str, ...] = ("node-1", "node-2")) -> ReadBack:
    return read_back(target, pods, Expected(DECISION, WANT if want_env is None else want_env, "server", nodes), Moment(LONG_AGO + timedelta(days=1)))


def test_what_was_decided_runs() -> None:
    """All replicas new and available, every pod as decided: effective, with the nodes."""
    pods = make_new_pod("ocr-1", node="node-2"), make_new_pod("ocr-2", node="node-1")
    assert read(make_rollout(replicas=2), *pods) == ReadBack(rolled_out=True, effective=True, differs=(), nodes=("node-1", "node-2"), stuck="")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"generation": 3, "observed_generation": 2}, id="the controller has not seen the newest template"),
        pytest.param({"updated_replicas": 1}, id="one pod is still to be made"),
        pytest.param({"status_replicas": 3}, id="an old pod is still there"),
        pytest.param({"available_replicas": 1}, id="a new pod is not available"),
    ],
)
def test_a_rollout_is_over_when_kubectl_would_say_so(status: dict[str, int]) -> None:
    """Observed, updated, no old pods, available."""
    assert is_rolled_out(make_rollout(replicas=2))
    target = make_rollout(replicas=2, **status)
    assert not is_rolled_out(target)
    seen = read(target, make_new_pod())
    assert (seen.rolled_out, seen.effective, seen.stuck) == (False, False, "")


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(
            make_new_pod(container=make_container(env=WANT | {"METAINFER_PRECISION": "fp32"})),
            "METAINFER_PRECISION is fp32 in pod ocr-1, decided bf16",
            id="another value",
        ),
        pytest.param(
            make_new_pod(container=make_container(env={"METAINFER_PRECISION": "bf16"})),
            "METAINFER_CONCURRENCY is not set in pod ocr-1, decided 2",
            id="a missing variable",
        ),
        pytest.param(
            make_new_pod(
                container=replace(make_container(), env=(EnvEntry("METAINFER_PRECISION", source="secret s/k"), EnvEntry("METAINFER_CONCURRENCY", "2")))
            ),
            "METAINFER_PRECISION is (secret s/k) in pod ocr-1, decided bf16",
            id="a value from elsewhere",
        ),
        pytest.param(make_new_pod(container=make_container("other")), "pod ocr-1 has no container server", id="another container"),
        pytest.param(make_new_pod(node="node-9"), "pod ocr-1 runs on node node-9, outside the family that was decided", id="another family"),
    ],
)
def test_what_differs_is_named(pod: PodFacts, want: str) -> None:
    """Pod, variable or node, what it is and what was decided."""
    seen = read(make_rollout(), pod)
    assert seen.rolled_out
    assert not seen.effective
    assert seen.differs == (want,)


def test_the_last_of_two_entries_is_what_runs() -> None:
    """A webhook may have appended one of its own."""
    container = replace(make_container(env=WANT), env=(*make_container(env=WANT).env, EnvEntry("METAINFER_PRECISION", "fp32")))
    assert not read(make_rollout(), make_new_pod(container=container)).effective


def test_an_escaped_value_is_compared_as_it_was_written() -> None:
    """What stands in the pod is the escaped form of what was decided."""
    container = make_container(env={"X": "$$(A)"})
    assert read(make_rollout(), make_new_pod(container=container), want_env={"X": "$(A)"}).effective


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(make_new_pod("old", decision="before", node="node-9"), id="of an earlier decision"),
        pytest.param(make_new_pod("gone", phase="Failed", node="node-9", ready=False), id="failed"),
        pytest.param(make_new_pod("leaving", deleting=True, node="node-9"), id="being deleted"),
    ],
)
def test_other_pods_are_no_evidence(pod: PodFacts) -> None:
    """Old, failed and leaving pods say nothing about what was decided."""
    assert read(make_rollout(), make_new_pod(), pod).effective
    assert not read(make_rollout(), pod).effective


def test_a_template_without_the_decision_is_not_rolled_out() -> None:
    """Somebody took our fields away: the Deployment is complete, but not with what was decided."""
    seen = read(make_rollout(decision="another"), make_new_pod())
    assert not seen.rolled_out
    assert not seen.effective
    assert "does not carry decision" in seen.differs[0]


def test_nothing_is_effective_without_a_pod() -> None:
    """A Deployment without replicas is complete and proves nothing."""
    assert not read(make_rollout(replicas=0)).effective


SCHEDULER = "0/5 nodes are available: 5 node(s) didn't match Pod's node affinity/selector."
CRASH = ContainerState("server", waiting_reason="CrashLoopBackOff", waiting_message="back-off 40s restarting failed container", exit_code=1)


@pytest.mark.parametrize(
    ("pod", "want_words"),
    [
        pytest.param(make_new_pod(ready=False, node=None, unschedulable=SCHEDULER), ("ocr-1", SCHEDULER), id="no node"),
        pytest.param(make_new_pod(ready=False, states=(CRASH,)), ("server", "CrashLoopBackOff", "back-off 40s", "exit code 1"), id="crash loop"),
        pytest.param(
            make_new_pod(ready=False, states=(ContainerState("server", waiting_reason="ImagePullBackOff", waiting_message="not found"),)),
            ("ImagePullBackOff: not found",),
            id="image",
        ),
        pytest.param(
            make_new_pod(ready=False, states=(ContainerState("server", waiting_reason="ContainerCreating"),)),
            ("has timed out progressing",),
            id="nothing but the controller's words",
        ),
    ],
)
def test_a_stuck_rollout_is_explained_once_the_deadline_has_passed(pod: PodFacts, want_words: tuple[str, ...]) -> None:
    """The Deployment's own progress deadline decides when; the scheduler's or the kubelet's words say why."""
    status: dict[str, Any] = {"updated_replicas": 1, "available_replicas": 0, "progressing_message": 'ReplicaSet "x" has timed out progressing.'}
    late = read(make_rollout(progressing_reason="ProgressDeadlineExceeded", **status), pod)
    assert all(word in late.stuck for word in want_words)
    assert late.waiting == ""
    early = read(make_rollout(progressing_reason="ReplicaSetUpdated", **status), pod)
    assert early.stuck == ""
    assert early.waiting == late.stuck


def test_a_deployment_that_got_over_it_is_not_stuck() -> None:
    """The condition may lag behind: what is rolled out is not stuck."""
    assert read(make_rollout(progressing_reason="ProgressDeadlineExceeded"), make_new_pod()).stuck == ""
