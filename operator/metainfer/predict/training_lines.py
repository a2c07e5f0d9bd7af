"""Samples as lines of JSON: what ``hack/bench/collect`` writes, what the operator hands to its training process, what ``metainfer train`` reads.

Three kinds of lines, as the store has three tables: ``probe``, ``profile``, ``run``, each with a ``key`` that says whose it is, ``finished_at``
and the Job's report. Lines of other kinds are left alone; a line that is none of this is named with its number.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from metainfer.decide.facts import Candidate, ProbeResult, ProfileResult, RunResult
from metainfer.decide.learning import Sample, join_samples
from metainfer.decide.names import short_hash
from metainfer.predict.learned.errors import TableUnreadable
from metainfer_probe.contract import BenchReport, NodeReport, ProfileReport, ServingConfig

ReportT = TypeVar("ReportT", NodeReport, ProfileReport, BenchReport)
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Material:
    """What samples are joined from."""

    runs: Sequence[tuple[str, RunResult]] = ()
    """Each with its model's digest."""
    profiles: Sequence[ProfileResult] = ()
    probes: Sequence[ProbeResult] = ()

    def join(self) -> tuple[Sample, ...]:
        """See ``decide.learning.join_samples``."""
        return join_samples(self.runs, self.profiles, self.probes)

    def __add__(self, other: Material) -> Material:
        return Material((*self.runs, *other.runs), (*self.profiles, *other.profiles), (*self.probes, *other.probes))


def write_lines(material: Material) -> Iterator[str]:
    """One line per result that has a report."""
    for probe in material.probes:
        yield from _write("probe", {"node": probe.node, "job": probe.job_uid or probe.job}, probe)
    for profile in material.profiles:
        yield from _write("profile", {"node": profile.node, "job": profile.job_uid or profile.job}, profile)
    for digest, run in material.runs:
        candidate = run.candidate
        place = {"digest": digest, "pool": candidate.pool, "family": candidate.family, "node": run.node, "config": candidate.config.model_dump(mode="json")}
        yield from _write("run", {**place, "job": run.job_uid or run.job}, run)


def read_lines(lines: Iterable[str], name: str) -> Material:
    """The results of a table. Raises TableUnreadable naming ``name`` and the line."""
    runs: list[tuple[str, RunResult]] = []
    profiles: list[ProfileResult] = []
    probes: list[ProbeResult] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            match line["key"].get("kind"):
                case "run":
                    result = _read_run(line)
                    runs.append((result.report.digest if result.report is not None else "", result))
                case "profile":
                    profiles.append(_read_profile(line))
                case "probe":
                    probes.append(_read_probe(line))
        except (ValueError, ValidationError, KeyError, TypeError, AttributeError) as error:
            raise TableUnreadable(f"{name}, line {number}: not a line of samples ({type(error).__name__}: {str(error)[:200]})") from error
    return Material(runs, profiles, probes)


def read_file(path: Path) -> list[str]:
    """Lines of a table, gzipped or not. Raises TableUnreadable naming the file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            return list(file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TableUnreadable(f"{path} cannot be read: {error}") from error


def _write(kind: str, key: Mapping[str, Any], result: ProbeResult | ProfileResult | RunResult) -> Iterator[str]:
    if result.report is not None:
        report = json.loads(result.report.model_copy(update={"detail": {}}).model_dump_json(exclude_defaults=True))
        line = {"key": {"kind": kind, **key}, "finished_at": result.finished_at.isoformat(), "report": report}
        yield json.dumps(line, separators=(",", ":"))


def _read_run(line: Line) -> RunResult:
    key = line["key"]
    candidate = Candidate(key["pool"], key["family"], ServingConfig.model_validate(key["config"]))
    return RunResult(_job(key), "", candidate, key["node"], _time(line), BenchReport.model_validate(line["report"]), job_uid=_job(key))


def _read_profile(line: Line) -> ProfileResult:
    key = line["key"]
    return ProfileResult(_job(key), _time(line), ProfileReport.model_validate(line["report"]), node=key["node"], job_uid=_job(key))


def _read_probe(line: Line) -> ProbeResult:
    key = line["key"]
    return ProbeResult(_job(key), key["node"], _time(line), NodeReport.model_validate(line["report"]), job_uid=_job(key))


def _job(key: Mapping[str, Any]) -> str:
    """The Job's UID where there was a Job, else a hash of what the line is about."""
    return str(key.get("job") or short_hash(json.dumps(key, sort_keys=True), length=32))


def _time(line: Line) -> datetime:
    moment = datetime.fromisoformat(line["finished_at"])
    if moment.tzinfo is None:
        raise ValueError("finished_at has no zone")
    return moment
