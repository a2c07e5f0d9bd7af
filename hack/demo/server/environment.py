"""What the demo server is told through its environment; the only place that knows the names. Pure.

    MODEL_PATH                      the .onnx file (required)
    MODEL_NAME                      name in the Open Inference Protocol; default: the file's name
    CALIBRATION_PATH                .npz with real requests (INPUT/INDEX); needed where int8 is made ahead of time
    METAINFER_EXECUTION_PROVIDERS   comma list, the first that this image has is used; default CPUExecutionProvider
    METAINFER_PRECISION             fp32 (the file as given), bf16, fp16 or int8, made at load; default fp32
    METAINFER_MAX_BATCH_SIZE        requests joined into one execution at most; default MLSERVER_MODEL_MAX_BATCH_SIZE, else 1
    METAINFER_MAX_BATCH_DELAY       how long the first of them waits, "2ms"; default MLSERVER_MODEL_MAX_BATCH_TIME (seconds), else 0
    METAINFER_CONCURRENCY           executions at once; default 1
    METAINFER_THREADS               threads of one execution; default 1
    METAINFER_WORKDIR               writable folder for copies in other precisions; default /tmp

An empty value counts as the default. As in MLServer, requests are joined only when the size is above 1 and the delay above 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from metainfer_probe.contract import Precision, ServingConfig
from metainfer_probe.load import joins_requests

DEFAULT_PROVIDER = "CPUExecutionProvider"
MAX_THREADS = 1024
_UNIT_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m)")


class SettingInvalid(Exception):
    """An environment variable that cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything the server needs to start."""

    model_path: Path
    model_name: str
    config: ServingConfig
    threads: int
    calibration_path: Path | None
    workdir: Path

    @property
    def batch_size(self) -> int:
        """Requests that one execution really holds at most: 1 where nothing is joined."""
        return self.config.batch_size if joins_requests(self.config) else 1


def read_settings(environment: Mapping[str, str], available: Sequence[str]) -> ServerSettings:
    """Read ``environment``; ``available`` are the providers of this image. Raises SettingInvalid."""
    model_path = Path(_value(environment, "MODEL_PATH", ""))
    if not model_path.name:
        raise SettingInvalid("MODEL_PATH is not set: it must name the .onnx file to serve")
    batch_size = _integer(environment, ("METAINFER_MAX_BATCH_SIZE", "MLSERVER_MODEL_MAX_BATCH_SIZE"), 1, maximum=1024)
    delay_us = _delay_us(environment)
    calibration = _value(environment, "CALIBRATION_PATH", "")
    return ServerSettings(
        model_path=model_path,
        model_name=_value(environment, "MODEL_NAME", model_path.stem),
        config=ServingConfig(
            execution_provider=_provider(environment, available),
            precision=_precision(environment),
            batch_size=max(1, batch_size),  # MLServer's own default is 0 and means the same
            concurrency=_integer(environment, ("METAINFER_CONCURRENCY",), 1, minimum=1, maximum=256),
            dynamic_batching=batch_size > 1 and delay_us > 0,
            max_batch_delay_us=delay_us,
        ),
        threads=_integer(environment, ("METAINFER_THREADS",), 1, minimum=1, maximum=MAX_THREADS),
        calibration_path=Path(calibration) if calibration else None,
        workdir=Path(_value(environment, "METAINFER_WORKDIR", "/tmp")),  # noqa: S108 - the one folder that is writable by agreement
    )


def _value(environment: Mapping[str, str], name: str, default: str) -> str:
    return environment.get(name, "").strip() or default


def _provider(environment: Mapping[str, str], available: Sequence[str]) -> str:
    wanted = [name.strip() for name in _value(environment, "METAINFER_EXECUTION_PROVIDERS", DEFAULT_PROVIDER).split(",") if name.strip()]
    chosen = next((name for name in wanted if name in available), None)
    if chosen is None:
        raise SettingInvalid(f"METAINFER_EXECUTION_PROVIDERS names {', '.join(wanted) or 'nothing'}; this image has {', '.join(available) or 'none'}")
    return chosen


def _precision(environment: Mapping[str, str]) -> Precision:
    text = _value(environment, "METAINFER_PRECISION", "fp32")
    for precision in get_args(Precision):
        if text == precision:
            return precision  # type: ignore[no-any-return]  # get_args of a Literal
    raise SettingInvalid(f"METAINFER_PRECISION is {text!r}, not one of {', '.join(get_args(Precision))}")


def _integer(environment: Mapping[str, str], names: Sequence[str], default: int, *, minimum: int = 0, maximum: int) -> int:
    name = next((name for name in names if _value(environment, name, "")), names[0])
    text = _value(environment, name, str(default))
    if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
        raise SettingInvalid(f"{name} is {text!r}, not a whole number from {minimum} to {maximum}")
    return int(text)


def _delay_us(environment: Mapping[str, str]) -> int:
    text = _value(environment, "METAINFER_MAX_BATCH_DELAY", "")
    if text:
        return _duration_us("METAINFER_MAX_BATCH_DELAY", text)
    name = "MLSERVER_MODEL_MAX_BATCH_TIME"
    text = _value(environment, name, "0")
    try:
        return _bounded_us(name, text, float(text) * 1e6)
    except ValueError as error:
        raise SettingInvalid(f"{name} is {text!r}, not a number of seconds") from error


def _duration_us(name: str, text: str) -> int:
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise SettingInvalid(f'{name} is {text!r}, not a duration such as "2ms", "500us" or "0"')
    return _bounded_us(name, text, sum(float(number) * _UNIT_US[unit] for number, unit in _DURATION_PART.findall(text)))


def _bounded_us(name: str, text: str, delay_us: float) -> int:
    limit_us = 10_000_000
    if not 0 <= delay_us <= limit_us:
        raise SettingInvalid(f"{name} is {text!r}, not between 0 and {limit_us // 1_000_000} s")
    return round(delay_us)
