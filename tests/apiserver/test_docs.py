"""What the documents tell readers to run does what they say, on a real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.api_server import ApiServer, run_api_server

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ACCOUNT = "--as=system:serviceaccount:meta-infer-system:meta-infer"
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An empty API server."""
    with run_api_server(tmp_path_factory.mktemp("api")) as server:
        yield server


def read_block(page: str, language: str, having: str) -> str:
    """The code block of a page that contains some words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if having in block)
    return str(block)


@pytest.fixture(scope="module")
def guarded(server: ApiServer) -> ApiServer:
    """The policy of security.md in force, the operator's right to patch nodes, and a node."""
    policy = read_block("security.md", "yaml", "ValidatingAdmissionPolicy")
    applied = server.kubectl("apply", "--validate=strict", "-f", "-", stdin=policy)
    assert applied.returncode == 0, applied.stderr
    server.kubectl("create", "clusterrole", "nodes", "--verb=get,patch", "--resource=nodes")
    server.kubectl("create", "clusterrolebinding", "nodes", "--clusterrole=nodes", "--serviceaccount=meta-infer-system:meta-infer")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"vendor/product": "l4"}}}
    assert server.send("POST", "/api/v1/nodes", node)[0] == 201
    # Policies reach the admission chain a moment after they are stored: wait until one refuses.
    for _ in range(100):
        if not patch_node(server, {"spec": {"unschedulable": True}}, "--dry-run=server"):
            return server
    raise AssertionError("the policy never came into force")


def patch_node(server: ApiServer, patch: dict[str, Any], *options: str) -> bool:
    """Whether the operator may."""
    return server.kubectl("patch", "node", "n1", "--type=merge", "-p", json.dumps(patch), ACCOUNT, *options).returncode == 0


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"metainfer.dev/family": "l4"}}},
        {"metadata": {"labels": {"metainfer.dev/family": "l4", "metainfer.dev/health": "degraded"}}},
        {"metadata": {"labels": {"metainfer.dev/family": None}}},
    ],
    ids=["family", "family and health", "taking the family off"],
)
def test_the_policy_lets_the_operator_write_its_own_labels(guarded: ApiServer, patch: dict[str, Any]) -> None:
    """security.md: no more than these two labels, but these."""
    assert patch_node(guarded, patch)


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"vendor/product": "h100"}}},
        {"metadata": {"labels": {"vendor/product": None}}},
        {"metadata": {"labels": {"another/label": "x"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"unschedulable": True}},
    ],
    ids=["another's label", "removing another's label", "a new label", "an annotation", "cordoning"],
)
def test_the_policy_refuses_everything_else_of_a_node(guarded: ApiServer, patch: dict[str, Any]) -> None:
    """security.md: a right to patch nodes that is no right to change them."""
    assert not patch_node(guarded, patch)


def test_the_commands_for_restoring_are_ones_that_exist() -> None:
    """gitops.md: every option that it names is one of ``metainfer restore``."""
    said = subprocess.run(
        [sys.executable, "-m", "metainfer.cli", "restore", "--help"], capture_output=True, text=True, check=True, env=os.environ | PATHS
    ).stdout
    lines = [line for line in (DOCS / "gitops.md").read_text().splitlines() if "metainfer restore" in line]
    named = {option for line in lines for option in re.findall(r"(--[a-z-]+)", line.split("metainfer restore", 1)[1])}
    assert {"--namespace", "--name", "--all", "--dry-run"} <= named
    assert [option for option in named if option not in said] == []


LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")
PAGES = [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "charts/meta-infer/README.md"))]


def anchor_of(heading: str) -> str:
    """As the usual viewers make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """File and heading."""
    for file, anchor in LINK.findall(page.read_text()):
        if file.startswith("http"):
            continue
        target = page if not file else (page.parent / file)
        assert target.exists(), file
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor[1:] in map(anchor_of, headings), f"{file}{anchor}"
