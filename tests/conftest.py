"""For all tests: the quick ones first, and nothing depends on how fast this machine is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Two cores shared with builds and clusters: a slow example is no wrong one.
settings.register_profile("meta-infer", deadline=None)
settings.load_profile("meta-infer")

TESTS = Path(__file__).resolve().parent
ORDER = ("unit", "chart", "apiserver", "e2e")
"""Folders below tests/, cheapest first: what is broken early need not wait for a cluster."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders in their order; within one, as they were collected."""
    ranks = {folder: rank for rank, folder in enumerate(ORDER)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(TESTS).parts[0], len(ranks)))
