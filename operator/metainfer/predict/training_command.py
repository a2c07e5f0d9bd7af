"""``metainfer train``: from tables of samples to a model file. The operator trains by running this very command in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from metainfer.decide.learned import ModelRecord
from metainfer.decide.learning import Sample
from metainfer.predict.learned.errors import TableUnreadable, Untrainable
from metainfer.predict.registry_files import save_record, write_record
from metainfer.predict.shipped import SHIPPED_SAMPLES
from metainfer.predict.training import Curriculum, train_challenger
from metainfer.predict.training_lines import Material, read_file, read_lines

NOTHING_TO_LEARN, BAD_INPUT = 3, 2
"""Exit statuses beside 0."""
NICENESS = 10


def run_train(options: argparse.Namespace) -> tuple[int, str]:
    """Exit status, and the line to print: the whole model, or its figures where it went into a file, or why there is none."""
    if options.background:
        os.nice(NICENESS)
    try:
        made_at = _moment(options.made_at) if options.made_at else datetime.now(UTC)
        known_until = _moment(options.known_until) if options.known_until else None
        shipped = () if options.no_shipped else _read_samples(map(str, SHIPPED_SAMPLES))
        record = train_challenger(Curriculum(_read_samples(options.samples), shipped, known_until, options.seed), made_at)
    except TableUnreadable as error:
        return BAD_INPUT, _refuse("TableUnreadable", str(error))
    except Untrainable as error:
        return NOTHING_TO_LEARN, _refuse(error.reason, str(error))
    except ValueError as error:
        return BAD_INPUT, _refuse("TimeInvalid", str(error))
    if options.out is None:
        return 0, write_record(record)
    save_record(record, options.out)
    return 0, _summary(record, options.out)


def _read_samples(names: Iterable[str]) -> tuple[Sample, ...]:
    material = Material()
    for name in names:
        material += read_lines(sys.stdin if name == "-" else read_file(Path(name)), Path(name).name)
    return material.join()


def _summary(record: ModelRecord, path: Path) -> str:
    shown = {"out": str(path), "rows": record.rows, "bytes": len(record.document), "training_hash": record.training_hash[:16]}
    return json.dumps(shown | {"serves": record.serves} | dict(record.metrics))


def _refuse(reason: str, message: str) -> str:
    return json.dumps({"reason": reason, "message": message})


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no zone, want for example 2026-03-01T12:00:00+00:00")
    return moment


def read_answer(lines: Sequence[str]) -> tuple[str, str] | None:
    """Reason and message where the last line is a refusal of ``run_train``."""
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return None
    return (str(answer["reason"]), str(answer["message"])) if isinstance(answer, dict) and {"reason", "message"} <= answer.keys() else None
