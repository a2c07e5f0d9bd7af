"""Kernels of one forward pass of a language model, from its architecture numbers. Knows nothing of cards.

Source: the transformer's own shapes (Vaswani et al., 2017; grouped-query attention, Ainslie et al., 2023; gated feed-forward, Shazeer,
2020; top-k routing, Fedus et al., 2022): each projection is a product m x n x k with m = tokens; attention is counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metainfer.predict.public.columns import Columns
from metainfer.predict.workload import Floats

PROJECTIONS = ("qkv", "out", "up", "down", "head")
MODEL_COLUMNS = ("model", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "experts", "topk", "expert_ffn")
EXPERT_LAUNCHES = 6.0
"""Per layer: the two grouped products, and sorting, permuting and gathering the tokens around them."""
ROUTING_SPREAD = 0.6
"""Part of the tokens after the first that pick as if independently: some experts are popular."""
CACHE_BYTES = 2.0
"""Per element of the key-value cache: bf16, whatever the weights are."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass per row."""

    m: Floats
    """[rows, projections]: rows of each product."""
    n: Floats
    k: Floats
    count: Floats
    """How often the product occurs in the pass; 0 = not at all."""
    expert_macs: Floats
    """[rows]: of the routed experts, all layers."""
    expert_weights: Floats
    """Parameters of the experts that the tokens of the batch touch."""
    expert_rows: Floats
    """Tokens per touched expert; 0 without experts."""
    expert_launches: Floats
    attention_macs: Floats
    cache_bytes: Floats
    """Of the key-value cache that the pass reads (decode) or writes (prefill)."""
    layers: Floats
    decodes: Floats
    """1 = one token per sequence against its whole context, 0 = prefill."""


def build_pass(shape: Columns, batch: Floats, tokens: Floats, *, decodes: bool) -> Pass:
    """The pass of ``batch`` sequences: prefill of ``tokens`` each, or one decode step at a context of ``tokens``.

    ``shape`` holds the columns of ``MODEL_COLUMNS``, one row each.
    """
    layers, hidden, heads, kv_heads = shape["layers"], shape["hidden"], shape["heads"], shape["kv_heads"]
    head, ffn, gated = shape["head_dim"], shape["ffn"], shape["gated"]
    rows = batch if decodes else batch * tokens
    n = np.stack([(heads + 2 * kv_heads) * head, hidden, ffn * (1 + gated), hidden, shape["vocab"]], axis=1)
    k = np.stack([hidden, heads * head, hidden, ffn, hidden], axis=1)
    dense = np.where(ffn > 0, layers, 0.0)
    count = np.stack([layers, layers, dense, dense, np.ones_like(layers)], axis=1)
    m = np.stack([rows, rows, rows, rows, batch], axis=1)  # the head answers for the last token only
    # Two products (QK and PV) of head_dim MACs per pair of positions; a causal prefill has half of tokens^2 pairs.
    pairs = batch * tokens if decodes else batch * tokens**2 / 2
    return Pass(
        m=m,
        n=n,
        k=k,
        count=count,
        **_experts(shape, rows),
        attention_macs=layers * 2 * heads * head * pairs,
        cache_bytes=layers * 2 * kv_heads * head * CACHE_BYTES * batch * tokens,
        layers=layers,
        decodes=np.full_like(layers, float(decodes)),
    )


def _experts(shape: Columns, rows: Floats) -> dict[str, Floats]:
    """Each token picks topk of E experts: with uniform picks, E (1 - (1 - topk / E)^rows) different ones are touched, with real ones fewer."""
    experts, topk = shape["experts"], shape["topk"]
    there = experts > 0
    share = np.divide(topk, experts, out=np.zeros_like(topk), where=there)
    touched = np.where(there, experts * -np.expm1((1 + ROUTING_SPREAD * (rows - 1)) * np.log1p(-np.minimum(share, 1 - 1e-9))), 0.0)
    parameters = shape["hidden"] * shape["expert_ffn"] * (2 + shape["gated"])
    return {
        "expert_macs": shape["layers"] * rows * topk * parameters,
        "expert_weights": shape["layers"] * touched * parameters,
        "expert_rows": np.divide(rows * topk, touched, out=np.zeros_like(rows), where=touched > 0),
        "expert_launches": np.where(there, EXPERT_LAUNCHES * shape["layers"], 0.0),
    }
