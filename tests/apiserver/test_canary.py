"""A decision on trial on a real API server: what stands beside the target, what it is reached by, and what is left of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.apiserver.make_cluster import connect_limited
from tests.apiserver.make_placed import Kubectl, affinity_of, by_both_owners, declared, env_of
from tests.apiserver.make_served import Served
from tests.apiserver.test_rights import chart_rules
from tests.apiserver.test_rollback import make_owned
from tests.unit.decide.keeping.make_windows import make_window
from tests.unit.decide.make_facts import make_container, make_pod
from tests.unit.decide.make_world import OPENVINO, make_world

from metainfer.act.release import owns_fields
from metainfer.api.v1alpha1.common import CANARY_LABEL, DECISION_ANNOTATION
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import CanaryFacts
from metainfer.decide.latency.served import ServedFacts
from metainfer.decide.leaving import is_marked
from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import DEPLOYMENT, SERVICE
from metainfer.observe.canary import read_canary
from metainfer.observe.projections import project_target
from metainfer.watch.interest import Interest

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
TRACKED = {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:shop/ocr", "meta.helm.sh/release-name": "shop"}


def make_tracked(namespace: str) -> Raw:
    """Somebody's Deployment under Argo CD and Helm, behind a Service that needs one label of two."""
    raw = make_owned(namespace)
    labels = {"app": "ocr", "part": "server", "app.kubernetes.io/instance": "shop"}
    raw["metadata"] |= {"annotations": dict(TRACKED), "labels": labels}
    raw["spec"]["template"]["metadata"] = {"labels": labels, "annotations": {"team": "vision", **TRACKED}}
    return raw


async def serve(kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...] = ()) -> Served:
    """The owner's objects, and an adaptation that wants trials."""
    kubectl.apply(make_tracked(namespace), *flags)
    spec = {"selector": {"part": "server"}, "ports": [{"port": 80}]}
    kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ocr", "namespace": namespace}, "spec": spec})
    served = Served(make_world(spec={"rollout": {"canary": {"sharePercent": 20}}}), kube, namespace)
    await served.start()
    served.world.snapshot = replace(served.world.snapshot, served=ServedFacts(next_at=served.world.now + timedelta(days=1)))
    return served


async def start_trial(served: Served) -> Raw:
    """Passes until it is there."""
    for _ in range(30):
        await served.turn()
        found, _ = await served.kube.list(DEPLOYMENT, namespace=served.namespace, label_selector=CANARY_LABEL)
        if found:
            return found[0]
    msg = "no trial was started"
    raise AssertionError(msg)


def rolled_out(facts: CanaryFacts) -> CanaryFacts:
    """As a controller and a kubelet leave it."""
    if facts.deployment is None:
        return facts
    counts: dict[str, Any] = dict.fromkeys(("updated_replicas", "available_replicas", "status_replicas"), 1)
    deployment = replace(facts.deployment, observed_generation=facts.deployment.generation, **counts)
    env = {entry.name: entry.value for entry in deployment.template.containers[0].env}
    pod = make_pod("canary-1", make_container(env=env), node=f"{OPENVINO}-2", annotations=dict(deployment.template.annotations))
    return replace(facts, deployment=deployment, pods=(pod,))


async def play_windows(served: Served, **fields: Any) -> None:
    """Three windows of the trial and of the pods beside it."""
    served.on_trial = rolled_out
    await served.turn()
    trial = served.world.status.canary
    assert trial is not None
    assert trial.ready_at is not None
    ends = [parse_time(trial.ready_at) + index * timedelta(minutes=15) for index in (1, 2, 3)]
    beside = tuple(replace(make_window(0), ended_at=end) for end in ends)
    tried = tuple(replace(make_window(0, **fields), ended_at=end) for end in ends)
    served.world.snapshot = replace(served.world.snapshot, served=ServedFacts(beside, None, ends[-1] + timedelta(days=1)))
    served.on_trial = lambda facts: replace(rolled_out(facts), served=ServedFacts(tried))
    served.world.now = ends[-1]
    await served.turn()


async def trials(served: Served) -> list[Raw]:
    """Deployments of ours."""
    found, _ = await served.kube.list(DEPLOYMENT, namespace=served.namespace, label_selector=CANARY_LABEL)
    return found


@by_both_owners
async def test_a_trial_is_what_would_be_written_and_nobody_elses(kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...]) -> None:
    """Owned by the adaptation, without a trace of Argo CD or Helm on it, reached by the Service, not matched by the target's selector."""
    served = await serve(kube, kubectl, namespace, flags)
    before = declared(await served.read())
    raw = await start_trial(served)
    metadata, template = raw["metadata"], raw["spec"]["template"]
    owner = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "name": "ocr", "uid": "uid-adaptation-ocr"}
    assert metadata["ownerReferences"] == [owner | {"controller": True, "blockOwnerDeletion": False}]
    assert (metadata["labels"], set(metadata["annotations"])) == ({CANARY_LABEL: "uid-adaptation-ocr"}, {DECISION_ANNOTATION})
    assert template["metadata"]["labels"] == {"part": "server", CANARY_LABEL: "uid-adaptation-ocr"}
    assert set(template["metadata"]["annotations"]) == {"team", DECISION_ANNOTATION}
    service = await kube.get(SERVICE, "ocr", namespace)
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert not (await served.read())["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert declared(await served.read()) == before, "a dry run changes nothing"
    await play_windows(served, p99_ms=41.0)
    written = await served.read()
    assert (env_of(raw), affinity_of(raw)) == (env_of(written), affinity_of(written))
    assert await trials(served) == []


@by_both_owners
async def test_a_trial_that_is_worse_leaves_the_owners_deployment_field_by_field(
    kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...]
) -> None:
    """And nothing else."""
    served = await serve(kube, kubectl, namespace, flags)
    before = await served.read()
    await start_trial(served)
    await play_windows(served, p99_ms=60.0, mean_ms=16.0)
    after = await served.read()
    assert (declared(after), after["metadata"]["generation"]) == (declared(before), before["metadata"]["generation"])
    assert not owns_fields(after)
    assert await trials(served) == []
    assert served.world.condition("RolledBack") == ("True", "CanaryWorse")
    await served.turn()
    assert served.world.condition("Ready") == ("True", "GivenBack")


async def test_a_trial_is_no_target_that_has_to_be_given_back(kube: KubeClient, kubectl: Kubectl, namespace: str) -> None:
    """It carries a decision, and no adaptation names it."""
    served = await serve(kube, kubectl, namespace)
    raw = await start_trial(served)
    assert not is_marked(project_target(raw))
    assert not Interest().wants_deployment(raw)


async def test_the_charts_rights_are_enough_for_a_whole_trial(kube: KubeClient, kubectl: Kubectl, namespace: str) -> None:
    """Made, watched, promoted, taken away, and written."""
    served = await serve(kube, kubectl, namespace)
    served.kube = await connect_limited(kube, namespace, chart_rules("--set", "rbac.canary.enabled=true"))
    await start_trial(served)
    await play_windows(served, p99_ms=41.0)
    assert await trials(served) == []
    assert owns_fields(await served.read())
    await served.kube.close()


async def test_without_the_right_to_look_around_it_is_written_in_place(kube: KubeClient, kubectl: Kubectl, namespace: str) -> None:
    """The chart gives it with rbac.canary.enabled only."""
    served = await serve(kube, kubectl, namespace)
    limited = await connect_limited(kube, namespace, [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]}])
    found = await read_canary(served.world.snapshot.adaptation, limited)
    await limited.close()
    assert "services" in found.around.unread
