"""``metainfer samples export``: turns arguments into a selection, and a reader that has left into an orderly end."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime

from metainfer.api.durations import parse_duration
from metainfer.settings import read_store_url
from metainfer.store.export import Selection, export_samples


def parse_since(text: str, now: datetime) -> datetime:
    """A date, a time (UTC where it has no zone), or how long ago as a duration. Raises ValueError naming what may be given."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - parse_duration(text)
        except (ValueError, OverflowError) as error:
            msg = f"--since {text!r}: want a date (2026-03-01), a time (2026-03-01T12:00:00Z) or how long ago (168h)"
            raise ValueError(msg) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def run_export(arguments: argparse.Namespace) -> int:
    """Write the samples to standard output; returns their number. Raises ValueError, StoreUnavailable, StoreVersionError."""
    since = parse_since(arguments.since, datetime.now(UTC)) if arguments.since else None
    try:
        count = export_samples(arguments.store or read_store_url(), sys.stdout, style=arguments.format, selection=Selection(since, arguments.family))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough; Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return count
