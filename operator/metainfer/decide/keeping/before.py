"""Does the target serve slower under the newest decision than before it? Pure.

What was measured in Jobs need not hold for real requests. Compared is what was served with what was served before, in windows of the
same length and by the same rule as drift: load-normalised, in buckets that can show it, confirmed by the mean. Before is what ended
when the run began, as its benchmarks may disturb what serves meanwhile. A source that does not remember it leaves the former
decision's baseline, or nothing to compare with; no data is not bad.
"""

from __future__ import annotations

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec, Placement
from metainfer.api.v1alpha1.served import ServedBaseline, ServedStatus
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.baselines import build_baseline
from metainfer.decide.keeping.served import find_drift, settled_windows
from metainfer.decide.wanted import find_wanted


def count_compared(spec: ModelAdaptationSpec) -> int:
    """Windows that have to agree: as many as drift wants, or as ``rollout.watch`` has."""
    watched = parse_duration_us(spec.rollout.watch) // parse_duration_us(spec.drift.window)
    return max(1, min(spec.drift.windows, watched))


def note_before(draft: Draft) -> None:
    """Keep what was served before the run, as long as it has not decided."""
    run, served, facts = draft.status.run, draft.status.served, draft.snapshot.served
    if run is None or draft.status.recommendation is not None:
        return
    began, spec = parse_time(run.started_at), draft.snapshot.adaptation.spec
    windows = [window for window in facts.windows if window.ended_at <= began] if facts is not None else []
    before = build_baseline(windows, count_compared(spec)) or run.before or _former(served, draft.status.placement)
    if before != run.before:
        draft.put(run=run.model_copy(update={"before": before}))


def _former(served: ServedStatus | None, placement: Placement | None) -> ServedBaseline | None:
    """Of what is on the Deployment when the run begins."""
    standing = served is not None and placement is not None and served.decision_id == placement.decision_id
    return served.baseline if served is not None and standing else None


def find_slower(draft: Draft) -> str:
    """In words; empty = it does not, or nobody can tell."""
    served, wanted, run, spec = draft.status.served, find_wanted(draft.status), draft.status.run, draft.snapshot.adaptation.spec
    if served is None or run is None or run.before is None or wanted is None or served.decision_id != wanted.decision_id:
        return ""
    found = find_drift(settled_windows(draft), run.before, spec.drift.model_copy(update={"windows": count_compared(spec)}))
    return found.message if found is not None else ""
