"""The table of ``collect``: lines of JSON in the shape of the operator's store, appended as they are measured.

Three kinds of lines, as the store has three tables. ``probe``: a card (NodeReport). ``profile``: a model (ProfileReport with its vector).
``run``: a model on a card in one configuration (BenchReport). A run joins its model by the digest and its card by ``node``. Whatever
ended without a result has its reason in the report; only what another try can cure is measured again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from metainfer_probe.contract import BenchReport, NodeReport, ProfileReport

FORMAT = 1
Line = dict[str, Any]
Report = NodeReport | ProfileReport | BenchReport
KEPT_DETAIL = ("vector",)
"""Of the full reports' detail: what learning can use. The rest is twenty times the size."""


class Table:
    """Lines of one file; what is in it already is not measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        texts = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        whole = [text for text in texts if text.endswith("}")]
        if len(whole) < len(texts):  # a line that was cut off is measured again
            path.write_text("".join(f"{text}\n" for text in whole), encoding="utf-8")
        self._lines = dict(_read(whole))

    @property
    def lines(self) -> list[Line]:
        """All of them, in the order in which they were first measured."""
        return list(self._lines.values())

    def find(self, key: Mapping[str, Any]) -> Line | None:
        """The line of this key, unless it failed for a cause that another try can cure."""
        line = self._lines.get(_text(key))
        return None if line is None or is_passing(line) else line

    def take(self, key: Mapping[str, Any], measure: Callable[[], Report], facts: Mapping[str, Any]) -> Line:
        """The known line of this key, else a new one: measured now, appended and flushed."""
        known = self.find(key)
        if known is not None:
            return known
        begin = time.monotonic()
        report = measure()
        line = {
            "format": FORMAT,
            "key": dict(key),
            **facts,
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.monotonic() - begin, 1),
            "report": _slim(report),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._lines[_text(key)] = line
        return line


def is_passing(line: Line) -> bool:
    """Whether it failed for a cause that is over by now, perhaps."""
    failure = line["report"].get("failure")
    return bool(failure and failure.get("retryable"))


def _read(texts: Iterable[str]) -> Iterator[tuple[str, Line]]:
    for text in texts:
        line: Line = json.loads(text)
        if line.get("format") == FORMAT:
            yield _text(line["key"]), line


def _slim(report: Report) -> dict[str, Any]:
    detail = {name: report.detail[name] for name in KEPT_DETAIL if name in report.detail}
    slim: dict[str, Any] = json.loads(report.model_copy(update={"detail": detail}).model_dump_json(exclude_defaults=True))
    return slim


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
