"""A cache, an intake and a queue that only notes what it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.unit.watch.make_raw import Raw

from metainfer.kube.kinds import WATCHED, Kind
from metainfer.reconcile import Request
from metainfer.watch.cluster import ClusterCache
from metainfer.watch.intake import Intake


@dataclass
class NotedQueue:
    """Keys in the order in which they were added."""

    now: list[Request] = field(default_factory=list)
    soon: list[Request] = field(default_factory=list)

    def add(self, key: Request) -> None:
        self.now.append(key)

    def add_behind(self, key: Request) -> None:
        self.now.append(key)

    def add_after(self, key: Request, delay_seconds: float) -> None:
        (self.soon if delay_seconds > 0 else self.now).append(key)

    def take(self) -> tuple[set[str], set[str]]:
        """Names of what was woken at once and soon, since the last look."""
        have = ({_name(key) for key in self.now}, {_name(key) for key in self.soon})
        self.now, self.soon = [], []
        return have


def _name(key: Request) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace else key.name


@dataclass
class Watch:
    """The parts of the watch that need no cluster."""

    cluster: ClusterCache = field(default_factory=ClusterCache)
    queue: NotedQueue = field(default_factory=NotedQueue)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What is to be called, and after how many seconds."""

    def __post_init__(self) -> None:
        self.intake = Intake(
            self.cluster,
            self.queue,
            fill=lambda kind, namespace: self.gaps.append((kind.kind, namespace)),
            later=lambda seconds, call: self.timers.append((seconds, call)),
        )

    def show(self, kind: Kind, *raws: Raw) -> Watch:
        """Events that objects are there."""
        for raw in raws:
            self.intake.watch(kind, "MODIFIED", raw)
        return self

    def wakes_of(self, kind: Kind, raw: Raw, event: str = "MODIFIED") -> tuple[set[str], set[str]]:
        """Who is woken by one event: at once, and soon."""
        self.let_timers_end()
        self.queue.take()
        self.intake.watch(kind, event, raw)
        now, soon = self.queue.take()
        self.let_timers_end()
        return now, (soon | self.queue.take()[0]) - now

    def let_timers_end(self) -> None:
        """Time passes."""
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()


def make_watch(**objects: tuple[Raw, ...]) -> Watch:
    """A watch that has seen these objects, by the plural of their kind, in the order in which kinds are listed."""
    watch = Watch()
    for kind in WATCHED:
        watch.show(kind, *objects.get(kind.plural, ()))
    watch.let_timers_end()
    watch.queue.take()
    return watch
