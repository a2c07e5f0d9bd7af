"""How one setting is spelled in an environment variable, and read back. Pure; knows nothing of who declares it.

Reading is strict: a spelling that the server might understand otherwise than we do counts as unusable, never as a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, get_args

from metainfer.api import durations
from metainfer_probe.contract import Precision, ServingConfig

Setting = Literal["precision", "max_batch_size", "max_batch_delay", "concurrency", "execution_providers"]
SETTINGS: Final[tuple[Setting, ...]] = get_args(Setting)
DelayUnit = Literal["duration", "seconds"]
"""``duration``: a string such as ``5ms``; ``seconds``: a decimal number, as MLServer has it."""
Value = str | int

MAXIMUM_BATCH, MAXIMUM_CONCURRENCY, MAXIMUM_DELAY_US = 1024, 256, 10_000_000
"""The bounds of ServingConfig; nothing outside them was ever measured."""
LONGEST_NUMBER = 18
"""Digits, leading zeros included. Python refuses to read numbers of thousands of digits, and a value in a manifest may have them."""


def parse_setting(setting: Setting, text: str, unit: DelayUnit) -> Value | None:
    """The value in the terms of ServingConfig (delay in microseconds); None when it cannot be used.

    Of several execution providers the first counts: it is the one that runs. Batch size 0 is MLServer's word for 1.
    """
    return _PARSERS[setting](text.strip(), unit)


def format_setting(setting: Setting, config: ServingConfig, unit: DelayUnit) -> str:
    """The variable's value that makes the server run the configuration; exact, nothing is rounded."""
    match setting:
        case "precision":
            return config.precision
        case "max_batch_size":
            return str(config.batch_size)
        case "max_batch_delay":
            return _format_delay(config.max_batch_delay_us if config.dynamic_batching else 0, unit)
        case "concurrency":
            return str(config.concurrency)
        case "execution_providers":
            return config.execution_provider


def _format_delay(delay_us: int, unit: DelayUnit) -> str:
    if unit == "seconds":
        return f"{Decimal(delay_us) / 1_000_000:f}"
    return f"{delay_us // 1000}ms" if delay_us % 1000 == 0 else f"{delay_us}us"


def _parse_precision(text: str, _unit: DelayUnit) -> Value | None:
    return text if text in get_args(Precision) else None


def _parse_batch(text: str, _unit: DelayUnit) -> Value | None:
    number = _whole(text)
    return max(1, number) if number is not None and number <= MAXIMUM_BATCH else None


def _parse_concurrency(text: str, _unit: DelayUnit) -> Value | None:
    number = _whole(text)
    return number if number is not None and 1 <= number <= MAXIMUM_CONCURRENCY else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else None


def _parse_delay(text: str, unit: DelayUnit) -> Value | None:
    delay_us = _seconds_us(text) if unit == "seconds" else _duration_us(text)
    return delay_us if delay_us is not None and 0 <= delay_us <= MAXIMUM_DELAY_US else None


def _duration_us(text: str) -> int | None:
    try:
        return durations.parse_duration_us(text)
    except ValueError:
        return None


def _seconds_us(text: str) -> int | None:
    try:
        seconds = Decimal(text)
    except InvalidOperation:
        return None
    return round(seconds * 1_000_000) if seconds.is_finite() and abs(seconds) <= MAXIMUM_DELAY_US else None


def _parse_providers(text: str, _unit: DelayUnit) -> Value | None:
    first = text.partition(",")[0].strip()
    return first if first.isascii() and first.isalnum() and len(first) <= 64 else None


_PARSERS: Final[Mapping[Setting, Callable[[str, DelayUnit], Value | None]]] = {
    "precision": _parse_precision,
    "max_batch_size": _parse_batch,
    "max_batch_delay": _parse_delay,
    "concurrency": _parse_concurrency,
    "execution_providers": _parse_providers,
}
