"""A pool whose plans are carried out: portraits and labels are written, probes end well at a speed that the test gives, time passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.unit.decide.make_facts import CPU_PROVIDER
from tests.unit.decide.test_pool import make_member, make_pool_snapshot, make_report

from metainfer.api.v1alpha1.common import HEALTH_LABEL
from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus
from metainfer.decide.facts import JobFacts, Labels, NodeFacts, PoolSnapshot, Portrait, ProbeResult
from metainfer.decide.plan import CreateJob, EmitEvent, WriteNodeLabels, WritePortrait
from metainfer.decide.pool import decide_pool
from metainfer_probe.contract import Card, NodeReport

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def scaled(speed: float) -> NodeReport:
    """A report of a card that does everything at that share of the usual speed."""
    report = make_report(60.0 * speed)
    figures = tuple(item.model_copy(update={"launch_p50_us": item.launch_p50_us / speed}) for item in report.figures)
    bandwidth = {level: value * speed for level, value in report.bandwidth_gigabytes_per_second.items()}
    return report.model_copy(update={"figures": figures, "bandwidth_gigabytes_per_second": bandwidth})


Speed = Callable[[str, float], float]
"""Of a node at a time (hours from the beginning)."""


@dataclass
class Lab:
    """A pool whose probes end well, a minute after they began."""

    speed: Speed
    snapshot: PoolSnapshot
    now: datetime = NOW
    card: Card | None = None
    """As its own library describes it."""
    providers: Sequence[str] = (CPU_PROVIDER,)
    """All of which every probe measures."""
    runtime: str = "1.32.0"
    probes: list[tuple[float, str]] = field(default_factory=list)
    events: list[EmitEvent] = field(default_factory=list)

    @property
    def hours(self) -> float:
        """Since the beginning."""
        return (self.now - NOW).total_seconds() / 3600

    def play(self, minutes: int) -> None:
        """A pass each minute."""
        for _ in range(minutes):
            self.turn()

    def turn(self, seconds: float = 60.0) -> None:
        """One pass, and what follows from it."""
        plan = decide_pool(self.snapshot, self.now)
        self.snapshot = replace(self.snapshot, pool=replace(self.snapshot.pool, status=plan.status), results=())
        for action in plan.actions:
            if isinstance(action, WritePortrait):
                portraits = {**self.snapshot.portraits, action.node: Portrait(action.node, action.spec, action.status)}
                self.snapshot = replace(self.snapshot, portraits=portraits)
            elif isinstance(action, WriteNodeLabels):
                nodes = tuple(
                    replace(node, labels={**_bare(node.labels), **action.labels}) if node.name == action.node else node for node in self.snapshot.nodes
                )
                self.snapshot = replace(self.snapshot, nodes=nodes)
            elif isinstance(action, EmitEvent):
                self.events.append(action)
            elif isinstance(action, CreateJob):
                self._measure(action)
        self.now += timedelta(seconds=seconds)

    def _measure(self, job: CreateJob) -> None:
        node = job.node or ""
        self.probes.append((round(self.hours, 2), node))
        ended = self.now + timedelta(seconds=50)
        facts = JobFacts(job.namespace, job.name, f"uid-{job.name}", job.labels, job.annotations, created_at=self.now, condition="Complete", succeeded=1)
        result = ProbeResult(job.name, node, ended, self._report(node), job_uid=facts.uid)
        jobs = tuple(item for item in self.snapshot.jobs if item.created_at is not None and self.now - item.created_at < timedelta(hours=1))
        self.snapshot = replace(self.snapshot, jobs=(*jobs, facts), results=(*self.snapshot.results, result))

    def _report(self, node: str) -> NodeReport:
        report = scaled(self.speed(node, self.hours))
        machine = report.machine.model_copy(update={"card": self.card}) if report.machine is not None else None
        figures = tuple(item.model_copy(update={"provider": name, "runtime_version": self.runtime}) for item in report.figures for name in self.providers)
        return report.model_copy(update={"machine": machine, "figures": figures})

    def relabel(self, nodes: Sequence[str], **labels: str | None) -> None:
        """Somebody else's labeller writes (None = takes off) labels; ``__`` in a key stands for a dot, ``___`` for a slash."""
        keys = {key.replace("___", "/").replace("__", "."): value for key, value in labels.items()}
        self.snapshot = replace(self.snapshot, nodes=tuple(_relabelled(node, keys) if node.name in nodes else node for node in self.snapshot.nodes))

    def change(self, nodes: Sequence[str], **fields: Any) -> None:
        """Other fields of the nodes."""
        self.snapshot = replace(self.snapshot, nodes=tuple(replace(node, **fields) if node.name in nodes else node for node in self.snapshot.nodes))

    def status(self, node: str) -> NodePortraitStatus:
        """Of a node's portrait."""
        return self.snapshot.portraits[node].status

    def labelled(self) -> list[str]:
        """Nodes with our mark."""
        return [node.name for node in self.snapshot.nodes if node.labels.get(HEALTH_LABEL) == "degraded"]


def _bare(labels: Labels) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key != HEALTH_LABEL}


def _relabelled(node: NodeFacts, labels: Mapping[str, str | None]) -> NodeFacts:
    kept = {key: value for key, value in node.labels.items() if key not in labels}
    return replace(node, labels=kept | {key: value for key, value in labels.items() if value is not None})


def always(_node: str, _hours: float) -> float:
    """Every card does what all do."""
    return 1.0


def make_lab(speed: Speed = always, nodes: int = 3, **fields: Any) -> Lab:
    """A family of so many nodes, nothing measured yet; ``labels`` are on each of them, the rest is the snapshot's."""
    labels = fields.pop("labels", {})
    return Lab(speed, make_pool_snapshot(*(make_member(f"n{number}", labels=labels) for number in range(nodes)), **fields))
