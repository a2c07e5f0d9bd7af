"""What we would write into the target, and what of it we must not. Pure; `act` sends the body by server-side apply, never forced.

The body is the full set of our fields: what is left out is given back. A choice is written whole or not at all; the one
exception is affinity that the owner declares, when the pods run in the chosen family anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.common import DECISION_ANNOTATION, FAMILY_LABEL, HEALTH_LABEL, PREIMAGE_ANNOTATION, LabelSelector
from metainfer.decide.declared import AffinityDeclarations, Declaration, affinity_declarations, contested_env
from metainfer.decide.environment import ConfigMaps, escape
from metainfer.decide.facts import ContainerFacts, Requirement, TargetFacts
from metainfer.decide.families import selector_requirements
from metainfer.decide.ownership import PREFERRED_AFFINITY, REQUIRED_AFFINITY, env_path, readable
from metainfer.decide.plan import ApplyTarget
from metainfer.decide.portraits import DEGRADED_LABEL_VALUE
from metainfer.decide.pre_image import DeletionPolicy, build_pre_image, encode_pre_image
from metainfer.decide.rivals import Rival, exclude_rivals
from metainfer.decide.setting_values import Setting
from metainfer.decide.settings_mapping import Baseline, SettingsMapping, find_disagreements, read_baseline, render_settings
from metainfer_probe.contract import ServingConfig

NO_SETTINGS_MAPPING: Final = "NoSettingsMapping"
PREFERENCE_WEIGHT: Final = 1
"""The least there is: ours is the weakest preference beside those of the scheduler's own plug-ins."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A decision, and the Deployment that it is for."""

    target: TargetFacts
    container: ContainerFacts
    family: AcceleratorFamily
    pool: str
    config: ServingConfig
    mapping: SettingsMapping | None
    config_maps: ConfigMaps
    decision_id: str
    adaptation_uid: str
    deletion_policy: DeletionPolicy = "Restore"
    pool_selector: LabelSelector = field(default_factory=LabelSelector)
    """spec.nodeSelector of the pool: a node outside the pool was never measured, whatever its labels."""
    rivals: tuple[Rival, ...] = ()
    """Families that take nodes first although this one's selector matches them too."""
    other_nodes: tuple[str, ...] = ()
    """Nodes outside the family on which the target may run by its owner's own rules; they matter when those rules place the pods."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Something of the choice that is not written, who has it, and why."""

    path: str
    manager: str
    why: str


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What to do with a decision."""

    apply: ApplyTarget | None
    """None = only recommended; ``reason`` and ``withheld`` say why."""
    withheld: tuple[Withheld, ...]
    patch_json: str
    """For people: a strategic merge patch (``kubectl patch deployment NAME --patch ...``) of what may be written without taking the owner's affinity."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are written, by name: what ``read_back`` looks for. The owner's equal ones are not among them."""
    reason: str = ""
    """``FieldContested`` or ``NoSettingsMapping`` when nothing is written."""
    touched: tuple[str, ...] = ()
    """Paths of what is written: env entries and halves of affinity."""


def family_label_value(pool: str, family: str) -> str:  # noqa: ARG001 - the pool is part of the question: names are unique within it only
    """Value of our node label that says 'this node belongs to this family'."""
    return family


def build_placement(request: PlacementRequest) -> PlacementPlan:
    """The apply for a decision, or why there is none."""
    affinity = affinity_declarations(request.target)
    env, blockers = _settings(request)
    placing = () if affinity.required is None else _find_reach(request, affinity.required)
    spec = _pod_spec(request, affinity, env)
    patch = json.dumps({"spec": {"template": {"spec": spec}}}, separators=(",", ":"))
    if request.mapping is None or blockers or placing:
        reason = NO_SETTINGS_MAPPING if request.mapping is None else reasons.FIELD_CONTESTED
        return PlacementPlan(None, (*blockers, *placing), patch, reason=reason)
    touched = _touched(request, affinity, env)
    apply = ApplyTarget(
        namespace=request.target.namespace,
        name=request.target.name,
        body=_body(request, spec, touched),
        decision_id=request.decision_id,
        release_env=_contested(request.target),
        resource_version=request.target.resource_version,
    )
    return PlacementPlan(apply, _owned_halves(affinity), patch, env, touched=touched)


def _settings(request: PlacementRequest) -> tuple[Mapping[str, str], tuple[Withheld, ...]]:
    """Variables to write, and what forbids writing any."""
    if request.mapping is None:
        why = "nothing says how settings reach the server: set spec.settings to a preset or to names of variables"
        return {}, (Withheld("spec.settings", "", why),)
    baseline = read_baseline(request.mapping, request.target, request.container, request.config_maps)
    declared = {request.mapping.names[setting] for setting in baseline.fixed}
    values = render_settings(request.mapping, request.config)
    return {name: value for name, value in values.items() if name not in declared}, _find_contradictions(request, baseline)


def _find_contradictions(request: PlacementRequest, baseline: Baseline) -> tuple[Withheld, ...]:
    """Settings of the choice that are not ours to give: writing the rest would apply half a choice."""
    found = [_withhold(request, setting, baseline, "has a value that cannot be read") for setting in sorted(baseline.unusable)]
    others = [setting for setting in find_disagreements(baseline.fixed_at, request.config) if setting not in baseline.unusable]
    found += [_withhold(request, setting, baseline, "has another value than the one chosen") for setting in others]
    return tuple(found)


def _withhold(request: PlacementRequest, setting: Setting, baseline: Baseline, problem: str) -> Withheld:
    declaration = baseline.fixed.get(setting)
    if declaration is None:
        return Withheld("spec.settings", "", f"{setting} has no variable, and its default is not the value chosen")
    source = f" ({declaration.source})" if declaration.source else ""
    name = request.mapping.names[setting] if request.mapping else setting
    return Withheld(declaration.path, declaration.manager, f"{name}{source} {problem}: nothing is written")


def _find_reach(request: PlacementRequest, required: Declaration) -> tuple[Withheld, ...]:
    if not request.other_nodes:
        return ()
    names = ", ".join(request.other_nodes[:3]) + (f" and {len(request.other_nodes) - 3} more" if len(request.other_nodes) > 3 else "")
    why = f"the owner's affinity also allows nodes outside family {request.family.name} ({names}), for which these settings were not chosen: nothing is written"
    return (Withheld(required.path, required.manager, why),)


def _owned_halves(affinity: AffinityDeclarations) -> tuple[Withheld, ...]:
    halves = [half for half in (affinity.required, affinity.preferred) if half is not None]
    return tuple(Withheld(half.path, half.manager, "declared by the owner: placement is only recommended") for half in halves)


def _contested(target: TargetFacts) -> tuple[tuple[str, str], ...]:
    return tuple((container.name, name) for container in target.template.containers for name in contested_env(target, container))


def _pod_spec(request: PlacementRequest, affinity: AffinityDeclarations, env: Mapping[str, str]) -> Mapping[str, Any]:
    halves: dict[str, Any] = {}
    if affinity.required is None:
        halves["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": _required_terms(request)}
        if affinity.preferred is None:
            halves["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": PREFERENCE_WEIGHT, "preference": _term([_our_label(request)])}]
    spec: dict[str, Any] = {"affinity": {"nodeAffinity": halves}} if halves else {}
    if env:
        entries = [{"name": name, "value": escape(value)} for name, value in env.items()]
        spec["initContainers" if request.container.init else "containers"] = [{"name": request.container.name, "env": entries}]
    return spec


def _required_terms(request: PlacementRequest) -> list[Mapping[str, Any]]:
    """Two ways to belong: the vendor's labels (a new node has them at once), or our label (which outlives a labeller's restart)."""
    healthy = Requirement(HEALTH_LABEL, "NotIn", (DEGRADED_LABEL_VALUE,))
    by_vendor = dict.fromkeys((*selector_requirements(request.pool_selector), *selector_requirements(request.family.selector)))
    others = exclude_rivals(request.rivals, request.family.name)
    return [_term([*by_vendor, *others, healthy]), _term([_our_label(request), healthy])]


def _our_label(request: PlacementRequest) -> Requirement:
    return Requirement(FAMILY_LABEL, "In", (family_label_value(request.pool, request.family.name),))


def _term(requirements: Sequence[Requirement]) -> Mapping[str, Any]:
    return {
        "matchExpressions": [{"key": item.key, "operator": item.operator, **({"values": list(item.values)} if item.values else {})} for item in requirements]
    }


def _touched(request: PlacementRequest, affinity: AffinityDeclarations, env: Mapping[str, str]) -> tuple[str, ...]:
    paths = [env_path(request.container, name) for name in env]
    if affinity.required is None:
        paths.append(REQUIRED_AFFINITY)
        if affinity.preferred is None:
            paths.append(PREFERRED_AFFINITY)
    return tuple(readable(path) for path in paths)


def _body(request: PlacementRequest, spec: Mapping[str, Any], touched: tuple[str, ...]) -> Mapping[str, Any]:
    target, decision = request.target, {DECISION_ANNOTATION: request.decision_id}
    pre_image = build_pre_image(target, touched, adaptation_uid=request.adaptation_uid, deletion_policy=request.deletion_policy)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "annotations": {**decision, PREIMAGE_ANNOTATION: encode_pre_image(pre_image)},
        },
        "spec": {"template": {"metadata": {"annotations": decision}, "spec": spec}},
    }
