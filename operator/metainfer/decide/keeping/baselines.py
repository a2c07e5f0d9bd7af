"""What served windows are compared with: made of the first good ones after a placement, then better known with each that is as good. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from statistics import median
from typing import Final

from metainfer.api.durations import parse_duration, parse_duration_us
from metainfer.api.v1alpha1.served import Drift, ServedBaseline
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.keeping.compared import LEAST_RATIO, compare_window, in_flight_permille, rate_per_minute
from metainfer.decide.latency.served import ServedWindow

LONG_FACTOR: Final = 4
"""Times the windows of the user: over so many a baseline grows, and a small increase is looked for. As many are remembered."""
YOUNG_FACTOR: Final = 2
"""Times these windows: for so long a baseline may grow, with gaps in it."""
WIDENING_SHARE: Final = 0.5
"""Windows slower than the baseline by less than this share of the increase are fine, and so is the load that they were served under."""
SHOWN_DIGITS: Final = 3
"""Of a latency: an error of half a percent at most."""


def build_baseline(windows: Sequence[ServedWindow], count: int) -> ServedBaseline | None:
    """From the first ``count`` good windows, of one metric; those with a percentile if there are enough, else those with a mean. None = too few.

    Whole requests per minute, rounded outwards: one that is asked once in two minutes would be busier than nothing for ever.
    """
    metric = windows[-1].reading.metric if windows else ""
    own = [window for window in windows if window.reading.metric == metric]
    telling = [window for window in own if window.reading.supports("p99")]
    chosen = (telling if len(telling) >= count else [window for window in own if window.reading.supports("mean")])[:count]
    if len(chosen) < count:
        return None
    p99s = [window.reading.p99.value_us for window in chosen if window.reading.supports("p99") and window.reading.p99 is not None]
    means = [window.reading.mean_us for window in chosen if window.reading.supports("mean") and window.reading.mean_us is not None]
    per_replica = all(window.reading.load.replicas for window in chosen)
    rates = [rate_per_minute(window.reading.load, per_replica=per_replica) for window in chosen]
    flights = [found for window in chosen if (found := in_flight_permille(window.reading.load, per_replica=per_replica)) is not None]
    return ServedBaseline(
        metric=metric[:256],
        at=format_time(chosen[-1].ended_at),
        windows=count,
        p99=show_latency(median(p99s)) if len(p99s) == count else None,
        mean=show_latency(median(means)) if len(means) == count else None,
        per_replica=per_replica,
        requests_per_minute_low=floor(min(rates)),
        requests_per_minute_high=ceil(max(rates)),
        in_flight_permille_high=round(max(flights)) if flights else None,
    )


def grow_baseline(baseline: ServedBaseline, window: ServedWindow, drift: Drift) -> ServedBaseline:
    """One window more in a young baseline: three alone are off by as much as a window, which hides a small increase for ever.

    The running geometric mean, over ``LONG_FACTOR`` times the windows that it began with. A window that is slower by the increase, or busier,
    has no part in it: the card may be getting slower right now. Nor has one from long after: that baseline is of another time.
    """
    wanted = LONG_FACTOR * drift.windows
    young_until = parse_time(baseline.at) + YOUNG_FACTOR * wanted * parse_duration(drift.window)
    compared = compare_window(window, baseline)
    if compared is None or compared.is_busier or baseline.windows >= wanted or window.ended_at > young_until:
        return baseline
    if compared.p99_ratio >= 1 + drift.increase or baseline.p99 is None or baseline.mean is None:
        return baseline
    count = baseline.windows + 1
    p99, mean = (max(LEAST_RATIO, ratio) ** (1 / count) for ratio in (compared.p99_ratio, compared.mean_ratio))
    latencies = {"p99": show_latency(parse_duration_us(baseline.p99) * p99), "mean": show_latency(parse_duration_us(baseline.mean) * mean)}
    return baseline.model_copy(update=latencies | {"windows": count})


def widen_baseline(baseline: ServedBaseline, window: ServedWindow, drift: Drift) -> ServedBaseline:
    """A window that is as fast as the baseline vouches for the load that it was served under."""
    compared = compare_window(window, baseline)
    if compared is None or compared.p99_ratio - 1 >= WIDENING_SHARE * drift.increase:
        return baseline
    flight = compared.in_flight_permille
    known = baseline.in_flight_permille_high
    return baseline.model_copy(
        update={
            "requests_per_minute_low": min(floor(compared.rate), baseline.requests_per_minute_low),
            "requests_per_minute_high": max(ceil(compared.rate), baseline.requests_per_minute_high),
            "in_flight_permille_high": max(round(flight), known) if flight is not None and known is not None else known,
        }
    )


def show_latency(microseconds: float) -> str:
    """As a duration string of three digits, for example 310us, 41ms200us or 12s300ms: it is compared again after a restart."""
    digits = len(str(round(microseconds)))
    rounded = round(round(microseconds), min(0, SHOWN_DIGITS - digits))
    parts = (f"{rounded // 1_000_000}s", f"{rounded // 1000 % 1000}ms", f"{rounded % 1000}us")
    return "".join(part for part in parts if part[0] != "0") or "0us"
