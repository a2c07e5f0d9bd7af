"""The little linear algebra that effects of few measurements need, without numpy: at most six unknowns. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_VARIANCE = 1e-9


def cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Lower factor of a symmetric positive definite matrix (Cholesky-Banachiewicz)."""
    factor = [[0.0] * len(matrix) for _ in matrix]
    for row in range(len(matrix)):
        for column in range(row + 1):
            rest = matrix[row][column] - math.fsum(factor[row][k] * factor[column][k] for k in range(column))
            factor[row][column] = math.sqrt(max(LEAST_VARIANCE, rest)) if row == column else rest / factor[column][column]
    return factor


def solve(factor: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x of (L L^T) x = right, by forward and backward substitution."""
    size = len(right)
    forward = [0.0] * size
    for row in range(size):
        forward[row] = (right[row] - math.fsum(factor[row][k] * forward[k] for k in range(row))) / factor[row][row]
    solution = [0.0] * size
    for row in reversed(range(size)):
        solution[row] = (forward[row] - math.fsum(factor[k][row] * solution[k] for k in range(row + 1, size))) / factor[row][row]
    return solution


def normal_share_below(value: float, mean: float, sigma: float) -> float:
    """P(X < value) for X normal."""
    return 0.5 * math.erfc((mean - value) / (sigma * math.sqrt(2.0)))
