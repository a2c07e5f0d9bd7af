"""The store's tables, in Core types only so that SQLite and PostgreSQL hold the same.

Columns beside ``report`` exist because something queries by them; the report is kept whole (``report`` without its
``detail``, which is large and read only on demand, in a column of its own). Sizes are those of the API types.
A change here needs a revision in ``migrations/versions``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Dialect, Float, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC also where the database drops the zone (SQLite). A naive one is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  the base class's signature
        """To UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"time without a zone: {value.isoformat()}"
            raise ValueError(msg)
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Aware again."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData()


def _result_columns() -> tuple[Column[Any], ...]:
    """What every measurement has. The Job's UID is the key: recording twice is one row, a later Job of the same name another."""
    return (
        Column("job_uid", String(128), primary_key=True),
        Column("job", String(63), nullable=False),
        Column("finished_at", UtcDateTime, nullable=False, index=True),
        Column("failure_reason", String(64)),
        Column("failure", Text),
        Column("report", Text),
        Column("detail", Text),
    )


probes = Table(
    "probes",
    metadata,
    *_result_columns(),
    Column("pool", String(253), nullable=False),
    Column("node", String(253), nullable=False, index=True),
    Column("card_model", String(128), nullable=False, default=""),
    Column("micro_gflops", Float),
    Column("micro_gigabytes_per_second", Float),
    Column("load_permille", Integer),
)

profiles = Table(
    "profiles",
    metadata,
    *_result_columns(),
    Column("adaptation_uid", String(64), nullable=False),
    Column("run_id", String(32), nullable=False),
    Column("node", String(253), nullable=False, default=""),
    Column("digest", String(64), nullable=False, default="", index=True),
    Column("architecture", String(32), nullable=False, default=""),
    Column("parameters", BigInteger),
    Column("weight_bytes", BigInteger),
    Index("profiles_of_run", "adaptation_uid", "run_id"),
)


def _config_columns() -> tuple[Column[Any], ...]:
    """On which cards, and how the server runs there: a candidate."""
    return (
        Column("pool", String(253), nullable=False),
        Column("family", String(63), nullable=False),
        Column("execution_provider", String(64), nullable=False),
        Column("precision", String(16), nullable=False),
        Column("batch_size", Integer, nullable=False),
        Column("concurrency", Integer, nullable=False),
        Column("dynamic_batching", Boolean, nullable=False),
        Column("max_batch_delay_us", Integer, nullable=False),
    )


def _bench_columns() -> tuple[Column[Any], ...]:
    """What every measurement of a configuration has."""
    return (
        Column("adaptation_uid", String(64), nullable=False),
        Column("run_id", String(32), nullable=False),
        Column("digest", String(64), nullable=False, default="", index=True),
        Column("node", String(253), nullable=False),
        *_config_columns(),
        Column("load_clients", Integer),
        Column("p50_us", Float),
        Column("p99_us", Float),
        Column("throughput_per_second", Float),
        Column("latency_ratio_permille", Integer),
        Column("difference_ppm", BigInteger),
        Column("micro_gflops", Float),
        Column("partial", Boolean),
    )


runs = Table(
    "runs",
    metadata,
    *_result_columns(),
    *_bench_columns(),
    Index("runs_of_run", "adaptation_uid", "run_id"),
    Index("runs_of_family", "pool", "family"),
)

checks = Table(
    "checks",
    metadata,
    *_result_columns(),
    *_bench_columns(),
    Index("checks_of_run", "adaptation_uid", "run_id"),
)
"""Of what runs, in the place where it runs: perhaps beside a busy server, so never material for a predictor."""

served = Table(
    "served",
    metadata,
    Column("adaptation_uid", String(64), primary_key=True),
    Column("ended_at", UtcDateTime, primary_key=True, index=True),
    Column("decision_id", String(32), nullable=False),
    Column("run_id", String(32), nullable=False),
    Column("digest", String(64), nullable=False, default="", index=True),
    *_config_columns(),
    Column("metric", String(256), nullable=False),
    Column("seconds", Float, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("p99_us", Float),
    Column("mean_us", Float),
    Column("requests_per_second", Float, nullable=False),
    Column("in_flight", Float),
    Column("replicas", Float),
    Column("nodes", Text, nullable=False),
)
"""What targets served, window by window; ``nodes`` is JSON: node -> requests, mean, 99th percentile."""

decisions = Table(
    "decisions",
    metadata,
    Column("adaptation_uid", String(64), primary_key=True),
    Column("decision_id", String(32), primary_key=True),
    Column("run_id", String(32), nullable=False),
    Column("decided_at", UtcDateTime, nullable=False, index=True),
    Column("document", Text, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("made_at", UtcDateTime, nullable=False),
    Column("feature_version", Integer, nullable=False),
    Column("training_hash", String(64), nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("serves", Boolean, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("checksum", String(64), nullable=False),
    Column("document", Text, nullable=False),
)

RESULT_TABLES = (probes, profiles, runs, checks)
