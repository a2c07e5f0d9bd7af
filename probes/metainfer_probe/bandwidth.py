"""Copy bandwidth of one thread at working sets that fit the second-level cache, the last-level cache, and neither.

Sizes follow the caches this machine reports; a virtual machine may report the whole socket's last-level cache, of which
one core sees little, so the middle size is bounded and the sizes used travel with the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from metainfer_probe.micro_cuda import COPY_BYTES, with_cuda_work
from metainfer_probe.timing import time_blocks

Level = Literal["l2", "l3", "main"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TYPICAL = {2: 1 << 20, 3: 32 << 20}
"""Where the machine does not say."""
L3_SHARE_LIMIT_BYTES = 16 << 20
"""More than one core's fair share of the last-level cache on current servers (1.5 to 4 MB) is other tenants' luck."""
MAIN_LIMIT_BYTES = 512 << 20
MIN_MAIN_BYTES = 128 << 20
MEMORY_SHARE = 8
"""At most an eighth of the memory allowed here: a probe must not get its container killed."""


@dataclass(frozen=True, slots=True)
class CopyFigure:
    """Median and best bandwidth of copying between two halves of a working set; read plus written bytes per second."""

    level: Level
    working_set_bytes: int
    gigabytes_per_second: float
    best_gigabytes_per_second: float


def measure_bandwidth(seconds: float, memory_limit_bytes: int) -> tuple[CopyFigure, ...]:
    """One figure per level, about ``seconds`` in all."""
    sizes = choose_sizes(read_cache_sizes(), memory_limit_bytes)
    return tuple(_measure(level, size, seconds / len(sizes)) for level, size in sizes.items())


def measure_card_bandwidth(seconds: float) -> tuple[CopyFigure, ...]:
    """The same of an NVIDIA card's memory: one working set far beyond its cache. Raises ProbeError ``CardLibraryMissing`` or ``CardFailed``."""
    times = with_cuda_work(lambda work: time_blocks(work.copy, seconds))
    rates = [2 * COPY_BYTES / (micros * 1e3) for micros in times]
    return (CopyFigure("main", 2 * COPY_BYTES, round(float(np.median(rates)), 3), round(max(rates), 3)),)


def choose_sizes(caches: dict[int, int], memory_limit_bytes: int) -> dict[Level, int]:
    """Working sets: half the L2; a part of the L3 that is well beyond the L2; four times the L3, within limits. Pure."""
    level_two, level_three = caches.get(2, _TYPICAL[2]), caches.get(3, _TYPICAL[3])
    middle = min(level_three // 2, max(L3_SHARE_LIMIT_BYTES, 2 * level_two))
    main = min(max(4 * level_three, MIN_MAIN_BYTES), MAIN_LIMIT_BYTES, max(memory_limit_bytes // MEMORY_SHARE, 4 * level_two))
    return {"l2": level_two // 2, "l3": max(middle, 2 * level_two), "main": main}


def read_cache_sizes(folder: Path = _CACHES) -> dict[int, int]:
    """Bytes per cache level of the first processor; empty where the kernel does not say."""
    return dict(_cache_sizes(folder))


def _cache_sizes(folder: Path) -> Iterator[tuple[int, int]]:
    for index in sorted(folder.glob("index*")):
        with suppress(OSError, ValueError, KeyError):
            if (index / "type").read_text().strip() != "Instruction":
                size = (index / "size").read_text().strip()
                yield int((index / "level").read_text()), int(size[:-1]) * _UNITS[size[-1]]


def _measure(level: Level, working_set_bytes: int, seconds: float) -> CopyFigure:
    half = max(working_set_bytes // 16, 1)  # elements of 8 bytes, two halves
    source, target = np.ones(half), np.ones(half)
    rates = [2 * half * 8 / (micros * 1e3) for micros in time_blocks(lambda: np.copyto(target, source), seconds)]
    return CopyFigure(level, working_set_bytes, round(float(np.median(rates)), 3), round(max(rates), 3))
