"""What targets served, window by window."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "served",
        sa.Column("adaptation_uid", sa.String(64), primary_key=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("decision_id", sa.String(32), nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("pool", sa.String(253), nullable=False),
        sa.Column("family", sa.String(63), nullable=False),
        sa.Column("execution_provider", sa.String(64), nullable=False),
        sa.Column("precision", sa.String(16), nullable=False),
        sa.Column("batch_size", sa.Integer, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("dynamic_batching", sa.Boolean, nullable=False),
        sa.Column("max_batch_delay_us", sa.Integer, nullable=False),
        sa.Column("metric", sa.String(256), nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("p99_us", sa.Float),
        sa.Column("mean_us", sa.Float),
        sa.Column("requests_per_second", sa.Float, nullable=False),
        sa.Column("in_flight", sa.Float),
        sa.Column("replicas", sa.Float),
        sa.Column("nodes", sa.Text, nullable=False),
    )
    op.create_index("ix_served_ended_at", "served", ["ended_at"])
    op.create_index("ix_served_digest", "served", ["digest"])
