"""What labellers do to whole clusters: all labels gone for minutes, some for good, and labels that can never be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.make_facts import CARD, FAMILY_LABEL_OF_VENDOR, make_family, make_node, make_pod, make_pool, make_portrait
from tests.unit.decide.make_world import OPENVINO, ORT, World, kinds, make_world
from tests.unit.decide.test_pool import NOW, labels_written, make_pool_snapshot, make_young_portrait, started

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily, AcceleratorPoolStatus
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import NodeFacts, PodTemplateFacts, PoolFacts
from metainfer.decide.families import Membership
from metainfer.decide.plan import ApplyTarget, CreateJob, DeletePortrait, PoolPlan, RestoreTarget
from metainfer.decide.pool import decide_pool
from metainfer.decide.portraits import build_identity

PRODUCT, MEMORY, MAJOR = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.compute.major"
GPU = "nvidia.com/gpu"
L4 = {PRODUCT: "NVIDIA-L4", MEMORY: "23034", "nvidia.com/gpu.present": "true", "nvidia.com/cuda.driver-version.full": "570.124.06"}


def by_product(name: str, *products: str) -> AcceleratorFamily:
    return make_family(name, resource=GPU, selector={"matchExpressions": [{"key": PRODUCT, "operator": "In", "values": list(products)}]})


def make_gpu_node(name: str, labels: Mapping[str, str], cards: int = 1) -> NodeFacts:
    return make_node(name, labels=labels, allocatable={GPU: cards, CARD: 0})


def condition(plan: PoolPlan, kind: str) -> tuple[str, str, str]:
    found = find_condition(plan.status.conditions, kind)
    assert found is not None
    return found.status, found.reason, found.message


# --- Every label of forty nodes vanishes for more than four minutes, that of three for half an hour ---------------------


class Fleet:
    """Forty nodes of one family, measured and labelled by us."""

    def __init__(self) -> None:
        self.pool: PoolFacts = make_pool("cards", by_product("l4", "NVIDIA-L4"))
        self.names = [f"gpu-{index:02d}" for index in range(1, 41)]
        family = self.pool.spec.families[0]
        nodes = {name: make_gpu_node(name, L4 | {FAMILY_LABEL: "l4"}) for name in self.names}
        identities = {name: build_identity(node, Membership("cards", family)) for name, node in nodes.items()}
        self.portraits = {
            name: replace(make_young_portrait(node), spec=make_portrait(name, "l4").spec, status=make_young_portrait(node).status.model_copy(update=status))
            for name, node in nodes.items()
            for status in ({"identity": identities[name], "driver_version": "570.124.06"},)
        }
        self.status = AcceleratorPoolStatus()

    def look(self, seconds: float, *, without: Iterable[str] = ()) -> PoolPlan:
        """One pass so many seconds after noon, with the vendor's labels missing from these nodes."""
        bare = set(without)
        nodes = (make_gpu_node(name, {FAMILY_LABEL: "l4"} | ({} if name in bare else L4)) for name in self.names)
        pool = replace(self.pool, status=self.status)
        plan = decide_pool(make_pool_snapshot(*nodes, pool=pool, portraits=self.portraits), NOW + timedelta(seconds=seconds))
        self.status = plan.status
        return plan


def test_a_pool_outlives_a_labeller_that_restarts() -> None:
    """No probe, no label of ours taken off and no portrait dropped, also by an operator that came up meanwhile; the last three are named."""
    fleet = Fleet()
    assert condition(fleet.look(0), "LabelsAvailable")[:2] == ("True", "Labelled")
    for seconds in (60, 90, 120, 200, 310):
        if seconds == 120:
            fleet.status = AcceleratorPoolStatus()  # a new operator, and a status that it cannot read back
        plan = fleet.look(seconds, without=fleet.names)
        assert started(plan) == []
        assert labels_written(plan) == {}
        assert [action for action in plan.actions if isinstance(action, DeletePortrait)] == []
        assert condition(plan, "LabelsAvailable")[:2] == ("False", "LabelMissing")
    for seconds in (320, 900, 1790):
        plan = fleet.look(seconds, without=fleet.names[37:])
        assert condition(plan, "LabelsAvailable")[:2] == ("False", "LabelMissing")
        assert sorted(item.name for item in plan.status.unassigned) == ["gpu-38", "gpu-39", "gpu-40"]
        assert started(plan) == []
    plan = fleet.look(1800)
    assert condition(plan, "LabelsAvailable")[:2] == ("True", "Labelled")
    assert plan.status.nodes == 40
    assert started(plan) == []


def without_vendor_labels(world: World) -> None:
    """Of every node, while our own family label stays."""
    nodes = tuple(
        replace(node, labels={key: value for key, value in node.labels.items() if key != FAMILY_LABEL_OF_VENDOR} | {FAMILY_LABEL: node.name[:-2]})
        for node in world.snapshot.nodes
    )
    world.snapshot = replace(world.snapshot, nodes=nodes)


@pytest.mark.parametrize("seconds", [60, 260], ids=["for a minute", "for more than four"])
def test_an_adaptation_outlives_a_labeller_that_restarts(seconds: int) -> None:
    """No run, no write and no Job while labels are gone or when they are back; what is applied admits pods by our own label meanwhile."""
    world = make_world()
    world.play()
    world.turn()
    labelled, run, started_before = world.snapshot.nodes, world.status.run, len(world.jobs_started)
    assert run is not None
    terms = world.snapshot.target.template.required_terms if world.snapshot.target is not None else None
    assert terms is not None
    assert any(item.key == FAMILY_LABEL and item.values == (OPENVINO,) for term in terms for item in term.expressions)
    until = world.now + timedelta(seconds=seconds)
    world.actions.clear()
    without_vendor_labels(world)
    while world.now < until:
        world.turn()
        assert world.status.next_run is None
    world.snapshot = replace(world.snapshot, nodes=labelled)
    world.turn()
    world.turn()
    assert world.status.run is not None
    assert world.status.run.id == run.id
    assert kinds(world.actions, ApplyTarget) == kinds(world.actions, RestoreTarget) == []
    assert [job.purpose for job in kinds(world.actions, CreateJob) if job.purpose != "check"] == []
    assert len([job for job in world.jobs_started[started_before:] if job.purpose != "check"]) == 0
    assert world.condition("Ready")[0] == "True"


# --- Cards whose names cannot be written as a label --------------------------------------------------------------------


def test_a_card_without_its_product_label_is_in_no_family() -> None:
    """It is told and counted; nobody guesses by a part of a name, or by the vendor's own word for a family."""
    blackwell, titan = "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", "NVIDIA-TITAN-X-Pascal"
    pool = make_pool("cards", by_product("blackwell", blackwell), by_product("titan", titan), by_product("a10", "NVIDIA-A10"))
    present = {"nvidia.com/gpu.present": "true"}
    nodes = (
        make_gpu_node("ws-mig", present | {"nvidia.com/gpu.family": "blackwell", MAJOR: "12", MEMORY: "24192"}, 4),
        make_gpu_node("ws-pascal", present | {"nvidia.com/gpu.family": "pascal", MAJOR: "6", MEMORY: "12288"}),
        make_gpu_node("ok-a10", present | {PRODUCT: "NVIDIA-A10", "nvidia.com/gpu.family": "ampere", MAJOR: "8", MEMORY: "23028"}),
        make_gpu_node("bare-plugin-only", {}, 2),
    )
    plan = decide_pool(make_pool_snapshot(*nodes, pool=pool), NOW)
    assert {family.name: family.nodes for family in plan.status.families} == {"blackwell": 0, "titan": 0, "a10": 1}
    assert plan.status.unassigned_count == 3
    assert {item.name: item.reason for item in plan.status.unassigned} == dict.fromkeys(("ws-mig", "ws-pascal", "bare-plugin-only"), "LabelMissing")
    assert all(PRODUCT in item.message for item in plan.status.unassigned)
    assert started(plan) == ["ok-a10"]


def test_selectors_on_memory_and_compute_capability_find_such_a_card() -> None:
    """What the user writes is what counts."""
    selector = {"matchExpressions": [{"key": MAJOR, "operator": "In", "values": ["12"]}, {"key": MEMORY, "operator": "Gt", "values": ["24000"]}]}
    pool = make_pool("cards", make_family("blackwell-slice", resource=GPU, selector=selector))
    nodes = (make_gpu_node("ws-mig", {MAJOR: "12", MEMORY: "24192"}, 4), make_gpu_node("ws-pascal", {MAJOR: "6", MEMORY: "12288"}))
    plan = decide_pool(make_pool_snapshot(*nodes, pool=pool), NOW)
    assert [(family.nodes, family.cards) for family in plan.status.families] == [(1, 4)]


# --- Another architecture ------------------------------------------------------------------------------------------------


def test_the_fastest_family_is_out_while_nobody_says_that_the_image_runs_there() -> None:
    """Its nodes are arm64; the target's image is not known to be. The rejection says what is missing, and the owner can say so."""
    world = make_world()
    nodes = tuple(
        replace(node, architecture="arm64", labels=node.labels | {"kubernetes.io/arch": "arm64"}) if node.name.startswith(OPENVINO) else node
        for node in world.snapshot.nodes
    )
    world.snapshot = replace(world.snapshot, nodes=nodes)
    world.play()
    chosen = world.status.recommendation
    assert chosen is not None
    assert chosen.config.family == ORT
    assert [item.message for item in world.status.rejections if "image not known to run on arm64" in item.message]
    assert {run.candidate.family for run in world.snapshot.runs} == {ORT}
    vouched = make_world()
    vouched.snapshot = replace(vouched.snapshot, nodes=nodes)
    vouched.change_target(template=replace(_template(vouched), node_selector={"kubernetes.io/arch": "arm64"}))
    pod = make_pod("ocr-1", *_template(vouched).containers, node=f"{OPENVINO}-1", requests={CARD: 1})
    vouched.snapshot = replace(vouched.snapshot, target_pods=(pod,), card_pods=(pod,))
    vouched.play()
    assert vouched.status.recommendation is not None
    assert vouched.status.recommendation.config.family == OPENVINO


def _template(world: World) -> PodTemplateFacts:
    assert world.snapshot.target is not None
    return world.snapshot.target.template
