"""Is the target slower than it was when the decision settled, and is it the load? Pure: windows, baseline and spec in, suspicion out.

A suspicion needs every one of the last windows, a 99th percentile whose buckets could show it, and the mean, which has no error of
buckets. A busier service is not a slower card: at a higher rate than any that was served well, slower is ``LoadShifted`` and not
``P99Drift``. At the same rate more requests in flight are no excuse, because a slower card makes them (Little's law). No data is not bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1.served import Drift, ServedBaseline
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.latency.reading import ServedLoad
from metainfer.decide.latency.served import ServedWindow
from metainfer.decide.scene import Scene

MEAN_SHARE: Final = 0.5
"""Of the increase, which the mean has to confirm: half, as a slow tail moves it less than the 99th percentile."""
RATE_ALLOWANCE: Final = 1.1
"""Rates up to a tenth above the baseline's highest count as the same load: near saturation a few percent more already queue."""
VALIDATED_ALLOWANCE: Final = 1.25
"""Requests in flight above what was validated, before the load counts as another one: it is a mean, and moves."""
LOAD_SETTLE_FACTOR: Final = 8
"""A load that left the validated range has to stay away for so many times the windows (six hours by default): rush hours pass."""
WIDENING_SHARE: Final = 0.5
"""Windows slower than the baseline by less than this share of the increase are fine, and so is the load that they were served under."""
SHOWN_DIGITS: Final = 3
"""Of a latency: an error of half a percent at most."""


def find_p99_drift(draft: Draft, _scene: Scene) -> Suspicion | None:
    """Every one of the last windows is slower than the baseline, at a comparable load."""
    baseline = _baseline(draft)
    return find_drift(settled_windows(draft), baseline, draft.snapshot.adaptation.spec.drift) if baseline is not None else None


def find_load_shift(draft: Draft, _scene: Scene) -> Suspicion | None:
    """The load is another one than the decision was validated under, or explains why the service is slower."""
    spec, baseline = draft.snapshot.adaptation.spec, _baseline(draft)
    return find_shift(settled_windows(draft), baseline, spec.drift, clients=spec.load.clients) if baseline is not None else None


def settled_windows(draft: Draft) -> tuple[ServedWindow, ...]:
    """Windows that began after the decision in force was in place, newest last."""
    served, facts = draft.status.served, draft.snapshot.served
    if served is None or facts is None:
        return ()
    settled = parse_time(served.settled_at)
    return tuple(window for window in facts.windows if window.began_at >= settled)


def find_drift(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift) -> Suspicion | None:
    """``P99Drift``, wants a check."""
    compared = _compare_last(windows, baseline, drift)
    if not compared or not all(item.is_slower(drift) and not item.is_busier for item in compared):
        return None
    node = find_slowest_node(windows[-1])
    where = f"; slowest on node {node}" if node else ""
    words = f"{_describe(compared, baseline)} at a comparable load (threshold {drift.p99_increase_percent} %){where}"
    return Suspicion("P99Drift", words, "Check", node=node)


def find_shift(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift, *, clients: int) -> Suspicion | None:
    """``LoadShifted``: wants a run where the load left the validated range, a check where a service within it became slower as it got busier.

    ``clients``: requests in flight under which candidates were measured. Less load than that is none: they were chosen for when it matters.
    """
    compared = _compare_last(windows, baseline, drift)
    if not compared:
        return None
    if all(item.is_busier and item.is_beyond(clients) for item in compared):
        settle = LOAD_SETTLE_FACTOR * drift.windows * parse_duration_us(drift.window) / 1e6
        words = f"{_describe_load(compared)}: more than was validated ({clients} requests in flight)"
        return Suspicion("LoadShifted", words, "Run", settle_seconds=settle)
    if all(item.is_slower(drift) for item in compared) and any(item.is_busier for item in compared):
        words = f"{_describe(compared, baseline)}, and busier: {_describe_load(compared)}"
        return Suspicion("LoadShifted", words, "Check", node=find_slowest_node(windows[-1]))
    return None


def build_baseline(windows: Sequence[ServedWindow], count: int) -> ServedBaseline | None:
    """From the first ``count`` good windows, of one metric; those with a percentile if there are enough, else those with a mean. None = too few."""
    metric = windows[-1].reading.metric if windows else ""
    own = [window for window in windows if window.reading.metric == metric]
    telling = [window for window in own if window.reading.supports("p99")]
    chosen = (telling if len(telling) >= count else [window for window in own if window.reading.supports("mean")])[:count]
    if len(chosen) < count:
        return None
    p99s = [window.reading.p99.value_us for window in chosen if window.reading.supports("p99") and window.reading.p99 is not None]
    means = [window.reading.mean_us for window in chosen if window.reading.supports("mean") and window.reading.mean_us is not None]
    per_replica = all(window.reading.load.replicas for window in chosen)
    rates = [_rate_per_minute(window.reading.load, per_replica=per_replica) for window in chosen]
    flights = [found for window in chosen if (found := _in_flight_permille(window.reading.load, per_replica=per_replica)) is not None]
    return ServedBaseline(
        metric=metric[:256],
        at=format_time(chosen[-1].ended_at),
        windows=count,
        p99=show_latency(median(p99s)) if len(p99s) == count else None,
        mean=show_latency(median(means)) if len(means) == count else None,
        per_replica=per_replica,
        requests_per_minute_low=round(min(rates)),
        requests_per_minute_high=round(max(rates)),
        in_flight_permille_high=round(max(flights)) if flights else None,
    )


def widen_baseline(baseline: ServedBaseline, window: ServedWindow, drift: Drift) -> ServedBaseline:
    """A window that is as fast as the baseline vouches for the load that it was served under."""
    compared = compare_window(window, baseline)
    if compared is None or compared.p99_ratio - 1 >= WIDENING_SHARE * drift.p99_increase_percent / 100:
        return baseline
    rate, flight = round(compared.rate), compared.in_flight_permille
    known = baseline.in_flight_permille_high
    return baseline.model_copy(
        update={
            "requests_per_minute_low": min(rate, baseline.requests_per_minute_low),
            "requests_per_minute_high": max(rate, baseline.requests_per_minute_high),
            "in_flight_permille_high": max(round(flight), known) if flight is not None and known is not None else known,
        }
    )


def find_slowest_node(window: ServedWindow) -> str:
    """The node whose pods were slowest on average; empty where the source does not tell at least two apart."""
    known = {node: latency.mean_us for node, latency in window.nodes.items() if latency.mean_us is not None}
    return max(sorted(known), key=lambda node: known[node]) if len(known) > 1 else "".join(window.nodes) if len(window.nodes) == 1 else ""


def show_latency(microseconds: float) -> str:
    """As a duration string of three digits, for example 310us, 41ms200us or 12s300ms: it is compared again after a restart."""
    digits = len(str(round(microseconds)))
    rounded = round(round(microseconds), min(0, SHOWN_DIGITS - digits))
    parts = (f"{rounded // 1_000_000}s", f"{rounded // 1000 % 1000}ms", f"{rounded % 1000}us")
    return "".join(part for part in parts if part[0] != "0") or "0us"


@dataclass(frozen=True, slots=True)
class Compared:
    """One window beside the baseline."""

    p99_ratio: float
    mean_ratio: float
    slowest_ratio: float
    """The mean of the slowest node over the baseline's of all: one slow card among ten moves the mean of all by a tenth of it."""
    rate: float
    """Requests per minute, per replica where both sides know it."""
    highest_rate: float
    in_flight_permille: float | None
    highest_in_flight_permille: float | None

    def is_slower(self, drift: Drift) -> bool:
        """Whether the percentile is above the threshold, and the mean confirms it."""
        increase = drift.p99_increase_percent / 100
        confirmed = self.mean_ratio >= 1 + MEAN_SHARE * increase or self.slowest_ratio >= 1 + increase
        return self.p99_ratio >= 1 + increase and confirmed

    @property
    def is_busier(self) -> bool:
        """Whether the rate is above any that was served as fast as the baseline."""
        return self.rate > RATE_ALLOWANCE * self.highest_rate

    def is_beyond(self, clients: int) -> bool:
        """Whether more requests are in flight than were validated, or seen in the baseline."""
        if self.in_flight_permille is None:
            return False
        return self.in_flight_permille > VALIDATED_ALLOWANCE * max(1000.0 * clients, self.highest_in_flight_permille or 0.0)


def _compare_last(windows: Sequence[ServedWindow], baseline: ServedBaseline, drift: Drift) -> tuple[Compared, ...]:
    """The last windows beside the baseline; empty unless every one of them can be compared and came after it."""
    last = [window for window in windows if window.ended_at > parse_time(baseline.at)][-drift.windows :]
    compared = [found for window in last if (found := compare_window(window, baseline)) is not None]
    return tuple(compared) if len(compared) == drift.windows else ()


def compare_window(window: ServedWindow, baseline: ServedBaseline) -> Compared | None:
    """None where the window tells nothing that may be compared."""
    reading = window.reading
    if reading.p99 is None or reading.mean_us is None or baseline.p99 is None or baseline.mean is None or reading.metric[:256] != baseline.metric:
        return None
    if not (reading.supports("p99") and reading.supports("mean")) or (baseline.per_replica and not reading.load.replicas):
        return None
    slowest = max((latency.mean_us for latency in window.nodes.values() if latency.mean_us is not None), default=reading.mean_us)
    return Compared(
        p99_ratio=reading.p99.value_us / parse_duration_us(baseline.p99),
        mean_ratio=reading.mean_us / parse_duration_us(baseline.mean),
        slowest_ratio=slowest / parse_duration_us(baseline.mean),
        rate=_rate_per_minute(reading.load, per_replica=baseline.per_replica),
        highest_rate=baseline.requests_per_minute_high,
        in_flight_permille=_in_flight_permille(reading.load, per_replica=baseline.per_replica),
        highest_in_flight_permille=baseline.in_flight_permille_high,
    )


def _rate_per_minute(load: ServedLoad, *, per_replica: bool) -> float:
    found = load.requests_per_second_per_replica if per_replica else load.requests_per_second
    return 60.0 * (found or 0.0)


def _in_flight_permille(load: ServedLoad, *, per_replica: bool) -> float | None:
    found = load.in_flight_per_replica if per_replica else load.in_flight
    return None if found is None else 1000.0 * found


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
