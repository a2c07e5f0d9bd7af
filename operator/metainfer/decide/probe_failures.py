"""A node's probe that gave no portrait: kept in its NodePortrait, which outlives the Job, so that tries come ever later or not at all. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from metainfer.api.v1alpha1.node_portrait import HealthTrial, NodePortraitSpec, NodePortraitStatus, ProbeFailure
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.drivers import read_driver
from metainfer.decide.facts import MeasuringLimits, NodeFacts, PoolFacts, Portrait, ProbeResult
from metainfer.decide.families import Membership
from metainfer.decide.names import short_hash
from metainfer.decide.portraits import build_identity, build_portrait, carry_on
from metainfer_probe.contract import Failure, NodeReport

RETRY_BASE: Final = timedelta(minutes=5)
RETRY_LIMIT: Final = timedelta(hours=1)
"""A failed probe is tried again after 5, 10, 20, 40, 60 minutes."""
_DOUBLINGS: Final = 4
SICK_REASONS: Final = frozenset({"CardRefused"})
"""Of the cards, not of the probe: nothing else will get one there either."""


def is_sick(failure: ProbeFailure | None) -> bool:
    """Whether the node does not hand out its cards."""
    return failure is not None and failure.reason in SICK_REASONS


def find_problem(result: ProbeResult) -> Failure | None:
    """Why a finished probe gives no portrait; None when it does."""
    report: NodeReport | None = result.report
    if result.failure is not None or report is None:
        return result.failure or Failure(reason="ReportMissing", message="the probe left no report", retryable=True)
    if report.failure is not None:
        return report.failure
    if report.machine is None or report.micro is None or not report.figures:
        words = "; ".join(item.failure.message for item in report.problems)[:512] or "the probe measured no provider"
        return Failure(reason="NothingMeasured", message=words, retryable=True)
    return None


def record_failure(before: ProbeFailure | None, result: ProbeResult, problem: Failure, circumstances: str) -> ProbeFailure:
    """What to remember; tries under other circumstances are counted anew."""
    attempts = before.attempts + 1 if before is not None and before.circumstances == circumstances else 1
    return ProbeFailure(
        job=result.job,
        reason=problem.reason[:64],
        message=problem.message[:512],
        attempts=attempts,
        retryable=problem.retryable,
        failed_at=format_time(result.finished_at),
        circumstances=circumstances,
    )


def portray_result(  # budget: one node, what was found, and what was known before
    node: NodeFacts, place: Membership, result: ProbeResult, before: Portrait | None, circumstances: str
) -> Portrait:
    """The node's portrait after a finished probe. One that failed leaves the figures there are as they are."""
    problem, known = find_problem(result), before.status if before is not None else NodePortraitStatus(observed_generation=1)
    if problem is None:
        spec, status = build_portrait(node, place, result)
        return Portrait(node.name, spec, carry_on(known, status))
    failure = record_failure(known.probe_failure, result, problem, circumstances)
    spec = NodePortraitSpec(node_uid=node.uid, pool=place.pool, family=place.family.name)
    return Portrait(node.name, spec, known.model_copy(update={"probe_failure": failure}))


def mark_sick(portrait: Portrait) -> Portrait:
    """A node that does not hand out its cards is as good as degraded, whatever they once did; good probes make it well again."""
    status = portrait.status
    if not is_sick(status.probe_failure) or status.health == "Degraded":
        return portrait
    return replace(portrait, status=status.model_copy(update={"health": "Degraded", "trial": HealthTrial(job=status.probe_job)}))


def circumstances_of(node: NodeFacts, membership: Membership, pool: PoolFacts, limits: MeasuringLimits) -> str:
    """Hash over what has to be different before a probe that cannot succeed by itself is tried again: card, driver, image and user, the pool's spec."""
    driver = read_driver(membership.family, node) or ""
    return short_hash(build_identity(node, membership), driver, limits.probe_image, str(limits.job_user_id), str(pool.generation), length=16)


def retry_at(failure: ProbeFailure, circumstances: str) -> datetime | None:
    """When the next try is due; None = not by itself."""
    failed_at = parse_time(failure.failed_at)
    if failure.circumstances != circumstances:
        return failed_at
    return failed_at + min(RETRY_BASE * (1 << min(failure.attempts - 1, _DOUBLINGS)), RETRY_LIMIT) if failure.retryable else None
