"""What a trial needs and what has become of it, read fresh: Services and disruption budgets around the target, our own Deployment, its pods.

Asked only where a trial is wanted or was made. What may not be read (Forbidden) becomes a fact.
"""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import ValidationError

from metainfer.api.v1alpha1.common import CANARY_LABEL, LabelSelector
from metainfer.decide.facts import AdaptationFacts, CanaryFacts, CanarySurroundings, PodFacts, TargetFacts
from metainfer.kube.errors import Forbidden
from metainfer.kube.kinds import DEPLOYMENT, DISRUPTION_BUDGET, POD, SERVICE, Kind
from metainfer.observe.pods import project_pod
from metainfer.observe.projections import project_target


class CanaryReader(Protocol):
    """Lists in one namespace; ``KubeClient`` has it. Raises ApiError."""

    async def list(self, kind: Kind, *, namespace: str | None = None, label_selector: str = "") -> tuple[list[dict[str, Any]], str]:
        """Objects with these labels, and the version of the list."""
        ...


def is_asked(adaptation: AdaptationFacts) -> bool:
    """Whether anything about a trial matters now: one is wanted for a decision, or there may be one to take away."""
    wanted = adaptation.spec.rollout.canary is not None and adaptation.status.recommendation is not None
    return wanted or adaptation.status.canary is not None


async def read_canary(adaptation: AdaptationFacts, reader: CanaryReader) -> CanaryFacts:
    """The trial of an adaptation. Raises ApiError."""
    mine, namespace = f"{CANARY_LABEL}={adaptation.uid}", adaptation.namespace
    around = await _read_around(namespace, reader) if adaptation.spec.rollout.canary is not None else CanarySurroundings()
    found, _ = await reader.list(DEPLOYMENT, namespace=namespace, label_selector=mine)
    if not found:
        return CanaryFacts(around)
    pods, _ = await reader.list(POD, namespace=namespace, label_selector=mine)
    deployment = project_target(found[0])
    return CanaryFacts(around, deployment, tuple(pod for raw in pods if _is_of(pod := project_pod(raw), deployment)))


async def _read_around(namespace: str, reader: CanaryReader) -> CanarySurroundings:
    try:
        services, _ = await reader.list(SERVICE, namespace=namespace)
        budgets, _ = await reader.list(DISRUPTION_BUDGET, namespace=namespace)
    except Forbidden as error:
        return CanarySurroundings(unread=error.message)
    return CanarySurroundings(
        services={item["metadata"]["name"]: (item.get("spec") or {}).get("selector") or {} for item in services},
        budgets={item["metadata"]["name"]: _read_selector(item) for item in budgets},
    )


def _read_selector(budget: dict[str, Any]) -> LabelSelector | None:
    """None = one that cannot be read: it may count anything."""
    try:
        return LabelSelector.model_validate((budget.get("spec") or {}).get("selector") or {})
    except ValidationError:
        return None


def _is_of(pod: PodFacts, deployment: TargetFacts) -> bool:
    return pod.owner.startswith(f"ReplicaSet/{deployment.name}-") and pod.phase not in ("Succeeded", "Failed")
