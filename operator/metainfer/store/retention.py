"""Keeps the store from growing for ever: what is dropped, in steps so small that nobody waits for them, and the space given back.

Nothing younger than a day is dropped, so no run under way loses a figure; and never the newest decision of a living adaptation, so that
what runs can always be explained.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, Table, delete, func, or_, select, tuple_, update

from metainfer.store.engine import WRITES, transaction
from metainfer.store.tables import RESULT_TABLES, checks, decisions, probes, profiles, runs, served

UNTOUCHED = timedelta(days=1)
"""A run lasts minutes and its Jobs are kept for an hour."""
STEP_ROWS = 500
"""Rows of one transaction: some milliseconds, in which others that write wait."""
STEP_PAGES = 1000
"""Pages of 4 KiB that SQLite gives back at a time."""
_GROUPS: dict[str, tuple[ColumnElement[Any], ...]] = {
    probes.name: (probes.c.pool, probes.c.node),
    profiles.name: (profiles.c.digest,),
    runs.name: (runs.c.digest, runs.c.pool, runs.c.family),
    checks.name: (checks.c.adaptation_uid,),
}
"""Of what the samples are counted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept. ``samples``: benchmarks per model and family, profiles per model, probes per node, checks and windows per adaptation.

    ``decisions``: per adaptation.
    """

    samples: int
    decisions: int
    age: timedelta
    detail_age: timedelta
    """Of the large part of a report, which only people read."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did."""

    rows: int
    details: int


def compact(engine: Engine, retention: Retention, living: Collection[str], now: datetime) -> Compacted:
    """Drop what is over; ``living``: UIDs of all adaptations there are. Blocks. Raises StoreUnavailable; what was dropped stays dropped."""
    rows = sum(_drop_all(engine, table, _doomed_results(table, retention, now)) for table in RESULT_TABLES)
    rows += _drop_all(engine, served, _doomed_served(retention, now))
    rows += _drop_all(engine, decisions, _doomed_decisions(retention, now))
    rows += _drop_dead(engine, retention, frozenset(living), now)
    details = sum(_strip_details(engine, table, now - retention.detail_age) for table in RESULT_TABLES)
    if engine.dialect.name == "sqlite":
        _give_back_space(engine)
    return Compacted(rows, details)


def _doomed_results(table: Table, retention: Retention, now: datetime) -> Select[Any]:
    place = func.row_number().over(partition_by=_GROUPS[table.name], order_by=(table.c.finished_at.desc(), table.c.job_uid))
    ranked = select(table.c.job_uid, table.c.finished_at, place.label("place")).subquery()
    too_many, too_old = ranked.c.place > retention.samples, ranked.c.finished_at < now - retention.age
    return select(ranked.c.job_uid).where(ranked.c.finished_at < now - UNTOUCHED, or_(too_many, too_old))


def _doomed_served(retention: Retention, now: datetime) -> Select[Any]:
    place = func.row_number().over(partition_by=served.c.adaptation_uid, order_by=served.c.ended_at.desc())
    ranked = select(served.c.adaptation_uid, served.c.ended_at, place.label("place")).subquery()
    over = or_(ranked.c.place > retention.samples, ranked.c.ended_at < now - retention.age)
    return select(ranked.c.adaptation_uid, ranked.c.ended_at).where(ranked.c.ended_at < now - UNTOUCHED, over)


def _ranked_decisions() -> Any:
    place = func.row_number().over(partition_by=decisions.c.adaptation_uid, order_by=(decisions.c.decided_at.desc(), decisions.c.decision_id))
    return select(decisions.c.adaptation_uid, decisions.c.decision_id, decisions.c.decided_at, place.label("place")).subquery()


def _doomed_decisions(retention: Retention, now: datetime) -> Select[Any]:
    ranked = _ranked_decisions()
    over = or_(ranked.c.place > retention.decisions, ranked.c.decided_at < now - retention.age)
    return select(ranked.c.adaptation_uid, ranked.c.decision_id).where(ranked.c.place > 1, ranked.c.decided_at < now - UNTOUCHED, over)


def _drop_dead(engine: Engine, retention: Retention, living: frozenset[str], now: datetime) -> int:
    """The last decisions of adaptations that are gone."""
    ranked = _ranked_decisions()
    last = select(ranked.c.adaptation_uid, ranked.c.decision_id).where(ranked.c.place == 1, ranked.c.decided_at < now - max(retention.age, UNTOUCHED))
    with transaction(engine) as connection:
        keys = [row for row in connection.execute(last) if row.adaptation_uid not in living]
    return _drop(engine, decisions, keys)


def _drop_all(engine: Engine, table: Table, doomed: Select[Any]) -> int:
    dropped = 0
    while True:
        with transaction(engine) as connection:
            keys = connection.execute(doomed.limit(STEP_ROWS)).all()
        if not keys:
            return dropped
        dropped += _drop(engine, table, keys)


def _drop(engine: Engine, table: Table, keys: Sequence[Row[Any]]) -> int:
    dropped = 0
    key = tuple_(*table.primary_key.columns)
    for start in range(0, len(keys), STEP_ROWS):
        with _writing(engine) as connection:
            dropped += connection.execute(delete(table).where(key.in_([tuple(row) for row in keys[start : start + STEP_ROWS]]))).rowcount
    return dropped


def _strip_details(engine: Engine, table: Table, before: datetime) -> int:
    stripped = 0
    some = select(table.c.job_uid).where(table.c.detail.is_not(None), table.c.finished_at < before).limit(STEP_ROWS)
    while True:
        with _writing(engine) as connection:
            count = connection.execute(update(table).where(table.c.job_uid.in_(some)).values(detail=None)).rowcount
        if not count:
            return stripped
        stripped += count


def _writing(engine: Engine) -> AbstractContextManager[Connection]:
    return transaction(engine.execution_options(**{WRITES: True}))


def _give_back_space(engine: Engine) -> None:
    """SQLite keeps free pages for itself until it is asked; PostgreSQL sees to it alone. Failing costs space only."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        (mode,) = cursor.execute("PRAGMA auto_vacuum").fetchone()
        if not mode:  # a file from before this was set: it is written anew, once
            cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
            cursor.execute("VACUUM")
        while cursor.execute("PRAGMA freelist_count").fetchone()[0]:
            cursor.execute(f"PRAGMA incremental_vacuum({STEP_PAGES})").fetchall()
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        _log.warning("free space of the store stays in its file", extra={"error": str(error)})
    finally:
        connection.close()
