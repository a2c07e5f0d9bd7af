"""Labels of drivers on a real API server with simulated nodes, by a virtual clock: what changes for good is one run, what comes and goes is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.fleet import DRIVER_LABEL, Caps, Fleet
from tests.chaos.play import set_stage
from tests.chaos.virtual import VirtualOperator, make_virtual_operator
from tests.chaos.world import World

from metainfer.kube.kinds import ADAPTATION

pytestmark = pytest.mark.apiserver

TARGETS = ("model-0", "model-1", "model-4")
"""The first two can run on either family, the last one on the other only."""


def make_world(seed: int, tag: str) -> World:
    """Four nodes for each family."""
    return Fleet(seed, tag, targets=TARGETS, nodes_per_family=4, cards_per_node=4, caps=Caps(8, 4))


async def read_runs(operator: VirtualOperator) -> dict[str, tuple[str, str]]:
    """Id and trigger of each adaptation's run."""
    items, _ = await operator.stage.kube.list(ADAPTATION, namespace=operator.stage.world.namespace)
    return {item["metadata"]["name"]: (item["status"]["run"]["id"], item["status"]["run"]["trigger"]) for item in items}


async def test_half_a_familys_driver_is_one_run_and_labels_that_come_and_go_are_none(admin: Path, tmp_path: Path) -> None:
    """Vanished for a minute, flapping for ten, and then changed for good on half of the nodes: only the last is measured and answered, once."""
    async with set_stage(admin, tmp_path, 1, make_world) as stage:
        stage.nodes.job_seconds = (0.0, 0.0)
        operator = make_virtual_operator(stage, tmp_path)
        nodes = stage.world.nodes()
        half = sorted(name for name, card in nodes.items() if card == "ort")[:2]
        await operator.relabel(nodes, **{DRIVER_LABEL: "1"})
        await operator.play(40)
        first, probes = await read_runs(operator), await operator.probes()
        assert {trigger.split(":")[0] for _, trigger in first.values()} == {"FirstAdaptation"}
        assert len(probes) == len(nodes)
        # A labeller that restarts takes everything along for a minute.
        await operator.relabel(nodes, **{DRIVER_LABEL: None, "card": None})
        await operator.play(1, 30.0)
        for name, card in nodes.items():
            await operator.relabel((name,), **{DRIVER_LABEL: "1", "card": card})
        await operator.play(10)
        # Two labellers fight.
        for turn in range(10):
            await operator.relabel(half, **{DRIVER_LABEL: "2" if turn % 2 == 0 else "1"})
            await operator.play(1)
        await operator.relabel(half, **{DRIVER_LABEL: "1"})
        await operator.play(10)
        assert (await read_runs(operator), await operator.probes()) == (first, probes)
        # A driver, at last.
        await operator.relabel(half, **{DRIVER_LABEL: "2"})
        await operator.play(45)
        runs = await read_runs(operator)
        changed = {name for name, (run, _) in runs.items() if run != first[name][0]}
        assert changed == {"model-0", "model-1"}
        assert {runs[name][1] for name in changed} == {"DriverVersionChanged: family ort-cpu: driver 1 -> 2 on 2 of 4 nodes"}
        assert len(await operator.probes() - probes) == len(half)
        # The other half follows: that version was acted on.
        await operator.relabel([name for name, card in nodes.items() if card == "ort"], **{DRIVER_LABEL: "2"})
        await operator.play(30)
        assert await read_runs(operator) == runs
