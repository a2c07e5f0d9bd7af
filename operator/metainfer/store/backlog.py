"""What a store that is away is owed, and what its answers would be meanwhile: both in memory, both bounded.

When the backlog is full the oldest rows stay: what came last is still in its Job, or in the adaptation's status, and is offered again by
the next pass. The last eighth is for decisions, of which there are few. Data structures only; nothing here waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlalchemy import Table

from metainfer.decide.facts import CheckResult, ProbeResult, ProfileResult, RunResult
from metainfer.store.rows import AnyResult, Row
from metainfer.store.tables import decisions

ROWS = 5000
"""A day's work of a large cluster: 50 adaptations with 8 rows each, anew every two hours."""
BYTES = 48 << 20
"""A sixteenth of the operator's memory limit in the chart."""
RESULTS_SHARE = 7 / 8
REMEMBERED_RESULTS = 2048
"""About 10 KiB each: the results of some 250 runs, more than are ever under way at once."""
ResultT = TypeVar("ResultT", ProbeResult, ProfileResult, RunResult, CheckResult)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row on its way into a table."""

    table: Table
    row: Row

    @property
    def key(self) -> tuple[str, ...]:
        """Table and primary key."""
        return (self.table.name, *(self.row[column.name] for column in self.table.primary_key.columns))

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory; the texts are nearly all of it."""
        return 1024 + sum(len(value) for value in self.row.values() if isinstance(value, str))


class Backlog:
    """Rows in the order in which they came, each key once."""

    def __init__(self, *, max_rows: int = ROWS, max_bytes: int = BYTES) -> None:
        self._entries: OrderedDict[tuple[str, ...], Entry] = OrderedDict()
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def offer(self, entry: Entry) -> bool:
        """Keep it; without the large detail if it fits only so. False = it does not fit at all."""
        if entry.key in self._entries:
            return True
        if not self._fits(entry) and entry.row.get("detail"):
            entry = replace(entry, row=entry.row | {"detail": None})
        if not self._fits(entry):
            return False
        self._entries[entry.key] = entry
        self.size_bytes += entry.size_bytes
        return True

    def first(self) -> Entry | None:
        """The oldest."""
        return next(iter(self._entries.values()), None)

    def drop(self, entry: Entry) -> None:
        """It is written, or can never be."""
        if self._entries.pop(entry.key, None) is not None:
            self.size_bytes -= entry.size_bytes

    def _fits(self, entry: Entry) -> bool:
        share = 1 if entry.table is decisions else RESULTS_SHARE
        return len(self._entries) < share * self._max_rows and self.size_bytes + entry.size_bytes <= share * self._max_bytes


class Recollection:
    """Results that were read or recorded lately, least recently used first out; reports without their detail, as the store gives them."""

    def __init__(self, limit: int = REMEMBERED_RESULTS) -> None:
        self._results: OrderedDict[str, tuple[str, AnyResult]] = OrderedDict()
        self._limit = limit

    def keep(self, owner: str, results: Iterable[AnyResult]) -> None:
        """``owner``: the adaptation's UID, or the pool's name."""
        for result in results:
            uid = result.job_uid or result.job
            self._results[uid] = owner, _without_detail(result)
            self._results.move_to_end(uid)
        while len(self._results) > self._limit:
            self._results.popitem(last=False)

    def known(self, job_uids: Collection[str]) -> frozenset[str]:
        """Which of these Jobs' results are here."""
        return frozenset(uid for uid in job_uids if uid in self._results)

    def find_probes(self, job_uids: Collection[str]) -> tuple[ProbeResult, ...]:
        """As the store's."""
        found = (self._results[uid][1] for uid in job_uids if uid in self._results)
        return _oldest_first(item for item in found if isinstance(item, ProbeResult))

    def find_profiles(self, adaptation_uid: str, run_id: str) -> tuple[ProfileResult, ...]:
        """All profiles of a run, the last one last."""
        return _oldest_first(item for item in self._of(adaptation_uid, run_id) if isinstance(item, ProfileResult))

    def find_runs(self, adaptation_uid: str, run_id: str) -> tuple[RunResult, ...]:
        """As the store's."""
        mine = _oldest_first(item for item in self._of(adaptation_uid, run_id) if isinstance(item, RunResult))
        last = {item.job: item for item in mine}
        return _oldest_first(last.values())

    def find_checks(self, adaptation_uid: str, run_id: str) -> tuple[CheckResult, ...]:
        """As the store's."""
        return _oldest_first(item for item in self._of(adaptation_uid, run_id) if isinstance(item, CheckResult))

    def _of(self, adaptation_uid: str, run_id: str) -> Iterator[ProfileResult | RunResult | CheckResult]:
        for owner, item in self._results.values():
            if owner == adaptation_uid and not isinstance(item, ProbeResult) and item.run_id == run_id:
                yield item


def _without_detail(result: AnyResult) -> AnyResult:
    if result.report is None or not result.report.detail:
        return result
    report = result.report.model_copy(update={"detail": {}})
    return replace(result, report=report)  # type: ignore[arg-type]  # a copy is of its own kind


def _oldest_first(results: Iterable[ResultT]) -> tuple[ResultT, ...]:
    return tuple(sorted(results, key=lambda item: item.finished_at))
