"""Runs compare mean latencies. The former ratio was of the 25th percentile, another figure; it stays in the reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Another column, empty for older runs."""
    op.add_column("runs", sa.Column("latency_ratio_permille", sa.Integer))
    op.drop_column("runs", "p25_ratio_permille")
