"""What the container may use and how much it was held back, from cgroup v2 or v1, whichever is mounted.

Inside a container the own cgroup is usually mounted at the root; on a bare host it is found through
``/proc/self/cgroup``. Limits of parents count too, as far as they are visible.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size that fits into 63 bits."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counters since the cgroup was made."""

    periods: int
    throttled_periods: int
    throttled_seconds: float


def memory_limit_bytes(*, root: Path = _ROOT, membership: Path = _SELF) -> int:
    """The smallest memory limit in force: cgroup limits of either version, or the machine's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name, controller in (("memory.max", ""), ("memory.limit_in_bytes", "memory")):
        for folder in _folders(root, membership, controller):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limit for limit in limits if 0 < limit < _UNLIMITED)


def read_throttling(*, root: Path = _ROOT, membership: Path = _SELF) -> Throttling | None:
    """CPU quota counters of the own cgroup; None where they cannot be read."""
    for controller in ("", "cpu", "cpu,cpuacct"):
        for folder in _folders(root, membership, controller):
            with suppress(OSError, ValueError):
                fields = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
                if "nr_periods" in fields:
                    seconds = int(fields["throttled_usec"]) / 1e6 if "throttled_usec" in fields else int(fields["throttled_time"]) / 1e9
                    return Throttling(int(fields["nr_periods"]), int(fields["nr_throttled"]), seconds)
    return None


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """The own cgroup's folder and its parents, innermost first; ``controller`` empty means the unified hierarchy."""
    base = root / controller if controller else root
    relative = _membership(membership, controller)
    parts = [part for part in relative.split("/") if part and part != ".."]
    for length in range(len(parts), -1, -1):
        folder = base.joinpath(*parts[:length])
        if folder.is_dir():
            yield folder


def _membership(membership: Path, controller: str) -> str:
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if (not controllers and not controller) or (controller and controller.split(",", maxsplit=1)[0] in controllers.split(",")):
                return path
    return "/"
