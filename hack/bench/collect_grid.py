"""Which cards there are on this machine, and which points are measured on them, most telling first.

A processor without its newer instructions is a real older card: oneDNN reads the newest set it may use from the environment, before
the runtime is loaded. ONNX Runtime has no such switch, so older cards serve OpenVINO only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from metainfer_probe.contract import Precision, ServingConfig

ORT, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
BATCH_DELAY_US = 2_000
"""What the operator sets where nobody declared a delay."""
PRECISION_STEP: Mapping[Precision, int] = {"fp32": 0, "int8": 1, "bf16": 1, "fp16": 2}
"""How far a precision is from the plain point; points with fewer steps are measured first, on every model and card."""
BATCHES, CONCURRENCIES = (1, 4), (1, 2)
DEEPEST = PRECISION_STEP["fp16"] + 2


@dataclass(frozen=True, slots=True)
class Card:
    """One sort of card that this machine can be."""

    name: str
    providers: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Child processes started meanwhile run on this card; this process itself loads no runtime."""
        before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


CARDS = (
    Card("native", (ORT, OPENVINO)),
    Card("avx2", (OPENVINO,), {ISA_VARIABLE: "AVX2"}),
    Card("sse41", (OPENVINO,), {ISA_VARIABLE: "SSE41"}),
    Card("avx512", (OPENVINO,), {ISA_VARIABLE: "AVX512_CORE"}),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration on one card; ``step`` counts what sets it apart from fp32, batch 1, one execution at a time."""

    card: Card
    config: ServingConfig
    step: int


def grid(card: Card, native: Mapping[str, tuple[Precision, ...]], deepest: int = DEEPEST) -> list[Point]:
    """All points of the card in precisions that the probe found native on it, plain ones first."""
    points = [
        Point(card, _config(provider, precision, batch, concurrency), step)
        for provider in card.providers
        for precision in native.get(provider, ())
        for batch in BATCHES
        for concurrency in CONCURRENCIES
        if (step := PRECISION_STEP[precision] + (batch > 1) + (concurrency > 1)) <= deepest
    ]
    return sorted(points, key=lambda point: point.step)


def reference() -> ServingConfig:
    """What runs beside every point: ONNX Runtime, fp32, one request at a time.

    It is the same on every card, so it also shows where a runtime answers rubbish (OpenVINO does for some graphs without newer instructions).
    """
    return _config(ORT, "fp32", 1, 1)


def _config(provider: str, precision: Precision, batch: int, concurrency: int) -> ServingConfig:
    return ServingConfig(
        execution_provider=provider,
        precision=precision,
        batch_size=batch,
        concurrency=concurrency,
        dynamic_batching=batch > 1,
        max_batch_delay_us=BATCH_DELAY_US if batch > 1 else 0,
    )
