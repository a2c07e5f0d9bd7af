"""What a decision depends on, as one hash: another hash is the trigger SpecChanged, the same hash is the same run. Pure.

What we write ourselves must never be in it, or every placement would trigger the next adaptation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from metainfer.api.v1alpha1.model_adaptation import RunStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.declared import affinity_declarations, find_declaration
from metainfer.decide.facts import AdaptationSnapshot
from metainfer.decide.names import canonical_json, short_hash
from metainfer.decide.room import cards_requested
from metainfer.decide.scene import Scene


def inputs_hash(snapshot: AdaptationSnapshot, scene: Scene) -> str:
    """Hash over the adaptation's spec, the owner's part of the target and the families on offer.

    Left out on purpose: ``suspend`` and ``updatePolicy`` (they say when to write, not what is right), replicas (autoscalers move them),
    node counts and portraits (their changes are triggers of their own).
    """
    spec = snapshot.adaptation.spec.model_dump(mode="json", exclude={"suspend", "update_policy"})
    families = [
        {"pool": pool.name, **family.model_dump(mode="json", exclude={"hourly_cost_micros", "driver_version_labels"})}
        for pool in scene.pools
        for family in pool.spec.families
    ]
    return short_hash(canonical_json({"spec": spec, "target": _owner_part(snapshot, scene), "families": families}), length=32)


def _owner_part(snapshot: AdaptationSnapshot, scene: Scene) -> Mapping[str, Any]:
    target, template = scene.target, scene.target.template
    owned_by_owner = affinity_declarations(target).required is not None
    return {
        "uid": target.uid,
        "container": _serving(snapshot, scene),
        "cards": dict(cards_requested(template)),
        "nodeSelector": dict(template.node_selector),
        "nodeName": template.node_name,
        "tolerations": [str(item) for item in template.tolerations],
        "required": str(template.required_terms) if owned_by_owner else None,
        "runtimeClass": template.runtime_class,
        "claims": list(template.claims),
        "onePerHost": template.one_per_host,
    }


def _serving(snapshot: AdaptationSnapshot, scene: Scene) -> Mapping[str, Any]:
    """What of the serving container moves its speed, and the settings that the owner declares.

    Other environment variables and other containers are left out: a deploy that only moves a sidecar or a build number is no reason
    to measure a whole fleet anew.
    """
    container, names = scene.container, scene.mapping.names.values() if scene.mapping is not None else ()
    declared = {name: find_declaration(scene.target, container, name, snapshot.config_maps) for name in names}
    return {
        "name": container.name,
        "image": container.image,
        "declared": {name: item.value for name, item in declared.items() if item is not None},
        "command": [*container.command, "--", *container.args],
        "requests": dict(container.requests),
        "limits": dict(container.limits),
    }


def start_run(snapshot: AdaptationSnapshot, digest: str, now: datetime) -> RunStatus:
    """A new run; its id holds the start, so that a repeated run never takes an old one's measurements for its own."""
    started = format_time(now)
    return RunStatus(id=short_hash(snapshot.adaptation.uid, digest, started), inputs_hash=digest, started_at=started, step="Profiling")


def decision_id(run_id: str, candidate_key: str) -> str:
    """Id of 'this run chose this candidate': the same after a restart."""
    return short_hash(run_id, candidate_key, length=12)
