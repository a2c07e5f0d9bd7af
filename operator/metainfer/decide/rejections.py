"""Dropped candidates as the status tells of them: by reason, with examples, within its bounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from metainfer.api.v1alpha1.model_adaptation import RejectionStatus
from metainfer.decide.facts import Rejection

MAXIMUM_REASONS = 24
"""Bound of ModelAdaptationStatus.rejections."""
_MESSAGE_LIMIT = 512
_EXAMPLES = 3


def summarize_rejections(rejections: Sequence[Rejection]) -> tuple[RejectionStatus, ...]:
    """One line per reason, the most frequent first, with up to three different messages and an example; at most 24 lines."""
    groups: dict[str, list[Rejection]] = {}
    for rejection in sorted(rejections, key=lambda item: (item.candidate.key, item.message)):
        groups.setdefault(rejection.reason, []).append(rejection)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [RejectionStatus(reason=reason[:64], count=len(group), message=_describe(group)) for reason, group in ordered]
    if len(lines) <= MAXIMUM_REASONS:
        return tuple(lines)
    rest = lines[MAXIMUM_REASONS - 1 :]
    names = ", ".join(line.reason for line in rest)
    return (*lines[: MAXIMUM_REASONS - 1], RejectionStatus(reason="Other", count=sum(line.count for line in rest), message=names[:_MESSAGE_LIMIT]))


def _describe(group: Sequence[Rejection]) -> str:
    messages = list(dict.fromkeys(item.message for item in group))
    more = f"; and {len(messages) - _EXAMPLES} more" if len(messages) > _EXAMPLES else ""
    example = f" (for example {group[0].candidate.key})"
    return ("; ".join(messages[:_EXAMPLES]) + more)[: _MESSAGE_LIMIT - len(example)] + example[:_MESSAGE_LIMIT]
