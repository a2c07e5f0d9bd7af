"""Trained models as rows, and the samples that they are trained on. A method set of ``SampleStore``; knows JSON, not what is in it.

A document is text with a checksum: nothing that is read here can run code, and what does not match its checksum is the reader's to refuse.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, insert, select, update

from metainfer.decide.facts import ProbeResult, ProfileResult, RunResult
from metainfer.decide.learned import ModelRecord
from metainfer.decide.names import canonical_json
from metainfer.store.rows import read_all, read_probe, read_profile, read_run
from metainfer.store.tables import models, probes, profiles, runs

KEPT_DOCUMENTS = 3
"""The champion and two it replaced, to go back to by hand; of older ones only the figures stay."""
MATERIAL_ROWS = 20_000
"""Newest rows of a kind that are learned from: what the chart's memory limit has room for (see resources in its values.yaml)."""


def insert_model(connection: Connection, record: ModelRecord) -> ModelRecord:
    """Give the record the next version and keep it; documents of old champions are emptied."""
    last = connection.execute(select(func.max(models.c.version))).scalar_one_or_none() or 0
    stored = replace(record, version=last + 1)
    connection.execute(insert(models).values(**_row(stored)))
    kept = select(models.c.version).where(models.c.document != "").order_by(models.c.version.desc()).limit(KEPT_DOCUMENTS)
    oldest = min(connection.execute(kept).scalars(), default=0)
    connection.execute(update(models).where(models.c.version < oldest).values(document=""))
    return stored


def select_champion(connection: Connection) -> ModelRecord | None:
    """The newest model that won, with its document."""
    row = connection.execute(select(models).where(models.c.serves).order_by(models.c.version.desc()).limit(1)).mappings().first()
    return _record(row) if row is not None else None


def select_last(connection: Connection) -> ModelRecord | None:
    """The newest model, whether it won or not, without its document."""
    row = connection.execute(select(models).order_by(models.c.version.desc()).limit(1)).mappings().first()
    return replace(_record(row), document="") if row is not None else None


def select_material(connection: Connection, newest: int) -> tuple[tuple[tuple[str, RunResult], ...], tuple[ProfileResult, ...], tuple[ProbeResult, ...]]:
    """What samples are joined from (see ``decide.learning.join_samples``): the newest runs with their digests, profiles, probes; oldest first."""

    def read(table: Table) -> list[RowMapping]:
        columns = [column for column in table.columns if column.name != "detail"]
        query = select(*columns).where(table.c.report.is_not(None)).order_by(table.c.finished_at.desc()).limit(newest)
        return [*connection.execute(query).mappings()][::-1]

    return (
        read_all(read(runs), lambda row: (str(row["digest"]), read_run(row))),
        read_all(read(profiles), read_profile),
        read_all(read(probes), read_probe),
    )


def _row(record: ModelRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "made_at": record.made_at,
        "feature_version": record.feature_version,
        "training_hash": record.training_hash,
        "row_count": record.rows,
        "serves": record.serves,
        "metrics": canonical_json(record.metrics),
        "checksum": record.checksum,
        "document": record.document,
    }


def _record(row: RowMapping) -> ModelRecord:
    return ModelRecord(
        version=row["version"],
        made_at=row["made_at"],
        feature_version=row["feature_version"],
        training_hash=row["training_hash"],
        rows=row["row_count"],
        serves=row["serves"],
        metrics=_metrics(row["metrics"]),
        checksum=row["checksum"],
        document=row["document"],
    )


def _metrics(text: str) -> dict[str, Any]:
    """Figures for people: damaged ones are none, and no reason to refuse the model."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
