"""Do the pods on trial serve slower than those beside them, in the same windows? Pure; the same rule as for drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from metainfer.api.v1alpha1.served import Drift
from metainfer.decide.keeping.baselines import build_baseline
from metainfer.decide.keeping.compared import Compared, compare_window, rate_per_minute
from metainfer.decide.latency.served import ServedWindow

SAME_WINDOW: Final = 0.1
"""Share of a window by which the ends of two may differ: pods are scraped one after the other."""
IDLE_SHARE: Final = 0.5
"""Of the rate of each pod beside: pods that are asked less are fast on any card. Connections that clients keep leave a new pod with next to nothing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the windows so far say. ``Open``: too few of them can be compared."""

    verdict: Literal["Worse", "Fine", "Open"]
    message: str


@dataclass(frozen=True, slots=True)
class _Pair:
    """One window of the trial beside the one of the others."""

    compared: Compared
    is_idle: bool
    """Being slower counts all the same."""


def judge_trial(trial: Sequence[ServedWindow], beside: Sequence[ServedWindow], since: datetime, drift: Drift) -> Trial:
    """The last ``drift.windows`` windows that began since then: all slower = worse; all comparable, under enough load, and not all slower = fine."""
    pairs = [pair for pair in _pair(trial, beside, since) if not pair.compared.is_busier]
    last = [pair.compared for pair in pairs][-drift.windows :]
    telling = [pair.compared for pair in pairs if not pair.is_idle][-drift.windows :]
    for judged in (last, telling):
        if len(judged) == drift.windows and all(pair.is_slower(drift.increase) for pair in judged):
            return Trial("Worse", _describe(judged))
    if len(telling) == drift.windows:
        return Trial("Fine", _describe(telling))
    idle = sum(pair.is_idle for pair in pairs)
    why = f"; in {idle} more its pods had less than half of the requests of those beside it" if idle else ""
    return Trial("Open", f"{len(telling)} of {drift.windows} windows can be compared{why}")


def _describe(pairs: Sequence[Compared]) -> str:
    p99s = ", ".join(f"{100 * (pair.p99_ratio - 1):+.0f} %" for pair in pairs)
    return f"the 99th percentile of the last {len(pairs)} windows is {p99s} against the pods beside it, the mean {100 * (pairs[-1].mean_ratio - 1):+.0f} %"


def _pair(trial: Sequence[ServedWindow], beside: Sequence[ServedWindow], since: datetime) -> Iterator[_Pair]:
    for window in trial:
        allowed_seconds = SAME_WINDOW * window.reading.seconds
        same = [other for other in beside if abs((other.ended_at - window.ended_at).total_seconds()) <= allowed_seconds]
        baseline = build_baseline(same[-1:], 1) if same and window.began_at >= since else None
        compared = compare_window(window, baseline) if baseline is not None else None
        if baseline is not None and compared is not None:
            idle = baseline.per_replica and compared.rate < IDLE_SHARE * rate_per_minute(same[-1].reading.load, per_replica=True)
            yield _Pair(compared, idle)
