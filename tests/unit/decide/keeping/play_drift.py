"""Plays a world in which latency is watched: settled, with a baseline and a first check, then slower."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.unit.decide.keeping.make_windows import make_window
from tests.unit.decide.make_world import World, make_world

from metainfer.api.v1alpha1.checks import CheckStatus
from metainfer.api.v1alpha1.model_adaptation import UpdatePolicy
from metainfer.decide.conditions import parse_time
from metainfer.decide.latency.served import NodeLatency, ServedFacts

SLOWER: dict[str, Any] = {"p99_ms": 52.0, "mean_ms": 14.0}


def settled(*, shareable: bool = False) -> World:
    """A world in which the decision runs and the cooldown is over."""
    world = make_world()
    if shareable:
        pools = tuple(
            replace(pool, spec=pool.spec.model_copy(update={"families": tuple(item.model_copy(update={"shareable": True}) for item in pool.spec.families)}))
            for pool in world.snapshot.pools
        )
        world.snapshot = replace(world.snapshot, pools=pools)
    world.change_spec(update_policy=UpdatePolicy(cooldown="1m"))
    world.play()
    world.turn()
    assert world.condition("Ready") == ("True", "Applied")
    return world


def check_of(world: World) -> CheckStatus:
    """``status.check``."""
    assert world.status.check is not None
    return world.status.check


def watched(*, shareable: bool = False) -> World:
    """The service has a baseline, and what runs was checked once."""
    world = settled(shareable=shareable)
    add_cards(world, str(world.snapshot.target_pods[0].node))
    show_drift(world, 3, p99_ms=40.0, mean_ms=11.0)
    work_off(world)
    return world


def drifting(nodes: tuple[str, ...] = ()) -> World:
    """Three windows slower than the baseline: the next pass does something about it."""
    world = watched()
    show_drift(world, 2, first=3, nodes=nodes)
    _show(world, settled_at(world) + 6 * timedelta(minutes=15), nodes=nodes, **SLOWER)
    return world


def add_cards(world: World, home: str) -> None:
    """The node has a second card."""
    resource = world.snapshot.pools[0].spec.families[0].resource
    nodes = tuple(replace(node, allocatable={**node.allocatable, resource: 2}) if node.name == home else node for node in world.snapshot.nodes)
    world.snapshot = replace(world.snapshot, nodes=nodes)


def settled_at(world: World) -> datetime:
    """Since when windows count."""
    assert world.status.served is not None
    return parse_time(world.status.served.settled_at)


def show_drift(world: World, count: int = 1, *, first: int | None = None, minutes: int = 15, nodes: tuple[str, ...] = (), **fields: Any) -> None:
    """So many windows, one pass after each; slower than the baseline unless something else is said."""
    for index in range(count):
        ends = settled_at(world) + (first + index + 1) * timedelta(minutes=minutes) if first is not None else world.now + timedelta(minutes=minutes)
        _show(world, ends, nodes=nodes, **(fields or SLOWER))
        world.turn()


def _show(world: World, ends: datetime, *, nodes: tuple[str, ...], **fields: Any) -> None:
    """The first of the nodes is the slowest."""
    latencies = {node: NodeLatency(500, 14_000.0 - index, 52_000.0) for index, node in enumerate(nodes)}
    window = replace(make_window(0, **fields), ended_at=ends, nodes=latencies)
    known = world.snapshot.served.windows if world.snapshot.served is not None else ()
    world.now = max(world.now, ends + timedelta(seconds=20))
    world.snapshot = replace(world.snapshot, served=ServedFacts((*known, window)[-8:], None, None))


def work_off(world: World, turns: int = 6) -> None:
    """Passes in which Jobs end and verdicts are acted on, without new windows."""
    for _ in range(turns):
        world.turn()
