"""What ships with the operator so that its first day is not a cold one: measured tables under permissive licences and a model made from them.

``tables/README.md`` names source, licence, machine and date of each, and the command that makes the model.
"""

from __future__ import annotations

from pathlib import Path

from metainfer.decide.learned import ModelRecord
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.registry_files import load_record
from metainfer.predict.tables import FOLDER

SHIPPED_SAMPLES: tuple[Path, ...] = tuple(sorted(FOLDER.glob("*.jsonl.gz")))
"""Benchmarks of our own kind, made by ``hack/bench/collect``."""
MODEL = FOLDER / "model.json.gz"


def open_shipped_model() -> ModelRecord | None:
    """The pretrained model; None where it cannot be read, which costs the first day and nothing else."""
    try:
        return load_record(MODEL) if MODEL.is_file() else None
    except ModelUnreadable:
        return None
