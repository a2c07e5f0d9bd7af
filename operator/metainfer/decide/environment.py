"""What a container's environment comes to, by the kubelet's rules: envFrom first, then env in order, the last one wins. Pure.

Contents of Secrets are never known here: a value that depends on one is None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from metainfer.decide.facts import ContainerFacts, EnvEntry, EnvFrom

ConfigMaps = Mapping[str, Mapping[str, str] | None]
"""Those that the target names; None = it does not exist; a name that is missing here could not be read."""

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
"""``$$`` is an escaped dollar, ``$(NAME)`` a reference, every other dollar is itself (Kubernetes' third_party/forked/golang/expansion)."""


@dataclass(frozen=True, slots=True)
class SourceValue:
    """What envFrom gives a variable: its value (None = cannot be known) and where it comes from."""

    value: str | None
    source: str


def references(text: str) -> tuple[str, ...]:
    """Names that a command, argument or value refers to as ``$(NAME)``."""
    return tuple(match[1] for match in _REFERENCE.finditer(text) if match[1] is not None)


def escape(text: str) -> str:
    """The text as an env value that reaches the process unchanged."""
    return text.replace("$", "$$")


def source_value(container: ContainerFacts, name: str, config_maps: ConfigMaps) -> SourceValue | None:
    """What envFrom gives the variable, the last source first; None = none of them holds it."""
    for source in reversed(container.env_from):
        found = _in_source(source, name, config_maps)
        if found is not None:
            return found
    return None


def _in_source(source: EnvFrom, name: str, config_maps: ConfigMaps) -> SourceValue | None:
    if not name.startswith(source.prefix):
        return None
    key = name.removeprefix(source.prefix)
    if source.kind == "Secret" or source.name not in config_maps:
        return SourceValue(None, f"{source.kind} {source.name}, which may hold key {key} and is not read (a prefix would rule that out)")
    value = (config_maps[source.name] or {}).get(key)
    return None if value is None else SourceValue(value, f"{source.kind} {source.name}, key {key}")


def env_values(container: ContainerFacts, config_maps: ConfigMaps) -> Mapping[str, str | None]:
    """Value of each name in ``env`` (duplicates: the last one), references expanded; None = cannot be known."""
    values: dict[str, str | None] = {}

    def look_up(name: str) -> SourceValue | None:
        return SourceValue(values[name], "") if name in values else source_value(container, name, config_maps)

    for entry in container.env:
        values[entry.name] = _entry_value(entry, look_up, config_maps)
    return values


def _entry_value(entry: EnvEntry, look_up: Callable[[str], SourceValue | None], config_maps: ConfigMaps) -> str | None:
    if entry.value:
        return _expand(entry.value, look_up)
    return _referenced(entry.source, config_maps) if entry.source else ""


def _expand(text: str, look_up: Callable[[str], SourceValue | None]) -> str | None:
    found = {name: look_up(name) for name in references(text)}
    if any(item is not None and item.value is None for item in found.values()):
        return None

    def replacement(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        item = found[match[1]]
        return match[0] if item is None or item.value is None else item.value

    return _REFERENCE.sub(replacement, text)


def _referenced(source: str, config_maps: ConfigMaps) -> str | None:
    kind, _, place = source.partition(" ")
    name, _, key = place.partition("/")
    return (config_maps.get(name) or {}).get(key) if kind == "configMap" else None
