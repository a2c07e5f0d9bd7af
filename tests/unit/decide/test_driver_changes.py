"""A driver, firmware or runtime changes under a decision that is in place: one run for each new version, none for labels that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import CPU_PROVIDER, FAMILY_LABEL_OF_VENDOR, OPENVINO_PROVIDER, make_family, make_pool
from tests.unit.decide.make_lab import Lab, always
from tests.unit.decide.make_world import OPENVINO, ORT, START, World, make_world
from tests.unit.decide.test_pool import make_pool_snapshot

from metainfer.api.v1alpha1.checks import CheckStatus, SuspicionStatus, VerdictStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import ContainerState, RunResult
from metainfer.decide.keeping.drivers import PATIENCE, find_runtime_change
from metainfer.decide.known_families import holds
from metainfer.decide.scene import build_scene

DRIVER = "vendor/driver"
WATCHED: dict[str, Any] = {"driver_version_labels": (DRIVER,), "driver_upgrade_labels": ("vendor/upgrade",), "firmware_version_labels": ("vendor/firmware",)}


@dataclass
class Fleet:
    """A pool and an adaptation that sees it: both have their passes, probes end well."""

    world: World
    lab: Lab
    runs: list[str] = field(default_factory=list)
    """What each new run was started for."""

    def play(self, minutes: float) -> None:
        """Passes of both, two a minute."""
        for _ in range(round(minutes * 2)):
            self.lab.now = self.world.now
            self.lab.snapshot = replace(self.lab.snapshot, card_pods=self.world.snapshot.card_pods)
            self.lab.turn(30.0)
            seen = self.lab.snapshot
            self.world.snapshot = replace(self.world.snapshot, nodes=seen.nodes, portraits=seen.portraits, pools=(seen.pool,))
            before = self.world.status.run
            self.world.turn()
            after = self.world.status.run
            if after is not None and (before is None or before.id != after.id):
                self.runs.append(after.trigger)

    @property
    def nodes(self) -> list[str]:
        """All nodes."""
        return [node.name for node in self.lab.snapshot.nodes]


def make_fleet(**fields: Any) -> Fleet:
    """Two families of four nodes each with driver 1.0, an adaptation that has placed its target."""
    families = (make_family(ORT, **WATCHED), make_family(OPENVINO, execution_providers=(OPENVINO_PROVIDER,), **WATCHED))
    pool = make_pool("cards", *families, spec={"limits": {"max_concurrent_probes": 8}})
    world = make_world(spec={"update_policy": {"cooldown": "1m"}, "freshness": "8760h"})
    nodes = [
        replace(world.snapshot.nodes[0], name=f"{family}-{number}", uid=f"uid-{family}-{number}", labels={FAMILY_LABEL_OF_VENDOR: family, DRIVER: "1.0"})
        for family in (ORT, OPENVINO)
        for number in range(1, 5)
    ]
    nodes = [replace(node, labels={**node.labels, "kubernetes.io/hostname": node.name}) for node in nodes]
    world.snapshot = replace(world.snapshot, portraits={}, nodes=tuple(nodes), pools=(pool,))
    fleet = Fleet(world, Lab(always, make_pool_snapshot(*nodes, pool=pool), now=START, providers=(CPU_PROVIDER, OPENVINO_PROVIDER)), **fields)
    fleet.play(45)
    assert fleet.runs == ["FirstAdaptation: nothing was decided yet"]
    assert fleet.world.condition("Ready") == ("True", "Applied")
    fleet.runs.clear()
    fleet.lab.probes.clear()
    return fleet


def half_of(nodes: Sequence[str], family: str) -> list[str]:
    """Two of a family's four nodes."""
    return [name for name in nodes if name.startswith(family)][:2]


def test_half_of_a_familys_nodes_change_and_one_run_follows() -> None:
    """The trigger has both versions and the count; the other half may follow days later without another run."""
    fleet = make_fleet()
    fleet.lab.relabel(half_of(fleet.nodes, OPENVINO), vendor___driver="2.0")
    fleet.play(120)
    assert fleet.runs == [f"DriverVersionChanged: family {OPENVINO}: driver 1.0 -> 2.0 on 2 of 4 nodes"]
    fleet.lab.relabel([name for name in fleet.nodes if name.startswith(OPENVINO)], vendor___driver="2.0")
    fleet.play(120)
    assert len(fleet.runs) == 1
    (known,) = [item for item in fleet.world.status.families if item.key == f"cards/{OPENVINO}"]
    assert known.driver_versions == ("2.0",)


def test_changed_nodes_are_measured_before_the_run_and_the_run_measures_on_them() -> None:
    """Portraits that are older than the change do not count, and figures of the former driver decide nothing."""
    fleet = make_fleet()
    changed = [f"{OPENVINO}-2", f"{OPENVINO}-3"]
    fleet.world.jobs_started.clear()
    fleet.lab.relabel(changed, vendor___driver="2.0")
    fleet.play(60)
    assert {node for _, node in fleet.lab.probes} == set(changed)
    benched = {job.node for job in fleet.world.jobs_started if job.purpose == "bench" and (job.node or "").startswith(OPENVINO)}
    assert len(fleet.runs) == 1
    assert benched
    assert benched <= set(changed)


def test_labels_that_vanish_and_come_back_start_nothing() -> None:
    """All labels of all nodes for a minute, then for five; a decision stands through both."""
    fleet = make_fleet()
    for minutes in (1, 5):
        labels = {node.name: dict(node.labels) for node in fleet.lab.snapshot.nodes}
        fleet.lab.snapshot = replace(fleet.lab.snapshot, nodes=tuple(replace(node, labels={}) for node in fleet.lab.snapshot.nodes))
        fleet.play(minutes)
        back = tuple(replace(node, labels={**labels[node.name], **node.labels}) for node in fleet.lab.snapshot.nodes)
        fleet.lab.snapshot = replace(fleet.lab.snapshot, nodes=back)
        fleet.play(30)
    assert (fleet.runs, fleet.lab.probes) == ([], [])


@pytest.mark.parametrize("every", [0.5, 1, 2])
def test_labels_that_flap_for_ten_minutes_start_nothing(every: float) -> None:
    """Neither a run nor a probe, whatever the last value was before it settled on the old one."""
    fleet = make_fleet()
    half = half_of(fleet.nodes, OPENVINO)
    for turn in range(round(10 / every)):
        fleet.lab.relabel(half, vendor___driver="2.0" if turn % 2 == 0 else "1.0")
        fleet.play(every)
    fleet.lab.relabel(half, vendor___driver="1.0")
    fleet.play(60)
    assert (fleet.runs, fleet.lab.probes) == ([], [])


def test_an_upgrade_that_goes_through_the_fleet_is_one_change() -> None:
    """One node every twenty minutes: a run for the first, none for those that follow."""
    fleet = make_fleet()
    for name in [name for name in fleet.nodes if name.startswith(OPENVINO)]:
        fleet.lab.relabel((name,), vendor___upgrade="pod-restart-required")
        fleet.play(5)
        fleet.lab.relabel((name,), vendor___driver="2.0", vendor___upgrade="upgrade-done")
        fleet.play(15)
    fleet.play(30)
    assert len(fleet.runs) == 1


def test_a_rollback_of_a_driver_is_a_change_again() -> None:
    """Once no node had the old one any more, it is as good as new."""
    fleet = make_fleet()
    family = [name for name in fleet.nodes if name.startswith(OPENVINO)]
    for version in ("2.0", "1.0"):
        fleet.lab.relabel(family, vendor___driver=version)
        fleet.play(90)
    assert [run.partition(" driver ")[2] for run in fleet.runs] == ["1.0 -> 2.0 on 4 of 4 nodes", "2.0 -> 1.0 on 4 of 4 nodes"]


def test_a_driver_label_that_appears_for_the_first_time_is_no_change() -> None:
    """Somebody installs the labeller: what was unknown is known now."""
    fleet = make_fleet()
    fleet.lab.relabel(fleet.nodes, vendor___firmware="9.1")
    fleet.play(60)
    assert fleet.runs == []
    assert {item.firmware_versions for item in fleet.world.status.families} == {("9.1",)}


def test_a_node_that_cannot_be_measured_does_not_hold_the_run_up_for_ever() -> None:
    """It serves, so its portrait stays old; after some patience the run starts all the same."""
    fleet = make_fleet()
    busy = next(pod.node for pod in fleet.world.snapshot.target_pods if pod.node)
    fleet.lab.relabel((busy,), vendor___driver="2.0")
    fleet.play((1 + PATIENCE) * 3 + 10)
    assert len(fleet.runs) == 1


def test_earlier_benchmarks_under_the_former_driver_are_not_recalled() -> None:
    """Not those on a changed node from before, nor later ones on a node that still has the former driver."""
    fleet = make_fleet()
    changed, old = f"{OPENVINO}-1", f"{OPENVINO}-4"
    before = fleet.world.now - timedelta(minutes=1)
    fleet.lab.relabel((changed,), vendor___driver="2.0")
    fleet.play(60)
    candidate = next(run.candidate for run in fleet.world.snapshot.runs if run.candidate.family == OPENVINO)
    draft = Draft(fleet.world.snapshot, fleet.world.now, fleet.world.status)
    runs = [RunResult("job", "earlier", candidate, node, moment) for node, moment in ((changed, before), (changed, draft.now), (old, draft.now))]
    assert [holds(draft, run) for run in runs] == [False, True, False]


def suspect_runtime(fleet: Fleet) -> tuple[str, str] | None:
    """What the check says, and what it asks for."""
    draft = Draft(fleet.world.snapshot, fleet.world.now, fleet.world.status)
    scene = build_scene(fleet.world.snapshot, fleet.world.snapshot.target) if fleet.world.snapshot.target is not None else None
    assert scene is not None
    found = find_runtime_change(draft, scene)
    fleet.world.snapshot = replace(fleet.world.snapshot, adaptation=replace(fleet.world.snapshot.adaptation, status=draft.status))
    return (found.message, found.wants) if found is not None else None


def look_at_labels(fleet: Fleet, minutes: int) -> None:
    """The pool alone, whose portraits the adaptation then sees."""
    fleet.lab.play(minutes)
    fleet.world.snapshot = replace(fleet.world.snapshot, nodes=fleet.lab.snapshot.nodes, portraits=fleet.lab.snapshot.portraits)
    fleet.world.now = fleet.lab.now


def conclude(fleet: Fleet, verdict: str) -> None:
    """A check was made for this suspicion."""
    moment = format_time(fleet.world.now)
    check = CheckStatus(
        suspicion=SuspicionStatus(reason="RuntimeChanged", noticed_at=moment),
        verdict=VerdictStatus(reason="RuntimeChanged", verdict=verdict, judged_at=moment),
    )
    adaptation = fleet.world.snapshot.adaptation
    fleet.world.snapshot = replace(fleet.world.snapshot, adaptation=replace(adaptation, status=adaptation.status.model_copy(update={"check": check})))


def test_other_firmware_is_checked_once() -> None:
    """A check tells whether anything became slower; when it did not, the firmware is known from then on."""
    fleet = make_fleet()
    fleet.lab.relabel(fleet.nodes, vendor___firmware="9.1")
    look_at_labels(fleet, 10)
    assert suspect_runtime(fleet) is None
    fleet.lab.relabel(half_of(fleet.nodes, OPENVINO), vendor___firmware="9.2")
    look_at_labels(fleet, 2)
    assert suspect_runtime(fleet) is None
    look_at_labels(fleet, 5)
    want = (f"family {OPENVINO}: firmware 9.1 -> 9.2 on 2 of 4 nodes", "Check")
    assert suspect_runtime(fleet) == want
    conclude(fleet, "CheckFailed")
    assert suspect_runtime(fleet) == want
    conclude(fleet, "Nothing")
    assert suspect_runtime(fleet) is None


def test_probes_with_another_runtime_are_checked() -> None:
    """The operator came with another version of the runtime: what it measures from here on may not compare with what was decided on."""
    fleet = make_fleet()
    fleet.lab.runtime = "1.33.0"
    free = next(name for name in fleet.nodes if name.startswith(OPENVINO) and name not in {pod.node for pod in fleet.world.snapshot.target_pods})
    portrait = fleet.lab.snapshot.portraits[free]
    aged = replace(portrait, status=portrait.status.model_copy(update={"measured_at": "2026-01-01T00:00:00Z"}))
    fleet.lab.snapshot = replace(fleet.lab.snapshot, portraits={**fleet.lab.snapshot.portraits, free: aged})
    look_at_labels(fleet, 3)
    found = suspect_runtime(fleet)
    assert found is not None
    assert (f"{OPENVINO_PROVIDER} 1.33.0 on 1 of" in found[0], found[1]) == (True, "Check")


def run_build(fleet: Fleet, digest: str) -> None:
    """The target's pods were restarted, and found this under their tag."""
    pods = tuple(replace(pod, states=(ContainerState("server", image_digest=digest),)) for pod in fleet.world.snapshot.target_pods)
    fleet.world.snapshot = replace(fleet.world.snapshot, target_pods=pods)


def test_another_build_under_the_same_tag_is_a_run() -> None:
    """The first build that is seen is what the decision was made for; one that comes later is worked out anew, once."""
    fleet = make_fleet()
    run_build(fleet, "sha256:" + "a" * 64)
    fleet.play(30)
    assert fleet.runs == []
    run_build(fleet, "sha256:" + "b" * 64)
    fleet.play(90)
    assert [run.partition(":")[0] for run in fleet.runs] == ["RuntimeChanged"]
    assert "another build of image server:1: sha256:bbbbbbbbbbbb" in fleet.runs[0]


def test_a_runtime_that_tells_no_repository_digest_tells_nothing() -> None:
    """Pods move to nodes of another runtime, which has ids of its own."""
    fleet = make_fleet()
    run_build(fleet, "sha256:" + "a" * 64)
    fleet.play(5)
    run_build(fleet, "")
    fleet.play(60)
    assert fleet.runs == []
