"""Into a store as somebody else would, with a client of their own, which leaves when it has looked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from metainfer.store.engine import WRITES, build_engine, transaction


@contextmanager
def connect(url: str, *, writes: bool = False) -> Iterator[Connection]:
    """One transaction."""
    engine = build_engine(url)
    try:
        with transaction(engine.execution_options(**{WRITES: writes})) as connection:
            yield connection
    finally:
        engine.dispose()
