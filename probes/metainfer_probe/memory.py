"""Peak resident memory of this process, resettable, so that a session's own peak can be told from what came before."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def reset_peak() -> None:
    """Start counting the peak anew (Linux); without that right the peak stays the one since the process began."""
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def peak_resident_bytes() -> int:
    """Highest resident memory since ``reset_peak``, in bytes."""
    with suppress(OSError, StopIteration, ValueError, IndexError):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
