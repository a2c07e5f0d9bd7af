"""Rows of the table of end-to-end serving runs: time per token, and the whole request as the throughput implies it.

Physics of one engine with ``conc`` requests in flight, on ``gpus`` cards that share every layer: a decode step reads the weights that
its tokens touch and the cache of every sequence; between the steps of one request, the prompts of the others are prefilled, isl / osl
tokens per token that is generated (flow balance, Little's law); every layer ends in two reductions over the cards. Source: Pope et al.,
Efficiently Scaling Transformer Inference (2022), for the first and the last; chunked prefill as in Agrawal et al., Sarathi (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metainfer.predict.learned.rows import Rows, make_rows
from metainfer.predict.public.cards import CardPeaks, find_card_peaks, weight_bits
from metainfer.predict.public.columns import Columns, length, lookup, take
from metainfer.predict.public.kernel_sums import ATTENTION, EXPERTS, MATMUL, rate_at
from metainfer.predict.workload import Floats

SERVING_COLUMNS = ("model", "card", "backend", "precision", "isl", "osl", "conc", "gpus", "ep", "dp_attn")
SERVING_MODEL_COLUMNS = ("model", "total_b", "active_b", "layers", "hidden", "kv_kb_per_token", "experts", "topk")
EXPERT_EFFICIENCY = 0.4
"""Grouped products of experts against one dense product of as many rows, with the waiting for whoever has the popular experts."""
CACHE_BACKENDS = ("trtllm",)
LAYER_LAUNCHES = 8.0
"""Kernels per layer once a runtime has fused what it can; with CUDA graphs each costs about the launch floor."""
LAYER_FLOOR_US = 4.0
"""Of each of those kernels, host included; on every card alike, since the host is what is alike."""
STEP_FLOOR_US = 2000.0
"""Scheduling, sampling and detokenising between two steps."""
REDUCTION_FLOOR_US = 14.0
"""Of one all-reduce within a node."""
LINK_BYTES_PER_US = 3.0e5
"""What an all-reduce moves per card over NVLink, about 300 GB/s."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One decode step and the prompts prefilled beside it, per row, in microseconds."""

    dense_compute: Floats
    dense_traffic: Floats
    expert_compute: Floats
    expert_traffic: Floats
    cache_traffic: Floats
    prefill_compute: Floats
    launches: Floats
    links: Floats

    @property
    def total(self) -> Floats:
        decode = np.maximum(self.dense_compute, self.dense_traffic) + np.maximum(self.expert_compute, self.expert_traffic) + self.cache_traffic
        return np.asarray(decode + self.prefill_compute + self.launches + self.links + STEP_FLOOR_US, dtype=np.float64)


def build_serving_rows(table: Columns, models: Columns, hardware: Columns, probes: Columns | None) -> tuple[Rows, Rows]:
    """Token rows (time per output token) and request rows (conc requests x osl tokens over the throughput), in the table's order."""
    peaks = find_card_peaks(table, hardware, probes)
    shape = take(models, lookup(models, "model", table["model"], what="models.csv"))
    step = _step(table, shape, peaks)
    family = hardware["family"][lookup(hardware, "card", table["card"], what="hw.csv")]
    found = []
    for regime in ("token", "request"):
        rows = make_rows(length(table))
        for name, source in (("model", "model"), ("card", "card"), ("runtime", "backend"), ("precision", "precision")):
            rows[name] = table[source]
        rows["family"], rows["regime"] = family, regime
        rows["batch"] = rows["clients"] = table["conc"]
        rows["devices"] = engine_cards(table)
        rows["sharding"] = np.where(table["dp_attn"] > 1, "dp", np.where(table["ep"] > 1, "ep", ""))
        _fill_work(rows, table, shape)
        _fill_times(rows, step, peaks)
        found.append(rows)
    token, request = found
    request["base_us"] = token["base_us"] * table["osl"] + step.prefill_compute * table["osl"] / np.maximum(1.0, table["conc"])
    if "tpot_ms" in table:
        token["latency_us"] = table["tpot_ms"] * 1000.0
    if "tok_s_gpu" in table:
        request["latency_us"] = table["conc"] * table["osl"] / (table["tok_s_gpu"] * table["gpus"]) * 1e6
    return token, request


def serving_throughput(table: Columns, request_us: Floats) -> Floats:
    """Tokens per second and card."""
    return np.asarray(table["conc"] * table["osl"] / request_us * 1e6 / table["gpus"], dtype=np.float64)


def engine_cards(table: Columns) -> Floats:
    """Cards that one engine really ran on.

    Where experts are spread over ``ep`` cards, the column ``gpus`` is 1 or ep x ep in part of the table (tensor parallelism alone, or its
    product with ep): times per token show that both ran on ep cards.
    """
    gpus, ep = table["gpus"], table["ep"]
    return np.asarray(np.where(gpus == ep**2, ep, np.maximum(gpus, ep)), dtype=np.float64)


def cache_share(table: Columns) -> Floats:
    """Bytes per element of the key-value cache against bf16: checkpoints in 8 bits and less come with an 8-bit cache, which TensorRT-LLM uses."""
    small = np.isin(table["precision"], ("fp8", "fp4")) & np.isin(table["backend"], CACHE_BACKENDS)
    return np.where(small, 0.5, 1.0)


def _parameters(shape: Columns) -> tuple[Floats, Floats]:
    """Dense and expert parameters from total = dense + experts and active = dense + experts x topk / E."""
    total, active = shape["total_b"] * 1e9, shape["active_b"] * 1e9
    share = np.divide(shape["topk"], shape["experts"], out=np.zeros_like(total), where=shape["experts"] > 0)
    experts = np.where(share > 0, (total - active) / (1 - np.minimum(share, 0.99)), 0.0)
    return total - experts, experts


def _step(table: Columns, shape: Columns, peaks: CardPeaks) -> _Step:
    dense, experts = _parameters(shape)
    share = np.divide(shape["topk"], shape["experts"], out=np.zeros_like(dense), where=shape["experts"] > 0)
    width, conc, gpus = weight_bits(table["precision"]) / 8, table["conc"], engine_cards(table)
    touched = -np.expm1(conc * np.log1p(-np.minimum(share, 0.99)))
    rows_per_expert = np.divide(conc * share, touched, out=np.zeros_like(conc), where=touched > 0)
    context = table["isl"] + table["osl"] / 2
    tokens = conc * table["isl"] / table["osl"]
    reductions = np.where(gpus > 1, 2 * shape["layers"], 0.0)
    moved = (conc + tokens) * shape["hidden"] * 2.0 * 2.0 * (gpus - 1) / gpus
    return _Step(
        dense_compute=2 * dense * np.maximum(conc, 64.0) / gpus / rate_at(np.maximum(conc, 64.0), peaks),
        dense_traffic=dense * width / gpus / peaks.gemv_bytes_per_us,
        expert_compute=2 * experts * share * conc / EXPERT_EFFICIENCY / gpus / rate_at(np.maximum(rows_per_expert, 1.0), peaks),
        expert_traffic=experts * touched * width / gpus / peaks.gemv_bytes_per_us,
        cache_traffic=conc * context * shape["kv_kb_per_token"] * 1024 * cache_share(table) / gpus / peaks.decode_bytes_per_us,
        prefill_compute=2 * (dense + experts * share / EXPERT_EFFICIENCY) * tokens / gpus / peaks.big_flop_per_us,
        launches=shape["layers"] * LAYER_LAUNCHES * LAYER_FLOOR_US,
        links=reductions * (REDUCTION_FLOOR_US + moved / LINK_BYTES_PER_US),
    )


def _fill_work(rows: Rows, table: Columns, shape: Columns) -> None:
    dense, experts = _parameters(shape)
    tokens = table["conc"] * (1 + table["isl"] / table["osl"])
    active = shape["active_b"] * 1e9
    rows["macs"][:, MATMUL], rows["macs"][:, EXPERTS] = dense * tokens, (active - dense) * tokens
    width = weight_bits(table["precision"]) / 8
    rows["weight_bytes"][:, MATMUL], rows["weight_bytes"][:, EXPERTS] = dense * width, experts * width
    rows["activation_bytes"][:, ATTENTION] = table["conc"] * (table["isl"] + table["osl"] / 2) * shape["kv_kb_per_token"] * 1024
    rows["launches"] = shape["layers"] * LAYER_LAUNCHES


def _fill_times(rows: Rows, step: _Step, peaks: CardPeaks) -> None:
    rows["compute_us"][:, MATMUL], rows["traffic_us"][:, MATMUL] = step.dense_compute + step.prefill_compute, step.dense_traffic
    rows["compute_us"][:, EXPERTS], rows["traffic_us"][:, EXPERTS] = step.expert_compute, step.expert_traffic
    rows["traffic_us"][:, ATTENTION] = step.cache_traffic
    rows["launch_us"], rows["wait_us"], rows["base_us"] = step.launches + STEP_FLOOR_US, step.links, step.total
    rows["flop_per_us"][:, 2], rows["flop_per_us"][:, 3] = peaks.m256_flop_per_us, peaks.big_flop_per_us
    width = weight_bits(rows["precision"]) / 8
    rows["flop_per_us"][:, 0] = 2 * peaks.gemv_bytes_per_us / width
    rows["flop_per_us"][:, 1] = 64 * peaks.m32_bytes_per_us / width
    rows["bytes_per_us"], rows["launch_floor_us"], rows["is_probed"] = peaks.gemv_bytes_per_us, peaks.floor_us, peaks.is_probed
