"""What a restart and an upgrade write: nothing to Deployments, and no status that says what it said before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.judge import find_needless
from tests.chaos.operator_process import run_operator
from tests.chaos.play import Stage, set_stage

pytestmark = pytest.mark.apiserver


async def writes_of_a_restart(stage: Stage, **settings: str) -> list[str]:
    """Labels of what a new process with these settings writes until it comes to rest; Events are left out, they are no state."""
    before = len(stage.proxy.journal)
    async with run_operator(stage.make_operator(**settings)) as operator:
        assert await stage.settle()
        remains = await stage.collect(operator, settled=True)
    written = [entry for entry in remains.journal[before:] if entry.writes and entry.plural != "events"]
    assert [*find_needless(remains)] == []
    assert any(entry.label == "get deployments" for entry in remains.journal[before:]), "the new process made no pass"
    return [f"{entry.label} {entry.name}" for entry in written]


async def test_a_restart_and_an_upgrade_write_nothing(admin: Path, tmp_path: Path) -> None:
    """A new process with the same settings, then one with another probe image, other limits and clocks: everything stands as it stood."""
    async with set_stage(admin, tmp_path, seed=1) as stage:
        async with run_operator(stage.make_operator()):
            assert await stage.settle()
        assert await writes_of_a_restart(stage) == []
        upgraded = {"PROBE_IMAGE": "registry.example/probe:2", "IMAGE_PULL_POLICY": "Always", "WORKERS": "2", "BENCH_ROUNDS": "5", "JOB_START_SECONDS": "120"}
        assert await writes_of_a_restart(stage, **upgraded) == []
