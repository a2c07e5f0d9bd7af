"""What a card can do at one runtime and precision, from seven probe shapes, or from its spec sheet where nobody probed it.

Formulas: rate = work / (time - launch floor), for the shapes that the data card of the public tables names (m x n x k):
tiny 1x256x256 = the floor itself; GEMV 1x8192x8192 and 32x8192x8192 read their weights = bandwidth; 256x4096x4096 and 8192^3
= arithmetic at medium and large shapes; decode attention (batch 32, 8 KV heads of 128, context 2048, bf16) = bandwidth over the
cache; prefill attention (batch 4, 32 heads of 128, 2048 tokens, causal) = arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from metainfer.predict.public.columns import Column, Columns, length, lookup
from metainfer.predict.workload import Floats

BITS: Mapping[str, float] = {"bf16": 16, "fp8": 8, "fp8_block": 8, "nvfp4": 4, "fp4": 4, "int8_wo": 8, "int4_wo": 4, "int8_sq": 8}
"""Width of a stored weight."""
SCALE_BITS: Mapping[str, float] = {"nvfp4": 0.5, "fp4": 0.5, "int4_wo": 0.125}
"""Scales that are stored beside them: one byte per 16 values, two bytes per 128."""
MATH: Mapping[str, str] = {"fp8": "fp8_tflops", "fp8_block": "fp8_tflops", "nvfp4": "fp4_tflops", "fp4": "fp4_tflops", "int8_sq": "int8_tops"}
"""Column of the spec sheet; the others, weight-only ones among them, compute in bf16."""
Key = tuple[str, str, str]
"""Card, backend, precision."""
RELATED: Mapping[str, str] = {"fp4": "nvfp4"}
"""The same format under another name."""

SPEC_GEMM_SHARE, SPEC_MEDIUM_SHARE, SPEC_ATTENTION_SHARE, SPEC_BANDWIDTH_SHARE = 0.7, 0.4, 0.35, 0.75
"""Part of the paper figures that the six probed cards reach, in the middle."""
SPEC_FLOOR_US = 3.0
SHARPNESS = 3.0
"""p of the norm between arithmetic and traffic: with p = 3, a kernel at the ridge takes 1.26 times either."""
LARGE_OVER_MEDIUM = 16.0
"""From 256 to 4096 rows."""
_LEAST_NET_SHARE = 0.3
"""Of a probe's time that is work: a tiny GEMM slower than a large one is a floor of another kind, not a negative time."""


@dataclass(frozen=True, slots=True)
class CardPeaks:
    """One entry per row."""

    floor_us: Floats
    """Of one product in this precision."""
    plain_floor_us: Floats
    """Of any kernel on this card: the least of all runtimes and precisions."""
    gemv_bytes_per_us: Floats
    m32_bytes_per_us: Floats
    m256_flop_per_us: Floats
    big_flop_per_us: Floats
    decode_bytes_per_us: Floats
    prefill_flop_per_us: Floats
    is_probed: Floats
    """1 = this runtime and precision; 0.5 = another of this card, scaled; 0 = spec sheet."""

    def take(self, where: Column) -> CardPeaks:
        """The rows of a mask or of indices."""
        return CardPeaks(*(getattr(self, item.name)[where] for item in fields(self)))


def weight_bits(precision: Column) -> Floats:
    """Bits per weight, scales included; an unknown precision counts as 16."""
    names, inverse = np.unique(precision, return_inverse=True)
    return np.array([BITS.get(name, 16.0) + SCALE_BITS.get(name, 0.0) for name in names.tolist()])[inverse]


def find_card_peaks(keys: Columns, hardware: Columns, probes: Columns | None) -> CardPeaks:
    """Peaks for the ``card``, ``backend``, ``precision`` of each row; each different triple is worked out once."""
    triples = np.char.add(np.char.add(np.char.add(keys["card"], "\t"), np.char.add(keys["backend"], "\t")), keys["precision"])
    names, inverse = np.unique(triples, return_inverse=True)
    known = {} if probes is None else _index_probes(probes)
    found = np.array([_peaks_of((card, backend, precision), hardware, known) for card, backend, precision in (name.split("\t") for name in names.tolist())])
    return CardPeaks(*found[inverse].T) if len(names) else CardPeaks(*np.zeros((len(fields(CardPeaks)), 0)))


def _index_probes(probes: Columns) -> dict[Key, Floats]:
    shapes = ("tiny", "gemv", "m32", "m256", "gemm", "dec_attn", "ctx_attn")
    times = np.stack([probes[f"probe_{shape}_ms"] * 1000.0 for shape in shapes], axis=1) if length(probes) else np.zeros((0, len(shapes)))
    keys = zip(probes["card"].tolist(), probes["backend"].tolist(), probes["precision"].tolist(), strict=True)
    return {key: row for key, row in zip(keys, times, strict=True) if np.all(np.isfinite(row) & (row > 0))}


def _peaks_of(wanted: Key, hardware: Columns, probes: Mapping[Key, Floats]) -> list[float]:
    card, backend, precision = wanted
    named = RELATED.get(precision, precision)
    candidates = [key for key in sorted(probes) if key[0] == card]
    plain = min((float(probes[key].min()) for key in candidates), default=SPEC_FLOOR_US)
    if (row := probes.get((card, backend, named))) is not None:
        return [*_rates(row, precision, plain), 1.0]
    spec = _spec(card, precision, hardware)
    if not candidates:
        return [*spec, 0.0]
    # Of what was probed on this card: the same runtime first, then the same precision; carried over by the spec sheets' ratio.
    nearest = min(candidates, key=lambda key: (key[2] != named, key[1] != backend))
    measured, paper = _rates(probes[nearest], nearest[2], plain), _spec(card, nearest[2], hardware)
    return [*(value * mine / theirs for value, mine, theirs in zip(measured, spec, paper, strict=True)), 0.5]


def _rates(times_us: Floats, precision: str, plain_floor_us: float) -> list[float]:
    gemv, m32, m256, big, decode, prefill = times_us[1:].tolist()
    width = (BITS.get(precision, 16.0) + SCALE_BITS.get(precision, 0.0)) / 8.0
    # A kernel that is slow on the tiniest shape only (as some block-scaled ones are) has no floor above its other times.
    floor = float(times_us[:4].min())
    net = [max(time - floor, _LEAST_NET_SHARE * time) for time in (gemv, m32, m256, big)]
    bandwidth = 8192.0**2 * width / net[1]
    medium = 2.0 * 256 * 4096.0**2 / _without(net[2], (4096.0**2 * width + 2 * 256 * 4096 * 2) / bandwidth)
    return [
        floor,
        plain_floor_us,
        # One row is never slower than 32, and a rate never grows faster than the rows: noise and odd kernels must not make more work look faster.
        max(bandwidth, 8192.0**2 * width / net[0]),
        bandwidth,
        medium,
        min(2.0 * 8192.0**3 / net[3], LARGE_OVER_MEDIUM * medium),
        2.0 * 32 * 2048 * 8 * 128 * 2 / decode,
        2.0 * 4 * 32 * 128 * 2048.0**2 / prefill,
    ]


def _without(time_us: float, traffic_us: float) -> float:
    """The arithmetic in a time that is the p-norm of arithmetic and traffic; at least half of it."""
    return float(max(0.5 * time_us, max(0.0, time_us**SHARPNESS - traffic_us**SHARPNESS) ** (1 / SHARPNESS)))


def _spec(card: str, precision: str, hardware: Columns) -> list[float]:
    """Paper figures: 1 TFLOPS = 1e6 operations per microsecond, 1 GB/s = 1000 bytes per microsecond."""
    row = lookup(hardware, "card", np.array([card]), what="hw.csv")[0]
    bf16 = float(hardware["bf16_tflops"][row]) * 1e6
    flop = float(hardware[MATH.get(precision, "bf16_tflops")][row]) * 1e6 or bf16
    bandwidth = float(hardware["bw_gbs"][row]) * 1e3 * SPEC_BANDWIDTH_SHARE
    return [SPEC_FLOOR_US, SPEC_FLOOR_US, bandwidth, bandwidth, flop * SPEC_MEDIUM_SHARE, flop * SPEC_GEMM_SHARE, bandwidth, bf16 * SPEC_ATTENTION_SHARE]
