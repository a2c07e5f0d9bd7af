"""Makes a report fit into the termination message: what is nice to have goes first, and the report says so.

The order below is the order of what a decision can do without. Figures are never dropped before prose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from metainfer_probe.contract import Failure, NodeReport, ProfileReport, Report, ReportError, encode_summary

R = TypeVar("R", bound=BaseModel)
MESSAGE_LIMITS = (200, 80, 20)
NOTES_KEPT = 3
TENSORS_KEPT = 8


def fit_summary(report: Report) -> str:
    """``encode_summary`` of the report, shortened step by step until it fits; a note says what was left out."""
    try:
        return encode_summary(report)
    except ReportError:
        pass
    dropped: list[str] = []
    for name, shorten in _STEPS:
        shorter = shorten(report)
        if shorter == report:
            continue
        report, dropped = shorter, [*dropped, name]
        try:
            return encode_summary(_noted(report, dropped))
        except ReportError:
            continue
    return encode_summary(_bare(report))


def _bare(report: Report) -> Report:
    """The last resort: only whether the measurement failed, so that somebody looks into the log."""
    lost = Failure(reason="ReportTooLarge", message="the summary does not fit into the termination message; the full report is in the log")
    return type(report)(failure=report.failure or lost)


def _noted(report: Report, dropped: list[str]) -> Report:
    if not isinstance(report, ProfileReport):
        return report
    return report.model_copy(update={"notes": (*report.notes, f"summary without {', '.join(dropped)}: see the full report in the log")})


def _shorten_messages(limit: int) -> Callable[[Report], Report]:
    def shorten(report: Report) -> Report:
        return _map_failures(report, lambda failure: failure.model_copy(update={"message": _cut(failure.message, limit)}))

    return shorten


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _map_failures(model: R, change: Callable[[Failure], Failure]) -> R:
    """The same model with every Failure in it, at any depth, replaced."""
    updates: dict[str, object] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Failure):
            updates[name] = change(value)
        elif isinstance(value, BaseModel):
            updates[name] = _map_failures(value, change)
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            updates[name] = tuple(_map_failures(item, change) if isinstance(item, BaseModel) else item for item in value)
    return model.model_copy(update=updates)


def _only_profile(change: Callable[[ProfileReport], ProfileReport]) -> Callable[[Report], Report]:
    return lambda report: change(report) if isinstance(report, ProfileReport) else report


def _shorten_notes(report: ProfileReport) -> ProfileReport:
    return report.model_copy(update={"notes": tuple(_cut(note, 160) for note in report.notes[:NOTES_KEPT])})


def _shorten_hot(report: ProfileReport) -> ProfileReport:
    return report.model_copy(update={"hot": tuple(hot.model_copy(update={"node": hot.node[-32:]}) for hot in report.hot)})


def _shorten_tensors(report: ProfileReport) -> ProfileReport:
    def cut(specs: tuple[BaseModel, ...]) -> tuple[BaseModel, ...]:
        return tuple(spec.model_copy(update={"name": _cut(str(getattr(spec, "name", "")), 64)}) for spec in specs[:TENSORS_KEPT])

    return report.model_copy(update={"inputs": cut(report.inputs), "outputs": cut(report.outputs)})


def _thin_curves(report: ProfileReport) -> ProfileReport:
    """Single requests, the largest batch and the most callers of every provider."""
    providers = []
    for profile in report.providers:
        kept = {(1, 1)} | {max(((p.batch_size, p.concurrency) for p in profile.curve), default=(1, 1))}
        kept |= {max(((p.batch_size, p.concurrency) for p in profile.curve), key=lambda pair: pair[1], default=(1, 1))}
        providers.append(profile.model_copy(update={"curve": tuple(p for p in profile.curve if (p.batch_size, p.concurrency) in kept)}))
    return report.model_copy(update={"providers": tuple(providers)})


def _drop_curves(report: ProfileReport) -> ProfileReport:
    """Single requests only."""
    return report.model_copy(update={"providers": tuple(profile.model_copy(update={"curve": profile.curve[:1]}) for profile in report.providers)})


def _drop_problems(report: Report) -> Report:
    return report.model_copy(update={"problems": report.problems[:4]}) if isinstance(report, NodeReport) else report


def _merged_failure(report: ProfileReport) -> ProfileReport:
    """The report's own failure repeats those of its providers."""
    if report.failure is None:
        return report
    return report.model_copy(update={"providers": tuple(profile.model_copy(update={"precisions": (), "batch_failure": None}) for profile in report.providers)})


_STEPS: tuple[tuple[str, Callable[[Report], Report]], ...] = (
    ("long notes", _only_profile(_shorten_notes)),
    ("paths of hot operators", _only_profile(_shorten_hot)),
    ("long messages", _shorten_messages(MESSAGE_LIMITS[0])),
    ("long tensor names", _only_profile(_shorten_tensors)),
    ("hot operators", _only_profile(lambda report: report.model_copy(update={"hot": ()}))),
    ("precisions of providers that cannot run", _only_profile(_merged_failure)),
    ("some problems", _drop_problems),
    ("parts of the curves", _only_profile(_thin_curves)),
    ("all but short messages", _shorten_messages(MESSAGE_LIMITS[1])),
    ("outputs", _only_profile(lambda report: report.model_copy(update={"outputs": ()}))),
    ("notes", _only_profile(lambda report: report.model_copy(update={"notes": ()}))),
    ("most inputs", _only_profile(lambda report: report.model_copy(update={"inputs": report.inputs[:2]}))),
    ("the curves", _only_profile(_drop_curves)),
    ("messages", _shorten_messages(MESSAGE_LIMITS[2])),
)
