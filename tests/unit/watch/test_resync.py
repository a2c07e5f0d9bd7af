"""Lists against the cache: at start in order, then again and again, whatever the server answers meanwhile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.watch.make_raw import make_adaptation, make_deployment, make_node, make_pod, make_pool
from tests.unit.watch.make_watch import Watch

from metainfer.kube.client import Page, Selection
from metainfer.kube.errors import ApiError, Expired, NotFound, ServerUnavailable
from metainfer.kube.kinds import ADAPTATION, DEPLOYMENT, JOB, NODE, POD, WATCHED, Kind
from metainfer.watch.queue import WorkQueue
from metainfer.watch.resync import Resync, Sweep

Raw = dict[str, Any]
EVERYTHING = Selection()


@dataclass
class Lists:
    """A server's lists: objects by plural, refusals to give first, and what was asked."""

    objects: dict[str, list[Raw]] = field(default_factory=dict)
    version: int = 1_000_000
    refusals: dict[str, list[ApiError]] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str]] = field(default_factory=list)
    between_pages: Callable[[Kind], None] = lambda _: None

    async def list_pages(self, kind: Kind, selection: Selection = EVERYTHING) -> AsyncIterator[Page]:
        self.asked.append((kind.plural, selection.namespace, selection.label_selector))
        items = [raw for raw in self.objects.get(kind.plural, []) if selection.namespace in (None, raw["metadata"].get("namespace"))]
        version = str(self.version)
        yield Page(tuple(copy.deepcopy(items[:1])), version)
        self.between_pages(kind)
        if refusals := self.refusals.get(kind.plural):
            raise refusals.pop(0)
        yield Page(tuple(copy.deepcopy(items[1:])), version)


def make_resync(watch: Watch, lists: Lists) -> Resync:
    """A resync that is not in a hurry, and whose retries are."""
    resync = Resync(lists, watch.intake, period_seconds=1000.0, chance=lambda: 0.5)
    resync._sweeps = WorkQueue(_QUICK)
    return resync


class _Quick:
    def delay_seconds(self, failures: int, chance: float) -> float:
        return 0.001


_QUICK: Any = _Quick()


@asynccontextmanager
async def running(resync: Resync) -> AsyncIterator[None]:
    """The resync runs until the block ends; the guard is against hanging only."""
    task = asyncio.create_task(resync.run())
    async with asyncio.timeout(60.0):
        await resync.synced.wait()
        yield
        await resync.stop()
        await task


async def test_first_lists_come_in_order_and_everything_gets_a_pass() -> None:
    """What is kept of Deployments and pods depends on the adaptations: those are listed first, and no list is needed twice."""
    watch = Watch()
    lists = Lists({
        "acceleratorpools": [make_pool()],
        "modeladaptations": [make_adaptation(), make_adaptation("second")],
        "deployments": [make_deployment(), make_deployment("nobodys")],
        "pods": [make_pod(labels={"app": "ocr"}), make_pod("other")],
    })  # fmt: skip
    async with running(make_resync(watch, lists)):
        assert watch.cluster.count(POD) == 1
    assert [plural for plural, _, _ in lists.asked] == [kind.plural for kind in WATCHED]
    assert ("jobs", None, "metainfer.dev/purpose") in lists.asked
    assert {"lab", "apps/ocr", "apps/second"} <= watch.queue.take()[0]


async def test_a_list_that_fails_is_repeated_and_said(caplog: Any) -> None:
    """Nothing counts as known before every kind was listed; a missing CRD is named with what to do."""
    watch = Watch()
    lists = Lists({"nodes": [make_node("n1"), make_node("n2")]})
    lists.refusals = {
        "acceleratorpools": [NotFound(404, "NotFound", "the server could not find the requested resource")],
        "nodes": [Expired(410, "Expired", "too old"), ServerUnavailable(503, "", "overloaded")],
    }
    async with running(make_resync(watch, lists)):
        assert watch.cluster.count(NODE) == 2
    errors = [record.error for record in caplog.records if record.message == "trying again"]
    assert errors == [
        "AcceleratorPool is not known to the API server: install the CRDs of this version",
        "Expired: too old",
        "503: overloaded",
    ]


async def test_what_the_list_does_not_show_is_gone() -> None:
    """Objects deleted while the watch was down leave the cache, and those for whom it matters are woken."""
    watch = Watch().show(NODE, make_node("n1"), make_node("n2")).show(ADAPTATION, make_adaptation())
    watch.queue.take()
    lists = Lists({"nodes": [make_node("n2")], "modeladaptations": [make_adaptation()]})
    async with running(make_resync(watch, lists)):
        assert [node.name for node in watch.cluster.nodes()] == ["n2"]
    watch.let_timers_end()
    assert "apps/ocr" in watch.queue.take()[0]


async def test_what_is_younger_than_the_list_stays() -> None:
    """An object that the watch told of while the list was on its way is not swept away."""
    watch, lists = Watch(), Lists({"nodes": [make_node("n1")]})
    young = make_node("young")
    young["metadata"]["resourceVersion"] = str(lists.version + 1)
    lists.between_pages = lambda kind: watch.intake.watch(NODE, "ADDED", young) if kind == NODE else None
    async with running(make_resync(watch, lists)):
        assert {node.name for node in watch.cluster.nodes()} == {"n1", "young"}


async def test_a_list_cut_off_sweeps_nothing() -> None:
    """Only a complete list says what is gone."""
    watch, lists = Watch().show(NODE, make_node("n1"), make_node("n2")), Lists({"nodes": [make_node("n1")]})
    lists.refusals = {"nodes": [ServerUnavailable(0, "NoAnswer", "cut")] * 3}
    seen: list[int] = []
    lists.between_pages = lambda kind: seen.append(watch.cluster.count(NODE)) if kind == NODE else None
    async with running(make_resync(watch, lists)):
        assert watch.cluster.count(NODE) == 1
    assert seen == [2, 2, 2, 2]


async def test_a_gap_is_filled_by_listing_one_namespace() -> None:
    """A target named after the first lists is listed in its namespace, then its pods; other gaps stay what they are."""
    watch = Watch()
    lists = Lists({"deployments": [make_deployment(), make_deployment(namespace="b")], "pods": [make_pod(labels={"app": "ocr"})]})
    resync = make_resync(watch, lists)
    async with running(resync):
        lists.asked.clear()
        watch.show(ADAPTATION, make_adaptation())
        while watch.cluster.interest.gaps:  # noqa: ASYNC110 - another task closes them
            await asyncio.sleep(0)
        assert watch.cluster.deployment("apps", "ocr") is not None
        assert len(watch.cluster.pods_matching("apps", {"app": "ocr"})) == 1
    assert [(plural, namespace) for plural, namespace, _ in lists.asked] == [("deployments", "apps"), ("pods", "apps")]
    assert "apps/ocr" in watch.queue.take()[0]


async def test_a_server_that_went_back_in_time_is_believed() -> None:
    """After a restore from a backup its versions are lower: what it shows is true, what it does not show is gone."""
    watch = Watch().show(NODE, make_node("n1", labels={"from": "future"}), make_node("gone"))
    old = make_node("n1", labels={"from": "backup"})
    old["metadata"]["resourceVersion"] = "1"
    async with running(make_resync(watch, Lists({"nodes": [old]}, version=2))):
        assert [(node.name, node.labels["from"]) for node in watch.cluster.nodes()] == [("n1", "backup")]


async def test_the_next_list_of_a_kind_is_a_period_away_give_or_take_a_fifth() -> None:
    """Chance spreads the lists of kinds and of operators."""
    for chance, want in ((0.0, 800.0), (0.5, 1000.0), (1.0, 1200.0)):
        resync = Resync(Lists(), Watch().intake, period_seconds=1000.0, chance=lambda value=chance: value)  # type: ignore[misc]
        assert await resync._sweep(Sweep(JOB)) == pytest.approx(want)
    assert await resync._sweep(Sweep(DEPLOYMENT, "nowhere")) is None
