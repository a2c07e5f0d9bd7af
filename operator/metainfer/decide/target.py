"""Is there a target that we can work on, and which of its containers serves the model? Pure.

Each rule looks for one obstacle. A problem that blocks everything is reported before one that blocks less, wherever it
stands in the chain: nothing can be recommended for a container that nobody can name. Among equals the first one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.facts import AdaptationFacts, AdaptationSnapshot, ContainerFacts, PodTemplateFacts
from metainfer.decide.leaving import Claim, awaits_restoring
from metainfer.decide.room import cards_requested

Blocks = Literal["everything", "benchmarks", "writing"]
SEVERITY: Final[tuple[Blocks, ...]] = ("everything", "benchmarks", "writing")
"""What is blocked, the most first: without benchmarks there is no decision, hence nothing to write either."""


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """Why the target cannot be adapted, or not completely: what it blocks stays undone until somebody changes something."""

    reason: str
    message: str
    blocks: Blocks


def check_target(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    """The problem to report: the first of those that block most."""
    problems = find_target_problems(snapshot)
    return min(problems, key=lambda problem: SEVERITY.index(problem.blocks), default=None)


def find_target_problems(snapshot: AdaptationSnapshot) -> tuple[TargetProblem, ...]:
    """All problems, in the order of the chain."""
    return tuple(problem for rule in CHAIN if (problem := rule(snapshot)) is not None)


def find_container(template: PodTemplateFacts, name: str | None) -> ContainerFacts | None:
    """The container that serves: the one named, or the only one. None when that cannot be told.

    A restartable init container (native sidecar) counts only when it is named; one that ends before the server starts never does.
    """
    if name is None:
        ordinary = [container for container in template.containers if not container.init]
        return ordinary[0] if len(ordinary) == 1 else None
    return next((container for container in serving_containers(template) if container.name == name), None)


def serving_containers(template: PodTemplateFacts) -> tuple[ContainerFacts, ...]:
    """Containers that run as long as the pod does."""
    return tuple(container for container in template.containers if not container.init or container.restartable)


def _find_missing(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    if snapshot.target is not None:
        return None
    place = f"{snapshot.adaptation.spec.target_ref.name} in namespace {snapshot.adaptation.namespace}"
    unread = snapshot.unread.get(f"Deployment {snapshot.adaptation.spec.target_ref.name}")
    if unread is not None:
        return TargetProblem("TargetUnreadable", f"Deployment {place} could not be read: {unread}", "everything")
    return TargetProblem(reasons.TARGET_NOT_FOUND, f"there is no Deployment {place}: create it, or correct targetRef.name", "everything")


def _find_elder(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    mine = snapshot.adaptation
    elders = [peer for peer in snapshot.peers if _wants_same(peer, mine) and (peer.created_at, peer.name) < (mine.created_at, mine.name)]
    if not elders:
        return None
    elder = min(elders, key=lambda peer: (peer.created_at, peer.name))
    name = mine.spec.target_ref.name
    message = f"the older ModelAdaptation {elder.name} already adapts Deployment {name}: delete one of the two, or give this one another target"
    return TargetProblem(reasons.TARGET_TAKEN, message, "everything")


def _wants_same(peer: AdaptationFacts, mine: AdaptationFacts) -> bool:
    same = (peer.namespace, peer.spec.target_ref.name) == (mine.namespace, mine.spec.target_ref.name)
    return same and peer.uid != mine.uid and not peer.deleting


def _find_predecessor(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    """What a deleted adaptation has left is taken off first: until then the pods do not run what the owner declares."""
    target, living = snapshot.target, (snapshot.adaptation, *snapshot.peers)
    claims = [Claim(item.uid, item.spec.target_ref.name) for item in living if not item.deleting]
    if target is None or not awaits_restoring(target, claims):
        return None
    message = f"Deployment {target.name} still carries what a deleted or redirected ModelAdaptation has written; it is given back first"
    return TargetProblem(reasons.TARGET_NOT_RESTORED, message, "everything")


def _find_controller(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    target = snapshot.target
    if target is None or target.controller is None:
        return None
    message = f"Deployment {target.name} belongs to {target.controller}, which writes all of it: put the recommendation there"
    return TargetProblem(reasons.UNSUPPORTED_TARGET, message, "writing")


def _find_ambiguity(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    target = snapshot.target
    if target is None or snapshot.adaptation.spec.target_ref.container is not None or find_container(target.template, None) is not None:
        return None
    names = _names(serving_containers(target.template))
    message = f"Deployment {target.name} has the containers {names}: name the one that serves the model in targetRef.container"
    return TargetProblem(reasons.CONTAINER_AMBIGUOUS, message, "everything")


def _find_missing_container(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    target, name = snapshot.target, snapshot.adaptation.spec.target_ref.container
    if target is None or name is None or find_container(target.template, name) is not None:
        return None
    names = _names(serving_containers(target.template))
    ends = any(container.name == name for container in target.template.containers)
    problem = f"{name} is an init container that ends before the server starts" if ends else f"there is no container {name}"
    return TargetProblem(reasons.CONTAINER_NOT_FOUND, f"{problem} in Deployment {target.name}; it has {names}", "everything")


def _names(containers: Sequence[ContainerFacts]) -> str:
    return ", ".join(container.name for container in containers) or "none that serves"


def _find_several_cards(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    if snapshot.target is None:
        return None
    kinds = {family.resource for pool in snapshot.pools for family in pool.spec.families}
    asked = {name: count for name, count in sorted(cards_requested(snapshot.target.template).items()) if name in kinds and count}
    if sum(asked.values()) <= 1:
        return None
    words = " and ".join(f"{count} {name}" for name, count in asked.items())
    message = f"a pod of Deployment {snapshot.target.name} asks for {words}; only one card per pod is supported"
    return TargetProblem(reasons.MULTI_CARD_UNSUPPORTED, message, "everything")


def _find_pause(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    if snapshot.target is None or not snapshot.target.paused:
        return None
    name = snapshot.target.name
    message = f"Deployment {name} is paused, so nothing would roll out: kubectl rollout resume deployment {name}"
    return TargetProblem(reasons.TARGET_PAUSED, message, "writing")


def _find_no_replicas(snapshot: AdaptationSnapshot) -> TargetProblem | None:
    if snapshot.target is None or snapshot.target.replicas > 0:
        return None
    message = f"Deployment {snapshot.target.name} has 0 replicas: nothing is benchmarked or written until it is scaled up"
    return TargetProblem(reasons.TARGET_SCALED_TO_ZERO, message, "benchmarks")


CHAIN: Final[tuple[Callable[[AdaptationSnapshot], TargetProblem | None], ...]] = (
    _find_missing,
    _find_elder,
    _find_predecessor,
    _find_controller,
    _find_ambiguity,
    _find_missing_container,
    _find_several_cards,
    _find_pause,
    _find_no_replicas,
)
