"""Trained models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """What was learned: a row per model, its figures, and the document of those that serve."""
    op.create_table(
        "models",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("feature_version", sa.Integer, nullable=False),
        sa.Column("training_hash", sa.String(64), nullable=False),
        sa.Column("row_count", sa.Integer, nullable=False),
        sa.Column("serves", sa.Boolean, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
