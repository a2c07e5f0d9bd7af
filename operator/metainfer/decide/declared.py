"""What the owner of the Deployment declares, and therefore what we never write. Pure.

*Declared* is what is present in the live object under a manager other than ours (also when it is empty), what the owner's last
client-side apply names, or what an envFrom source gives or may give: an entry of ours would shadow it without any conflict. The
409 of server-side apply misses all of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metainfer.decide.environment import ConfigMaps, env_values, references, source_value
from metainfer.decide.facts import ContainerFacts, PodTemplateFacts, TargetFacts
from metainfer.decide.ownership import (
    PREFERRED_AFFINITY,
    REQUIRED_AFFINITY,
    Path,
    container_path,
    env_path,
    holders,
    is_last_applied,
    other_managers,
    others_hold_parts_only,
    owned_by_us,
    readable,
)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One field that somebody else owns."""

    path: str
    manager: str
    value: str | None = None
    """As the server receives it; empty when it is declared without a value; None when it cannot be known."""
    source: str = ""
    """Where the value comes from, unless it stands at ``path`` itself."""

    def __str__(self) -> str:
        """Path, manager and source, for a message."""
        origin = f", from {self.source}" if self.source else ""
        return f"{self.path} (manager {self.manager}{origin})"


@dataclass(frozen=True, slots=True)
class AffinityDeclarations:
    """The owner's halves of node affinity; a half that is None is free for us."""

    required: Declaration | None
    preferred: Declaration | None


def find_declaration(target: TargetFacts, container: ContainerFacts, env_name: str, config_maps: ConfigMaps) -> Declaration | None:
    """Who gives the container this variable, other than we; None = the name is free for us (or ours already)."""
    path = env_path(container, env_name)
    entries = [entry for entry in container.env if entry.name == env_name]
    if entries and (other_managers(target, path) or not owned_by_us(target, path) or is_last_applied(target.annotations, path)):
        value = env_values(container, config_maps)[env_name]
        return Declaration(readable(path), holders(target, path), value, entries[-1].source or "")
    given = source_value(container, env_name, config_maps)
    if given is None:
        return None
    path = (*container_path(container), "f:envFrom")
    return Declaration(readable(path), holders(target, path), given.value, given.source)


def contested_env(target: TargetFacts, container: ContainerFacts) -> tuple[str, ...]:
    """Our entries that a client-side owner has come to declare.

    It owns nothing but the value, and not even that when the value is ours, so leaving the entry out of our apply would delete it:
    such entries are released from our managedFields first.
    """
    names = dict.fromkeys(entry.name for entry in container.env)
    ours = {name: path for name in names if owned_by_us(target, path := env_path(container, name))}
    return tuple(name for name, path in ours.items() if others_hold_parts_only(target, path) or is_last_applied(target.annotations, path))


def affinity_declarations(target: TargetFacts) -> AffinityDeclarations:
    """Which halves of node affinity the owner has. Pod affinity and an empty ``affinity`` leave both free."""
    return AffinityDeclarations(
        required=_half(target, REQUIRED_AFFINITY, present=target.template.required_terms is not None),
        preferred=_half(target, PREFERRED_AFFINITY, present=target.template.preferred_present),
    )


def owners_template(target: TargetFacts) -> PodTemplateFacts:
    """The pod template without our own affinity: what we chose last is no restriction of what may be chosen next."""
    return target.template if affinity_declarations(target).required is not None else replace(target.template, required_terms=None)


def _half(target: TargetFacts, path: Path, *, present: bool) -> Declaration | None:
    if not present or (owned_by_us(target, path) and not other_managers(target, path)):
        return None
    return Declaration(readable(path), holders(target, path))


def reads_setting(container: ContainerFacts, name: str) -> bool:
    """Whether command or arguments take the variable as ``$(NAME)``; an escaped ``$$(NAME)`` does not."""
    return any(name in references(text) for text in container.command + container.args)
