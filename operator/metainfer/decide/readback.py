"""Does what was decided really run? Read from the Deployment's status and its pods, after the rollout. Pure.

Judged are pods of the decision only (their template carries its id), and only when the rollout is over. How long a server may
take to start is what its owner declares: the Deployment's progress deadline, and its probes where they allow more than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.decide.environment import escape
from metainfer.decide.facts import PodFacts, TargetFacts
from metainfer.decide.startup import is_starting, rollout_seconds

DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
HARMLESS_WAITS: Final = ("ContainerCreating", "PodInitializing")
CRASH_LOOP: Final = "CrashLoopBackOff"
CRASHES: Final = 3
"""The kubelet waits 10, 20, 40 s between starts: what ends a server the third time is no chance, and no slow start either."""
WORDS_LIMIT: Final = 300
"""Characters of other people's messages that are passed on."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What is running, against what was decided."""

    rolled_out: bool
    """All replicas are of the newest template and available."""
    effective: bool
    """Rolled out, and every ready pod of the decision runs where and how it was decided."""
    differs: tuple[str, ...]
    nodes: tuple[str, ...]
    """Where ready pods of the decision run."""
    stuck: str
    """Why the rollout does not come to its end, once it should have; else empty."""
    waiting: str = ""
    """What holds the rollout up at the moment, while there is still time."""
    other_values: tuple[str, ...] = ()
    """The part of ``differs`` that no label and no move of a pod explains: settings that did not reach the server."""
    crashing: str = ""
    """What ends the pods of the decision again and again, while none of them serves; else empty."""
    troubled_nodes: tuple[str, ...] = ()
    """Where pods of the decision are that do not serve."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What was decided, as the pods must show it."""

    decision_id: str
    want_env: Mapping[str, str]
    """The variables that were written (``PlacementPlan.env``)."""
    container: str
    family_nodes: Collection[str]


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is looked at."""

    now: datetime
    since: datetime | None = None
    """When the rollout could begin; None = long ago."""
    settled: bool = False
    """The decision was seen to run before: replicas that come and go since are an autoscaler's, not a rollout."""


def read_back(target: TargetFacts, pods: Sequence[PodFacts], expected: Expected, moment: Moment) -> ReadBack:
    """Compare the pods of the decision with the decision."""
    ours = [pod for pod in pods if _counts(pod) and pod.annotations.get(DECISION_ANNOTATION) == expected.decision_id]
    ready = [pod for pod in ours if pod.ready]
    lost = target.template.annotations.get(DECISION_ANNOTATION) != expected.decision_id
    differs = [f"the pod template does not carry decision {expected.decision_id}"] if lost else []
    differs += [words for pod in ready for words in _misplaced(pod, expected.family_nodes)]
    others = [words for pod in ready for words in _other_values(pod, expected.container, expected.want_env)]
    rolled_out = not lost and (is_rolled_out(target) or (moment.settled and has_one_template(target)))
    trouble = _find_trouble(ours)
    cause = trouble if rolled_out else trouble or target.progressing_message[:WORDS_LIMIT]
    late = not rolled_out and _is_late(target, ours, moment, trouble)
    return ReadBack(
        rolled_out=rolled_out,
        effective=rolled_out and bool(ready) and not differs and not others,
        differs=tuple(dict.fromkeys((*differs, *others))),
        nodes=tuple(sorted({pod.node for pod in ready if pod.node})),
        stuck=cause if late else "",
        waiting="" if late else cause,
        other_values=tuple(dict.fromkeys(others)),
        crashing="" if ready else next((words for pod in ours if (words := _crash(pod))), ""),
        troubled_nodes=tuple(sorted({pod.node for pod in ours if pod.node and not pod.ready})),
    )


def _is_late(target: TargetFacts, pods: Sequence[PodFacts], moment: Moment, trouble: str) -> bool:
    """Whether the Deployment controller gave up, and the pods have had the time that their probes allow them.

    The verdict may also be an old one: it outlives a pause, and a pod that starts slowly is not stuck.
    """
    if target.progressing_reason != DEADLINE_EXCEEDED or target.observed_generation < target.generation:
        return False
    if trouble:
        return True
    if moment.since is not None and (moment.now - moment.since).total_seconds() < rollout_seconds(target):
        return False
    return not any(is_starting(target, pod, moment.now) for pod in pods if not pod.ready)


def is_rolled_out(target: TargetFacts) -> bool:
    """The rule of ``kubectl rollout status``: the controller has seen the newest template, and all pods are of it and available."""
    seen = target.observed_generation >= target.generation
    return seen and target.updated_replicas >= target.replicas and target.status_replicas <= target.updated_replicas <= target.available_replicas


def has_one_template(target: TargetFacts) -> bool:
    """Whether every pod there is has the newest template, however many there are to be."""
    return target.observed_generation >= target.generation and target.status_replicas == target.updated_replicas


def _counts(pod: PodFacts) -> bool:
    return not pod.deleting and pod.phase not in ("Failed", "Succeeded")


def _misplaced(pod: PodFacts, family_nodes: Collection[str]) -> Iterator[str]:
    if pod.node is not None and pod.node not in family_nodes:
        yield f"pod {pod.name} runs on node {pod.node}, outside the family that was decided"


def _other_values(pod: PodFacts, container: str, want_env: Mapping[str, str]) -> Iterator[str]:
    found = next((item for item in pod.containers if item.name == container), None)
    if found is None:
        yield f"pod {pod.name} has no container {container}"
        return
    have = {entry.name: entry.value if entry.source is None else f"({entry.source})" for entry in found.env}
    for name, value in want_env.items():
        if name not in have:
            yield f"{name} is not set in pod {pod.name}, decided {value}"
        elif have[name] != escape(value):
            yield f"{name} is {have[name] or 'empty'} in pod {pod.name}, decided {value}"


def _find_trouble(pods: Sequence[PodFacts]) -> str:
    """What keeps pods of the decision from running, in the kubelet's or the scheduler's words."""
    words = [text for pod in pods if not pod.ready for text in (_container_trouble(pod), _no_node(pod)) if text]
    return words[0] if words else ""


def _container_trouble(pod: PodFacts) -> str:
    for state in pod.states:
        if state.waiting_reason and state.waiting_reason not in HARMLESS_WAITS:
            ended = f"; it ended with exit code {state.exit_code}" if state.exit_code is not None else ""
            return f"pod {pod.name}, container {state.name}: {state.waiting_reason}: {state.waiting_message[:WORDS_LIMIT]}{ended}"
    return ""


def _crash(pod: PodFacts) -> str:
    looping = any(state.waiting_reason == CRASH_LOOP and state.restarts >= CRASHES for state in pod.states)
    return _container_trouble(pod) if looping else ""


def _no_node(pod: PodFacts) -> str:
    return f"pod {pod.name} has no node: {pod.unschedulable[:WORDS_LIMIT]}" if pod.unschedulable else ""
