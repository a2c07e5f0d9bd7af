"""Probes, profiles, runs and decisions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, unless they were made before there were revisions: those are the same."""
    if "schema_version" in sa.inspect(op.get_bind()).get_table_names():
        op.drop_table("schema_version")
        return
    _make_probes()
    _make_profiles()
    _make_runs()
    _make_decisions()


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


def _make_probes() -> None:
    op.create_table(
        "probes",
        *_result_columns(),
        sa.Column("pool", sa.String(253), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("card_model", sa.String(128), nullable=False),
        sa.Column("micro_gflops", sa.Float),
        sa.Column("micro_gigabytes_per_second", sa.Float),
        sa.Column("load_permille", sa.Integer),
    )
    op.create_index("ix_probes_finished_at", "probes", ["finished_at"])
    op.create_index("ix_probes_node", "probes", ["node"])


def _make_profiles() -> None:
    op.create_table(
        "profiles",
        *_result_columns(),
        sa.Column("adaptation_uid", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("architecture", sa.String(32), nullable=False),
        sa.Column("parameters", sa.BigInteger),
        sa.Column("weight_bytes", sa.BigInteger),
    )
    op.create_index("ix_profiles_finished_at", "profiles", ["finished_at"])
    op.create_index("ix_profiles_digest", "profiles", ["digest"])
    op.create_index("profiles_of_run", "profiles", ["adaptation_uid", "run_id"])


def _make_runs() -> None:
    op.create_table(
        "runs",
        *_result_columns(),
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
        sa.Column("p25_ratio_permille", sa.Integer),
        sa.Column("difference_ppm", sa.BigInteger),
        sa.Column("micro_gflops", sa.Float),
        sa.Column("partial", sa.Boolean),
    )
    op.create_index("ix_runs_finished_at", "runs", ["finished_at"])
    op.create_index("ix_runs_digest", "runs", ["digest"])
    op.create_index("runs_of_run", "runs", ["adaptation_uid", "run_id"])
    op.create_index("runs_of_family", "runs", ["pool", "family"])


def _make_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("adaptation_uid", sa.String(64), primary_key=True),
        sa.Column("decision_id", sa.String(32), primary_key=True),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_decisions_decided_at", "decisions", ["decided_at"])
