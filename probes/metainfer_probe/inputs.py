"""Inputs to run a model on: the user's own requests where given, else values the model can accept.

Generated values decide speed, never accuracy. They respect declared types and shapes, the tables that integer inputs
index, and constants they are compared with; where a runtime still objects, other sizes are tried, then only 0 and 1.
A model is never called broken because our values did not suit it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Array, Backend, Feeds, Inputs, ProbeError, Session, SessionOptions
from metainfer_probe.calibration import numpy_type, read_calibration
from metainfer_probe.contract import TensorSpec
from metainfer_probe.model_file import ModelFile

SEED = 20240101
_CHECKING_PROVIDER = "CPUExecutionProvider"
IMAGE_SIDE = 224
"""The side that image networks have been trained and compared at since 2012."""
TEXT_LINE_WIDTH = 320
"""Text-line readers fix the height (32 or 48) and take any width; 320 is the width their authors publish."""
SEQUENCE_LENGTH = 64
SIGNAL_LENGTH = 1024
_TEXT_LINE_HEIGHT = 64
_MASK = re.compile(r"mask", re.IGNORECASE)
_TERM = re.compile(r"\s*\+\s*")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to fill free dimensions and values; ``side`` replaces every free size but the batch, ``height`` that of images."""

    side: int | None = None
    height: int | None = None
    small_values: bool = False


_LADDER = (
    _Attempt(),
    _Attempt(small_values=True),
    _Attempt(height=48),
    _Attempt(height=32),
    _Attempt(side=32),
    _Attempt(side=640),
    _Attempt(side=1),
    _Attempt(side=1, small_values=True),
)
"""Default sizes; 0 and 1 only; lines of text (their usual heights); multiples of every usual stride; the smallest."""
_ELEMENT_LIMIT = 64 << 20
"""Larger inputs would measure memory, not the model."""


def make_inputs(model: ModelFile, backend: Backend, calibration: Path | None, count: int) -> Inputs:
    """``count`` requests with batch 1 for a model, the same ones at every call.

    Raises ProbeError: the reasons of ``calibration``, ``InputsUnsupported``, ``InputsNotFound`` when nothing generated
    runs, or whatever opening the model on ``backend`` raises.
    """
    free = bool(model.inputs) and all(spec.shape is not None and len(spec.shape) > 0 and spec.shape[0] == -1 for spec in model.inputs)
    if calibration is not None:
        samples, notes = read_calibration(calibration, model.inputs, count)
        return Inputs(samples, "calibration", free, ragged=_is_ragged(samples), notes=notes)
    session = _open_checking(model, backend)
    try:
        attempt, notes = _find_attempt(model, session)
    finally:
        session.close()
    source = "zeros" if attempt.small_values else "generated"
    return Inputs(tuple(generate(model, index, attempt) for index in range(count)), source, free, notes=notes)


def batch_feeds(samples: Sequence[Feeds]) -> Feeds:
    """Join requests along axis 0. Raises ProbeError ``RaggedInputs`` naming the input whose other sizes differ."""
    joined: dict[str, Array] = {}
    for name in samples[0]:
        arrays = [sample[name] for sample in samples]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1 or any(array.ndim == 0 for array in arrays):
            shown = " and ".join(str(list(array.shape)) for array in arrays[:2])
            raise ProbeError("RaggedInputs", f"requests differ in input {name!r} ({shown}): joining them would need padding")
        joined[name] = np.concatenate(arrays, axis=0)
    return joined


def generate(model: ModelFile, index: int, attempt: _Attempt | None = None) -> Feeds:
    """Request number ``index``: deterministic, different for every index. Pure."""
    attempt = attempt or _Attempt()
    sizes = _free_sizes(model, attempt)
    random = np.random.default_rng((SEED, index))
    return {spec.name: _values(spec, sizes[spec.name], model, random, small=attempt.small_values) for spec in model.inputs}


def _open_checking(model: ModelFile, backend: Backend) -> Session:
    """A session that refuses wrong inputs: ONNX Runtime's where it can load the model, else the backend's own.

    OpenVINO answers rubbish for indices outside a table, nothing at all for impossible sizes, and corrupts its memory on
    some of them (seen on a text recogniser fed with square images).
    """
    try:
        return find_backend(_CHECKING_PROVIDER).open(model.path, SessionOptions())
    except ProbeError:
        return backend.open(model.path, SessionOptions())


def _find_attempt(model: ModelFile, session: Session) -> tuple[_Attempt, tuple[str, ...]]:
    """The first way to fill the inputs that runs, with a note about what did not."""
    for spec in model.inputs:
        numpy_type(spec.dtype)  # refuses sequences, maps, optionals and types that no array can hold
        if spec.shape is None:
            said = f"input {spec.name[:100]!r} declares no rank, so no request can be generated"
            raise ProbeError("InputRankUnknown", f"{said}; give accuracy.calibration with real requests, or export the model with shapes")
    first_problem = ""
    for attempt in _LADDER:
        try:
            _try(model, session, attempt)
        except ProbeError as error:
            if error.reason == "InputsUnsupported":
                types = ", ".join(sorted({spec.dtype for spec in model.inputs}))
                raise ProbeError(error.reason, f"inputs of type {types[:100]}: {error.message}; put a Cast behind an input of another type") from error
            first_problem = first_problem or error.message
            continue
        if not first_problem:
            return attempt, ()
        how = "0 and 1 only" if attempt.small_values else f"images {attempt.height} high" if attempt.height else f"free sizes of {attempt.side}"
        return attempt, (f"generated inputs were refused ({first_problem[:300]}); went on with {how}",)
    raise ProbeError("InputsNotFound", f"no generated input runs ({first_problem[:300]}); give accuracy.calibration with real requests")


def _try(model: ModelFile, session: Session, attempt: _Attempt) -> None:
    sizes = _free_sizes(model, attempt)
    if any(math.prod(shape) > _ELEMENT_LIMIT for shape in sizes.values()):
        raise ProbeError("InputShapeRefused", f"sizes {sizes} are too large to try")
    outputs = session.run(generate(model, 0, attempt))
    if outputs and all(isinstance(output, np.ndarray) and output.size == 0 for output in outputs):
        raise ProbeError("InputShapeRefused", "all answers are empty")


def _free_sizes(model: ModelFile, attempt: _Attempt) -> dict[str, tuple[int, ...]]:
    """Concrete shapes; the same symbolic name gets the same size everywhere, sums of names the sum of their sizes."""
    symbols: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in model.inputs:
        names = model.dimension_names.get(spec.name, ())
        shape = []
        for axis, size in enumerate(spec.shape or ()):
            name = names[axis] if axis < len(names) else ""
            symbol = name or f"{spec.name}:{axis}"
            shape.append(size if size > 0 else _sum_of(name, symbols) or symbols.setdefault(symbol, _free_size(spec, axis, attempt)))
        shapes[spec.name] = tuple(shape)
    return shapes


def _sum_of(name: str, symbols: Mapping[str, int]) -> int:
    """The value of ``past + 1`` once ``past`` is known; 0 when it is not such a sum."""
    terms = _TERM.split(name)
    if len(terms) < 2:
        return 0
    values = [int(term) if term.isdigit() else symbols.get(term, 0) for term in terms]
    return sum(values) if all(values) else 0


def _free_size(spec: TensorSpec, axis: int, attempt: _Attempt) -> int:
    shape = spec.shape or ()
    if axis == 0:
        return 1
    if attempt.side is not None:
        return attempt.side
    if len(shape) == 4:
        return _image_size(shape, axis, attempt.height)
    if spec.dtype == "float32" and len(shape) <= 3:
        return SIGNAL_LENGTH if len(shape) == 2 or shape[1] > 0 else SEQUENCE_LENGTH
    return SEQUENCE_LENGTH


def _image_size(shape: tuple[int, ...], axis: int, height: int | None) -> int:
    """Channels first unless only the last dimension is left for them; a low fixed or wanted height means a line of text."""
    if axis == 2 and height is not None:
        return height
    if axis == 3 and (height is not None or 0 < shape[2] <= _TEXT_LINE_HEIGHT):
        return TEXT_LINE_WIDTH
    channels = axis == 1 or (axis == 3 and shape[1] < 0 and shape[2] < 0)
    return 3 if channels else IMAGE_SIDE


def _values(spec: TensorSpec, shape: tuple[int, ...], model: ModelFile, random: np.random.Generator, *, small: bool) -> Array:
    wanted = numpy_type(spec.dtype)
    if wanted.kind == "U":
        return np.full(shape, "text")
    if wanted.kind == "b":
        return np.ones(shape, wanted)
    if wanted.kind in "iu":
        return _integers(spec, shape, model, random, small=small).astype(wanted)
    if _MASK.search(spec.name):
        return np.ones(shape, wanted)
    if len(shape) == 4:
        return random.random(shape, np.float32).astype(wanted)
    return random.standard_normal(shape, np.float32).astype(wanted)


def _integers(spec: TensorSpec, shape: tuple[int, ...], model: ModelFile, random: np.random.Generator, *, small: bool) -> Array:
    """Within the tables the input indexes; constants it is compared with; ones for masks and lengths; bytes for images."""
    known = model.value_ranges.get(spec.name)
    if small:
        return random.integers(0, 2, shape)
    if known is not None and known.choices and len(shape) <= 1:
        return np.full(shape, known.choices[0])
    if known is not None and known.high < 2**31 - 1:
        return random.integers(known.low, known.high + 1, shape)
    if _MASK.search(spec.name) or len(shape) <= 1:
        return np.ones(shape, np.int64)
    return random.integers(0, 256 if spec.dtype == "uint8" else 2, shape)


def _is_ragged(samples: Sequence[Feeds]) -> bool:
    return any(len({sample[name].shape[1:] for sample in samples}) > 1 for name in samples[0]) if samples else False
