"""Nodes of the local cluster made slower for a while."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab import ROOT, LabError


@contextmanager
def throttled(node: str, percent: int) -> Iterator[None]:
    """All pods of the node get that share of one processor until the end."""
    _throttle(node, str(percent))
    try:
        yield
    finally:
        _throttle(node, "off")


def _throttle(node: str, value: str) -> None:
    done = subprocess.run([ROOT / "hack/cluster/throttle", node, value], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise LabError(f"hack/cluster/throttle {node} {value}: {done.stderr.strip()[-500:]}")
