"""The facts of one kind, as last seen. Never goes back in time; knows neither what the facts mean nor who asks.

Versions are ``metadata.resourceVersion`` as numbers: since Kubernetes 1.35 they may be compared, and every server we know has always
counted up. They tell a late list page from a fresh event, whatever the order in which the two arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

F = TypeVar("F")
Name = tuple[str, str]
"""(namespace, name); the namespace of cluster-scoped kinds is the empty string."""

TOMBSTONES_LIMIT = 20_000
"""Deleted objects that are remembered, oldest forgotten first: more than end between two lists of a busy cluster."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object, and which of its versions."""

    namespace: str
    name: str
    uid: str
    version: int

    @property
    def key(self) -> Name:
        """Where it is kept."""
        return self.namespace, self.name


def identify(raw: Mapping[str, Any]) -> Identity:
    """Identity of an object on the wire; a version that is no number counts as 0."""
    metadata = raw["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    return Identity(metadata.get("namespace", ""), metadata["name"], metadata.get("uid", ""), int(version) if version.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class Entry(Generic[F]):
    """One object: ``facts`` of its ``identity``."""

    identity: Identity
    facts: F


class KindCache(Generic[F]):
    """Entries of one kind by (namespace, name)."""

    def __init__(self) -> None:
        self._entries: dict[Name, Entry[F]] = {}
        self._tombstones: dict[str, int] = {}  # uid -> version up to which it is old news, oldest first
        self.highest = 0
        """The latest version kept so far of any object of the kind."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[F]:
        return (entry.facts for entry in self._entries.values())

    def get(self, key: Name) -> F | None:
        """The facts of one object."""
        entry = self._entries.get(key)
        return None if entry is None else entry.facts

    def is_news(self, identity: Identity) -> bool:
        """Whether this version is later than what is known, so that projecting it is worth while."""
        if identity.version <= self._tombstones.get(identity.uid, -1):
            return False
        known = self._entries.get(identity.key)
        return known is None or known.identity.version < identity.version

    def put(self, identity: Identity, facts: F) -> F | None:
        """Keep the facts of a version that ``is_news``; returns those they replace."""
        old = self._entries.get(identity.key)
        self.highest = max(self.highest, identity.version)
        self._entries[identity.key] = Entry(identity, facts)
        return None if old is None else old.facts

    def remove(self, identity: Identity) -> F | None:
        """The object was deleted at that version; returns its facts if they were kept.

        A later version, or a later object of the same name, stays.
        """
        self._bury(identity, identity.version)
        known = self._entries.get(identity.key)
        if known is None or known.identity.version > identity.version:
            return None
        return self._entries.pop(identity.key).facts

    def drop(self, identity: Identity) -> F | None:
        """Stop keeping an object that still exists; it may come back at this version, but not at an earlier one."""
        entry = self._entries.pop(identity.key, None)
        if entry is None:
            return None
        self._bury(entry.identity, identity.version - 1)
        return entry.facts

    def find_gone(self, listed: Collection[str], version: int, namespace: str | None = None) -> tuple[Identity, ...]:
        """Entries that a list at ``version`` would have shown: not among the ``listed`` uids and not younger than the list."""
        return tuple(
            entry.identity
            for entry in self._entries.values()
            if entry.identity.version <= version and entry.identity.uid not in listed and namespace in (None, entry.identity.namespace)
        )

    def forget_versions(self) -> None:
        """The server went back in time (restored from a backup): whatever it says next is news."""
        self._tombstones.clear()
        self.highest = 0
        self._entries = {key: Entry(replace(entry.identity, version=-1), entry.facts) for key, entry in self._entries.items()}

    def _bury(self, identity: Identity, version: int) -> None:
        buried_at = self._tombstones.pop(identity.uid, -1)
        self._tombstones[identity.uid] = max(version, buried_at)
        while len(self._tombstones) > TOMBSTONES_LIMIT:
            del self._tombstones[next(iter(self._tombstones))]
