"""Many adaptations whose cards all get another driver within a second: do caps hold, and does everything come to an end.

Real API server, real operator, simulated nodes (``node_side``). Small in the tests; ``hack/bench/fleet`` plays it with 200.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.apiserver.merge_patch import patch_merge
from tests.chaos.operator_process import run_operator
from tests.chaos.play import Stage, set_stage
from tests.chaos.world import World

from metainfer.decide.names import ADAPTATION_ANNOTATION, RUN_LABEL
from metainfer.kube.kinds import ADAPTATION, JOB, NODE

Raw = dict[str, Any]
DRIVER_LABEL = "driver"
CHANGED_CARD = "ort"
SLOWER = 2.0
"""Times, under the second driver: everything that ran there is better off elsewhere."""
JOB_SECONDS = (0.1, 0.2)
SETTINGS = {"DRIVER_SETTLE_SECONDS": "2", "REQUESTS_PER_SECOND": "2000", "REQUEST_BURST": "2000"}
RESYNC_SECONDS = 3.0
RESYNC_SECONDS_EACH = 0.15
"""More for each adaptation: what is ready notices the change at a resync, each of which is a pass over all of them."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Of the pool."""

    measurements: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Fleet(World):
    """Targets that run best where they are, until their cards get another driver, under which they do not."""

    caps: Caps = Caps(8, 4)
    driver: dict[str, str] = field(default_factory=lambda: {"ort": "1", "vino": "1"})
    """Version by card; what measurements find depends on it."""

    def make_pool(self) -> Raw:
        """With a driver label, and caps."""
        pool = super(Fleet, self).make_pool()
        for family in pool["spec"]["families"]:
            family["driverVersionLabels"] = [DRIVER_LABEL]
        pool["spec"]["limits"] = {"maxConcurrentMeasurements": self.caps.measurements, "maxConcurrentRollouts": self.caps.rollouts}
        return pool

    def make_target(self, name: str) -> Raw:
        """Those that are to be left in peace can only run on the other cards."""
        target = super(Fleet, self).make_target(name)
        if is_elsewhere(name):
            target["spec"]["template"]["spec"]["nodeSelector"] = {"card": "vino"}
        return target

    def winner(self, target: str) -> tuple[str, int]:
        """What runs at first."""
        return ("vino-cpu" if is_elsewhere(target) else "ort-cpu"), 1

    def p50_us(self, target: str, family: str, batch: int) -> float:
        """Under the driver of now."""
        usual_us = super(Fleet, self).p50_us(target, family, batch)
        return usual_us * SLOWER if family == "ort-cpu" and self.driver["ort"] == "2" else usual_us


def is_elsewhere(name: str) -> bool:
    """Every fifth."""
    return int(name.rpartition("-")[2]) % 5 == 4


def make_fleet(count: int, seed: int, tag: str, caps: Caps) -> Fleet:
    """So many targets; on any node is room for all of them, and for a probe."""
    return Fleet(seed, tag, targets=tuple(f"model-{number}" for number in range(count)), nodes_per_family=4, cards_per_node=count + 4, caps=caps)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the change came to."""

    affected: int
    answered: int
    """Affected adaptations that have exactly one run more, which is over."""
    moved: int
    """Affected adaptations that run on the other cards now."""
    disturbed: int
    """Adaptations of the other family that were checked or run anew."""
    repeated: int
    """Affected adaptations with more than one run more."""
    most_measuring: int
    most_rolling: int
    seconds_to_settle: float
    """Until everything had been decided and applied for the first time."""
    seconds_to_answer: float
    """From the change of the labels until the last answer."""
    ended: bool
    waits: tuple[str, ...] = ()
    """What the first of those that are not answered say of it."""


async def play_fleet(kubeconfig: Path, directory: Path, count: int, *, caps: Caps, patience_seconds: float) -> Outcome:
    """The first placements, then the change, then everything until it stands still."""

    def make_world(seed: int, tag: str) -> World:
        return make_fleet(count, seed, tag, caps)

    settings = SETTINGS | {"RESYNC_SECONDS": f"{RESYNC_SECONDS + RESYNC_SECONDS_EACH * count}"}
    async with set_stage(kubeconfig, directory, 1, make_world) as stage, run_operator(stage.make_operator(**settings)):
        stage.nodes.job_seconds = JOB_SECONDS
        stage.proxy.audits, stage.proxy.chunk = False, 0  # what misfortunes need, and time
        began = time.monotonic()
        for card in ("ort", "vino"):
            await change_driver(stage, "1", card)
        settled = await stage.settle(patience_seconds)
        settled_at = time.monotonic()
        first, runs_before = await read(stage), await read_runs(stage)
        await change_driver(stage, "2", CHANGED_CARD)
        ended = settled and await wait_for_answers(stage, first, patience_seconds)
        answered_at = time.monotonic()
        ended = ended and await stage.settle(patience_seconds)
        last = await read(stage)
        more = {name: len(runs - runs_before[name]) for name, runs in (await read_runs(stage)).items()}
        affected = [name for name in first if not is_elsewhere(name)]
        return Outcome(
            affected=len(affected),
            answered=sum(more[name] == 1 and _is_answered(first[name], last[name]) for name in affected),
            moved=sum(_family(last[name]) == "vino-cpu" for name in affected),
            disturbed=sum(count for name, count in more.items() if name not in affected),
            repeated=sum(more[name] > 1 for name in affected),
            most_measuring=stage.nodes.most_measuring,
            most_rolling=stage.nodes.most_rolling,
            seconds_to_settle=round(settled_at - began, 1),
            seconds_to_answer=round(answered_at - settled_at, 1),
            ended=ended,
            waits=tuple(_words(last[name]) for name in affected if not _is_answered(first[name], last[name]))[:3],
        )


async def change_driver(stage: Stage, version: str, changed: str) -> None:
    """Every node of the family, one after the other and at once for people."""
    if isinstance(stage.world, Fleet):
        stage.world.driver[changed] = version
    for name, card in stage.world.nodes().items():
        if card == changed:
            await patch_merge(stage.kube, NODE, name, None, {"metadata": {"labels": {DRIVER_LABEL: version}}})


async def wait_for_answers(stage: Stage, first: dict[str, Raw], patience_seconds: float) -> bool:
    """Until every affected adaptation has another run than before, which is over; False = not in time."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        now = await read(stage)
        if all(_is_answered(first[name], now[name]) for name in first if not is_elsewhere(name)):
            return True
        await asyncio.sleep(0.5)
    return False


async def read(stage: Stage) -> dict[str, Raw]:
    """Every adaptation by name."""
    return {item["metadata"]["name"]: item for item in (await stage.kube.list(ADAPTATION, namespace=stage.world.namespace))[0]}


async def read_runs(stage: Stage) -> dict[str, set[str]]:
    """Ids of all runs (and checks) so far by adaptation: of the present one, and of every Job, none of which is ever taken away here."""
    found = {name: {item["status"]["run"]["id"]} for name, item in (await read(stage)).items()}
    for job in (await stage.kube.list(JOB, namespace=stage.world.namespace))[0]:
        name = job["metadata"]["annotations"][ADAPTATION_ANNOTATION].rpartition("/")[2]
        found[name].add(job["metadata"]["labels"][RUN_LABEL])
    return found


def _is_answered(before: Raw, now: Raw) -> bool:
    run = now["status"].get("run") or {}
    return run.get("id") != before["status"]["run"]["id"] and run.get("step") == "Done"


def _family(item: Raw) -> str:
    """Of its decision; empty while there is none."""
    return str(((item["status"].get("recommendation") or {}).get("config") or {}).get("family", ""))


def _words(item: Raw) -> str:
    states = {found["type"]: f"{found['status']} {found['reason']}: {found['message']}" for found in item["status"]["conditions"]}
    return f"{item['metadata']['name']}: run {item['status']['run']['step']}, Ready {states.get('Ready')}, AnswerTrue {states.get('AnswerTrue')}"
