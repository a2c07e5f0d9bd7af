"""What was learned, as values: models as the store keeps them, and the state that a pool's status shows. Pure; knows nothing of a model's inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

UNREADABLE: Final = frozenset({"OtherVersion", "Corrupted"})
"""Reasons for which a stored model is made anew."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One trained model as the store keeps it. ``version`` 0 is the one that ships with the operator."""

    version: int
    made_at: datetime
    feature_version: int
    training_hash: str
    """Of all samples it was trained on: equal hashes mean that there is nothing new to learn."""
    rows: int
    serves: bool
    """Whether it won against its predecessor and the bare base; the newest that did is the champion."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checksum: str = ""
    """sha256 of the document."""
    document: str = ""
    """JSON; empty for a model that lost."""


@dataclass(frozen=True, slots=True)
class FamilyRecord:
    """How well the serving model does on one family of cards, on models that it was not trained on."""

    rows: int
    held_out_regret_permille: int
    """Mean loss of the best predicted candidate against the best measured one; -1 = too few groups to say."""
    base_regret_permille: int
    serves: bool = True
    """Whether it won there; elsewhere the bare base ranks."""


@dataclass(frozen=True, slots=True)
class LearnedState:
    """Which model answers now. ``problem`` set: the bare base answers, and why."""

    version: int | None = None
    made_at: datetime | None = None
    feature_version: int = 0
    rows: int = 0
    held_out_regret_permille: int = -1
    base_regret_permille: int = -1
    families: Mapping[str, FamilyRecord] = field(default_factory=dict)
    """By ``POOL/FAMILY``."""
    serves_others: bool = True
    """Whether it also answers for families that it has never seen."""
    newest_version: int | None = None
    """Of the last model that was trained, whether it serves or lost against the one that does; None = none was."""
    newest_verdict: str = ""
    """How it did on models that it had not seen."""
    problem: tuple[str, str] | None = None
    """Reason and message."""

    def serves(self, family: str) -> bool:
        """Whether the model ranks candidates of a family (``POOL/FAMILY``)."""
        if self.version is None or self.problem is not None:
            return False
        record = self.families.get(family)
        return self.serves_others if record is None else record.serves


NEW_SAMPLES = 20
"""About five adaptations: fewer move no tree."""
LONGEST_WAIT = timedelta(days=1)
"""After which a single new sample is enough."""


def must_make_anew(last: ModelRecord | None, state: LearnedState) -> bool:
    """Whether the newest model of the store is one that cannot be used: then all samples are new."""
    return last is not None and last.version == state.version and state.problem is not None and state.problem[0] in UNREADABLE


def why_train(last: ModelRecord | None, new_samples: int, state: LearnedState, now: datetime, *, enough: int = NEW_SAMPLES) -> str | None:
    """What makes a new model worth a try, in words; None = nothing yet.

    Args:
        last: the newest model, whether it won or not.
        enough: new samples that are worth it whatever the time.
    """
    if new_samples <= 0:
        return None
    if must_make_anew(last, state) and state.problem is not None:
        return f"the stored model cannot be used: {state.problem[1]}"
    if new_samples >= enough:
        return f"{new_samples} new samples"
    if last is not None and now - last.made_at >= LONGEST_WAIT:
        return f"{new_samples} new samples in more than a day"
    return None
