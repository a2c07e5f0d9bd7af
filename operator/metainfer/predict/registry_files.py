"""A model record as a file: JSON, gzipped where the name ends in ``.gz``. The shipped model is one; so is what the training process answers."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

from metainfer.decide.learned import ModelRecord
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.registry import DOCUMENT_LIMIT_BYTES

FORMAT = 1


def write_record(record: ModelRecord) -> str:
    """One line of JSON."""
    content = {
        "format": FORMAT,
        "version": record.version,
        "made_at": record.made_at.isoformat(),
        "feature_version": record.feature_version,
        "training_hash": record.training_hash,
        "rows": record.rows,
        "serves": record.serves,
        "metrics": record.metrics,
        "checksum": record.checksum,
        "document": record.document,
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def read_record(text: str, name: str) -> ModelRecord:
    """The reverse. Raises ModelUnreadable naming ``name``; the document itself is checked by who opens it."""
    try:
        content: dict[str, Any] = json.loads(text)
        if content["format"] != FORMAT:
            raise ModelUnreadable("OtherVersion", f"{name} has format {content['format']}, this operator reads {FORMAT}")
        return ModelRecord(
            version=int(content["version"]),
            made_at=datetime.fromisoformat(content["made_at"]),
            feature_version=int(content["feature_version"]),
            training_hash=str(content["training_hash"]),
            rows=int(content["rows"]),
            serves=bool(content["serves"]),
            metrics=dict(content["metrics"]),
            checksum=str(content["checksum"]),
            document=str(content["document"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelUnreadable("Corrupted", f"{name} holds no model ({type(error).__name__}: {str(error)[:200]})") from error


def load_record(path: Path) -> ModelRecord:
    """A record from a file. Raises ModelUnreadable."""
    try:
        with path.open("rb") as file:
            content = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            body = content.read(DOCUMENT_LIMIT_BYTES + 1)  # a small file may unpack to one that fills the memory
        if len(body) > DOCUMENT_LIMIT_BYTES:
            raise ModelUnreadable("Corrupted", f"{path} is larger than {DOCUMENT_LIMIT_BYTES >> 20} MiB unpacked")
        return read_record(body.decode(), str(path))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ModelUnreadable("Corrupted", f"{path} cannot be read: {error}") from error


def save_record(record: ModelRecord, path: Path) -> None:
    """Write a record, whole or not at all; equal records make equal files."""
    body = write_record(record).encode()
    if path.suffix == ".gz":
        body = gzip.compress(body, compresslevel=9, mtime=0)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(body)
    partial.replace(path)
