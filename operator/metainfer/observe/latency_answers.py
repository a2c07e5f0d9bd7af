"""What Prometheus' HTTP API answers, read strictly: a sample that is none is no Prometheus' answer, and ends in a typed error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.observe.latency_http import SHOWN_CHARACTERS, MetricsRefused, MetricsRequest, MetricsUnavailable

Sample = tuple[float, float]
"""Unix seconds, value; values come as text, ``NaN`` and ``+Inf`` among them."""


class _ApiModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RangedSeries(_ApiModel):
    """One series with its samples."""

    metric: dict[str, str] = Field(default_factory=dict)
    values: tuple[Sample, ...] = ()


class SingleValue(_ApiModel):
    """One series with one value."""

    metric: dict[str, str] = Field(default_factory=dict)
    value: Sample


class Matrix(_ApiModel):
    """Answer to a selector over a range."""

    kind: Literal["matrix"] = Field(alias="resultType")
    result: tuple[RangedSeries, ...]


class Vector(_ApiModel):
    """Answer to an instant query."""

    kind: Literal["vector"] = Field(alias="resultType")
    result: tuple[SingleValue, ...]


class Scalar(_ApiModel):
    """Answer to an instant query without labels."""

    kind: Literal["scalar"] = Field(alias="resultType")
    result: Sample


class Text(_ApiModel):
    """Answer to a string literal."""

    kind: Literal["string"] = Field(alias="resultType")


class _Envelope(_ApiModel):
    warnings: tuple[str, ...] | None = None
    data: Annotated[Matrix | Vector | Scalar | Text, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer."""

    result: Matrix | Vector | Scalar | Text
    warnings: tuple[str, ...]
    shown: str

    def read_series(self) -> tuple[RangedSeries, ...]:
        """Of a selector. Raises MetricsRefused."""
        if isinstance(self.result, Matrix):
            return self.result.result
        raise self._refuse("matrix")

    def read_values(self) -> tuple[SingleValue, ...]:
        """Of an instant query. Raises MetricsRefused."""
        if isinstance(self.result, Scalar):
            return (SingleValue(value=self.result.result),)
        if isinstance(self.result, Vector):
            return self.result.result
        raise self._refuse("vector")

    def _refuse(self, wanted: str) -> MetricsRefused:
        return MetricsRefused("QueryRefused", f"{self.shown} answers the query with a {self.result.kind}; it must give a {wanted}")


def parse_answer(status: int, body: bytes, request: MetricsRequest) -> Answer:
    """A good answer, or the error that it means."""
    if status in (401, 403):
        raise MetricsRefused("MetricsForbidden", f"{request.shown} refuses the credentials, or wants some (HTTP {status})")
    if status == 429 or status >= 500:
        raise MetricsUnavailable("MetricsUnreachable", f"{request.shown} cannot answer now (HTTP {status}) {_read_error(body)}".rstrip())
    if status in (400, 422) and (told := _read_error(body)):
        raise MetricsRefused("QueryRefused", f"{request.shown} refuses the query: {told}")
    try:
        envelope = _Envelope.model_validate_json(body) if status == 200 else None
    except ValidationError:
        envelope = None
    if envelope is None:
        raise MetricsRefused("NotPrometheus", f"{request.shown} does not answer as Prometheus does (HTTP {status}): check the address")
    return Answer(envelope.data, tuple(text[:SHOWN_CHARACTERS] for text in envelope.warnings or ()), request.shown)


def _read_error(body: bytes) -> str:
    try:
        return str(json.loads(body).get("error", ""))[:SHOWN_CHARACTERS]
    except (ValueError, AttributeError, RecursionError):
        return ""
