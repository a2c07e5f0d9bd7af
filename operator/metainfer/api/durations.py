"""Duration strings of the API ("30ms", "168h", "1m30s"), as integers of microseconds in code.

Every time in spec and status is such a string, so that columns read well and 300 us models are not rounded away.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache

PATTERN = r"^([0-9]+(h|m|s|ms|us))+$"
_PART = re.compile(r"([0-9]+)(h|ms|us|m|s)")
_UNIT_US = {"h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}


@lru_cache(maxsize=1024)
def parse_duration_us(text: str) -> int:
    """Microseconds of a duration string; raises ValueError naming the text."""
    if not re.fullmatch(PATTERN, text):
        msg = f"not a duration: {text!r} (want for example 300us, 30ms, 10m, 168h)"
        raise ValueError(msg)
    return sum(int(number) * _UNIT_US[unit] for number, unit in _PART.findall(text))


def parse_duration(text: str) -> timedelta:
    """The same as a timedelta."""
    return timedelta(microseconds=parse_duration_us(text))


def format_duration_us(value_us: float) -> str:
    """Three significant digits at most, in the largest unit that keeps them: 300us, 4.1 ms -> 4100us, 12 s -> 12s."""
    value = round(value_us)
    if value < 10_000:
        return f"{value}us"
    if value < 10_000_000:
        return f"{round(value / 1_000)}ms"
    seconds = round(value / 1_000_000)
    if seconds < 600:
        return f"{seconds}s"
    minutes, hours = seconds // 60, seconds // 3600
    return f"{minutes}m" if minutes < 600 else f"{hours}h"
