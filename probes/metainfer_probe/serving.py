"""The one way a model is opened for a serving configuration.

Benchmark and demo server both come through here, so what is measured is what serves: the same backend, the same copy of
the file, the precision asked for by name, and the answer of the runtime checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metainfer_probe.adapt import make_variant
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Backend, Feeds, ProbeError, Session, SessionOptions
from metainfer_probe.contract import Precision, Readback, ServingConfig
from metainfer_probe.model_file import parse_model
from metainfer_probe.static_facts import stored_precision


def prepare_file(model: Path, config: ServingConfig, *, calibration: Sequence[Feeds] | None, workdir: Path) -> Path:
    """The file that ``config`` opens: the one given, or a copy in another precision (made now or found in ``workdir``).

    fp32 stands for the file as given, also when its weights are fp16 or int8 already.
    Raises ProbeError: ``ProviderMissing``, ``PrecisionUnsupported``, and the reasons of ``adapt``.
    """
    wanted = find_backend(config.execution_provider).file_precision(config.precision)
    if wanted is None:
        return model
    return make_variant(model, wanted, calibration=calibration, workdir=workdir, provider=config.execution_provider)


def open_serving_session(model: Path, config: ServingConfig, *, calibration: Sequence[Feeds] | None, workdir: Path, threads: int = 1) -> Session:
    """Open ``model`` as ``config`` says, ready for ``config.concurrency`` parallel runs of ``threads`` threads each.

    Raises ProbeError: what ``prepare_file`` and ``Backend.open`` raise (``VariantFailed`` where only our copy of the file
    cannot be opened), ``ProviderNotEffective`` or ``PrecisionNotEffective`` where the runtime does something else.
    """
    backend = find_backend(config.execution_provider)
    path = prepare_file(model, config, calibration=calibration, workdir=workdir)
    options = SessionOptions(precision=config.precision, threads=threads, parallel_runs=config.concurrency)
    try:
        session = backend.open(path, options)
    except ProbeError as error:
        if path == model or error.retryable:
            raise
        raise ProbeError("VariantFailed", f"{backend.runtime_version()} cannot open the {config.precision} copy of {model.name}: {error.message}") from error
    try:
        _check_readback(session.readback(), model, backend, config)
    except ProbeError:
        session.close()
        raise
    return session


def _check_readback(readback: Readback, model: Path, backend: Backend, config: ServingConfig) -> None:
    if readback.provider != config.execution_provider:
        raise ProbeError("ProviderNotEffective", f"{config.execution_provider} was asked for, the session runs on {readback.provider}")
    if readback.precision not in _acceptable(model, config.precision):
        raise ProbeError(
            "PrecisionNotEffective",
            f"{config.precision} was asked for, {backend.runtime_version()} computes {model.name} in {readback.precision} on this card",
        )


def _acceptable(model: Path, precision: Precision) -> set[Precision]:
    """fp32 accepts the file's own precision, see ``prepare_file``."""
    return {precision, stored_precision(parse_model(model))} if precision == "fp32" else {precision}
