"""What happened to labels on other people's clusters: labellers that restart, names that fit into no label, cards that are cut or shared."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.decide.make_facts import make_family, make_node, make_pod, make_pool, make_snapshot, make_target
from tests.unit.decide.make_lab import Lab, always
from tests.unit.decide.test_pool import make_pool_snapshot

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.common import FAMILY_LABEL
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import NodeFacts
from metainfer.decide.measurable import find_unmeasurable
from metainfer.decide.plan import WriteNodeLabels
from metainfer.decide.pool import decide_pool
from metainfer.decide.scene import build_scene

GPU = "nvidia.com/gpu"
PRODUCT, MEMORY, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count"
DRIVER = "nvidia.com/cuda.driver-version.full"


def make_gpu(name: str, product: str | None, cards: int = 1, **labels: str | None) -> NodeFacts:
    """A node as NVIDIA's labeller and device plugin leave it."""
    known = {PRODUCT: product, "nvidia.com/gpu.present": "true", COUNT: str(cards), DRIVER: "570.124.06"} | labels
    return make_node(name, labels={key: value for key, value in known.items() if value is not None}, allocatable={GPU: cards})


def make_product(name: str, product: str) -> AcceleratorFamily:
    """A family selected by the product's label."""
    return make_family(name, selector={"matchExpressions": [{"key": PRODUCT, "operator": "In", "values": [product]}]}, resource=GPU)


def make_gpu_lab(*nodes: NodeFacts, families: tuple[AcceleratorFamily, ...]) -> Lab:
    """A pool of these families over these nodes, everything measured that can be."""
    pool = make_pool("gpus", *families, spec={"limits": {"max_concurrent_probes": 64, "max_concurrent_measurements": 64}})
    lab = Lab(always, make_pool_snapshot(*nodes, pool=pool))
    lab.play(6)
    lab.probes.clear()
    lab.events.clear()
    return lab


def labels_condition(lab: Lab) -> tuple[str, str]:
    """Status and message of LabelsAvailable."""
    found = find_condition(lab.snapshot.pool.status.conditions, "LabelsAvailable")
    assert found is not None
    return found.status, found.message


FEATURES: dict[str, str | None] = {PRODUCT: None, MEMORY: None, COUNT: None, DRIVER: None, "nvidia.com/gpu.present": None}


def test_a_labeller_that_restarts_for_minutes_costs_nothing() -> None:
    """All labels of 40 nodes vanish for more than four minutes, three come back only half an hour later: no probe, no label of ours moves."""
    lab = make_gpu_lab(*(make_gpu(f"gpu-{number:02d}", "NVIDIA-L4") for number in range(1, 41)), families=(make_product("l4", "NVIDIA-L4"),))
    before, labels = lab.snapshot.portraits, {node.name: dict(node.labels) for node in lab.snapshot.nodes}
    names = [node.name for node in lab.snapshot.nodes]

    def come_back(nodes: list[str]) -> None:
        lab.snapshot = replace(
            lab.snapshot, nodes=tuple(replace(node, labels=labels[node.name]) if node.name in nodes else node for node in lab.snapshot.nodes)
        )

    lab.play(1)
    lab.relabel(names, **{key.replace(".", "__").replace("/", "___"): None for key in FEATURES})
    lab.play(4)
    assert all(node.labels[FAMILY_LABEL] == "l4" for node in lab.snapshot.nodes)
    assert labels_condition(lab)[0] == "False"
    come_back(names[:37])
    lab.play(25)
    status, message = labels_condition(lab)
    assert (status, [name for name in names if name in message]) == ("False", ["gpu-38", "gpu-39", "gpu-40"])
    assert all(node.labels[FAMILY_LABEL] == "l4" for node in lab.snapshot.nodes)
    come_back(names[37:])
    lab.play(10)
    assert labels_condition(lab)[0] == "True"
    assert (lab.probes, lab.events, lab.snapshot.portraits) == ([], [], before)


def test_an_operator_that_starts_while_no_node_has_a_label_takes_nothing_away() -> None:
    """It knows the nodes by its own label and their portraits: the first pass of a new process writes nothing."""
    lab = make_gpu_lab(*(make_gpu(f"gpu-{number}", "NVIDIA-L4") for number in range(4)), families=(make_product("l4", "NVIDIA-L4"),))
    nodes = tuple(replace(node, labels={FAMILY_LABEL: "l4"}) for node in lab.snapshot.nodes)
    plan = decide_pool(replace(lab.snapshot, nodes=nodes), lab.now)
    assert plan.actions == ()
    assert plan.status.nodes == 0


def test_a_card_whose_name_fits_into_no_label_is_in_no_family() -> None:
    """Too long, or with brackets: the labeller drops that one label. Nothing is guessed from the others; a selector on them works."""
    odd = {"nvidia.com/gpu.family": "blackwell", "nvidia.com/gpu.compute.major": "12", MEMORY: "24192"}
    nodes = (
        make_gpu("ws-mig", None, 4, **odd),
        make_gpu("ws-pascal", None, 1, **{"nvidia.com/gpu.family": "pascal", "nvidia.com/gpu.compute.major": "6", MEMORY: "12288"}),
        make_gpu("ok-a10", "NVIDIA-A10", 1, **{"nvidia.com/gpu.family": "ampere", MEMORY: "23028"}),
        make_node("bare-plugin-only", allocatable={GPU: 2}),
    )
    products = (make_product("rtx", "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition"), make_product("a10", "NVIDIA-A10"))
    lab = make_gpu_lab(*nodes, families=products)
    outside = {item.name: item.message for item in lab.snapshot.pool.status.unassigned}
    assert outside == {name: f"node {name} is in no family: label nvidia.com/gpu.product missing" for name in ("ws-mig", "ws-pascal", "bare-plugin-only")}
    assert lab.snapshot.pool.status.unassigned_count == 3
    assert {node.name: node.labels.get(FAMILY_LABEL) for node in lab.snapshot.nodes if FAMILY_LABEL in node.labels} == {"ok-a10": "a10"}
    by_memory = make_family("big", selector={"matchLabels": {MEMORY: "24192", "nvidia.com/gpu.compute.major": "12"}}, resource=GPU)
    lab = make_gpu_lab(*nodes, families=(*products, by_memory))
    assert {node.name: node.labels.get(FAMILY_LABEL) for node in lab.snapshot.nodes if FAMILY_LABEL in node.labels} == {"ok-a10": "a10", "ws-mig": "big"}


def test_a_node_that_is_cut_into_slices_becomes_another_card() -> None:
    """The cutting hangs for six hours with the product's label gone; then the slices are of no family, and nothing was told in between."""
    ready = {"nvidia.com/mig.config.state": "success"}
    lab = make_gpu_lab(*(make_gpu(f"h100-{number}", "NVIDIA-H100-NVL", 4, **ready) for number in (1, 2)), families=(make_product("h100", "NVIDIA-H100-NVL"),))
    lab.relabel(("h100-1",), nvidia__com___gpu__product=None, nvidia__com___gpu__count=None, nvidia__com___mig__config__state="pending")
    lab.change(("h100-1",), allocatable={**lab.snapshot.nodes[0].allocatable, GPU: 0})
    lab.play(5)
    written = lab.snapshot.pool.status
    lab.play(60)
    lab.relabel(("h100-1",), nvidia__com___mig__config__state="failed")
    lab.play(10)
    assert (lab.probes, lab.events) == ([], [])
    assert replace_times(lab.snapshot.pool.status) == replace_times(written)
    lab.relabel(
        ("h100-1",), nvidia__com___gpu__product="NVIDIA-H100-NVL-MIG-1g.12gb", nvidia__com___gpu__count="28", nvidia__com___mig__config__state="success"
    )
    lab.change(("h100-1",), allocatable={**lab.snapshot.nodes[0].allocatable, GPU: 28})
    plan = decide_pool(lab.snapshot, lab.now)
    assert [(action.node, dict(action.labels)) for action in plan.actions if isinstance(action, WriteNodeLabels)] == [("h100-1", {})]
    lab.play(10)
    assert (lab.probes, lab.labelled(), lab.snapshot.pool.status.nodes) == ([], [], 1)


def replace_times(status: Any) -> Any:
    """A status without what only time moves."""
    return status.model_copy(update={"conditions": tuple((item.type, item.status, item.reason, item.message) for item in status.conditions)})


def test_slices_in_a_family_of_their_own_are_compared_with_slices_only() -> None:
    """A new identity and a new portrait: no factor against whole cards, hence no slice is degraded."""
    families = (make_product("h100", "NVIDIA-H100-NVL"), make_product("slice", "NVIDIA-H100-NVL-MIG-1g.12gb"))
    lab = make_gpu_lab(*(make_gpu(f"h100-{number}", "NVIDIA-H100-NVL") for number in range(4)), families=families)
    lab.speed = lambda node, _: 0.15 if node == "h100-1" else 1.0
    lab.relabel(("h100-1",), nvidia__com___gpu__product="NVIDIA-H100-NVL-MIG-1g.12gb")
    lab.play(10)
    status = lab.status("h100-1")
    assert (status.correction_factor_permille, status.health, lab.labelled()) == (1000, "Healthy", [])
    assert [node for _, node in lab.probes] == ["h100-1"]


@pytest.mark.parametrize("state", ["pending", "rebooting", "failed"])
def test_nothing_is_measured_while_cards_are_being_cut(state: str) -> None:
    """The product's label may stand on for a while, for cards that are no longer there."""
    family = make_product("h100", "NVIDIA-H100-NVL")
    node = make_gpu("h100-1", "NVIDIA-H100-NVL", 4, **{"nvidia.com/mig.config.state": state})
    lab = make_gpu_lab(node, families=(family,))
    completed = find_condition(lab.snapshot.pool.status.conditions, "ProbesCompleted")
    assert completed is not None
    assert (completed.reason, lab.snapshot.portraits) == ("CardsBeingPartitioned", {})
    assert find_unmeasurable(make_snapshot(nodes=(node,)), (node,))["h100-1"].reason == "CardsBeingPartitioned"


SHARED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}


def test_cards_that_are_offered_four_times_leave_their_family() -> None:
    """Two of four nodes are shared from now on, under another product name: the family has the other two, and nothing is carried over."""
    alone = {"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}
    lab = make_gpu_lab(*(make_gpu(f"a10-{number}", "NVIDIA-A10", **alone) for number in range(1, 5)), families=(make_product("a10", "NVIDIA-A10"),))
    shared = {f"nvidia__com___{key.removeprefix('nvidia.com/').replace('.', '__')}": value for key, value in SHARED.items()}
    lab.relabel(("a10-1", "a10-2"), nvidia__com___gpu__product="NVIDIA-A10-SHARED", **shared)
    lab.change(("a10-1",), allocatable={**lab.snapshot.nodes[0].allocatable, GPU: 4})
    lab.change(("a10-2",), allocatable={**lab.snapshot.nodes[1].allocatable, GPU: 4})
    lab.play(5)
    family = lab.snapshot.pool.status.families[0]
    assert (family.nodes, family.cards, lab.probes) == (2, 2, [])


def test_a_shared_card_is_one_card_and_is_compared_with_nobody() -> None:
    """In a family of their own: the portrait says shared and has no factor, and the pool counts cards, not pieces."""
    nodes = [replace(make_gpu(f"a10-{number}", "NVIDIA-A10-SHARED", **SHARED), allocatable={"cpu": 4000, "pods": 110, GPU: 4}) for number in range(3)]
    family = make_product("a10-shared", "NVIDIA-A10-SHARED")
    lab = make_gpu_lab(*nodes, families=(family,))
    lab.speed = lambda node, _: 0.5 if node == "a10-1" else 1.0
    lab.now += timedelta(days=8)
    lab.play(20)
    status = lab.status("a10-1")
    assert (status.cards, status.sharing, status.correction_factor_permille, lab.labelled()) == (1, "time-slicing", 1000, [])
    found = lab.snapshot.pool.status.families[0]
    assert (found.cards, found.free_cards) == (3, 3)
    snapshot = make_snapshot(
        pools=(lab.snapshot.pool,),
        nodes=lab.snapshot.nodes,
        portraits=lab.snapshot.portraits,
        card_pods=(make_pod("other", node="a10-0", requests={GPU: 1}, owner="ReplicaSet/other-1", labels={"app": "other"}),),
        target=make_target(),
    )
    target = snapshot.target
    assert target is not None
    scene = build_scene(snapshot, replace(target, template=replace(target.template, containers=(replace(target.template.containers[0], limits={GPU: 1}),))))
    assert scene is not None
    assert scene.options[0].free_cards == {"a10-0": 0, "a10-1": 1, "a10-2": 1}
