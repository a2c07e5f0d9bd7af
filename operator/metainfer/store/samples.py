"""The sample store: every probe, profile, benchmark and decision, kept across Jobs and restarts.

Async on the outside; SQL runs in threads, writes one at a time. Recording is idempotent (natural keys), so a pass that was
killed after recording records again and nothing is doubled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, Table, func, insert, select
from sqlalchemy.exc import IntegrityError

from metainfer.decide.facts import CheckResult, ProbeResult, ProfileResult, RunResult
from metainfer.decide.learned import ModelRecord
from metainfer.decide.plan import RecordDecision, RecordServed
from metainfer.store.backlog import Entry
from metainfer.store.engine import WRITES, abandon_connections, build_engine, check_file, store_name, transaction
from metainfer.store.errors import RowRefused, StoreUnavailable, describe_outage
from metainfer.store.models import MATERIAL_ROWS, insert_model, select_champion, select_last, select_material
from metainfer.store.retention import Compacted, Retention, compact
from metainfer.store.rows import (
    DecisionRecord,
    decision_row,
    probe_row,
    profile_row,
    read_all,
    read_check,
    read_decision,
    read_probe,
    read_profile,
    read_run,
    run_row,
)  # fmt: skip
from metainfer.store.schema import ensure_schema
from metainfer.store.served import ServedSample, read_served, served_row
from metainfer.store.tables import RESULT_TABLES, checks, decisions, probes, profiles, runs, served

READ_THREADS = 4
CLOSE_SECONDS = 2.0
"""For a write under way at shutdown; within the grace that the whole operator has."""
T = TypeVar("T")


def open_store(url: str) -> SampleStore:
    """Open (and create or move forward) the store behind a SQLAlchemy URL. Blocks; for use before the event loop.

    Raises StoreUrlInvalid, StoreUnavailable, or StoreVersionError for a store of a newer operator.
    """
    engine = build_engine(url)
    try:
        with transaction(engine) as connection:
            check_file(connection, store=store_name(engine))
        with transaction(engine.execution_options(**{WRITES: True})) as connection:
            ensure_schema(connection, store=store_name(engine))
    except BaseException:
        engine.dispose()
        raise
    return SampleStore(engine)


class SampleStore:
    """Reads and writes of one store. Every method raises StoreUnavailable when the store does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._reading = engine
        self._writing = engine.execution_options(**{WRITES: True})
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-write")
        self._readers = ThreadPoolExecutor(max_workers=READ_THREADS, thread_name_prefix="store-read")
        self._closed = False

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """Keep a node probe; False = it was there already (the first one stays)."""
        return await self.write(Entry(probes, probe_row(pool, result)))

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """Keep a model profile; False = it was there already."""
        return await self.write(Entry(profiles, profile_row(adaptation_uid, result)))

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """Keep a benchmark; False = it was there already."""
        return await self.write(Entry(runs, run_row(adaptation_uid, result)))

    async def record_check(self, adaptation_uid: str, result: CheckResult) -> bool:
        """Keep a check of what runs; False = it was there already."""
        return await self.write(Entry(checks, run_row(adaptation_uid, result)))

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        """Keep a decision with everything it was based on; False = it was there already."""
        return await self.write(Entry(decisions, decision_row(adaptation_uid, decision)))

    async def record_served(self, adaptation_uid: str, window: RecordServed) -> bool:
        """Keep what a window served; False = it was there already."""
        return await self.write(Entry(served, served_row(adaptation_uid, window)))

    async def served_samples(self, digest: str | None = None) -> tuple[ServedSample, ...]:
        """What was served, of one model file or of all, oldest first."""
        query = select(served).order_by(served.c.ended_at)
        wanted = query if digest is None else query.where(served.c.digest == digest)
        rows = await self._run(self._readers, self._reading, lambda connection: tuple(connection.execute(wanted).mappings()))
        return read_all(rows, read_served)

    async def write(self, entry: Entry) -> bool:
        """Keep one row; False = its key was there already, and stays as it was. Raises RowRefused for what the database never takes."""

        def write(connection: Connection) -> bool:
            if connection.execute(mine).first() is not None:
                return False
            connection.execute(insert(entry.table).values(**entry.row))
            return True

        key = entry.table.primary_key.columns
        mine = select(1).select_from(entry.table).where(*(column == entry.row[column.name] for column in key))
        try:
            return await self._run(self._writer, self._writing, write)
        except IntegrityError as error:
            # Another process recorded the same between our look and our insert; or a rule of the table is broken.
            if await self._run(self._readers, self._reading, lambda connection: connection.execute(mine).first()) is None:
                raise RowRefused(str(error.orig)) from error
            return False

    async def has_decision(self, adaptation_uid: str, decision_id: str) -> bool:
        """Whether that decision is recorded."""
        mine = select(1).where(decisions.c.adaptation_uid == adaptation_uid, decisions.c.decision_id == decision_id)
        return await self._run(self._readers, self._reading, lambda connection: connection.execute(mine).first() is not None)

    async def known_jobs(self, job_uids: Collection[str]) -> frozenset[str]:
        """Which of these Jobs' results are recorded."""

        def read(connection: Connection) -> frozenset[str]:
            wanted = (select(table.c.job_uid).where(table.c.job_uid.in_(job_uids)) for table in RESULT_TABLES)
            return frozenset(uid for query in wanted for uid in connection.execute(query).scalars())

        return await self._run(self._readers, self._reading, read) if job_uids else frozenset()

    async def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        """Recorded results of these probe Jobs, oldest first."""
        rows = await self._select(probes, probes.c.job_uid.in_(job_uids), order=probes.c.finished_at.asc()) if job_uids else ()
        return read_all(rows, read_probe)

    async def find_profile(self, adaptation_uid: str, run_id: str) -> ProfileResult | None:
        """The last profile made for a run."""
        mine = (profiles.c.adaptation_uid == adaptation_uid) & (profiles.c.run_id == run_id)
        rows = await self._select(profiles, mine, order=profiles.c.finished_at.desc(), limit=1)
        return (*read_all(rows, read_profile), None)[0]

    async def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        """The benchmarks of a run, oldest first. A Job that was started again under its name replaces its earlier result."""
        mine = (runs.c.adaptation_uid == adaptation_uid) & (runs.c.run_id == run_id)
        last: dict[str, RowMapping] = {}
        for row in await self._select(runs, mine, order=runs.c.finished_at.asc()):
            last.pop(row["job"], None)
            last[row["job"]] = row
        return read_all(last.values(), read_run)

    async def find_checks(self, adaptation_uid: str, run_id: str) -> tuple[CheckResult, ...]:
        """The checks of what a run decided, oldest first."""
        mine = (checks.c.adaptation_uid == adaptation_uid) & (checks.c.run_id == run_id)
        return read_all(await self._select(checks, mine, order=checks.c.finished_at.asc()), read_check)

    async def find_decisions(self, adaptation_uid: str, limit: int = 10, *, decision_id: str | None = None) -> tuple[DecisionRecord, ...]:
        """The last decisions for an adaptation, newest first; of one id, that one."""
        mine = [decisions.c.adaptation_uid == adaptation_uid, *([decisions.c.decision_id == decision_id] if decision_id is not None else [])]
        rows = await self._select(decisions, *mine, order=decisions.c.decided_at.desc(), limit=limit)
        return read_all(rows, read_decision)

    async def find_model_runs(self, digest: str, newest: int) -> tuple[RunResult, ...]:
        """The newest benchmarks of a model file that left a report, made for whom ever, oldest first. Failed ones teach too."""
        rows = await self._select(runs, runs.c.digest == digest, runs.c.report.is_not(None), order=runs.c.finished_at.desc(), limit=newest)
        return read_all(rows[::-1], read_run)

    async def training_material(
        self, newest: int = MATERIAL_ROWS
    ) -> tuple[tuple[tuple[str, RunResult], ...], tuple[ProfileResult, ...], tuple[ProbeResult, ...]]:
        """The newest runs with their digests, profiles and probes that left a report, oldest first: what samples are joined from."""
        return await self._run(self._readers, self._reading, lambda connection: select_material(connection, newest))

    async def count_runs(self, since: datetime | None = None) -> int:
        """Benchmarks with a report, all of them or those finished after a moment."""
        wanted = runs.c.report.is_not(None) if since is None else runs.c.report.is_not(None) & (runs.c.finished_at > since)
        query = select(func.count()).select_from(runs).where(wanted)
        return await self._run(self._readers, self._reading, lambda connection: connection.execute(query).scalar_one())

    async def record_model(self, record: ModelRecord) -> ModelRecord:
        """Keep a trained model under the next version, which the returned record has."""
        return await self._run(self._writer, self._writing, lambda connection: insert_model(connection, record))

    async def find_champion(self) -> ModelRecord | None:
        """The newest model that won, with its document."""
        return await self._run(self._readers, self._reading, select_champion)

    async def find_last_model(self) -> ModelRecord | None:
        """The newest model, whether it won or not, without its document."""
        return await self._run(self._readers, self._reading, select_last)

    async def compact(self, retention: Retention, living: Collection[str], now: datetime) -> Compacted:
        """Drop what is kept long enough, in steps beside all other work; ``living``: the UIDs of all adaptations there are."""
        return await self._submit(self._readers, lambda: compact(self._reading, retention, living, now))

    async def close(self) -> None:
        """Let the write under way finish, then disconnect; what hangs is left behind. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.get_running_loop().run_in_executor(self._writer, abandon_connections, self._reading)
        self._leave_threads()

    def abandon(self) -> None:
        """Stop using it without waiting for anything: its threads may hang in the network or on the disk."""
        self._closed = True
        self._leave_threads()
        threading.Thread(target=abandon_connections, args=(self._reading,), name="store-dispose", daemon=True).start()

    def _leave_threads(self) -> None:
        for threads in (self._writer, self._readers):
            threads.shutdown(wait=False)

    async def _select(self, table: Table, *where: ColumnElement[bool], order: ColumnElement[datetime], limit: int | None = None) -> tuple[RowMapping, ...]:
        columns = [column for column in table.columns if column.name != "detail"]
        query = select(*columns).where(*where).order_by(order).limit(limit)
        return await self._run(self._readers, self._reading, lambda connection: tuple(connection.execute(query).mappings()))

    async def _run(self, threads: Executor, engine: Engine, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            try:
                with transaction(engine) as connection:
                    return work(connection)
            except ValueError as error:
                if threads is self._writer or isinstance(error, RowRefused):
                    raise
                raise StoreUnavailable(describe_outage(store_name(engine), f"the file is damaged: {error}")) from error

        return await self._submit(threads, run)

    async def _submit(self, threads: Executor, work: Callable[[], T]) -> T:
        if self._closed:
            msg = "the sample store is closed"
            raise StoreUnavailable(msg)
        return await asyncio.get_running_loop().run_in_executor(threads, work)
