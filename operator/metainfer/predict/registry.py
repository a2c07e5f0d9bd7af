"""Which model answers now: the newest champion that can be read and tried out, else the bare base with a reason.

A document comes from the store or from a file, so it is not trusted: it is JSON behind a checksum, checked on reading, and asked about
made-up rows before it may serve. Whatever is wrong with it costs the learned part of predictions and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from metainfer.decide.learned import FamilyRecord, LearnedState, ModelRecord
from metainfer.predict.learned.document import model_from_document
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned.features import FEATURE_VERSION
from metainfer.predict.learned.forecast import Forecast
from metainfer.predict.learned.rows import Rows, make_rows
from metainfer.predict.learned.shift import Shifts, learn_shifts

TRIAL_ROWS = 8
DOCUMENT_LIMIT_BYTES = 64 << 20
"""A model of all that an operator can measure in years is a tenth of that; a larger text is not read at all."""


class Forecasts(Protocol):
    """A model that was loaded: ``learned.model.Model``."""

    def predict(self, rows: Rows, shifts: Shifts = ...) -> Forecast:
        """One latency and sigma per row."""
        ...


@dataclass(frozen=True, slots=True)
class Champion:
    """A model that serves, with the families in which it does."""

    record: ModelRecord
    model: Forecasts
    families: frozenset[str]
    """Families in which it won on models that it had not seen."""
    known: frozenset[str]
    """Families that it was trained on."""
    serves_others: bool
    """Whether it also answers for families that it has never seen."""

    def serves(self, family: str) -> bool:
        """Whether its answers count for a family (``POOL/FAMILY``)."""
        return family in self.families or (self.serves_others and family not in self.known)


class Registry:
    """Holds the champion. Changed by one task, read by any: a swap is one assignment."""

    def __init__(self, shipped: ModelRecord | None = None) -> None:
        self._champion: Champion | None = None
        self._state = LearnedState(feature_version=FEATURE_VERSION, problem=("NoModel", "nothing was learned yet: rankings rest on the roofline alone"))
        self._tried: tuple[int, str] | None = None
        self._shifts = Shifts()
        self._newest: tuple[int, str] | None = None
        if shipped is not None:
            self.offer(shipped)

    @property
    def champion(self) -> Champion | None:
        """The model that answers now; None = the base."""
        return self._champion

    @property
    def shifts(self) -> Shifts:
        """What is known of cards that the champion was not trained on."""
        return self._shifts

    def learn_cards(self, rows: Rows) -> None:
        """Shift the champion by measured rows of cards that it has never seen; a few rows teach a shift, not a tree."""
        if self._champion is not None:
            new = rows[~np.isin(rows["family"], sorted(self._champion.known))]
            self._shifts = learn_shifts(new, self._champion.model.predict(new)) if len(new) else Shifts()

    @property
    def state(self) -> LearnedState:
        """For a pool's status."""
        version, verdict = self._newest or (None, "")
        return replace(self._state, newest_version=version, newest_verdict=verdict)

    def note_newest(self, record: ModelRecord) -> bool:
        """Remember the last model that was trained, which may have lost; True when it is another one than before."""
        newest = (record.version, str(record.metrics.get("verdict", "")))
        changed, self._newest = newest != self._newest, newest
        return changed

    def offer(self, record: ModelRecord) -> bool:
        """Let a champion's record serve; True when something changed. One that cannot be read leaves the base, with its reason."""
        if not record.serves or self._tried == (record.version, record.checksum):
            return False
        self._tried, self._shifts = (record.version, record.checksum), Shifts()
        try:
            self._champion = open_record(record)
            self._state = describe(record, None)
        except ModelUnreadable as error:
            self._champion = None
            self._state = describe(record, (error.reason, str(error)))
        return True


def open_record(record: ModelRecord) -> Champion:
    """The model of a record, tried out. Raises ModelUnreadable: ``OtherVersion`` or ``Corrupted``."""
    if record.feature_version != FEATURE_VERSION:
        words = f"model {record.version} was made for features {record.feature_version}, this operator has {FEATURE_VERSION}: it is made anew from the samples"
        raise ModelUnreadable("OtherVersion", words)
    if len(record.document) > DOCUMENT_LIMIT_BYTES or checksum(record.document) != record.checksum:
        raise ModelUnreadable("Corrupted", f"model {record.version} does not match its checksum: it is made anew from the samples")
    try:
        content = json.loads(record.document)
        model = model_from_document(content)
        _try_out(model)
    except (ModelUnreadable, MemoryError):
        raise
    except Exception as error:  # whatever else a damaged document makes a reader stumble over
        raise ModelUnreadable("Corrupted", f"model {record.version} cannot be used: {type(error).__name__}: {str(error)[:200]}") from error
    families = _families(record)
    winning = frozenset(name for name, figures in families.items() if figures.get("serves"))
    return Champion(record, model, winning, frozenset(families), bool(record.metrics.get("serves_others")))


def checksum(document: str) -> str:
    """sha256 of a document."""
    return hashlib.sha256(document.encode()).hexdigest()


def describe(record: ModelRecord, problem: tuple[str, str] | None) -> LearnedState:
    """What a pool's status says of a record."""
    families = {
        name: FamilyRecord(
            rows=_integer(figures, "rows"),
            held_out_regret_permille=_integer(figures, "regret_permille"),
            base_regret_permille=_integer(figures, "base_regret_permille"),
            serves=bool(figures.get("serves")),
        )
        for name, figures in _families(record).items()
    }
    return LearnedState(
        version=record.version,
        made_at=record.made_at,
        feature_version=record.feature_version,
        rows=record.rows,
        held_out_regret_permille=_integer(record.metrics, "regret_permille"),
        base_regret_permille=_integer(record.metrics, "base_regret_permille"),
        families=families,
        serves_others=bool(record.metrics.get("serves_others")),
        problem=problem,
    )


def _families(record: ModelRecord) -> dict[str, dict[str, Any]]:
    found = record.metrics.get("families", {})
    return {str(name): figures for name, figures in found.items() if isinstance(figures, dict)} if isinstance(found, dict) else {}


def _integer(figures: Any, name: str) -> int:
    value = figures.get(name, -1)
    return value if isinstance(value, int) else -1


def _try_out(model: Forecasts) -> None:
    rows = make_rows(TRIAL_ROWS)
    rows["base_us"] = rows["launch_us"] = np.geomspace(1.0, 1e7, TRIAL_ROWS)
    rows["flop_per_us"], rows["bytes_per_us"], rows["launches"] = 1e4, 1e4, 1.0
    forecast = model.predict(rows)
    if forecast.log_latency_us.shape != (TRIAL_ROWS,) or not (np.isfinite(forecast.log_latency_us).all() and np.isfinite(forecast.sigma).all()):
        raise ModelUnreadable("Corrupted", "the model answers no figures")
