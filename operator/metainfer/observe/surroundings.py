"""The target of an adaptation and the objects around it, read fresh from the API server: what is decided from them is written back.

What may not be read (Forbidden) becomes a fact; everything else that fails, fails the pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from metainfer.decide.facts import AdaptationFacts, NodeTerm, PodTemplateFacts, RuntimeClassFacts, TargetFacts
from metainfer.decide.names import claim_of
from metainfer.kube.errors import Forbidden, NotFound
from metainfer.kube.kinds import CONFIG_MAP, DEPLOYMENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, RUNTIME_CLASS, Kind
from metainfer.observe.pods import project_terms
from metainfer.observe.projections import ProjectionError, project_runtime_class, project_target


class ObjectReader(Protocol):
    """One fresh read; ``KubeClient`` has it."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        """The object. Raises ApiError."""
        ...


@dataclass(slots=True)
class Surroundings:
    """Objects around a target, as they are being read. ``unread``: what Forbidden kept from us."""

    unread: dict[str, str] = field(default_factory=dict)
    config_maps: dict[str, Mapping[str, str] | None] = field(default_factory=dict)
    claim_terms: dict[str, tuple[NodeTerm, ...] | None] = field(default_factory=dict)
    absent_claims: set[str] = field(default_factory=set)
    runtime_class: RuntimeClassFacts | None = None


async def read_target(adaptation: AdaptationFacts, around: Surroundings, reader: ObjectReader) -> TargetFacts | None:
    """The target as it is now, with what is around it; None when it is gone or must not be read. Raises ApiError."""
    reference, namespace = adaptation.spec.target_ref, adaptation.namespace
    raw = await _read(DEPLOYMENT, reference.name, namespace, around, reader)
    if raw is None:
        return None
    try:
        target = project_target(raw)
    except ProjectionError as error:
        around.unread[_label(DEPLOYMENT, reference.name)] = error.message
        return None
    for name in _named_config_maps(target.template, reference.container):
        found = await _read(CONFIG_MAP, name, namespace, around, reader)
        if found is not None or _label(CONFIG_MAP, name) not in around.unread:
            around.config_maps[name] = (found.get("data") or {}) if found is not None else None
    model = claim_of(adaptation.spec.model.uri)
    for claim in dict.fromkeys((*target.template.claims, *([model] if model is not None else []))):
        around.claim_terms[claim] = await _read_claim_terms(claim, namespace, around, reader)
    if target.template.runtime_class:
        found = await _read(RUNTIME_CLASS, target.template.runtime_class, None, around, reader)
        around.runtime_class = project_runtime_class(found) if found is not None else None
    return target


async def _read_claim_terms(claim: str, namespace: str, around: Surroundings, reader: ObjectReader) -> tuple[NodeTerm, ...] | None:
    """Where the claim's volume can be mounted; None = anywhere, or not known (not bound yet, or not readable)."""
    found = await _read(PERSISTENT_VOLUME_CLAIM, claim, namespace, around, reader)
    if found is None and _label(PERSISTENT_VOLUME_CLAIM, claim) not in around.unread:
        around.absent_claims.add(claim)
    volume = ((found or {}).get("spec") or {}).get("volumeName")
    if not volume:
        return None
    bound = await _read(PERSISTENT_VOLUME, volume, None, around, reader)
    required = (((bound or {}).get("spec") or {}).get("nodeAffinity") or {}).get("required")
    return project_terms(required) if required else None


async def _read(kind: Kind, name: str, namespace: str | None, around: Surroundings, reader: ObjectReader) -> dict[str, Any] | None:
    try:
        return await reader.get(kind, name, namespace)
    except NotFound:
        return None
    except Forbidden as error:
        around.unread[_label(kind, name)] = error.message
        return None


def _label(kind: Kind, name: str) -> str:
    return f"{kind.kind} {name}"


def _named_config_maps(template: PodTemplateFacts, container: str | None) -> tuple[str, ...]:
    """ConfigMaps from which the target's container (all of them where none is named) takes environment variables."""
    named: list[str] = []
    for item in template.containers:
        if container is not None and item.name != container:
            continue
        named += [source.name for source in item.env_from if source.kind == "ConfigMap"]
        named += [entry.source.removeprefix("configMap ").partition("/")[0] for entry in item.env if entry.source and entry.source.startswith("configMap ")]
    return tuple(dict.fromkeys(named))
