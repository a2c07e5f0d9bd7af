"""Conditions as the state of an object: each pass states what it finds, this merges it with what was there. Pure.

``lastTransitionTime`` moves only when ``status`` flips; ``Reconciling`` and ``Stalled`` exist only while true (kstatus).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.common import Condition

ABNORMAL_TRUE = frozenset({reasons.RECONCILING, reasons.STALLED})
MESSAGE_LIMIT = 2048


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition as this pass sees it."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def merge_conditions(before: Sequence[Condition], findings: Sequence[Finding], *, now: datetime, generation: int) -> tuple[Condition, ...]:
    """The new list, in the order of the findings; a type that no finding names is dropped."""
    old = {condition.type: condition for condition in before}
    return tuple(_merge(old.get(finding.type), finding, now, generation) for finding in findings if _shown(finding))


def _shown(finding: Finding) -> bool:
    return finding.type not in ABNORMAL_TRUE or finding.status == "True"


def _merge(old: Condition | None, finding: Finding, now: datetime, generation: int) -> Condition:
    flipped = old is None or old.status != finding.status
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=finding.message[:MESSAGE_LIMIT],
        last_transition_time=format_time(now) if flipped or old is None else old.last_transition_time,
        observed_generation=generation,
    )


def find_store_outage(problem: str) -> tuple[Finding, ...]:
    """What a pass says while the sample store is away; nothing when it is not."""
    words = f"going on without the sample store; what is measured and decided meanwhile is recorded when it is back: {problem}"
    return (Finding(reasons.STORE_DEGRADED, "True", "StoreUnreachable", words),) if problem else ()


def find_condition(conditions: Sequence[Condition], condition_type: str) -> Condition | None:
    """The condition of that type, if there is one."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Inverse of ``format_time``; fractions of seconds are accepted."""
    return datetime.fromisoformat(text)
