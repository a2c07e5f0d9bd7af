"""docs/conditions.md explains every reason that the code can give, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from metainfer.api.v1alpha1 import reasons

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "conditions.md").read_text()
SOURCES = sorted([*(ROOT / "operator" / "metainfer").rglob("*.py"), *(ROOT / "probes" / "metainfer_probe").rglob("*.py")])

REASON = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)*")
GIVERS = {
    *("Exclusion", "Failure", "Fault", "Finding", "NoMembership", "Obstacle", "ProbeError", "ReportError", "RejectionStatus"),
    *("TargetProblem", "ChoiceRefused", "Trigger", "Waiting", "Suspicion", "Gate", "Verdict"),
    *("LatencyFinding", "LatencyProblem", "MetricsRefused", "MetricsUnavailable"),
    *("find", "stall", "wait", "announce", "EmitEvent", "Judgement", "Failing", "done", "_failed", "_failure", "_recommend_only"),
}
"""Classes and functions that take a reason: a literal given to one of them reaches the user."""
TABLES = {"not_onnx.py"}
"""Modules with tables of reasons: every literal in them counts."""
NO_REASONS = {"True", "False", "Unknown", "Normal", "Warning", "Done", "Check", "Run"}
"""Statuses, kinds of Events, the last step and what a suspicion wants, which are given beside a reason."""


def given_in(tree: ast.Module) -> Iterator[str]:
    """Every literal that is given as a reason."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in GIVERS:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from literals_in(argument)


def literals_in(node: ast.expr) -> Iterator[str]:
    choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    for choice in choices:
        if isinstance(choice, ast.Constant) and isinstance(choice.value, str) and REASON.fullmatch(choice.value):
            yield choice.value


def find_given() -> dict[str, str]:
    """Reason -> a file that gives it."""
    found: dict[str, str] = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        given = set(given_in(tree)) - NO_REASONS
        if path.name in TABLES:
            given |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and REASON.fullmatch(node.value)}
        found |= dict.fromkeys(given, path.name)
    return found


def documented() -> set[str]:
    """Names in the first cells of the page's tables."""
    cells = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_reason_that_the_code_gives_is_explained() -> None:
    """Somebody who sees a reason finds out what to do."""
    given = find_given()
    assert given
    assert {reason: where for reason, where in given.items() if reason not in documented()} == {}


def test_every_declared_type_and_reason_is_explained() -> None:
    """reasons.py is the interface for scripts and alerts."""
    declared = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    assert declared - documented() == set()


def test_nothing_is_explained_that_cannot_happen() -> None:
    """A reason that went away must not be looked for."""
    literals = {
        node.value for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert documented() - literals == set()
