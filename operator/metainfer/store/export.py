"""Benchmarks as a table for other tools: one line each, oldest first, read beside a running operator without changing anything.

The column names are an interface (docs/operations.md): new ones come at the end, none is renamed or reused. JSON lines have the same
names, and the whole report besides.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from sqlalchemy import Connection, RowMapping, select

from metainfer.store.engine import build_engine, store_name, transaction
from metainfer.store.errors import StoreUnavailable
from metainfer.store.schema import check_schema
from metainfer.store.tables import runs

COLUMNS: Final = (
    "job_uid", "job", "finished_at", "adaptation_uid", "run_id", "digest", "pool", "family", "node",
    "execution_provider", "precision", "batch_size", "concurrency", "dynamic_batching", "max_batch_delay_us", "load_clients",
    "p50_us", "p99_us", "throughput_per_second", "latency_ratio_permille", "difference_ppm", "micro_gflops", "partial", "failure_reason",
)  # fmt: skip
CHUNK_ROWS = 500
"""Rows in memory at a time."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which benchmarks."""

    since: datetime | None = None
    family: str | None = None


def export_samples(url: str, out: TextIO, *, style: Literal["csv", "jsonl"], selection: Selection) -> int:
    """Write them all; returns their number. Raises StoreUrlInvalid, StoreUnavailable, StoreVersionError."""
    engine = build_engine(url, read_only=True)
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).is_file():
        msg = f"sample store {store_name(engine)}: there is no such file"
        raise StoreUnavailable(msg)
    try:
        with transaction(engine) as connection:
            check_schema(connection, store=store_name(engine))
            return _write(connection, _csv_writer(out) if style == "csv" else _jsonl_writer(out), selection)
    finally:
        engine.dispose()


def _write(connection: Connection, write: Callable[[RowMapping], None], selection: Selection) -> int:
    query = select(*(runs.c[name] for name in COLUMNS), runs.c.report).order_by(runs.c.finished_at, runs.c.job_uid)
    if selection.since is not None:
        query = query.where(runs.c.finished_at >= selection.since)
    if selection.family is not None:
        query = query.where(runs.c.family == selection.family)
    count = 0
    for row in connection.execution_options(yield_per=CHUNK_ROWS).execute(query).mappings():
        write(row)
        count += 1
    return count


def _csv_writer(out: TextIO) -> Callable[[RowMapping], None]:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    return lambda row: writer.writerow([_as_text(row[name]) for name in COLUMNS])


def _jsonl_writer(out: TextIO) -> Callable[[RowMapping], None]:
    def write(row: RowMapping) -> None:
        line = {name: _as_json(row[name]) for name in COLUMNS} | {"report": _read_report(row["report"])}
        out.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")

    return write


def _read_report(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None  # a page of the file is damaged: its neighbours are still worth having


def _as_text(value: Any) -> str:
    """Empty = not known. A leading sign of a formula is kept apart from spreadsheets, because names come from others."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return str(_as_json(value))


def _as_json(value: Any) -> Any:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
