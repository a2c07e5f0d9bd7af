"""A Job that the API server did not take (quota, admission rule, missing right): remembered in the status, tried again ever later. Pure.

Nothing that is watched tells when the obstacle is gone, so asking again is the only way to know; one request, at most an hour apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from metainfer.api.v1alpha1.common import JobRefusal
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.facts import JobFacts
from metainfer_probe.contract import Failure

RETRY_BASE: Final = timedelta(minutes=1)
RETRY_LIMIT: Final = timedelta(hours=1)
"""Tries after 1, 2, 4, ... 60 minutes: a quota may be free again soon, and nobody changes an admission policy every minute."""
_DOUBLINGS: Final = 6
PASSING: Final = frozenset({"QuotaExceeded", "AdmissionUnavailable"})
"""May go by without anybody changing anything: not a stall."""


def record_refusal(before: JobRefusal | None, job: str, failure: Failure, now: datetime) -> JobRefusal:
    """What to remember of a try that was refused."""
    attempts = before.attempts + 1 if before is not None else 1
    return JobRefusal(job=job, reason=failure.reason[:64], message=failure.message[:512], attempts=attempts, refused_at=format_time(now))


def standing_refusal(refusal: JobRefusal | None, jobs: Sequence[JobFacts]) -> JobRefusal | None:
    """The refusal while it stands: ``jobs`` (of its owner) has neither the Job that it is about nor another one under way."""
    taken = refusal is None or any(job.name == refusal.job or not (job.finished or job.deleting) for job in jobs)
    return None if taken else refusal


def retry_at(refusal: JobRefusal) -> datetime:
    """When the next try is due."""
    pause = min(RETRY_BASE * (1 << min(refusal.attempts - 1, _DOUBLINGS)), RETRY_LIMIT)
    return parse_time(refusal.refused_at) + pause


def seconds_to_retry(refusal: JobRefusal, now: datetime) -> float:
    """Until the next try; at least a second, because a pass that is due tries."""
    return max(1.0, (retry_at(refusal) - now).total_seconds())


def refusal_words(refusal: JobRefusal) -> str:
    """For conditions: the same until the API server says something else, so that a condition does not change with every try."""
    return f"the API server does not take Job {refusal.job}: {refusal.message}"
