"""Questions that figures are compared on: one model, workload, limits, precision floor and set of cards each.

The recipe is the one of the data card that comes with the tables, so that figures compare across predictors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from metainfer.predict.public.cards import BITS
from metainfer.predict.public.columns import Column, Columns
from metainfer.predict.workload import Floats

LIMITS_MS = ((1000.0, 20.0), (5000.0, 50.0), (np.inf, np.inf))
"""Time to first token, time per output token: tight, loose, none."""
PRECISION_FLOORS_BITS = (0.0, 8.0, 16.0)
CLOSE_RACE = ("a100_sxm", "l40s", "h100_sxm")
TOKEN_LIMITS_MS = (np.inf, 50.0, 20.0, 10.0)
LEAST_CANDIDATES, LEAST_SERVING_CANDIDATES, LEAST_FEASIBLE = 8, 12, 5
SEED = 7
"""Of the two random triples of cards per model and workload."""


@dataclass(frozen=True, slots=True)
class Group:
    """One question. ``members`` are indices of the table it was made from."""

    name: str
    model: str
    members: Column
    limit_first_ms: float
    limit_token_ms: float


def throughput(first_ms: Floats, token_ms: Floats, requests: Floats, tokens: Floats) -> Floats:
    """Tokens per second: requests x tokens / (time to first token + the others)."""
    return np.asarray(requests * tokens / (first_ms + token_ms * (tokens - 1)) * 1000, dtype=np.float64)


def make_kernel_groups(table: Columns, cards: Sequence[str]) -> tuple[Group, ...]:
    """Of the table of kernel sums, latencies included; ``cards`` are all there are."""
    bits = np.array([BITS.get(name, 16.0) for name in table["precision"].tolist()])
    groups: list[Group] = []
    random = np.random.default_rng(SEED)
    for model, workload in product(sorted(set(table["model"].tolist())), sorted(set(table["workload"].tolist()))):
        mine = (table["model"] == model) & (table["workload"] == workload)
        pools = [tuple(cards), *(tuple(random.choice(cards, 3, replace=False)) for _ in range(2)), CLOSE_RACE]
        for (limit, floor), (index, pool) in product(product(LIMITS_MS, PRECISION_FLOORS_BITS), enumerate(pools)):
            members = np.flatnonzero(mine & (bits >= floor) & np.isin(table["card"], pool))
            groups += _keep(table, Group(f"{model}/{workload}/{limit[1]:g}/{floor:g}/{index}", model, members, *limit), LEAST_CANDIDATES)
    return tuple(groups)


def make_serving_groups(table: Columns) -> tuple[Group, ...]:
    """Of the table of serving runs."""
    groups: list[Group] = []
    keys = sorted(set(zip(table["model"].tolist(), table["isl"].tolist(), table["osl"].tolist(), strict=True)))
    for (model, isl, osl), limit in product(keys, TOKEN_LIMITS_MS):
        members = np.flatnonzero((table["model"] == model) & (table["isl"] == isl) & (table["osl"] == osl))
        groups += _keep(table, Group(f"{model}/{isl:g}/{osl:g}/{limit:g}", model, members, np.inf, limit), LEAST_SERVING_CANDIDATES)
    return tuple(groups)


def true_utilities(table: Columns, group: Group) -> Floats:
    """Tokens per second and card of each member; 0 where a limit is broken."""
    first, token = table["ttft_ms"][group.members], table["tpot_ms"][group.members]
    if "tok_s_gpu" in table:
        utility = table["tok_s_gpu"][group.members]
    else:
        utility = throughput(first, token, table["batch"][group.members], table["osl"][group.members])
    return np.where((first <= group.limit_first_ms) & (token <= group.limit_token_ms), utility, 0.0)


def _keep(table: Columns, group: Group, least: int) -> Iterator[Group]:
    if len(group.members) >= least and np.count_nonzero(true_utilities(table, group)) >= LEAST_FEASIBLE:
        yield group
