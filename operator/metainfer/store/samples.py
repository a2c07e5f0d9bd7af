"""The sample store: every probe, profile, benchmark and decision, kept across Jobs and restarts.

Async on the outside; SQL runs in threads, writes one at a time. Recording is idempotent (natural keys), so a pass that was
killed after recording records again and nothing is doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, Table, delete, insert, select
from sqlalchemy.exc import IntegrityError

from metainfer.decide.facts import ProbeResult, ProfileResult, RunResult
from metainfer.decide.plan import RecordDecision
from metainfer.store.engine import WRITES, build_engine, transaction
from metainfer.store.errors import StoreUnavailable
from metainfer.store.rows import (
    DecisionRecord,
    Row,
    RunSample,
    decision_row,
    probe_row,
    profile_row,
    read_decision,
    read_probe,
    read_profile,
    read_run,
    run_row,
)  # fmt: skip
from metainfer.store.schema import ensure_schema
from metainfer.store.tables import RESULT_TABLES, decisions, probes, profiles, runs

READ_THREADS = 4
T = TypeVar("T")


def open_store(url: str) -> SampleStore:
    """Open (and create or move forward) the store behind a SQLAlchemy URL. Blocks; for use before the event loop.

    Raises StoreUrlInvalid, StoreUnavailable, or StoreVersionError for a store of a newer operator.
    """
    engine = build_engine(url)
    with transaction(engine.execution_options(**{WRITES: True})) as connection:
        ensure_schema(connection, store=engine.url.render_as_string(hide_password=True))
    return SampleStore(engine)


class SampleStore:
    """Reads and writes of one store. Every method raises StoreUnavailable when the store does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._reading = engine
        self._writing = engine.execution_options(**{WRITES: True})
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(max_workers=READ_THREADS, thread_name_prefix="store-read")

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """Keep a node probe; False = it was there already (the first one stays)."""
        return await self._record(probes, probe_row(pool, result))

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """Keep a model profile; False = it was there already."""
        return await self._record(profiles, profile_row(adaptation_uid, result))

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """Keep a benchmark; False = it was there already."""
        return await self._record(runs, run_row(adaptation_uid, result))

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision, decided_at: datetime) -> bool:
        """Keep a decision with everything it was based on; False = it was there already."""
        return await self._record(decisions, decision_row(adaptation_uid, decision, decided_at))

    async def known_jobs(self, job_uids: Collection[str]) -> frozenset[str]:
        """Which of these Jobs' results are recorded."""

        def read(connection: Connection) -> frozenset[str]:
            wanted = (select(table.c.job_uid).where(table.c.job_uid.in_(job_uids)) for table in RESULT_TABLES)
            return frozenset(uid for query in wanted for uid in connection.execute(query).scalars())

        return await self._run(self._readers, self._reading, read) if job_uids else frozenset()

    async def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        """Recorded results of these probe Jobs, oldest first."""
        rows = await self._select(probes, probes.c.job_uid.in_(job_uids), order=probes.c.finished_at.asc()) if job_uids else ()
        return tuple(read_probe(row) for row in rows)

    async def find_profile(self, adaptation_uid: str, run_id: str) -> ProfileResult | None:
        """The last profile made for a run."""
        mine = (profiles.c.adaptation_uid == adaptation_uid) & (profiles.c.run_id == run_id)
        rows = await self._select(profiles, mine, order=profiles.c.finished_at.desc(), limit=1)
        return read_profile(rows[0]) if rows else None

    async def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        """The benchmarks of a run, oldest first. A Job that was started again under its name replaces its earlier result."""
        mine = (runs.c.adaptation_uid == adaptation_uid) & (runs.c.run_id == run_id)
        last: dict[str, RowMapping] = {}
        for row in await self._select(runs, mine, order=runs.c.finished_at.asc()):
            last.pop(row["job"], None)
            last[row["job"]] = row
        return tuple(read_run(row) for row in last.values())

    async def find_decisions(self, adaptation_uid: str, limit: int = 10) -> tuple[DecisionRecord, ...]:
        """The last decisions for an adaptation, newest first."""
        rows = await self._select(decisions, decisions.c.adaptation_uid == adaptation_uid, order=decisions.c.decided_at.desc(), limit=limit)
        return tuple(read_decision(row) for row in rows)

    async def samples(self, digest: str | None = None) -> tuple[RunSample, ...]:
        """Every benchmark that left a report, of one model or of all, oldest first. Failed ones teach too."""
        wanted = runs.c.report.is_not(None)
        rows = await self._select(runs, wanted if digest is None else wanted & (runs.c.digest == digest), order=runs.c.finished_at.asc())
        return tuple(RunSample(row["adaptation_uid"], row["digest"], read_run(row)) for row in rows)

    async def prune(self, older_than: datetime) -> int:
        """Delete everything older than that; returns the number of rows."""

        def write(connection: Connection) -> int:
            count = sum(connection.execute(delete(table).where(table.c.finished_at < older_than)).rowcount for table in RESULT_TABLES)
            return count + connection.execute(delete(decisions).where(decisions.c.decided_at < older_than)).rowcount

        return await self._run(self._writer, self._writing, write)

    async def close(self) -> None:
        """Let the write under way finish, then disconnect."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._reading.dispose()

    async def _record(self, table: Table, row: Row) -> bool:
        def write(connection: Connection) -> bool:
            key = [column == row[column.name] for column in table.primary_key.columns]
            if connection.execute(select(1).select_from(table).where(*key)).first() is not None:
                return False
            connection.execute(insert(table).values(**row))
            return True

        try:
            return await self._run(self._writer, self._writing, write)
        except IntegrityError:
            return False  # another process recorded the same Job between our look and our insert

    async def _select(self, table: Table, *where: ColumnElement[bool], order: ColumnElement[datetime], limit: int | None = None) -> tuple[RowMapping, ...]:
        columns = [column for column in table.columns if column.name != "detail"]
        query = select(*columns).where(*where).order_by(order).limit(limit)
        return await self._run(self._readers, self._reading, lambda connection: tuple(connection.execute(query).mappings()))

    async def _run(self, threads: Executor, engine: Engine, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with transaction(engine) as connection:
                return work(connection)

        try:
            submitted = asyncio.get_running_loop().run_in_executor(threads, run)
        except RuntimeError as error:
            msg = "the sample store is closed"
            raise StoreUnavailable(msg) from error
        return await submitted
