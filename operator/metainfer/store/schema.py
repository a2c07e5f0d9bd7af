"""Brings a store to the schema this code knows: creates it, moves an older one forward, refuses a newer one.

Forward only. A step is added, with the next number, by whoever changes ``tables``; it is never edited afterwards, because
stores exist that have run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from metainfer.store.errors import StoreVersionError
from metainfer.store.tables import metadata, schema_version

FIRST_VERSION = 1
"""What ``tables`` was before the first step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One move forward: takes a store of version ``to_version - 1`` to ``to_version``."""

    to_version: int
    summary: str
    run: Callable[[Connection], None]


STEPS: tuple[Step, ...] = ()


def ensure_schema(connection: Connection, *, store: str, steps: Sequence[Step] = STEPS) -> int:
    """Make the store's schema the newest; returns the version it had before (0 = it was empty).

    All in the caller's transaction: a killed migration has not happened. Raises StoreVersionError for a newer store.
    """
    known = steps[-1].to_version if steps else FIRST_VERSION
    schema_version.create(connection, checkfirst=True)
    found: int | None = connection.execute(select(schema_version.c.version)).scalar_one_or_none()
    if found is None:
        metadata.create_all(connection)
        connection.execute(insert(schema_version).values(version=known))
        return 0
    if found > known:
        raise StoreVersionError(store=store, found=found, known=known)
    for step in steps:
        if step.to_version > found:
            step.run(connection)
            connection.execute(update(schema_version).values(version=step.to_version))
    return found
