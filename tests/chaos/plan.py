"""What goes wrong in a chaos run, and when: drawn from the seed before anything starts.

Strokes end or freeze the operator at a moment that is told by a request: before the server sees it, after it took effect and
before the answer, or so that it arrives late, when the next process is already at work. Faults disturb single requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.apiserver.faults import Entry, Fault

Moment = Literal["lost", "late", "done"]
Fits = Callable[[Entry], bool]

LATE_SECONDS = 2.5
"""Longer than the next process needs to begin."""
FREEZE_SECONDS = (2.0, 3.5)
"""Longer than any Job of the run."""
OUTAGE_SECONDS = (2.0, 5.0)
WRITES_BETWEEN = (0, 8)
"""A run has about 120 writes: strokes fall from its first to its last step."""
KILLS, FREEZES, OUTAGES, FAULTS = 18, 3, 2, 34
"""Besides one kill at each rare moment."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """What happens to the operator as a whole, at a moment of a request; a freeze and an outage last so many seconds."""

    sort: Literal["killed", "frozen", "cut off"]
    words: str
    fits: Fits
    moment: Moment
    skip: int = 0
    seconds: float = 0.0

    def arm(self, spring: Callable[[Entry], None]) -> Fault:
        """As the proxy takes it."""
        fate = self.moment if self.sort != "frozen" else {"lost": "sent", "late": "sent", "done": "answered"}[self.moment]
        words = f"{self.sort} {self.words}, request {fate}"
        when: Literal["before", "after"] = "after" if self.moment == "done" else "before"
        late = self.moment == "late" and self.sort == "killed"
        passes = late or self.sort == "frozen"
        return Fault(words, self.fits, "pass" if passes else "drop", when=when, seconds=LATE_SECONDS if late else 0.0, skip=self.skip, spring=spring)


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's misfortunes."""

    rare: tuple[Stroke, ...]
    """Armed from the beginning: their moments come once or twice in a run."""
    strokes: tuple[Stroke, ...]
    """Armed one after the other, each when the process that the last one ended runs again."""
    faults: tuple[Fault, ...]
    """Armed a few at a time."""


def is_step(entry: Entry, *steps: str) -> bool:
    """Whether it claims one of these steps of a run in an adaptation's status."""
    if entry.label != "patch modeladaptations/status" or not isinstance(entry.body, list):
        return False
    status = next((item.get("value") for item in entry.body if item.get("path") == "/status"), None) or {}
    return (status.get("run") or {}).get("step") in steps


def creates_job(entry: Entry, purpose: str) -> bool:
    """Whether it starts a measuring Job of that purpose."""
    return entry.label == "create jobs" and entry.body["metadata"]["labels"]["metainfer.dev/purpose"] == purpose


def does(label: str) -> Fits:
    """Requests of one label."""
    return lambda entry: entry.label == label


def is_write(entry: Entry) -> bool:
    """Any write but Events, which are never worth a crash's attention."""
    return entry.writes and entry.plural != "events"


def build_plan(seed: int) -> Plan:
    """The same seed, the same plan."""
    chance = random.Random(f"plan {seed}")  # noqa: S311 - a simulation, nothing secret
    rare = [
        Stroke("killed", "between the claim of a decision and its write", lambda entry: is_step(entry, "Applying"), "done"),
        Stroke("killed", "before a write to a Deployment", does("apply deployments"), "lost"),
        Stroke("killed", "while a write to a Deployment is under way", does("apply deployments"), "late", skip=1),
        Stroke("killed", "after a write to a Deployment", does("apply deployments"), "done", skip=1),
        Stroke("killed", "during a rollout", lambda entry: is_step(entry, "RollingOut"), chance.choice(("lost", "done"))),
        Stroke("killed", "while probing", lambda entry: creates_job(entry, "probe"), chance.choice(("lost", "done")), skip=chance.randint(0, 2)),
        Stroke("killed", "while profiling", lambda entry: creates_job(entry, "profile"), chance.choice(("lost", "done")), skip=chance.randint(0, 2)),
        Stroke("killed", "while validating", lambda entry: creates_job(entry, "bench"), chance.choice(("lost", "late", "done")), skip=chance.randint(0, 4)),
    ]
    strokes = [_draw_kill(chance) for _ in range(KILLS)]
    longer = [("frozen", FREEZE_SECONDS)] * FREEZES + [("cut off", OUTAGE_SECONDS)] * OUTAGES
    for sort, seconds in longer:
        stroke = Stroke(sort, "at a write", is_write, chance.choice(("lost", "done")), chance.randint(*WRITES_BETWEEN), chance.uniform(*seconds))
        strokes.insert(chance.randrange(len(strokes)), stroke)
    return Plan(tuple(rare), tuple(strokes), tuple(_draw_faults(chance)))


def _draw_kill(chance: random.Random) -> Stroke:
    moment: Moment = chance.choice(("lost", "late", "done", "done"))
    if chance.random() < 0.15:
        return Stroke("killed", "while it starts", lambda entry: entry.verb == "list", moment, chance.randint(0, 8))
    return Stroke("killed", "at a write", is_write, moment, chance.randint(*WRITES_BETWEEN))


_WRITE_TARGETS = (
    "patch modeladaptations/status",
    "patch modeladaptations/status",
    "create jobs",
    "create jobs",
    "apply nodes",
    "create nodeportraits",
    "patch nodeportraits/status",
    "patch acceleratorpools/status",
)
_READ_TARGETS = (
    "get deployments",
    "get configmaps",
    "get nodes",
    "get jobs",
    "list nodes",
    "list pods",
    "list jobs",
    "watch pods",
    "watch jobs",
    "log pods/log",
)
_STATUSES = (401, 403, 409, 429, 500, 503)


def _draw_faults(chance: random.Random) -> list[Fault]:
    """Each sort at least once, the rest by chance."""
    sure = [
        *(_refusal(chance, status, "after", chance.choice(_WRITE_TARGETS)) for status in _STATUSES),
        *(_refusal(chance, status, "before", chance.choice(_WRITE_TARGETS)) for status in _STATUSES),
        *(_refusal(chance, status, chance.choice(("before", "after")), "apply deployments") for status in chance.sample(_STATUSES, 2)),
        *(_refusal(chance, status, "before", chance.choice(_READ_TARGETS)) for status in (401, 403, 429, 503)),
        _refusal(chance, 403, "before", "get configmaps"),
        Fault("410, continue token expired", lambda entry: entry.verb == "list" and "continue" in entry.query, "answer", status=410, skip=chance.randint(0, 5)),
        Fault(
            "410, continue token expired", lambda entry: entry.verb == "list" and "continue" in entry.query, "answer", status=410, skip=chance.randint(5, 20)
        ),
        Fault("ERROR event 410", _watches(chance), "error", status=410),
        Fault("ERROR event 500", _watches(chance), "error", status=500, skip=12),
    ]
    others = [_draw_accident(chance) for _ in range(FAULTS - len(sure))]
    faults = [*sure, *others]
    chance.shuffle(faults)
    return faults


def _refusal(chance: random.Random, status: int, when: Literal["before", "after"], target: str) -> Fault:
    when = "before" if target.startswith("watch") else when
    return Fault(f"{status} {when} it took effect", does(target), "answer", when=when, status=status, skip=chance.randint(0, 2))


def _draw_accident(chance: random.Random) -> Fault:
    """The network's share."""
    match chance.choice(("cut", "drop", "drop", "delay", "delay")):
        case "cut":
            return Fault("watch cut", _watches(chance), "cut", seconds=chance.uniform(0.1, 2.0))
        case "drop":
            when: Literal["before", "after"] = chance.choice(("before", "after"))
            return Fault(f"connection lost {when} it took effect", does(chance.choice(_WRITE_TARGETS)), "drop", when=when, skip=chance.randint(0, 2))
        case _:
            when = chance.choice(("before", "after"))
            return Fault(
                f"delayed {when} it took effect", does(chance.choice(_WRITE_TARGETS + _READ_TARGETS[:7])), "pass", when=when, seconds=chance.uniform(0.5, 2.0)
            )


def _watches(chance: random.Random) -> Fits:
    return does(f"watch {chance.choice(('pods', 'jobs', 'nodes', 'deployments', 'modeladaptations', 'acceleratorpools', 'nodeportraits'))}")
