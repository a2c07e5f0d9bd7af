"""Run by Alembic for each migration. The connection is the caller's, and so is its transaction."""

from __future__ import annotations

from alembic import context

from metainfer.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter columns: Alembic then copies the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
