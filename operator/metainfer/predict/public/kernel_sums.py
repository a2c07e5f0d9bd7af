"""Rows of the table of LLM kernel sums: two executions each, the prefill of a whole batch and one decode step.

Physics: every kernel takes the launch floor plus the longer of its arithmetic and its traffic (Williams, Waterman, Patterson, Roofline,
2009), rounded by a p-norm where both are close, at the rates that the probe measured for a product of that many rows.
"""

from __future__ import annotations

import numpy as np

from metainfer.predict.learned.rows import Rows, make_rows
from metainfer.predict.public.cards import SHARPNESS, CardPeaks, find_card_peaks, weight_bits
from metainfer.predict.public.columns import Columns, length, lookup, take
from metainfer.predict.public.language_models import Pass, build_pass
from metainfer.predict.workload import CLASSES, Floats

KERNEL_COLUMNS = ("model", "card", "backend", "precision", "workload", "isl", "osl", "batch")
MATMUL, ATTENTION, EXPERTS = CLASSES.index("matmul"), CLASSES.index("attention"), CLASSES.index("other")
"""Routed experts count as ``other``: their kernels are products too, but of another runtime path and quality."""
EXPERT_EFFICIENCY = 0.65
"""Grouped products of experts against one dense product of as many rows: tiles are padded per expert."""
TILE_ROWS = 64.0
"""Fewer rows than a tile take the arithmetic of a whole one."""
ACTIVATION_BYTES = 2.0
HEAD_BITS = 16.0
"""The output head stays in bf16 whatever the weights are."""


def build_kernel_rows(table: Columns, models: Columns, hardware: Columns, probes: Columns | None) -> tuple[Rows, Rows]:
    """Prefill and decode rows, each in the table's order; latencies where the table has them."""
    peaks = find_card_peaks(table, hardware, probes)
    shape = take(models, lookup(models, "model", table["model"], what="models.csv"))
    family = hardware["family"][lookup(hardware, "card", table["card"], what="hw.csv")]
    context = table["isl"] + table["osl"] / 2
    found = []
    for regime, tokens, column in (("prefill", table["isl"], "ttft_ms"), ("decode", context, "tpot_ms")):
        work = build_pass(shape, table["batch"], tokens, decodes=regime == "decode")
        rows = make_rows(length(table))
        for name, source in (("model", "model"), ("card", "card"), ("runtime", "backend"), ("precision", "precision"), ("batch", "batch")):
            rows[name] = table[source]
        rows["family"], rows["regime"] = family, regime
        rows["clients"] = table["batch"]
        _fill_work(rows, work, weight_bits(table["precision"]))
        _fill_card(rows, peaks)
        _fill_times(rows, work, peaks, weight_bits(table["precision"]))
        if column in table:
            rows["latency_us"] = table[column] * 1000.0
        found.append(rows)
    return found[0], found[1]


def _fill_work(rows: Rows, work: Pass, bits: Floats) -> None:
    macs = (work.m * work.n * work.k * work.count).sum(axis=1)
    rows["macs"][:, MATMUL], rows["macs"][:, ATTENTION], rows["macs"][:, EXPERTS] = macs, work.attention_macs, work.expert_macs
    rows["weight_bytes"][:, MATMUL] = (work.n * work.k * work.count * _widths(bits)).sum(axis=1)
    rows["weight_bytes"][:, EXPERTS] = work.expert_weights * bits / 8
    rows["activation_bytes"][:, MATMUL] = (work.m * (work.n + work.k) * work.count).sum(axis=1) * ACTIVATION_BYTES
    rows["activation_bytes"][:, ATTENTION] = work.cache_bytes
    rows["launches"] = work.count.sum(axis=1) + work.expert_launches + work.layers


def _fill_card(rows: Rows, peaks: CardPeaks) -> None:
    rates = np.stack([peaks.gemv_bytes_per_us, peaks.m32_bytes_per_us], axis=1)
    # A product of few rows runs at the speed of its weights: one MAC per weight and row.
    width = (weight_bits(rows["precision"]) / 8)[:, None]
    rows["flop_per_us"][:, :2] = 2.0 * rates / width * np.array([1.0, 32.0])
    rows["flop_per_us"][:, 2], rows["flop_per_us"][:, 3] = peaks.m256_flop_per_us, peaks.big_flop_per_us
    rows["bytes_per_us"], rows["launch_floor_us"], rows["is_probed"] = peaks.gemv_bytes_per_us, peaks.floor_us, peaks.is_probed


def _fill_times(rows: Rows, work: Pass, peaks: CardPeaks, bits: Floats) -> None:
    compute, traffic = product_times_us(work, peaks, bits)
    rows["compute_us"][:, MATMUL], rows["traffic_us"][:, MATMUL] = (compute * work.count).sum(axis=1), (traffic * work.count).sum(axis=1)
    products = (_both(compute, traffic) * work.count).sum(axis=1)
    expert_compute = 2 * work.expert_macs / EXPERT_EFFICIENCY / rate_at(work.expert_rows, peaks)
    expert_traffic = work.expert_weights * bits / 8 / peaks.gemv_bytes_per_us
    rows["compute_us"][:, EXPERTS], rows["traffic_us"][:, EXPERTS] = expert_compute, expert_traffic
    decodes = work.decodes > 0
    rows["compute_us"][:, ATTENTION] = 2 * work.attention_macs / peaks.prefill_flop_per_us
    rows["traffic_us"][:, ATTENTION] = work.cache_bytes / peaks.decode_bytes_per_us
    attention = np.where(decodes, rows["traffic_us"][:, ATTENTION], rows["compute_us"][:, ATTENTION])
    products_only = work.count.sum(axis=1)
    rows["launch_us"] = products_only * peaks.floor_us + (rows["launches"] - products_only) * peaks.plain_floor_us
    rows["base_us"] = products + _both(expert_compute, expert_traffic) + attention + rows["launch_us"]


def product_times_us(work: Pass, peaks: CardPeaks, bits: Floats) -> tuple[Floats, Floats]:
    """[rows, projections]: arithmetic and traffic of one product each."""
    weights = work.n * work.k * _widths(bits)
    activations = work.m * (work.n + work.k) * ACTIVATION_BYTES
    share = np.clip(np.log2(np.maximum(work.m, 1.0)) / 5.0, 0.0, 1.0)  # from the GEMV's to the 32-row product's, in log rows
    bandwidth = peaks.gemv_bytes_per_us[:, None] ** (1 - share) * peaks.m32_bytes_per_us[:, None] ** share
    compute = 2 * np.maximum(work.m, TILE_ROWS) * work.n * work.k / _columns_rate(work.m, peaks)
    return np.asarray(compute, dtype=np.float64), np.asarray((weights + activations) / bandwidth, dtype=np.float64)


def rate_at(rows: Floats, peaks: CardPeaks) -> Floats:
    """Operations per microsecond of a product of that many rows: a straight line in log-log from 256 to 4096 rows, level beyond.

    Below 256 the rate of 256 holds for whole tiles; a smaller product takes the time of one tile.
    """
    share = np.clip((np.log2(np.maximum(rows, 1.0)) - 8.0) / 4.0, 0.0, 1.0)
    big = np.maximum(peaks.big_flop_per_us, peaks.m256_flop_per_us * 0.5)
    rate = peaks.m256_flop_per_us ** (1 - share) * big**share
    return np.asarray(rate * np.minimum(1.0, np.maximum(rows, 1.0) / TILE_ROWS), dtype=np.float64)


def _columns_rate(m: Floats, peaks: CardPeaks) -> Floats:
    tiles = np.maximum(m, TILE_ROWS)
    return np.stack([rate_at(tiles[:, index], peaks) for index in range(m.shape[1])], axis=1)


def _widths(bits: Floats) -> Floats:
    """[rows, projections]: bytes per weight."""
    return np.stack([bits / 8] * 4 + [np.full_like(bits, HEAD_BITS / 8)], axis=1)


def _both(compute: Floats, traffic: Floats) -> Floats:
    return np.asarray((compute**SHARPNESS + traffic**SHARPNESS) ** (1 / SHARPNESS), dtype=np.float64)
