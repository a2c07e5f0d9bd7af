"""From the pods and series of one window to its reading, over all pods and per node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from metainfer.decide.facts import PodFacts
from metainfer.decide.latency.order import LatencyOrder
from metainfer.decide.latency.reading import read_latency
from metainfer.decide.latency.series import POD_LABEL, ServedSeries
from metainfer.decide.latency.served import NodeLatency, ServedWindow
from metainfer.decide.latency.target import ServedPod, ServedTarget

PORT_ANNOTATION, PATH_ANNOTATION = "prometheus.io/port", "prometheus.io/path"
MOST_PODS = 64
"""Of one target that are read by themselves, or told apart: more say nothing new about the rest."""
FEWEST_PER_NODE = 100
"""Requests that a node needs for a figure of its own: it only says where to look first."""
PATH_LIMIT = 256


def find_target(namespace: str, pods: Sequence[PodFacts], order: LatencyOrder) -> ServedTarget:
    """The pods that serve. One in its node's own network is not scraped: its address is the node's, where others answer too."""
    serving = [pod for pod in pods if not pod.deleting and pod.phase == "Running"]
    named = sorted(serving, key=lambda pod: pod.name)[: MOST_PODS if order.scrapes else None]
    return ServedTarget(namespace, tuple(_served_pod(pod, order) for pod in named), order.source)


def _served_pod(pod: PodFacts, order: LatencyOrder) -> ServedPod:
    port, path = pod.annotations.get(PORT_ANNOTATION, ""), pod.annotations.get(PATH_ANNOTATION, "")
    told = int(port) if port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535 else 0
    page = path if path.startswith("/") and len(path) <= PATH_LIMIT and path.isascii() and path.isprintable() and not {"?", "#"} & set(path) else ""
    return ServedPod(pod.name, "" if pod.host_network else pod.address, port=order.port or told, path=order.path or page)


def read_window(order: LatencyOrder, series: ServedSeries, pods: Sequence[PodFacts]) -> ServedWindow:
    """The window's figures. Slow for many pods: not for the event loop."""
    restarts = {pod.name: _count_restarts(pod, series.start_unix_seconds) for pod in pods}
    reading = read_latency(order.question(restarts), series)
    nodes = {node: _read_node(order, series, names, restarts) for node, names in _pods_by_node(series, pods).items()}
    return ServedWindow(datetime.fromtimestamp(series.end_unix_seconds, UTC), reading, nodes)


def _read_node(order: LatencyOrder, series: ServedSeries, names: Collection[str], restarts: dict[str, int]) -> NodeLatency:
    own = replace(series, series=tuple(one for one in series.series if one.labels.get(POD_LABEL) in names))
    found = read_latency(order.question(restarts, min_requests=FEWEST_PER_NODE), own)
    p99 = found.p99.value_us if found.p99 is not None and found.supports("p99") else None
    return NodeLatency(found.requests, found.mean_us if found.supports("mean") else None, p99)


def _count_restarts(pod: PodFacts, since_unix_seconds: float) -> int:
    """Containers that were started again within the window: what a reset of counters may be put down to."""
    return sum(1 for state in pod.states if state.restarts > 0 and state.started_at is not None and state.started_at.timestamp() > since_unix_seconds)


def _pods_by_node(series: ServedSeries, pods: Sequence[PodFacts]) -> dict[str, set[str]]:
    """Pods that the source tells apart, by node."""
    told = {one.labels[POD_LABEL] for one in series.series if POD_LABEL in one.labels}
    found: dict[str, set[str]] = {}
    for pod in sorted(pods, key=lambda item: item.name)[:MOST_PODS]:
        if pod.node is not None and pod.name in told:
            found.setdefault(pod.node, set()).add(pod.name)
    return found
