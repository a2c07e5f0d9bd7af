"""A Deployment of our own for a decision on trial: the target's pods as the decision would make them, under labels of our choice.

Owned by the ModelAdaptation, so that Kubernetes collects it with it. What the decision makes of the target is the API server's own answer to a
dry run, so that what is tried is what would be written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.target import preview_target
from metainfer.api.v1alpha1.common import CANARY_LABEL, DECISION_ANNOTATION
from metainfer.decide.plan import CreateCanary, DeleteCanary
from metainfer.kube.errors import AlreadyExists
from metainfer.kube.kinds import DEPLOYMENT

FOREIGN_ANNOTATIONS: Final = ("argocd.argoproj.io/", "meta.helm.sh/", "helm.sh/", "kubectl.kubernetes.io/")
"""By which other tools know what is theirs."""
COPIED: Final = ("minReadySeconds", "progressDeadlineSeconds")
"""What the owner says about how long a start may take."""


async def create_canary(client: ClusterWriter, action: CreateCanary) -> Raw | None:
    """Create it; None = it is there. Raises FieldConflict where the decision could not be written, Conflict where the target has changed."""
    preview = await preview_target(client, action.apply)
    try:
        return await client.create(DEPLOYMENT, build_canary(preview, action))
    except AlreadyExists:
        return None


async def delete_canary(client: ClusterWriter, action: DeleteCanary) -> None:
    """Delete it, if it is still the one that was looked at."""
    await client.delete(DEPLOYMENT, action.name, action.namespace, uid=action.uid)


def build_canary(preview: Mapping[str, Any], action: CreateCanary) -> dict[str, Any]:
    """The manifest. Nothing on the object itself tells other tools that it is theirs. Pure."""
    wanted = preview["spec"]
    template = copy.deepcopy(dict(wanted["template"]))
    annotations = {key: value for key, value in (template["metadata"].get("annotations") or {}).items() if not key.startswith(FOREIGN_ANNOTATIONS)}
    template["metadata"] = {"labels": dict(action.labels), "annotations": annotations}
    mark = {CANARY_LABEL: action.labels[CANARY_LABEL]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": action.name,
            "namespace": action.apply.namespace,
            "labels": mark,
            "annotations": {DECISION_ANNOTATION: action.apply.decision_id},
            "ownerReferences": [dict(action.owner) | {"controller": True, "blockOwnerDeletion": False}],
        },
        "spec": {
            "replicas": action.replicas,
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": mark},
            "template": template,
            **{key: wanted[key] for key in COPIED if key in wanted},
        },
    }
