"""Checks of what runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table("checks", *_result_columns(), *_bench_columns())
    op.create_index("ix_checks_finished_at", "checks", ["finished_at"])
    op.create_index("ix_checks_digest", "checks", ["digest"])
    op.create_index("checks_of_run", "checks", ["adaptation_uid", "run_id"])


def _result_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("job_uid", sa.String(128), primary_key=True),
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failure_reason", sa.String(64)),
        sa.Column("failure", sa.Text),
        sa.Column("report", sa.Text),
        sa.Column("detail", sa.Text),
    )


def _bench_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("adaptation_uid", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("pool", sa.String(253), nullable=False),
        sa.Column("family", sa.String(63), nullable=False),
        sa.Column("execution_provider", sa.String(64), nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("batch_size", sa.Integer, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("dynamic_batching", sa.Boolean, nullable=False),
        sa.Column("max_batch_delay_us", sa.Integer, nullable=False),
        sa.Column("load_clients", sa.Integer),
        sa.Column("p50_us", sa.Float),
        sa.Column("p99_us", sa.Float),
        sa.Column("throughput_per_second", sa.Float),
        sa.Column("latency_ratio_permille", sa.Integer),
        sa.Column("difference_ppm", sa.BigInteger),
        sa.Column("micro_gflops", sa.Float),
        sa.Column("partial", sa.Boolean),
    )
