"""The model portrait: what a file is, what it costs, and what each runtime of this image makes of it.

Everything that touches the file or a runtime happens in child processes; this module fetches, divides the time among
the providers, and puts their answers together. It ends within the budget with what there is.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.contract import Failure, MicroProbe, ProfileReport, ProfileRequest, ProviderProfile
from metainfer_probe.isolate import resident_bytes, run_in_child
from metainfer_probe.model_file import ModelFile, digest_files, fetch_model, find_memory_shortage, read_model
from metainfer_probe.portrait import describe
from metainfer_probe.provider_profile import ProviderCall, ProviderMeasurement, measure_provider

MAX_PROVIDERS = 8
MEMORY_RESERVE_BYTES = 64 << 20
"""Room for this process's own growth, so that the child's limit is reached before the container's."""
READ_SHARE = 0.5
LOAD_GRACE_SECONDS = 2.0
"""A child watches its own budget; past this much more it hangs in one call and is ended."""


def profile_model(request: ProfileRequest, volume: Path, *, workdir: Path | None = None, micro: MicroProbe | None = None) -> ProfileReport:
    """Measure the model of ``request`` on each provider asked for.

    Raises ProbeError when the model cannot be fetched. A file that cannot be read has a ``failure`` and its digest, so that
    it is not tried again unchanged; a provider that cannot run the model carries its own ``failure``, and when none can,
    the report has one too.
    """
    deadline = time.monotonic() + request.budget_seconds
    with ExitStack() as stack:
        folder = workdir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metainfer-")))
        path = fetch_model(request.model, volume, folder)
        calibration = fetch_model(request.calibration, volume, folder) if request.calibration else None
        limit = _child_memory_limit(request)
        if _is_refused(request, digest_files((path,)) if request.refused else ""):
            return _again(request, ProfileReport(file_bytes=path.stat().st_size, micro=micro))
        try:
            model = _read(path, deadline, limit)
        except ProbeError as error:
            return ProfileReport(digest=digest_files((path,)), file_bytes=path.stat().st_size, failure=error.failure(), micro=micro)
        if _is_refused(request, model.digest):
            return _again(request, describe(model, (), micro))
        shortage = find_memory_shortage(model, limit)
        if shortage is not None:
            return describe(model, (), micro).model_copy(update={"failure": shortage.failure()})
        providers = tuple(dict.fromkeys(request.providers))[:MAX_PROVIDERS]
        plan = _Plan(request, model, calibration, limit, deadline)
        measurements = [_measure(plan, provider, len(providers) - position) for position, provider in enumerate(providers)]
    return describe(model, measurements, micro).model_copy(update={"failure": _common_failure(measurements)})


def _is_refused(request: ProfileRequest, digest: str) -> bool:
    """Whether the file is the one that was tried before. Its digest leaves external data out where the file could not be read."""
    return request.refused is not None and request.refused.digest == digest


def _again(request: ProfileRequest, report: ProfileReport) -> ProfileReport:
    """The known failure: one attempt per content is enough."""
    refused = request.refused
    return report if refused is None else report.model_copy(update={"digest": refused.digest, "failure": refused.failure})


@dataclass(frozen=True, slots=True)
class _Plan:
    request: ProfileRequest
    model: ModelFile
    calibration: Path | None
    memory_limit: int
    deadline: float


def _measure(plan: _Plan, provider: str, providers_left: int) -> ProviderMeasurement:
    """One provider in a child, with its even share of the time that is left; a failure becomes part of the answer."""
    share = (plan.deadline - time.monotonic()) / providers_left - LOAD_GRACE_SECONDS
    empty = ProviderMeasurement(ProviderProfile(provider=provider))
    latest = [empty]
    if share <= 0:
        return _salvage(empty, ProbeError("TimedOut", "no time was left for this provider", retryable=True))
    try:
        call = ProviderCall(plan.model, provider, plan.calibration, plan.request.precisions, plan.request.batch_sizes, plan.request.threads, share)
        answer = run_in_child(
            measure_provider,
            (call,),
            timeout_seconds=share + LOAD_GRACE_SECONDS,
            memory_limit_bytes=plan.memory_limit,
            on_partial=lambda value: latest.append(_checked(value)),
        )
        return _checked(answer)
    except ProbeError as error:
        return _salvage(latest[-1], error)


def _checked(value: object) -> ProviderMeasurement:
    if not isinstance(value, ProviderMeasurement):
        raise ProbeError("InternalError", f"the child answered a {type(value).__name__}")
    return value


def _salvage(latest: ProviderMeasurement, error: ProbeError) -> ProviderMeasurement:
    """What had been measured before the child ended: a crash in a batch costs batches, one in a parallel run only that."""
    failure = error.failure()
    changes: dict[str, object] = {}
    if latest.step not in ("parallel", "batch"):
        return replace(latest, profile=latest.profile.model_copy(update={"failure": failure, "batch_failure": None}))
    if latest.step == "batch" and latest.profile.batch_failure is not None:
        changes["batch_failure"] = failure
    note = f"{latest.profile.provider}, step {latest.step}: {error.message}"[:512]
    return replace(latest, profile=latest.profile.model_copy(update=changes), notes=(*latest.notes, note))


def _read(path: Path, deadline: float, limit: int) -> ModelFile:
    seconds = max(1.0, (deadline - time.monotonic()) * READ_SHARE)
    model = run_in_child(read_model, (path,), timeout_seconds=seconds, memory_limit_bytes=limit)
    if not isinstance(model, ModelFile):
        raise ProbeError("InternalError", "reading the model gave something else")
    return model


def _child_memory_limit(request: ProfileRequest) -> int:
    """What a child may use: the container's limit (or the request's, when smaller) without what this process uses."""
    container = memory_limit_bytes() - resident_bytes(os.getpid()) - MEMORY_RESERVE_BYTES
    return min(request.memory_limit_bytes, container) if request.memory_limit_bytes else container


def _common_failure(measurements: Sequence[ProviderMeasurement]) -> Failure | None:
    """The report's own failure when no provider could run the model: their common reason, or all of them."""
    failures = [measurement.profile.failure for measurement in measurements if measurement.profile.failure is not None]
    if not measurements:
        return Failure(reason="ProviderMissing", message="the request names no provider")
    if len(failures) < len(measurements):
        return None
    if len({failure.reason for failure in failures}) == 1:
        return failures[0]
    said = "; ".join(f"{measurement.profile.provider}: {failure.reason}" for measurement, failure in zip(measurements, failures, strict=True))
    return Failure(reason="NoProviderRuns", message=f"no provider can run this model ({said})"[:512], retryable=any(failure.retryable for failure in failures))
