"""The status of an object of ours that the schema takes and this operator cannot read, for example after a downgrade. Pure.

Such an object has no facts, so nothing is decided for it; what its status says of former times is kept as it is, field by field,
because the version that wrote it may come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.conditions import MESSAGE_LIMIT, format_time

Raw = Mapping[str, Any]
UNREADABLE: Final = "Unreadable"


def mark_unreadable(raw: Raw, problem: str, now: datetime) -> Raw:
    """The raw status with ``Ready`` False and ``Stalled`` True; equal to the present one when it says so already."""
    generation, status = int(raw["metadata"].get("generation", 0)), dict(raw.get("status") or {})
    words = f"this version of the operator cannot read the object, nothing is done for it: {problem}"[:MESSAGE_LIMIT]
    before = {item.get("type"): item for item in status.get("conditions") or ()}
    kept = [item for kind, item in before.items() if kind not in (reasons.READY, reasons.STALLED, reasons.RECONCILING)]
    news = [
        _condition(before.get(kind), {"type": kind, "status": value, "reason": UNREADABLE, "message": words, "observedGeneration": generation}, now)
        for kind, value in ((reasons.READY, "False"), (reasons.STALLED, "True"))
    ]
    return status | {"conditions": [news[0], *kept, news[1]], "observedGeneration": generation}


def _condition(before: Raw | None, news: Raw, now: datetime) -> Raw:
    """``lastTransitionTime`` moves only when ``status`` flips."""
    same = before is not None and before.get("status") == news["status"] and before.get("lastTransitionTime")
    return {**news, "lastTransitionTime": before["lastTransitionTime"] if same and before is not None else format_time(now)}
