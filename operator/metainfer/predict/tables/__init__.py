"""Measured tables that ship with the operator; README.md beside them names source and licence of each."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def table_path(name: str) -> Path:
    """Of ``name``.csv.gz; it need not exist."""
    return FOLDER / f"{name}.csv.gz"
