"""The judge of the chaos runs sees each kind of wrong. Without a cluster."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.faults import Entry, read_entry
from tests.chaos.judge import judge
from tests.chaos.play import Remains
from tests.chaos.world import World

Raw = dict[str, Any]
DEPLOYMENT_PATH = "/apis/apps/v1/namespaces/chaos-a/deployments/ocr?force=false"
STATUS_PATH = "/apis/metainfer.dev/v1alpha1/namespaces/chaos-a/modeladaptations/ocr/status"
JOBS_PATH = "/apis/batch/v1/namespaces/chaos-a/jobs"


def make_entry(method: str, path: str, body: Any, *, versions: tuple[str, str] = ("1", "2"), status: int = 200) -> Entry:
    """A write as the proxy journals it."""
    entry = read_entry(method, path, json.dumps(body).encode(), number=1)
    entry.status, entry.told = status, status
    entry.version_before, entry.version_after = versions
    return entry


def make_job_entry(name: str = "mi-bench-1", *, status: int = 201) -> Entry:
    """The creation of a benchmark Job."""
    metadata = {
        "name": name,
        "labels": {"metainfer.dev/purpose": "bench", "metainfer.dev/run": "run-1"},
        "annotations": {"metainfer.dev/candidate": "{}"},
        "ownerReferences": [{"name": "ocr"}],
    }
    return make_entry("POST", JOBS_PATH, {"metadata": metadata}, status=status)


def make_apply_entry(decision: str = "d1", **fields: Any) -> Entry:
    """A write of a decision to the Deployment."""
    return make_entry("PATCH", DEPLOYMENT_PATH, {"spec": {"template": {"metadata": {"annotations": {"metainfer.dev/decision": decision}}}}}, **fields)


def make_status_entry(run: str = "run-1", **fields: Any) -> Entry:
    """A claim in the adaptation's status."""
    return make_entry("PATCH", STATUS_PATH, [{"op": "add", "path": "/status", "value": {"run": {"id": run, "step": "Validating"}}}], **fields)


def make_objects() -> dict[str, list[Raw]]:
    """What a good run of one adaptation leaves."""
    ready = {"type": "Ready", "status": "True", "reason": "Applied"}
    status = {"conditions": [ready], "recommendation": {"decisionId": "d1", "config": {"family": "ort-cpu"}}, "run": {"step": "Done"}}
    template = {"metadata": {"annotations": {"metainfer.dev/decision": "d1"}}, "spec": {"containers": [{"name": "server", "env": []}]}}
    return {
        "modeladaptations": [{"metadata": {"name": "ocr"}, "status": status}],
        "deployments": [{"metadata": {"name": "ocr", "generation": 2}, "spec": {"template": template}, "status": {}}],
        "nodeportraits": [{"metadata": {"name": "ort-1-a"}, "spec": {"family": "ort-cpu"}, "status": {"health": "Healthy"}}],
        "nodes": [{"metadata": {"name": "ort-1-a", "labels": {"metainfer.dev/family": "ort-cpu"}}}],
        "acceleratorpools": [{"metadata": {"name": "lab"}, "status": {"conditions": [], "families": [], "nodes": 1}}],
    }


@pytest.fixture
def calm(tmp_path: Path) -> Remains:
    """The undisturbed run."""
    store = tmp_path / "store.db"
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("create table decisions (decision_id text, run_id text)")
        connection.execute("insert into decisions values ('d1', 'run-1')")
        connection.commit()
    return Remains(World(1, "a"), (make_status_entry(), make_job_entry(), make_apply_entry()), make_objects(), store)


def test_a_run_like_the_undisturbed_one_is_clean(calm: Remains) -> None:
    """Kills and faults are counted, and not held against it."""
    lost = make_job_entry(status=0)
    lost.fault = "killed at a write, request lost"
    refused = make_apply_entry(status=0)
    refused.fault = "503 before it took effect"
    verdict = judge(replace(calm, journal=(lost, refused, *calm.journal), ends=(-9, 0)), calm)
    assert verdict.is_clean
    assert verdict.summary == "kills=1 faults=1 lost=0 duplicated=0 needless_writes=0"


@pytest.mark.parametrize(
    "again",
    [
        pytest.param([make_job_entry("mi-bench-2")], id="a Job for the same work under another name"),
        pytest.param([make_apply_entry(versions=("3", "4"))], id="a second rollout of one decision"),
        pytest.param([make_status_entry("run-2")], id="a second run though nothing changed"),
    ],
)
def test_what_is_done_twice_is_found(calm: Remains, again: Sequence[Entry]) -> None:
    """Once each, and as nothing else."""
    verdict = judge(replace(calm, journal=(*calm.journal, *again)), calm)
    assert (len(verdict.lost), len(verdict.duplicated), len(verdict.needless_writes)) == (0, 1, 0)


def test_two_decisions_of_one_run_are_found(calm: Remains) -> None:
    """In the store."""
    with closing(sqlite3.connect(calm.store)) as connection:
        connection.execute("insert into decisions values ('d2', 'run-1')")
        connection.commit()
    assert judge(calm, calm).duplicated == ("run run-1 has 2 decisions in the store",)


@pytest.mark.parametrize("entry", [make_status_entry(versions=("7", "7")), make_apply_entry(versions=("7", "7"))], ids=["a status", "an apply"])
def test_a_write_that_changes_nothing_is_found(calm: Remains, entry: Entry) -> None:
    """Whatever the client was told."""
    entry.told = 500
    verdict = judge(replace(calm, journal=(*calm.journal, entry)), calm)
    assert (len(verdict.lost), len(verdict.duplicated), len(verdict.needless_writes)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("modeladaptations", ("status", "conditions"), [{"type": "Ready", "status": "False", "reason": "Validating"}]),
        ("modeladaptations", ("status", "recommendation", "config"), {"family": "vino-cpu"}),
        ("deployments", ("metadata", "generation"), 3),
        ("deployments", ("spec", "template", "metadata", "annotations"), {}),
        ("nodes", ("metadata", "labels"), {}),
        ("nodeportraits", ("status", "health"), "Degraded"),
        ("acceleratorpools", ("status", "nodes"), 0),
    ],
)
def test_what_differs_from_the_undisturbed_run_is_lost(calm: Remains, kind: str, path: Sequence[str], value: Any) -> None:
    """Every object of the final state."""
    objects = copy.deepcopy(calm.objects)
    place = objects[kind][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert judge(replace(calm, objects=objects), calm).lost


def test_a_decision_that_the_store_does_not_have_is_lost(calm: Remains) -> None:
    """Killed between claim and record."""
    with closing(sqlite3.connect(calm.store)) as connection:
        connection.execute("delete from decisions")
        connection.commit()
    assert judge(calm, calm).lost == ("decision d1 stands in a status but not in the store",)
