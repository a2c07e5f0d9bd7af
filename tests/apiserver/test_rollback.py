"""Decisions that are taken back on a real API server: the Deployment afterwards is the one before, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.apiserver.make_cluster import make_deployment
from tests.apiserver.make_placed import Kubectl, by_both_owners, declared
from tests.apiserver.make_served import Served
from tests.unit.decide.make_facts import CARD
from tests.unit.decide.make_world import ORT, faster_on, make_world
from tests.unit.decide.test_by_hand import annotate

from metainfer.act.release import owns_fields
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.decide.facts import ContainerState
from metainfer.kube.client import KubeClient

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
CRASHING = ContainerState("server", waiting_reason="CrashLoopBackOff", waiting_message="back-off 40s", exit_code=1, restarts=4)


def make_owned(namespace: str) -> Raw:
    """Somebody's Deployment, with an empty affinity and variables of its own."""
    raw = make_deployment("ocr", namespace, env={"OMP_NUM_THREADS": "4"}, affinity={"nodeAffinity": {}})
    raw["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {CARD: "1"}}
    raw["spec"]["template"]["metadata"]["annotations"] = {"team": "vision"}
    return raw


async def serve(kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...] = (), manifest: Mapping[str, Any] | None = None) -> Served:
    """The owner's Deployment, and an adaptation that has decided nothing yet."""
    kubectl.apply(manifest or make_owned(namespace), *flags)
    served = Served(make_world(), kube, namespace)
    await served.start()
    return served


def ask_anew(served: Served) -> None:
    """The user asks for another load, and the cards have changed their order: another decision follows."""
    world = served.world
    world.p50_us = faster_on(ORT)
    world.change_spec(load=world.snapshot.adaptation.spec.load.model_copy(update={"clients": 5}))


def mark_of(raw: Raw) -> str:
    """The decision on the pod template."""
    return str((raw["spec"]["template"]["metadata"].get("annotations") or {}).get(DECISION_ANNOTATION, ""))


@by_both_owners
async def test_a_first_placement_whose_pods_never_get_ready_leaves_the_owners_deployment(
    kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...]
) -> None:
    """Every field as before, nothing of it on record as ours, and one record of why."""
    served = await serve(kube, kubectl, namespace, flags)
    before = declared(await served.read())
    await served.write()
    assert declared(await served.read()) != before
    await served.roll_out(ready=False, states=(CRASHING,))
    await served.turn()
    after = await served.read()
    assert declared(after) == before
    assert not owns_fields(after)
    await served.roll_out()
    await served.play()
    assert served.world.condition("Ready") == ("True", "GivenBack")
    assert [item.rollback for item in served.journal.recorded] == ["", "RolloutFailed"]
    assert declared(await served.read()) == before


@by_both_owners
async def test_a_later_placement_whose_pods_never_get_ready_leaves_the_one_before(
    kube: KubeClient, kubectl: Kubectl, namespace: str, flags: tuple[str, ...]
) -> None:
    """The previous decision, with its id, its pre-image and every field: Kubernetes finds the old ReplicaSet by its template."""
    served = await serve(kube, kubectl, namespace, flags)
    await served.play()
    before = declared(await served.read())
    first = mark_of(await served.read())
    ask_anew(served)
    await served.write()
    assert mark_of(await served.read()) != first
    await served.roll_out(ready=False, states=(CRASHING,))
    await served.turn()
    assert declared(await served.read()) == before
    await served.roll_out()
    await served.turn()
    assert served.world.condition("RolledBack") == ("True", "RolloutFailed")
    assert [(entry.id == first, entry.outcome) for entry in served.world.status.decisions] == [(False, "RolledBack"), (True, "Applied")]


async def test_going_back_by_hand_to_every_state_there_was(kube: KubeClient, kubectl: Kubectl, namespace: str) -> None:
    """An earlier decision, the owner's own state, and forth again."""
    served = await serve(kube, kubectl, namespace)
    states = {"owner": declared(await served.read())}
    await served.play()
    states[mark_of(await served.read())] = declared(await served.read())
    ask_anew(served)
    await served.play()
    states[mark_of(await served.read())] = declared(await served.read())
    first, second = (name for name in states if name != "owner")
    for goal in (first, "owner", second, "owner", first):
        annotate(served.world, goal)
        await served.turn()
        await served.roll_out()
        await served.turn()
        assert declared(await served.read()) == states[goal], goal
        assert served.world.condition("RolledBack") == ("True", "ByAnnotation")
    annotate(served.world, "")
    await served.turn()
    assert declared(await served.read()) == states[second]


async def test_a_slow_deployment_without_history_is_taken_back_from_our_own_record(kube: KubeClient, kubectl: Kubectl, namespace: str) -> None:
    """revisionHistoryLimit 0, Recreate: no old ReplicaSet exists, and the condition says that the service is down meanwhile."""
    slow = make_owned(namespace)
    slow["spec"] |= {"revisionHistoryLimit": 0, "progressDeadlineSeconds": 3600, "minReadySeconds": 120, "strategy": {"type": "Recreate"}}
    served = await serve(kube, kubectl, namespace, manifest=slow)
    before = declared(await served.read())
    await served.write()
    await served.roll_out(ready=False, states=(CRASHING,))
    await served.turn()
    assert declared(await served.read()) == before
    assert "strategy Recreate: the service is down" in served.world.message("Ready")
