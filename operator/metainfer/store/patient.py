"""The store as the loop sees it: it may be away, and nothing waits for it and nothing is lost meanwhile.

While it is away, rows go into the backlog and answers come from what this process recorded or read lately; results that are in neither
are still in their Jobs. A task of our own tries to bring it back, writes the backlog, and only then is the store asked again. After a
restart, results are read from their Jobs (kept for an hour) and decisions are made up from the adaptations' statuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from metainfer import metrics
from metainfer.decide.facts import CheckResult, ProbeResult, ProfileResult, RunResult
from metainfer.decide.plan import RecordDecision, RecordServed
from metainfer.store.backlog import Backlog, Entry, Recollection
from metainfer.store.engine import build_engine
from metainfer.store.errors import StoreUnavailable, StoreVersionError
from metainfer.store.retention import Compacted, Retention
from metainfer.store.rows import AnyResult, decision_row, probe_row, profile_row, run_row
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.served import served_row
from metainfer.store.tables import checks, decisions, probes, profiles, runs, served

ANSWER_SECONDS = 20.0
"""Longer than the deadlines inside (10 s for a lock, 15 s for a statement), which say more about what is wrong."""
OPEN_SECONDS = 120.0
"""Opening may move a large store to a newer schema."""
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0
KNOWN_DECISIONS = 4096
T = TypeVar("T")

_log = logging.getLogger(__name__)


def open_patiently(url: str) -> PatientStore:
    """Open the store, or begin without it if it does not answer. Blocks; for use before the event loop.

    Raises StoreUrlInvalid, or StoreVersionError for a store of a newer operator: those are for somebody to mend.
    """
    build_engine(url)
    try:
        return PatientStore(lambda: open_store(url), open_store(url))
    except StoreUnavailable as error:
        return PatientStore(lambda: open_store(url), problem=str(error))


class PatientStore:
    """A ``SampleStore`` that may be away. ``problem`` says why it is; ``run`` brings it back."""

    def __init__(self, reopen: Callable[[], SampleStore], store: SampleStore | None = None, *, problem: str = "", backlog: Backlog | None = None) -> None:
        self._reopen = reopen
        self._store = store
        self._backlog = Backlog() if backlog is None else backlog
        self._recent = Recollection()
        self._decided: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-open")
        self._opening: asyncio.Future[SampleStore] | None = None
        self._away = asyncio.Event()
        self.problem = ""
        """Why the store is away; empty = it is not."""
        self.answer_seconds, self.open_seconds, self.first_retry_seconds = ANSWER_SECONDS, OPEN_SECONDS, FIRST_RETRY_SECONDS
        metrics.STORE_UP.set(1)
        if store is None:
            self._note_away(StoreUnavailable(problem))

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        return await self._record(Entry(probes, probe_row(pool, result)), pool, result)

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        return await self._record(Entry(profiles, profile_row(adaptation_uid, result)), adaptation_uid, result)

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        return await self._record(Entry(runs, run_row(adaptation_uid, result)), adaptation_uid, result)

    async def record_check(self, adaptation_uid: str, result: CheckResult) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        return await self._record(Entry(checks, run_row(adaptation_uid, result)), adaptation_uid, result)

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        entry = Entry(decisions, decision_row(adaptation_uid, decision))
        kept = await self._keep(entry)
        self._note_decision(adaptation_uid, decision.decision_id, recorded=not self.problem or entry.key in self._backlog)
        return kept

    async def record_served(self, adaptation_uid: str, window: RecordServed) -> bool:
        """See ``SampleStore``; True also when it has to wait in memory."""
        return await self._keep(Entry(served, served_row(adaptation_uid, window)))

    async def has_decision(self, adaptation_uid: str, decision_id: str) -> bool | None:
        """Whether a decision is recorded or waits for it; None = nobody knows before the store is back."""
        if (adaptation_uid, decision_id) in self._decided:
            return True
        if self.problem:
            return None
        found = await self.ask(lambda store: store.has_decision(adaptation_uid, decision_id))
        self._note_decision(adaptation_uid, decision_id, recorded=found)
        return found

    async def known_jobs(self, job_uids: Collection[str]) -> frozenset[str]:
        """Which of these Jobs' results need not be read again."""
        if self.problem:
            return self._recent.known(job_uids)
        return await self.ask(lambda store: store.known_jobs(job_uids))

    async def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        """Recorded results of these probe Jobs, oldest first."""
        if self.problem:
            return self._recent.find_probes(job_uids)
        return await self.ask(lambda store: store.find_probes(job_uids))

    async def find_profile(self, adaptation_uid: str, run_id: str) -> ProfileResult | None:
        """The last profile made for a run."""
        if self.problem:
            return (self._recent.find_profiles(adaptation_uid, run_id) or (None,))[-1]
        found = await self.ask(lambda store: store.find_profile(adaptation_uid, run_id))
        self._recent.keep(adaptation_uid, (found,) if found is not None else ())
        return found

    async def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        """The benchmarks of a run, oldest first."""
        if self.problem:
            return self._recent.find_runs(adaptation_uid, run_id)
        found = await self.ask(lambda store: store.find_runs(adaptation_uid, run_id))
        self._recent.keep(adaptation_uid, found)
        return found

    async def find_checks(self, adaptation_uid: str, run_id: str) -> tuple[CheckResult, ...]:
        """The checks of what a run decided, oldest first."""
        if self.problem:
            return self._recent.find_checks(adaptation_uid, run_id)
        found = await self.ask(lambda store: store.find_checks(adaptation_uid, run_id))
        self._recent.keep(adaptation_uid, found)
        return found

    async def find_model_runs(self, digest: str, newest: int) -> tuple[RunResult, ...]:
        """See ``SampleStore``; raises StoreUnavailable while it is away."""
        return await self.ask(lambda store: store.find_model_runs(digest, newest))

    async def count_runs(self, since: datetime | None = None) -> int:
        """See ``SampleStore``; raises StoreUnavailable while it is away."""
        return await self.ask(lambda store: store.count_runs(since))

    async def compact(self, retention: Retention, living: Collection[str], now: datetime) -> Compacted:
        """See ``SampleStore``; raises StoreUnavailable while it is away. No deadline: it works in small steps beside the others."""
        return await self.ask(lambda store: store.compact(retention, living, now), patient=True)

    async def ask(self, question: Callable[[SampleStore], Awaitable[T]], *, patient: bool = False) -> T:
        """The store's own answer. Raises StoreUnavailable while it is away, and when this very question finds that out."""
        store = self._store
        if store is None:
            raise StoreUnavailable(self.problem)
        try:
            return await _within(question(store), None if patient else self.answer_seconds)
        except StoreUnavailable as error:
            if store is self._store:
                self._note_away(error)
            raise

    async def run(self) -> None:
        """Bring the store back whenever it went away; for ever."""
        while True:
            await self._away.wait()
            pause = self.first_retry_seconds
            while not await self._come_back():
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_SECONDS)

    async def close(self) -> None:
        """Disconnect. Rows that still wait are read again by the next process, from Jobs and statuses."""
        if self._backlog:
            _log.warning("the store is still away, rows are left to the next start", extra={"rows": len(self._backlog), "error": self.problem})
        store, self._store = self._store, None
        self.problem = self.problem or "the sample store is closed"
        if store is not None:
            await store.close()
        self._opener.shutdown(wait=False)

    async def _record(self, entry: Entry, owner: str, result: AnyResult) -> bool:
        kept = await self._keep(entry)
        if not self.problem or entry.key in self._backlog:
            self._recent.keep(owner, (result,))
        return kept

    async def _keep(self, entry: Entry) -> bool:
        if not self.problem:
            try:
                return await self.ask(lambda store: store.write(entry))
            except StoreUnavailable:
                pass  # noted; the row waits like all that follow
            except Exception:  # noqa: BLE001 - whatever it is, the decision that hangs on it must not wait for a release of ours
                return self._give_up(entry, "refused")
        if not self._backlog.offer(entry):
            return self._give_up(entry, "full")
        metrics.STORE_BACKLOG_ROWS.set(len(self._backlog))
        return True

    def _give_up(self, entry: Entry, why: str) -> bool:
        metrics.STORE_ROWS_LOST.labels(entry.table.name, why).inc()
        _log.error("a row is not recorded", exc_info=why == "refused", extra={"table": entry.table.name, "key": entry.key, "reason": why})
        return False

    def _note_decision(self, adaptation_uid: str, decision_id: str, *, recorded: bool) -> None:
        if recorded:
            self._decided[adaptation_uid, decision_id] = None
        while len(self._decided) > KNOWN_DECISIONS:
            self._decided.popitem(last=False)

    def _note_away(self, error: Exception) -> None:
        store, self._store = self._store, None
        self.problem = str(error)
        self._away.set()
        metrics.STORE_UP.set(0)
        metrics.STORE_OUTAGES.inc()
        _log.warning("the store is away, going on without it", extra={"error": self.problem})
        if store is not None:
            store.abandon()

    async def _come_back(self) -> bool:
        try:
            store = await self._open()
        except Exception as error:  # noqa: BLE001 - a part that ends would end the process, and with it the backlog
            return self._note_still_away(error)
        try:
            written = await self._write_backlog(store)
        except StoreUnavailable as error:
            store.abandon()
            return self._note_still_away(error)
        # Nothing was awaited since the backlog was found empty: no row can be overtaken.
        self._store, self.problem = store, ""
        self._away.clear()
        # It may be another one now, made anew or from a backup: ask it what it has.
        self._decided.clear()
        metrics.STORE_UP.set(1)
        _log.info("the store is back", extra={"rows": written})
        return True

    def _note_still_away(self, error: Exception) -> bool:
        words = str(error) or type(error).__name__
        if words != self.problem:
            unexpected = not isinstance(error, StoreUnavailable | StoreVersionError)
            _log.warning("the store is still away", exc_info=error if unexpected else None, extra={"error": words})
        self.problem = words
        return False

    async def _open(self) -> SampleStore:
        """One attempt at a time: one that hangs is waited for again, instead of being joined by others."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().run_in_executor(self._opener, self._reopen)
        opening = self._opening
        try:
            return await _within(asyncio.shield(opening), self.open_seconds)
        finally:
            if opening.done():
                self._opening = None

    async def _write_backlog(self, store: SampleStore) -> int:
        written = 0
        while (entry := self._backlog.first()) is not None:
            try:
                written += await _within(store.write(entry), self.answer_seconds)
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - one row that no database takes must not keep the others out
                self._give_up(entry, "refused")
            self._backlog.drop(entry)
            metrics.STORE_BACKLOG_ROWS.set(len(self._backlog))
        return written


async def _within(answer: Awaitable[T], seconds: float | None) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError as error:
        msg = f"sample store: no answer within {seconds} s"
        raise StoreUnavailable(msg) from error
