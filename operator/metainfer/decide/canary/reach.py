"""Can pods of ours stand behind the target's Service without being counted as the target's? The labels that do it, or why not. Pure.

They carry every label that a Service of the target selects on, and lack at least one that the Deployment selects on: then its ReplicaSets
leave them alone, and an autoscaler, which counts by the Deployment's selector, does not see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from metainfer.api.v1alpha1.common import CANARY_LABEL, LabelSelector
from metainfer.decide.facts import CanarySurroundings, Labels, TargetFacts
from metainfer.decide.families import Exclusion, selector_matches

TRACKING: Final = ("app.kubernetes.io/instance", "argocd.argoproj.io/instance", "helm.sh/chart", "app.kubernetes.io/managed-by")
"""Labels by which Argo CD and Helm know what is theirs; kept only where a Service needs them, on pods, and never on the Deployment."""


def find_labels(target: TargetFacts, around: CanarySurroundings, adaptation_uid: str) -> Labels | Exclusion:
    """Labels for the pods on trial."""
    if around.unread:
        return Exclusion("CanaryForbidden", f"{around.unread}; see rbac.canary.enabled of the chart")
    services = {name: labels for name, labels in around.services.items() if labels and labels.items() <= target.template.labels.items()}
    if not services:
        return Exclusion("CanaryNoService", f"no Service of namespace {target.namespace} selects the pods of Deployment {target.name}")
    selector = _read_selector(target)
    if selector is None:
        return Exclusion("CanaryNotSeparable", f"the selector of Deployment {target.name} cannot be read")
    needed = {key for labels in services.values() for key in labels}
    chosen = {*selector.match_labels, *(item.key for item in selector.match_expressions)} - needed
    labels = {key: value for key, value in target.template.labels.items() if key not in chosen and (key in needed or key not in TRACKING)}
    labels[CANARY_LABEL] = adaptation_uid
    if selector_matches(selector, labels):
        names = ", ".join(sorted(services))
        words = f"Service {names} selects on every label that Deployment {target.name} selects on: whatever it reaches would count as the Deployment's own"
        return Exclusion("CanaryNotSeparable", words)
    return _find_budget(target, around, labels) or labels


def _find_budget(target: TargetFacts, around: CanarySurroundings, labels: Labels) -> Exclusion | None:
    for name, selector in sorted(around.budgets.items()):
        if selector is None or (selector_matches(selector, labels) and selector_matches(selector, target.template.labels)):
            return Exclusion("CanaryCounted", f"PodDisruptionBudget {name} would count the pods on trial as the target's")
    return None


def _read_selector(target: TargetFacts) -> LabelSelector | None:
    raw = target.raw.get("spec") if isinstance(target.raw, Mapping) else None
    try:
        return LabelSelector.model_validate((raw or {}).get("selector") or {"matchLabels": dict(target.match_labels)})
    except ValidationError:
        return None
