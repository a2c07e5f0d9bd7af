"""Kills the operator once in every step that it goes through."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from lab import SYSTEM_NAMESPACE, Lab

from scenarios.watched import Moment, say


def find_operator() -> int | None:
    """Process id of the operator in the cluster, seen from this machine; None while none runs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "/opt/venv/bin/metainfer" in words[:2] and "run" in words:  # the image's path: tests start operators of their own
                return int(entry.name)
    return None


@dataclass(slots=True)
class Killer:
    """A hook for ``Watched.on_change``."""

    lab: Lab
    kills: list[str] = field(default_factory=list)
    armed: bool = False
    """Set when the disturbance begins."""

    def __call__(self, moment: Moment) -> None:
        """SIGKILL in each step once. The pod goes with it: a kubelet would wait ever longer before it starts the container again."""
        step = _step(moment)
        if not self.armed or step in self.kills:
            return
        found = find_operator()
        if found is None:
            return
        self.kills.append(step)
        os.kill(found, signal.SIGKILL)
        say(f"    killed the operator: {step}")
        self.lab.kubectl("-n", SYSTEM_NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=meta-infer", "--wait=false", "--grace-period=1")


def _step(moment: Moment) -> str:
    if moment.check.get("claim"):
        return "checking"
    if moment.trial.get("outcome") == "Running":
        return "on trial" if moment.trial.get("readyAt") else "starting a trial"
    if moment.run.get("step", "Done") != "Done":
        return str(moment.run["step"])
    if moment.suspicion:
        return "suspecting"
    return "judged" if moment.verdict or moment.trial else "disturbed"
