"""What the Deployment had where we write, kept with it so that restoring can be checked. Pure.

Only what server-side apply cannot give back by itself needs more than "nothing": an empty ``affinity: {}`` of the owner
disappears together with our part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from metainfer.api.v1alpha1.common import PREIMAGE_ANNOTATION
from metainfer.decide.facts import TargetFacts
from metainfer.decide.ownership import NODE_AFFINITY, Path, readable

DeletionPolicy = Literal["Restore", "Retain"]
AFFINITY: Path = NODE_AFFINITY[:-1]


@dataclass(frozen=True, slots=True)
class PreImage:
    """Values at the touched paths before our first write; None = nothing was there."""

    adaptation_uid: str
    deletion_policy: DeletionPolicy
    before: Mapping[str, Any]


def build_pre_image(target: TargetFacts, touched: tuple[str, ...], *, adaptation_uid: str, deletion_policy: DeletionPolicy) -> PreImage:
    """The pre-image for what is touched now. Paths that an earlier pre-image knows keep their older value: the live one may be ours."""
    earlier = read_pre_image(target.annotations)
    before: dict[str, Any] = dict.fromkeys(touched)
    before |= _empty_parents(target) if earlier is None else {path: value for path, value in earlier.before.items() if path in touched or value == {}}
    return PreImage(adaptation_uid, deletion_policy, before)


def read_pre_image(annotations: Mapping[str, str]) -> PreImage | None:
    """The one that a Deployment with these annotations carries; None when there is none, or nothing that we wrote."""
    try:
        document = json.loads(annotations[PREIMAGE_ANNOTATION])
        policy: DeletionPolicy = "Retain" if document["deletionPolicy"] == "Retain" else "Restore"
        return PreImage(str(document["adaptation"]), policy, dict(document["before"]))
    except (KeyError, TypeError, ValueError):
        return None


def encode_pre_image(pre_image: PreImage) -> str:
    """Compact JSON with sorted keys: equal pre-images are equal text, so that applying twice changes nothing."""
    document = {"adaptation": pre_image.adaptation_uid, "deletionPolicy": pre_image.deletion_policy, "before": pre_image.before}
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _empty_parents(target: TargetFacts) -> Mapping[str, Any]:
    affinity = _at(_at(_at(target.raw, "spec"), "template"), "spec").get("affinity")
    if affinity == {}:
        return {readable(AFFINITY): {}}
    return {readable(NODE_AFFINITY): {}} if affinity and affinity.get("nodeAffinity") == {} else {}


def _at(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return value.get(key) or {}
