"""Tables as columns: CSV in, numpy arrays out, and errors that name the file, the column and the line."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metainfer.predict.learned.errors import TableUnreadable

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]
"""Equally long arrays by name: floats where every cell is a number, else text."""

TEXT = frozenset({"row_id", "group_id", "model", "card", "cards", "backend", "backend_version", "precision", "workload", "family", "date", "regime"})
"""Columns that stay text even when every cell looks like a number."""


def read_columns(path: Path, required: Collection[str] = ()) -> Columns:
    """A CSV file, gzipped or not. Raises TableUnreadable for a missing file or column, a ragged line, or a word in a required column of numbers."""
    try:
        with gzip.open(path, "rt", newline="", encoding="utf-8") if path.suffix == ".gz" else path.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.reader(stream))
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise TableUnreadable(f"{path.name}: {error}") from error
    if not lines:
        raise TableUnreadable(f"{path.name} is empty, expected a line with column names")
    header, body = lines[0], [line for line in lines[1:] if line]
    if missing := [name for name in required if name not in header]:
        raise TableUnreadable(f"{path.name} lacks the columns {', '.join(missing)}; it has {', '.join(header)}")
    for number, line in enumerate(body, 2):
        if len(line) != len(header):
            raise TableUnreadable(f"{path.name} line {number} has {len(line)} cells, the header {len(header)}")
    cells = zip(*body, strict=True) if body else ((),) * len(header)
    return {name: _parse(path, name, values, needed=name in required) for name, values in zip(header, cells, strict=True)}


def write_columns(path: Path, columns: Mapping[str, Sequence[Any] | Column]) -> None:
    """A CSV file; floats with six significant digits."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*(_format(values) for values in columns.values()), strict=True))


def take(columns: Columns, where: Column) -> Columns:
    """The rows of a mask or of indices."""
    return {name: values[where] for name, values in columns.items()}


def length(columns: Columns) -> int:
    """Number of rows."""
    return len(next(iter(columns.values()), ()))


def lookup(table: Columns, key: str, wanted: Column, *, what: str) -> npt.NDArray[np.intp]:
    """Row of ``table`` for each wanted key. Raises TableUnreadable naming the first that is not there."""
    places = {value: index for index, value in enumerate(table[key].tolist())}
    names, inverse = np.unique(wanted, return_inverse=True)
    if missing := [name for name in names.tolist() if name not in places]:
        raise TableUnreadable(f"{what} has no {key} {missing[0]!r}")
    return np.array([places[name] for name in names.tolist()], dtype=np.intp)[inverse]


def _parse(path: Path, name: str, values: Sequence[str], *, needed: bool) -> Column:
    """Text stays text; a column that nobody needs may hold anything."""
    if name in TEXT:
        return np.array(values, dtype=np.str_)
    try:
        return np.array([float(value) if value else np.nan for value in values], dtype=np.float64)
    except ValueError as error:
        if not needed:
            return np.array(values, dtype=np.str_)
        raise TableUnreadable(f"{path.name}, column {name}: {error}") from error


def _format(values: Sequence[Any] | Column) -> list[Any]:
    return [f"{value:.6g}" if isinstance(value, float) else value for value in (values.tolist() if isinstance(values, np.ndarray) else values)]
