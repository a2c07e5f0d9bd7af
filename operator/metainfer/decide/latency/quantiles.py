"""A percentile out of buckets, with the edges of the bucket that it lies in, and whether these buckets could show that it moved. Pure.

The interpolation is that of PromQL's ``histogram_quantile``: even within a bucket. What is true lies anywhere between the two edges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

EDGE_ALLOWANCE = 0.01
"""Edges are rounded where they are configured: steps of 1.2 as 0.83, 1, 1.2 count as 1.2."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """One percentile; ``upper_us`` is infinite where it lies above the highest edge, and then ``value_us`` is that edge."""

    value_us: float
    lower_us: float
    upper_us: float


def find_quantile(buckets: Mapping[float, float], share: float) -> Quantile | None:
    """The percentile of buckets (upper edge -> requests at most that slow, +Inf among them); None without requests."""
    edges = sorted(buckets)
    total = buckets.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank = share * total
    place = next(index for index, edge in enumerate(edges) if buckets[edge] >= rank or edge == math.inf)
    upper, lower = edges[place], (edges[place - 1] if place else 0.0)
    below = buckets[lower] if place else 0.0
    if upper == math.inf:
        return Quantile(lower, lower, upper)
    inside = buckets[upper] - below
    return Quantile(lower + (upper - lower) * ((rank - below) / inside if inside > 0 else 1.0), lower, upper)


def find_coarse_bucket(buckets: Mapping[float, float], quantile: Quantile, increase_percent: int) -> tuple[float, float] | None:
    """The first bucket from the percentile's own to that of the increased one which is wider than the increase; None = it would be seen.

    In a wider one a service can be that much slower and its percentile stay inside, or hardly slower and be read as much more.
    """
    factor = 1.0 + increase_percent / 100.0
    for lower, upper in itertools.pairwise((0.0, *sorted(buckets))):
        touched = upper >= quantile.value_us and lower < quantile.value_us * factor
        if touched and upper > lower * factor * (1.0 + EDGE_ALLOWANCE):
            return lower, upper
    return None
