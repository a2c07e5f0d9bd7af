"""Is the target slower than it was when the decision settled, and is it the load? Pure: windows, baseline and spec in, suspicion out.

A suspicion needs every one of the last windows, or most of the threshold on average over four times as many; a 99th percentile whose
buckets could show it; and the mean, which has no error of buckets. A busier service is not a slower card: at a higher rate than any that
was served well, slower is ``LoadShifted`` and not ``P99Drift``. At the same rate more requests in flight are no excuse, because a slower
card makes them (Little's law). No data is neither bad nor good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.checks import SuspicionStatus
from metainfer.api.v1alpha1.served import Drift, ServedBaseline
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.baselines import LONG_FACTOR
from metainfer.decide.keeping.compared import Compared, average, compare_last
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.latency.served import ServedWindow
from metainfer.decide.scene import Scene

LONG_SHARE: Final = 0.75
"""Of the increase, on average over four times the windows: at the whole of it a service slower by just that much would be acquitted every
other time. At 15 % noise of each window both averages together are off by 6 % (``hack/bench/damping`` has what follows from it)."""
LOAD_SETTLE_FACTOR: Final = 8
"""A load that left the validated range has to stay away for so many times the windows (six hours by default): rush hours pass."""
P99_DRIFT: Final = "P99Drift"
LOAD_SHIFTED: Final = "LoadShifted"


def find_p99_drift(draft: Draft, _scene: Scene) -> Suspicion | None:
    """The last windows are slower than the baseline, at a comparable load."""
    windows, baseline, drift = settled_windows(draft), _baseline(draft), draft.snapshot.adaptation.spec.drift
    if baseline is None:
        return None
    stands = _find_standing(draft, P99_DRIFT) is not None
    return find_drift(windows, baseline, drift) or find_long_drift(windows, baseline, drift, stands=stands) or _keep_standing(draft, P99_DRIFT)


def find_load_shift(draft: Draft, _scene: Scene) -> Suspicion | None:
    """The load is another one than the decision was validated under, or explains why the service is slower."""
    spec, baseline = draft.snapshot.adaptation.spec, _baseline(draft)
    if baseline is None:
        return None
    return find_shift(settled_windows(draft), baseline, spec.drift, clients=spec.load.clients) or _keep_standing(draft, LOAD_SHIFTED)


def _find_standing(draft: Draft, reason: str) -> SuspicionStatus | None:
    """What was suspected in the pass before, if it is this."""
    return draft.suspicion if draft.suspicion is not None and draft.suspicion.reason == reason else None


def _keep_standing(draft: Draft, reason: str) -> Suspicion | None:
    """What was suspected before a restart stands, and nothing follows from it, until as many windows are known again."""
    standing, facts, wanted = _find_standing(draft, reason), draft.snapshot.served, draft.snapshot.adaptation.spec.drift.windows
    known = len(settled_windows(draft))
    if standing is None or facts is None or facts.next_at is None or known >= wanted:
        return None
    return Suspicion(reason, standing.message, "Check", blocked=f"only {known} of {wanted} windows are known since the operator began to read")


def settled_windows(draft: Draft) -> tuple[ServedWindow, ...]:
    """Windows that began after the decision in force was in place, newest last."""
    served, facts = draft.status.served, draft.snapshot.served
    if served is None or facts is None:
        return ()
    settled = parse_time(served.settled_at)
    return tuple(window for window in facts.windows if window.began_at >= settled)


def find_drift(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift) -> Suspicion | None:
    """``P99Drift``, wants a check."""
    compared = compare_last(windows, baseline, drift.windows)
    if not compared or not all(item.is_slower(drift.increase) and not item.is_busier for item in compared):
        return None
    return _suspect(_describe(compared, baseline), drift.p99_increase_percent, find_slowest_node(windows[-1]))


def find_long_drift(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift, *, stands: bool) -> Suspicion | None:
    """``P99Drift`` by less than every single window could show: most of the increase on average. ``stands``: it is suspected already.

    What is suspected already stands as long as the last windows alone are that slow: one good window among them is noise, too.
    """
    threshold_percent = LONG_SHARE * drift.p99_increase_percent
    counts = (LONG_FACTOR * drift.windows, drift.windows) if stands else (LONG_FACTOR * drift.windows,)
    for count in counts:
        compared = [item for item in compare_last(windows, baseline, count) if not item.is_busier]
        if len(compared) == count and (mean := average(compared)).is_slower(threshold_percent / 100):
            p99, total = (f"{100 * (ratio - 1):+.0f} %" for ratio in (mean.p99_ratio, mean.mean_ratio))
            words = f"the 99th percentile is {p99} against {baseline.p99}, the mean {total} against {baseline.mean}, on average over {count} windows"
            return _suspect(words, threshold_percent, mean.slowest_node or find_slowest_node(windows[-1]))
    return None


def _suspect(words: str, threshold_percent: float, node: str) -> Suspicion:
    where = f"; slowest on node {node}" if node else ""
    return Suspicion(P99_DRIFT, f"{words} at a comparable load (threshold {threshold_percent:g} %){where}", "Check", node=node)


def find_shift(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift, *, clients: int) -> Suspicion | None:
    """``LoadShifted``: wants a run where the load left the validated range, a check where a service within it became slower as it got busier.

    ``clients``: requests in flight under which candidates were measured. Less load than that is none: they were chosen for when it matters.
    """
    compared = compare_last(windows, baseline, drift.windows)
    if not compared:
        return None
    if all(item.is_busier and item.is_beyond(clients) for item in compared):
        settle = LOAD_SETTLE_FACTOR * drift.windows * parse_duration_us(drift.window) / 1e6
        words = f"{_describe_load(compared)}: more than was validated ({clients} requests in flight)"
        return Suspicion(LOAD_SHIFTED, words, "Run", settle_seconds=settle)
    if all(item.is_slower(drift.increase) for item in compared) and any(item.is_busier for item in compared):
        words = f"{_describe(compared, baseline)}, and busier: {_describe_load(compared)}"
        return Suspicion(LOAD_SHIFTED, words, "Check", node=find_slowest_node(windows[-1]))
    return None


def find_slowest_node(window: ServedWindow) -> str:
    """The node whose pods were slowest on average; empty where the source does not tell at least two apart."""
    known = {node: latency.mean_us for node, latency in window.nodes.items() if latency.mean_us is not None}
    return max(sorted(known), key=lambda node: known[node]) if len(known) > 1 else "".join(window.nodes) if len(window.nodes) == 1 else ""


def _describe(compared: Sequence[Compared], baseline: ServedBaseline) -> str:
    p99s = ", ".join(f"{100 * (item.p99_ratio - 1):+.0f} %" for item in compared)
    mean = 100 * (compared[-1].mean_ratio - 1)
    return f"the 99th percentile of the last {len(compared)} windows is {p99s} against {baseline.p99}, the mean {mean:+.0f} % against {baseline.mean}"


def _describe_load(compared: Sequence[Compared]) -> str:
    last = compared[-1]
    flight = f", {last.in_flight_permille / 1000:.3g} in flight" if last.in_flight_permille is not None else ""
    return f"{last.rate:.0f} requests per minute{flight}, where up to {last.highest_rate:.0f} were served as before"


def _baseline(draft: Draft) -> ServedBaseline | None:
    return draft.status.served.baseline if draft.status.served is not None else None
