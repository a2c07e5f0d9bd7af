"""A group of the public tables as a contest: which latencies count, what a candidate is worth, and what was seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.picking import STOP_GAIN, Aspect, Contest
from metainfer.predict.learned.rows import Rows
from metainfer.predict.public.columns import Column, Columns
from metainfer.predict.public.groups import Group
from metainfer.predict.workload import Floats


@dataclass(frozen=True, slots=True)
class Field:
    """All candidates of one task with their forecasts, from which groups take their members."""

    rows: tuple[Rows, ...]
    """One array per latency that counts, all in the table's order."""
    forecasts: tuple[Forecast, ...]
    requests: Floats
    """In flight, per card."""
    tokens: Floats
    serves: bool
    """True: the second latency is that of whole requests; False: time to first token and time per token make up the utility."""

    def contest(self, group: Group) -> Contest:
        """The group's candidates, in the order of its members, as nothing was measured."""
        limits_ms = (group.limit_token_ms, np.inf) if self.serves else (group.limit_first_ms, group.limit_token_ms)
        aspects = [
            Aspect(rows[group.members], forecast.take(group.members), float(np.log(limit * 1000)))
            for rows, forecast, limit in zip(self.rows, self.forecasts, limits_ms, strict=True)
        ]
        return Contest(tuple(aspects), lambda logs, places: self._log_utility(logs, group.members[places]))

    def corrected(self, contest: Contest, seen: Column) -> Contest:
        """After the rows ``seen`` of the table, whose latencies are known."""
        return contest.after([rows[seen] for rows in self.rows], [forecast.take(seen) for forecast in self.forecasts]) if len(seen) else contest

    def utilities(self, rows: Column) -> Floats:
        """Tokens per second and card of measured rows of the table, limits apart."""
        logs = [np.log(item[rows]["latency_us"]) for item in self.rows]
        return np.asarray(np.exp(self._log_utility(logs, rows)) * 1e6, dtype=np.float64)

    def _log_utility(self, logs: Sequence[Floats], rows: Column) -> Floats:
        requests, tokens = self.requests[rows], self.tokens[rows]
        if self.serves:
            return np.asarray(np.log(requests * tokens) - logs[1], dtype=np.float64)
        return np.asarray(np.log(requests * tokens) - np.log(np.exp(logs[0]) + np.exp(logs[1]) * (tokens - 1)), dtype=np.float64)


def kernel_field(table: Columns, rows: tuple[Rows, Rows], forecasts: Sequence[Forecast]) -> Field:
    """Of the table of kernel sums: prefill and decode."""
    return Field(rows, tuple(forecasts), table["batch"], table["osl"], serves=False)


def serving_field(table: Columns, rows: tuple[Rows, Rows], forecasts: Sequence[Forecast]) -> Field:
    """Of the table of serving runs: token and request."""
    return Field(rows, tuple(forecasts), table["conc"] / table["gpus"], table["osl"], serves=True)


@dataclass(frozen=True, slots=True)
class Pick:
    """What to run next, as a place among the group's members."""

    place: int
    gain: float
    """Expected, as a share of the best measured utility; infinite while nothing feasible is measured."""

    @property
    def is_worthwhile(self) -> bool:
        """Whether the run promises enough to be made."""
        return self.gain >= STOP_GAIN


def next_pick(contest: Contest, measured: Sequence[int], utilities: Floats) -> Pick | None:
    """The unmeasured candidate that promises most, by a contest that everything seen has corrected; None when all are measured.

    ``utilities`` are the true ones of ``measured``, 0 where a limit was broken.
    """
    scores = contest.scores
    is_open = np.ones(len(scores), dtype=np.bool_)
    is_open[list(measured)] = False
    if not is_open.any():
        return None
    best = float(np.max(utilities, initial=0.0))
    if best <= 0:
        return Pick(int(np.argmax(np.where(is_open, scores, -np.inf))), np.inf)
    gains = np.where(is_open, contest.expected_gains(float(np.log(best / 1e6))), -1.0)
    place = int(np.lexsort((-scores, -np.round(gains, 6)))[0])  # of those that promise the same the better ranked
    return Pick(place, float(gains[place]))
