"""From forecasts to what is run next: scores, a shortlist that hedges, and the next benchmark.

score = log utility + log P(every limit is kept). A shortlist of four is worth the best of the four: after the first, each further one is
the candidate that adds most to the expected best, which is seldom the second best of the same kind (it would be wrong together with the
first). Source: Jones, Schonlau, Welch, Efficient Global Optimization (1998); for the shortlist, the greedy rule for a submodular
objective (Nemhauser, Wolsey, Fisher, 1978).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from metainfer.predict.learned.effects import EFFECTS, Effect, correct, likeness
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows
from metainfer.predict.workload import Floats

DRAWS = 192
FINALISTS = 48
"""Candidates by score among which a shortlist is sought: what lies further back is not among the best four in any draw."""
OPENERS = 24
"""Candidates by score among which an opening is sought."""
SEED = 20
LEAST_SCORE = -700.0
STOP_GAIN = 0.01
"""Another run must promise at least this much more utility, in expectation."""

Places = npt.NDArray[np.intp]
Utility = Callable[[Sequence[Floats], Places], Floats]
"""Log utility from the log latencies (us) of each aspect, of the candidates at these places (the last axis of the latencies)."""


@dataclass(frozen=True, slots=True)
class Aspect:
    """One latency of the candidates, and its limit."""

    rows: Rows
    forecast: Forecast
    log_limit_us: float = np.inf

    def take(self, where: Places) -> Aspect:
        """Some of the candidates."""
        return Aspect(self.rows[where], self.forecast.take(where), self.log_limit_us)


@dataclass(frozen=True, slots=True)
class Contest:
    """Candidates for one place: the aspects that make up their utility and their limits, row by row."""

    aspects: tuple[Aspect, ...]
    utility: Utility
    effects: tuple[Effect, ...] = EFFECTS

    @property
    def scores(self) -> Floats:
        """log utility + log P(limits kept)."""
        total = self.utility([item.forecast.log_latency_us for item in self.aspects], self._everybody)
        return np.maximum(np.nan_to_num(total + self._log_chance(), nan=LEAST_SCORE, neginf=LEAST_SCORE), LEAST_SCORE)

    @property
    def _everybody(self) -> Places:
        return np.arange(len(self.aspects[0].rows))

    def _log_chance(self) -> Floats:
        return np.asarray(sum(log_ndtr((item.log_limit_us - item.forecast.log_latency_us) / item.forecast.sigma) for item in self.aspects))

    def after(self, seen: Sequence[Rows], forecasts: Sequence[Forecast]) -> Contest:
        """Corrected by measured rows, one set per aspect."""
        moved = [
            replace(item, forecast=correct(item.rows, item.forecast, rows, forecast, effects=self.effects))
            for item, rows, forecast in zip(self.aspects, seen, forecasts, strict=True)
        ]
        return replace(self, aspects=tuple(moved))

    def expected_gains(self, best_log_utility: float) -> Floats:
        """E[max(0, utility / best - 1)] x P(limits kept): what a run promises over the best measured one. Shares of the best utility.

        The utility is taken as log-normal; its sigma by how much each latency moves it.
        """
        logs = [item.forecast.log_latency_us for item in self.aspects]
        mean = self.utility(logs, self._everybody)
        step = 0.01
        variance = np.zeros_like(mean)
        for index, item in enumerate(self.aspects):
            moved = [value + step if other == index else value for other, value in enumerate(logs)]
            variance += ((self.utility(moved, self._everybody) - mean) / step * item.forecast.sigma) ** 2
        sigma = np.sqrt(np.maximum(variance, 1e-8))
        ahead = np.minimum(mean - best_log_utility, 50.0)
        # Of a log-normal X: E[max(0, X - 1)] = E[X] P(Z < d + sigma) - P(Z < d).
        gain = np.exp(ahead + sigma**2 / 2) * ndtr(ahead / sigma + sigma) - ndtr(ahead / sigma)
        return np.asarray(np.nan_to_num(np.maximum(gain, 0.0) * np.exp(self._log_chance())), dtype=np.float64)

    def shortlist(self, count: int = 4) -> list[int]:
        """Candidates whose best is best in expectation, first the one with the best score. Without randomness: the draws are always the same."""
        finalists = np.argsort(-self.scores, kind="stable")[:FINALISTS]
        worth = self._draw_utilities(finalists)
        chosen = [0]
        best = worth[:, 0]
        while len(chosen) < min(count, len(finalists)):
            totals = np.maximum(worth, best[:, None]).mean(axis=0)
            totals[chosen] = -1.0
            # Where nothing adds anything any more, the order of scores decides: argmax takes the first.
            chosen.append(int(np.argmax(totals)))
            best = np.maximum(best, worth[:, chosen[-1]])
        return [int(finalists[place]) for place in chosen]

    def leanings(self) -> list[int]:
        """Of the finalists the one that computes most and the one that moves most bytes, by the base: a way to open that was not kept."""
        finalists = np.argsort(-self.scores, kind="stable")[:OPENERS]
        rows = self.aspects[-1].rows[finalists]
        lean = np.log((rows["compute_us"].sum(axis=1) + 1e-9) / (rows["traffic_us"].sum(axis=1) + 1e-9))
        return list(dict.fromkeys([int(finalists[np.argmax(lean)]), int(finalists[np.argmin(lean)])]))

    def most_informative(self, taken: Sequence[int]) -> int:
        """The finalist whose run explains most variance of the others, each weighed by how near it is to the best: another way to open."""
        finalists = np.argsort(-self.scores, kind="stable")[:OPENERS]
        near = np.exp(self.scores[finalists] - self.scores.max())
        explained = np.zeros(len(finalists))
        for item in (aspect.take(finalists) for aspect in self.aspects):
            covariance = likeness(item.rows, item.rows, self.effects) * item.forecast.sigma[:, None] * item.forecast.sigma[None, :]
            explained += (near[:, None] * covariance**2).sum(axis=0) / np.diag(covariance)
        explained[np.isin(finalists, list(taken))] = -1.0
        return int(finalists[np.argmax(explained)])

    def _draw_utilities(self, finalists: Places) -> Floats:
        """[draws, finalists]: joint draws, since what is alike errs alike; 0 where a limit is broken."""
        random = np.random.default_rng(SEED)
        logs, kept = [], np.ones((DRAWS, len(finalists)), dtype=np.bool_)
        for item in (aspect.take(finalists) for aspect in self.aspects):
            sigma = item.forecast.sigma
            covariance = likeness(item.rows, item.rows, self.effects) * sigma[:, None] * sigma[None, :] + np.diag(1e-6 + 0.01 * sigma**2)
            noise = random.standard_normal((DRAWS, len(finalists))) @ np.linalg.cholesky(covariance).T
            logs.append(item.forecast.log_latency_us + noise)
            kept &= logs[-1] <= item.log_limit_us
        utilities = self.utility(logs, finalists)
        return np.where(kept, np.exp(utilities - np.max(utilities)), 0.0)


def ranked_scores(contest: Contest) -> Floats:
    """Scores in which the shortlist comes first, in its order, and everything else follows by its own score."""
    scores = contest.scores.copy()
    chosen = contest.shortlist()
    top = float(scores.max())
    for place, index in enumerate(chosen):
        scores[index] = top + 1.0 + len(chosen) - place
    return scores
