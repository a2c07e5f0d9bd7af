"""How the parts end together."""

from __future__ import annotations

from pathlib import Path

from metainfer.app.operator import build_operator
from metainfer.settings import read_settings
from metainfer.store.patient import open_patiently


async def test_whoever_waits_for_the_end_is_told_that_it_is_there(tmp_path: Path) -> None:
    """Also after SIGTERM, when nothing failed: kopf has a task that waits for it, and gives it five seconds before the process may end."""
    operator = build_operator(read_settings({"METAINFER_PROBE_IMAGE": "registry/probe:1"}), open_patiently(f"sqlite:///{tmp_path / 'store.db'}"))
    await operator.stop()
    assert (operator.ended.is_set(), operator.failed) == (True, False)
    await operator.store.close()
