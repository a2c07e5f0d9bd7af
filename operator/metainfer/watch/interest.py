"""Which of other people's objects are worth keeping. Pure bookkeeping on raw objects, before anything is projected.

Selectors of a watch cannot be OR-ed, so one watch brings every Pod and every Deployment of the cluster; of 50,000 pods
a few hundred matter, and the others must cost neither memory nor a projection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from metainfer.api.v1alpha1.common import CANARY_LABEL, DECISION_ANNOTATION, PREIMAGE_ANNOTATION
from metainfer.decide.facts import Labels
from metainfer.decide.names import PURPOSE_LABEL
from metainfer.decide.ownership import is_ours, read_managed
from metainfer.kube.kinds import DEPLOYMENT, POD, Kind
from metainfer.observe.quantities import is_extended_resource
from metainfer.watch.cache import Name

Raw = Mapping[str, Any]
Gap = tuple[Kind, str]
"""(kind, namespace)."""


class Interest:
    """Targets that adaptations name, and the pods that belong to them.

    ``gaps``: objects of that kind in that namespace may have been dropped before they mattered. Each has a number that
    rises, so that a list which started before the gap opened does not close it.
    """

    def __init__(self) -> None:
        self._targets: dict[Name, set[Name]] = {}  # Deployment -> the adaptations that name it
        self._target_of: dict[Name, Name] = {}  # adaptation -> its Deployment
        self._selectors: dict[str, dict[str, Labels]] = {}  # namespace -> Deployment -> labels of its pods
        self.gaps: dict[Gap, int] = {}
        self._opened = 0
        self._fresh: list[Gap] = []

    def aim(self, adaptation: Name, target: Name | None) -> None:
        """The adaptation names this Deployment now (None = it is gone)."""
        old = self._target_of.pop(adaptation, None)
        if old is not None:
            self._targets[old].discard(adaptation)
            if not self._targets[old]:
                del self._targets[old]
        if target is None:
            return
        self._target_of[adaptation] = target
        if target not in self._targets and target != old:
            self._open(DEPLOYMENT, target[0])
        self._targets.setdefault(target, set()).add(adaptation)

    def select(self, deployment: Name, labels: Labels | None) -> None:
        """Pods with these labels belong to the Deployment (None = it is not kept)."""
        namespace, name = deployment
        here = self._selectors.setdefault(namespace, {})
        old = here.pop(name, None)
        if labels:
            here[name] = labels
        if not here:
            del self._selectors[namespace]
        if labels and labels != old:
            self._open(POD, namespace)

    def _open(self, kind: Kind, namespace: str) -> None:
        self._opened += 1
        self.gaps[kind, namespace] = self._opened
        self._fresh.append((kind, namespace))

    def take_fresh_gaps(self) -> list[Gap]:
        """Gaps that opened since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def gaps_in(self, kind: Kind, namespace: str | None) -> Mapping[Gap, int]:
        """Open gaps of the kind, in one namespace or anywhere."""
        return {gap: number for gap, number in self.gaps.items() if gap[0] == kind and namespace in (None, gap[1])}

    def close_gaps(self, seen: Mapping[Gap, int]) -> None:
        """What was in these gaps has been listed since; one that opened anew meanwhile stays."""
        for gap, number in seen.items():
            if self.gaps.get(gap) == number:
                del self.gaps[gap]

    def adaptations_of(self, deployment: Name) -> frozenset[Name]:
        """Who names the Deployment."""
        return frozenset(self._targets.get(deployment, ()))

    def deployments_of(self, namespace: str, labels: Labels) -> Iterator[Name]:
        """Kept Deployments that a pod with these labels belongs to."""
        for name, wanted in self._selectors.get(namespace, {}).items():
            if all(labels.get(key) == value for key, value in wanted.items()):
                yield namespace, name

    def wants_deployment(self, raw: Raw) -> bool:
        """A target, or one that we wrote to and may have to restore."""
        metadata = raw["metadata"]
        if (metadata.get("namespace", ""), metadata["name"]) in self._targets:
            return True
        if CANARY_LABEL in (metadata.get("labels") or ()):
            return False
        template = ((raw.get("spec") or {}).get("template") or {}).get("metadata") or {}
        marked = PREIMAGE_ANNOTATION in (metadata.get("annotations") or ()) or DECISION_ANNOTATION in (template.get("annotations") or ())
        return marked or any(map(is_ours, read_managed(raw)))

    def wants_pod(self, raw: Raw) -> bool:
        """A pod of ours; or one that is not over, and belongs to a target or has or wants a card.

        Pods that are over hold nothing and serve nobody, and one broken card leaves thousands of them.
        """
        metadata = raw["metadata"]
        labels = metadata.get("labels") or {}
        if PURPOSE_LABEL in labels:
            return True
        if (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return False
        return next(self.deployments_of(metadata.get("namespace", ""), labels), None) is not None or any(map(is_extended_resource, _resource_names(raw)))


def _resource_names(pod: Raw) -> Iterable[str]:
    spec = pod.get("spec") or {}
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container.get("resources")
            if resources:
                yield from resources.get("limits") or ()
                yield from resources.get("requests") or ()
