"""Whether requests joined along axis 0 get the answers they get alone.

A promise of a free batch dimension is worth little: some graphs fail in a node that was recorded with batch 1, others
answer all the same and are wrong, on runtimes that do not check most of all. So batches are run and compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metainfer_probe.accuracy import compare_answers, join_outputs
from metainfer_probe.backends.base import Feeds, Inputs, ProbeError, Session
from metainfer_probe.contract import Failure
from metainfer_probe.inputs import batch_feeds
from metainfer_probe.model_file import ModelFile

BATCH_TOLERANCE_PPM = 1000
"""fp32 kernels block larger batches differently: differences of 1e-7 to 1e-5 were seen; a mixed-up batch differs in percent."""

UNVERIFIED = Failure(reason="BatchUnverified", message="the time ended before a batch could be compared with single requests", retryable=True)


def refuse_batch(model: ModelFile, inputs: Inputs) -> Failure | None:
    """Why batches cannot be formed at all: a fixed first dimension, or requests of different sizes."""
    if not inputs.batch_axis_free:
        fixed = next((spec for spec in model.inputs if not spec.shape or spec.shape[0] != -1), None)
        if fixed is None:
            return Failure(reason="BatchAxisFixed", message="the model has no inputs to join")
        where = f"at {fixed.shape[0]}" if fixed.shape else "(it has none)"
        return Failure(reason="BatchAxisFixed", message=f"input {fixed.name[:100]!r} fixes its first dimension {where}")
    try:
        batch_feeds(inputs.samples)
    except ProbeError as error:
        return error.failure()
    return None


def take_samples(samples: Sequence[Feeds], batch_size: int) -> list[Feeds]:
    """``batch_size`` requests, cycled when there are fewer."""
    return [samples[index % len(samples)] for index in range(batch_size)]


def compare_batch(session: Session, model: ModelFile, samples: Sequence[Feeds], tolerance_ppm: int) -> Failure | None:
    """Run the samples one by one and joined; why the answers do not agree, or None."""
    singles = [session.run(sample) for sample in samples]
    batch_size = len(samples)
    try:
        joined = session.run(batch_feeds(samples))
    except ProbeError as error:
        return Failure(reason="BatchUnsupported", message=f"batch {batch_size} fails: {error.message}{_suspects(model, error.message)}"[:512])
    inseparable = _find_inseparable(model, singles)
    if inseparable:
        return Failure(reason="BatchNotSeparable", message=inseparable[:512])
    wanted = join_outputs(singles)
    for position, (have, want) in enumerate(zip(joined, wanted, strict=True)):
        if isinstance(have, np.ndarray) and isinstance(want, np.ndarray) and have.shape != want.shape:
            said = f"batch {batch_size} answers {list(have.shape)} in output {_name(model, position)!r} instead of {list(want.shape)}"
            return Failure(reason="BatchUnsupported", message=(said + _suspects(model, said))[:512])
    difference = compare_answers([(joined, wanted)])
    if difference.ppm > tolerance_ppm or difference.invalid_values:
        worst = max(range(len(difference.per_output)), key=lambda position: difference.per_output[position])
        said = f"joining {batch_size} requests changes answers: output {_name(model, worst)!r} differs by {difference.ppm / 1e4:.3g} %"
        return Failure(reason="BatchChangesAnswers", message=(said + _suspects(model, said))[:512])
    return None


def _find_inseparable(model: ModelFile, singles: Sequence[Sequence[object]]) -> str | None:
    """An output whose rows cannot be given back to requests: none per request, or a number that depends on the values."""
    for position in range(len(singles[0])):
        lengths = {
            len(output) if isinstance(output, list) or (isinstance(output, np.ndarray) and output.ndim) else 0
            for output in (single[position] for single in singles)
        }
        if len(lengths) > 1 or 0 in lengths:
            shown = " or ".join(str(length) for length in sorted(lengths))
            return f"output {_name(model, position)!r} has {shown} rows per request, so a joined answer cannot be divided among its requests"
    return None


def _suspects(model: ModelFile, said: str) -> str:
    named = [node for node in model.baked_batch_nodes if node not in said]
    return f"; recorded for one batch size: {', '.join(named[:3])}" if named and len(named) == len(model.baked_batch_nodes) else ""


def _name(model: ModelFile, position: int) -> str:
    return model.outputs[position].name[:100] if position < len(model.outputs) else str(position)
