"""Logs as one JSON object per line: a constant message, and key-values in ``extra``. Knows nothing of who logs.

``logging`` refuses ``extra`` keys that are its own (name, args, message, module ...): say ``object``, ``error``, ``key``.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One line per record; values that JSON does not know are written as text."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, the record's key-values, and the trace where there is one."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _OWN and not key.startswith("k8s_") and key != "settings"}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up_logs(level: str) -> None:
    """All loggers to standard output as JSON, from ``level`` on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # kopf tells of every event that a handler took, once per object.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    # One line per probe of the kubelet and per scrape.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
