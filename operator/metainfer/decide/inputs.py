"""What a decision depends on, part by part: another hash of a part is a change that has a name, the same hashes are the same run. Pure.

What we write ourselves must never be in it, or every placement would trigger the next adaptation. Neither is what cannot change the
answer: a measured fleet must not be measured anew because a sidecar moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from metainfer.api.v1alpha1.model_adaptation import InputStatus, RunStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.declared import affinity_declarations, find_declaration
from metainfer.decide.facts import AdaptationSnapshot, PoolFacts
from metainfer.decide.names import canonical_json, short_hash
from metainfer.decide.rivals import find_rivals
from metainfer.decide.room import cards_requested
from metainfer.decide.scene import Scene

POLICIES: Final = frozenset({"suspend", "update_policy", "deletion_policy", "drift", "freshness", "rollout"})
"""Fields of the spec that say when to act, not what is right. A new field is an input unless it is named here."""
PARTS_OF_THEIR_OWN: Final = frozenset({"target_ref", "model", "pool_selector"})
"""``targetRef`` and ``poolSelector`` count by what they lead to."""

NOT_OF_THE_CARD: Final = frozenset({"driver_version_labels", "firmware_version_labels", "driver_upgrade_labels", "shareable"})
"""Fields of a family that say how it is watched, not what it is."""

Inputs = Mapping[str, str]
"""Part -> hash."""


def read_inputs(snapshot: AdaptationSnapshot, scene: Scene) -> Inputs:
    """The parts. Defaults are left out of the dumps, so that a version that brings a field measures nothing anew.

    Left out on purpose: replicas (autoscalers move them), the Deployment's UID and its containers' names (the same server under
    another identity), other environment variables and containers, node counts and portraits (triggers of their own).
    """
    spec = snapshot.adaptation.spec
    parts: Mapping[str, Mapping[str, Any]] = {
        "spec": spec.model_dump(mode="json", exclude_defaults=True, exclude=set(POLICIES | PARTS_OF_THEIR_OWN)),
        "model": spec.model.model_dump(mode="json", exclude_defaults=True),
        "target": {"name": spec.target_ref.name},
        "image": {"image": scene.container.image, "command": [*scene.container.command, "--", *scene.container.args]},
        "settings": _declared_settings(snapshot, scene),
        "resources": _resources(scene),
        "restrictions": _restrictions(scene),
        "families": {"pools": [_pool_part(snapshot, pool) for pool in scene.pools]},
    }
    return {name: short_hash(canonical_json(part), length=16) for name, part in parts.items()}


def _declared_settings(snapshot: AdaptationSnapshot, scene: Scene) -> Mapping[str, Any]:
    """Settings that the owner gives, with their values."""
    names = scene.mapping.names.values() if scene.mapping is not None else ()
    declared = {name: find_declaration(scene.target, scene.container, name, snapshot.config_maps) for name in names}
    return {name: item.value for name, item in declared.items() if item is not None}


def _resources(scene: Scene) -> Mapping[str, Any]:
    container = scene.container
    return {"requests": dict(container.requests), "limits": dict(container.limits), "cards": dict(cards_requested(scene.target.template))}


def _restrictions(scene: Scene) -> Mapping[str, Any]:
    """Where the target may run by its owner's own rules."""
    target, template = scene.target, scene.target.template
    owned_by_owner = affinity_declarations(target).required is not None
    return {
        "nodeSelector": dict(template.node_selector),
        "nodeName": template.node_name,
        "tolerations": _plain(template.tolerations),
        "required": _plain(template.required_terms) if owned_by_owner else None,
        "runtimeClass": template.runtime_class,
        "claims": list(template.claims),
        "onePerHost": template.one_per_host,
        **({"spreads": _plain(template.spreads)} if template.spreads else {}),
    }


def _pool_part(snapshot: AdaptationSnapshot, pool: PoolFacts) -> Mapping[str, Any]:
    """Which cards there are and how they are told apart; prices only where they decide."""
    unpriced = set() if snapshot.adaptation.spec.objective.goal == "Cost" else {"hourly_cost_micros"}
    return {
        "pool": pool.name,
        "nodes": pool.spec.node_selector.model_dump(mode="json", exclude_defaults=True),
        "families": [family.model_dump(mode="json", exclude_defaults=True, exclude=set(NOT_OF_THE_CARD | unpriced)) for family in pool.spec.families],
        "rivals": [_plain(find_rivals(pool, family, snapshot.pools)) for family in pool.spec.families],
    }


def _plain(facts: Any) -> Any:
    """Facts for hashing: only what is set, so that a fact that a later version reads as well changes nothing where it is not given."""
    if isinstance(facts, tuple):
        return [_plain(item) for item in facts]
    if is_dataclass(facts):
        return {item.name: _plain(value) for item in fields(facts) if (value := getattr(facts, item.name))}
    return facts


def inputs_hash(inputs: Inputs) -> str:
    """Hash over all parts."""
    return short_hash(canonical_json(inputs), length=32)


def find_changed(run: RunStatus, inputs: Inputs) -> tuple[str, ...]:
    """Parts that differ from those the run was started for. A part that the run does not know (older version) has not changed."""
    known = {item.name: item.hash for item in run.inputs}
    return tuple(name for name, value in inputs.items() if known.get(name, value) != value)


def list_inputs(inputs: Inputs) -> Sequence[InputStatus]:
    """As the status keeps them."""
    return tuple(InputStatus(name=name, hash=value) for name, value in inputs.items())


def start_run(snapshot: AdaptationSnapshot, inputs: Inputs, trigger: str, now: datetime) -> RunStatus:
    """A new run; its id holds the start, so that a repeated run never takes an old one's measurements for its own."""
    started, digest = format_time(now), inputs_hash(inputs)
    run_id = short_hash(snapshot.adaptation.uid, digest, started)
    return RunStatus(
        id=run_id, inputs_hash=digest, started_at=started, step="Profiling", trigger=trigger[:512], inputs=tuple(list_inputs(inputs))
    )  # fmt: skip


def trigger_reason(run: RunStatus | None) -> str:
    """Name of the trigger that a run was started for."""
    return run.trigger.partition(":")[0] if run is not None else ""


def decision_id(run_id: str, candidate_key: str) -> str:
    """Id of 'this run chose this candidate': the same after a restart."""
    return short_hash(run_id, candidate_key, length=12)
