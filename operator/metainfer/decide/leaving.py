"""What becomes of a Deployment that we wrote to, once nobody wants it any more. Pure; needs no finalizer.

A Deployment carries the UID of the adaptation that it was written for. When no living adaptation of that UID names it any more
(deleted, also while the operator was down; aimed at another Deployment), it is left: restored, or kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metainfer.api.v1alpha1.common import CANARY_LABEL, DECISION_ANNOTATION, PREIMAGE_ANNOTATION
from metainfer.decide.facts import TargetFacts
from metainfer.decide.ownership import find_fields, is_ours, value_at
from metainfer.decide.plan import Action, ApplyTarget, RestoreTarget
from metainfer.decide.pre_image import DeletionPolicy, PreImage, encode_pre_image, read_pre_image


@dataclass(frozen=True, slots=True)
class Claim:
    """A living adaptation's claim on a Deployment of its namespace; read leniently, an adaptation that we cannot read lives too."""

    adaptation_uid: str
    target: str
    deletion_policy: DeletionPolicy = "Restore"


@dataclass(frozen=True, slots=True)
class LeavingSnapshot:
    """A Deployment that may carry fields of ours, and all claims of its namespace."""

    target: TargetFacts
    claims: tuple[Claim, ...]


def is_marked(target: TargetFacts) -> bool:
    """Whether the Deployment carries our annotations, whoever owns them now, or anything of it is still recorded as ours.

    ``kubectl rollout undo`` takes fields and annotations off and leaves us on record for the container that they were in: an owner on
    server-side apply could not rename it. A Deployment of our own, on trial, is nobody's to be given back to.
    """
    if CANARY_LABEL in target.labels:
        return False
    return PREIMAGE_ANNOTATION in target.annotations or DECISION_ANNOTATION in target.template.annotations or owns_fields(target)


def owns_fields(target: TargetFacts) -> bool:
    """Whether our server-side apply still owns anything of the Deployment."""
    return any(is_ours(item) for item in target.managed)


def find_claim(target: TargetFacts, claims: Sequence[Claim]) -> Claim | None:
    """The claim for which the Deployment was written; where its pre-image is lost, any claim on it."""
    pre_image = read_pre_image(target.annotations)
    mine = (claim for claim in claims if claim.target == target.name)
    return next((claim for claim in mine if pre_image is None or claim.adaptation_uid == pre_image.adaptation_uid), None)


def decide_leaving(snapshot: LeavingSnapshot) -> tuple[Action, ...]:
    """Restore what is claimed no more; keep the policy in the pre-image equal to the adaptation's, for the time when it is gone."""
    target, pre_image = snapshot.target, read_pre_image(snapshot.target.annotations)
    if not is_marked(target):
        return ()
    claim = find_claim(target, snapshot.claims)
    if claim is not None:
        return _renew(target, pre_image, claim) if pre_image is not None and owns_fields(target) else ()
    if pre_image is not None and pre_image.deletion_policy == "Retain":
        return ()
    return (RestoreTarget(target.namespace, target.name, target.uid, target.resource_version),)


def awaits_restoring(target: TargetFacts, claims: Sequence[Claim]) -> bool:
    """Whether fields of a former adaptation are still on the Deployment and about to go: what runs now is no baseline."""
    pre_image = read_pre_image(target.annotations)
    return pre_image is not None and pre_image.deletion_policy == "Restore" and owns_fields(target) and find_claim(target, claims) is None


def _renew(target: TargetFacts, pre_image: PreImage, claim: Claim) -> tuple[Action, ...]:
    """The same fields once more with another policy in the pre-image: no rollout, as the pod template stays as it is."""
    body = _owned_body(target)
    if claim.deletion_policy == pre_image.deletion_policy or PREIMAGE_ANNOTATION not in body.get("metadata", {}).get("annotations", {}):
        return ()
    annotations = body["metadata"]["annotations"] | {PREIMAGE_ANNOTATION: encode_pre_image(replace(pre_image, deletion_policy=claim.deletion_policy))}
    decision = target.template.annotations.get(DECISION_ANNOTATION, "")
    whole = {**body, "metadata": {"annotations": annotations}}
    return (ApplyTarget(target.namespace, target.name, whole, decision, resource_version=target.resource_version),)


def _owned_body(target: TargetFacts) -> dict[str, Any]:
    """All that is ours of the Deployment, as an apply that changes nothing."""
    item = next(item for item in target.managed if is_ours(item))
    return {part: select_fields(target.raw[part], fields) for part in ("metadata", "spec") if (fields := find_fields(item, (f"f:{part}",)))}


def select_fields(raw: Any, fields: Mapping[str, Any]) -> Any:
    """The part of a value that these FieldsV1 name, in the value's own order; a leaf is taken whole."""
    below = {step: part for step, part in fields.items() if step != "."}
    if not below:
        return raw
    if isinstance(raw, Mapping):
        named = ((step.removeprefix("f:"), part) for step, part in below.items())
        return {key: select_fields(raw[key], part) for key, part in named if key in raw}
    # An apply in another order would move list items: a rollout for nothing.
    return [select_fields(item, part) for item in raw for step, part in below.items() if value_at([item], (step,)) is not None]
