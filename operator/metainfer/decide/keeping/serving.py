"""What is known of the latency that the target serves, as the status says it: figures, baseline, condition, sample. Pure; judges nothing.

``served`` judges. The status holds all that a judgement needs beside the last windows, so a restart forgets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.served import Drift, ServedBaseline, ServedFigures, ServedStatus
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.configs import candidate_of
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.baselines import build_baseline, grow_baseline, show_latency, widen_baseline
from metainfer.decide.keeping.served import settled_windows
from metainfer.decide.latency.reading import LatencyReading
from metainfer.decide.latency.served import LatencyProblem, ServedFacts, ServedWindow
from metainfer.decide.plan import RecordServed
from metainfer.decide.wanted import find_wanted

OBSERVED = "Observed"
UNKNOWN_BY_NATURE = frozenset({"NotWatched", "NoRequests", "MetricsUnreachable", "NoPodToScrape", "ReadingFailed"})
"""Nothing is wrong with the service or what it tells: nobody looks, nobody asked, or the way there is closed for now."""


def note_served(draft: Draft) -> None:
    """Bring ``status.served`` and ``LatencyObserved`` up to date, and ask for a pass when there is more to read."""
    facts = draft.snapshot.served
    applied = draft.findings.get(reasons.APPLIED)
    wanted = find_wanted(draft.status)
    if applied is None or applied.status != "True" or wanted is None or not wanted.is_newest:
        draft.put(served=None)
        draft.find(reasons.LATENCY_OBSERVED, "Unknown", "NotApplied", "nothing of ours is served, so there is nothing to watch")
        return
    _begin(draft, wanted.decision_id)
    if facts is None:
        draft.find(reasons.LATENCY_OBSERVED, "Unknown", "NotWatched", "the target has no pods, or its latency is not read")
        return
    if facts.next_at is not None:
        draft.look_again((facts.next_at - draft.now).total_seconds())
    _take_news(draft)
    _say(draft, facts)


def _begin(draft: Draft, decision_id: str) -> None:
    """Under another decision everything that was served before is another service's."""
    served = draft.status.served
    if served is None or served.decision_id != decision_id:
        draft.put(served=ServedStatus(decision_id=decision_id, settled_at=format_time(draft.now)))


def _take_news(draft: Draft) -> None:
    """Windows that ended since the last look: each recorded once, the newest shown, all of them taken for the baseline while there is none."""
    served, windows, drift = draft.status.served, settled_windows(draft), draft.snapshot.adaptation.spec.drift
    if served is None or not windows:
        return
    seen = parse_time(served.last.at) if served.last is not None else parse_time(served.settled_at)
    news = [window for window in windows if window.ended_at > seen]
    if not news:
        return
    for window in news:
        _record(draft, window)
    baseline, last = _carry_on(served.baseline, windows, news, drift, suspected=draft.suspicion is not None), _figures(news[-1])
    draft.put(served=served.model_copy(update={"last": last, "baseline": baseline, "p99_ratio_permille": _ratio(last, baseline)}))


def _carry_on(
    baseline: ServedBaseline | None, windows: Sequence[ServedWindow], news: Sequence[ServedWindow], drift: Drift, *, suspected: bool
) -> ServedBaseline | None:
    """A baseline stays until another metric is read; one without a percentile is only kept until there is one with."""
    newest = news[-1].reading
    other = baseline is not None and _tells(newest) and baseline.metric != newest.metric[:256]
    if baseline is None or baseline.p99 is None or other:
        return build_baseline(windows, drift.windows) or baseline
    for window in news:
        grown = grow_baseline(baseline, window, drift) if not suspected else baseline
        baseline = widen_baseline(grown, window, drift)
    return baseline


def _record(draft: Draft, window: ServedWindow) -> None:
    recommendation, run = draft.status.recommendation, draft.status.run
    if recommendation is not None and run is not None and _tells(window.reading):
        digest = draft.status.model.digest if draft.status.model is not None else ""
        draft.act(RecordServed(recommendation.decision_id, run.id, candidate_of(recommendation.config), digest, window))


def _tells(reading: LatencyReading) -> bool:
    return reading.supports("p99") or reading.supports("mean")


def _figures(window: ServedWindow) -> ServedFigures:
    reading, load = window.reading, window.reading.load
    return ServedFigures(
        at=format_time(window.ended_at),
        p99=show_latency(reading.p99.value_us) if reading.p99 is not None and reading.supports("p99") else None,
        mean=show_latency(reading.mean_us) if reading.mean_us is not None and reading.supports("mean") else None,
        requests=reading.requests,
        requests_per_minute=round(60 * load.requests_per_second),
        in_flight_permille=round(1000 * load.in_flight) if load.in_flight is not None else None,
        replicas_permille=round(1000 * load.replicas) if load.replicas is not None else None,
    )


def _ratio(last: ServedFigures, baseline: ServedBaseline | None) -> int | None:
    if last.p99 is None or baseline is None or baseline.p99 is None:
        return None
    return round(1000 * parse_duration_us(last.p99) / max(1, parse_duration_us(baseline.p99)))


def _say(draft: Draft, facts: ServedFacts) -> None:
    """The condition: a problem with the source first, then what the newest window is worth."""
    windows = settled_windows(draft)
    if facts.problem is not None:
        _say_problem(draft, facts.problem)
    elif not windows:
        since = draft.status.served.settled_at if draft.status.served is not None else ""
        draft.find(reasons.LATENCY_OBSERVED, "Unknown", "WindowPending", f"no whole window has passed since the decision was in place ({since})")
    else:
        _say_reading(draft, windows[-1])


def _say_problem(draft: Draft, problem: LatencyProblem) -> None:
    status: Literal["False", "Unknown"] = "Unknown" if problem.reason in UNKNOWN_BY_NATURE else "False"
    draft.find(reasons.LATENCY_OBSERVED, status, problem.reason, problem.message)


def _say_reading(draft: Draft, window: ServedWindow) -> None:
    reading = window.reading
    spoiling = next((finding for finding in reading.findings if finding.spoils), None)
    words = "; ".join([_shown_figures(draft), *(finding.message for finding in reading.findings)])
    if not reading.supports("p99"):
        reason = spoiling.reason if spoiling is not None else "NoLatencyData"
        draft.find(reasons.LATENCY_OBSERVED, "Unknown" if reason in UNKNOWN_BY_NATURE else "False", reason, words)
    else:
        draft.find(reasons.LATENCY_OBSERVED, "True", reading.findings[0].reason if reading.findings else OBSERVED, words)


def _shown_figures(draft: Draft) -> str:
    served = draft.status.served
    if served is None or served.last is None:
        return "no figures"
    last, baseline = served.last, served.baseline
    compared = f"against {baseline.p99 or 'no percentile'} and {baseline.mean or 'no mean'}" if baseline is not None else "no baseline yet"
    return f"window to {last.at}: p99 {last.p99 or 'unknown'}, mean {last.mean or 'unknown'} ({compared}), {last.requests_per_minute} requests per minute"
