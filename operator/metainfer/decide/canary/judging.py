"""Do the pods on trial serve slower than those beside them, in the same windows? Pure; the same rule as for drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from metainfer.api.v1alpha1.served import Drift
from metainfer.decide.keeping.baselines import build_baseline
from metainfer.decide.keeping.compared import Compared, compare_window
from metainfer.decide.latency.served import ServedWindow

SAME_WINDOW: Final = 0.1
"""Share of a window by which the ends of two may differ: pods are scraped one after the other."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the windows so far say. ``Open``: too few of them can be compared."""

    verdict: Literal["Worse", "Fine", "Open"]
    message: str


def judge_trial(trial: Sequence[ServedWindow], beside: Sequence[ServedWindow], since: datetime, drift: Drift) -> Trial:
    """The last ``drift.windows`` windows that began since then: all slower = worse; all comparable and not all slower = fine."""
    pairs = [pair for pair in _pair(trial, beside, since) if not pair.is_busier][-drift.windows :]
    if len(pairs) < drift.windows:
        return Trial("Open", f"{len(pairs)} of {drift.windows} windows can be compared")
    p99s = ", ".join(f"{100 * (pair.p99_ratio - 1):+.0f} %" for pair in pairs)
    words = f"the 99th percentile of the last {len(pairs)} windows is {p99s} against the pods beside it, the mean {100 * (pairs[-1].mean_ratio - 1):+.0f} %"
    return Trial("Worse" if all(pair.is_slower(drift.p99_increase_percent / 100) for pair in pairs) else "Fine", words)


def _pair(trial: Sequence[ServedWindow], beside: Sequence[ServedWindow], since: datetime) -> Iterator[Compared]:
    for window in trial:
        allowed_seconds = SAME_WINDOW * window.reading.seconds
        same = [other for other in beside if abs((other.ended_at - window.ended_at).total_seconds()) <= allowed_seconds]
        baseline = build_baseline(same[-1:], 1) if same and window.began_at >= since else None
        compared = compare_window(window, baseline) if baseline is not None else None
        if compared is not None:
            yield compared
