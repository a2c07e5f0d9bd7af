"""Copies of a model file in another precision, made with onnxruntime's own tools in the Job (or server) that runs them.

``make_variant`` is the whole interface. A copy is named after the content of the file, the recipe and (where it matters)
the calibration inputs, so a second call, also from another process, finds it. What cannot be made is a reason:
``AlreadyQuantised``, ``PrecisionUnsupported``, ``CalibrationMissing``, ``NothingToQuantise``, ``OutOfMemory``, ``DiskFull``
or ``VariantFailed`` with the tool's own words. Model files are untrusted: call it in a child process when measuring.
"""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metainfer_probe.adapt.half import HALF_RECIPE
from metainfer_probe.adapt.quantise import select_int8_recipe
from metainfer_probe.adapt.recipe import Recipe, Task, read_source
from metainfer_probe.backends.base import Feeds, ProbeError
from metainfer_probe.cgroup import memory_limit_bytes
from metainfer_probe.contract import Precision

CALIBRATION_SAMPLES = 64
"""More inputs do not move the minimum and maximum of a layer noticeably; time grows with each."""
_FILE_NAME = "model.onnx"
_PROCESS_BYTES = 250 << 20
"""Resident memory of this process with onnx, onnxruntime and its quantiser imported, before any model is read."""


def make_variant(model: Path, file_precision: Precision, *, calibration: Sequence[Feeds] | None, workdir: Path, provider: str) -> Path:
    """Path of a copy of ``model`` in ``file_precision`` (``fp16`` or ``int8``), made now or found in ``workdir``.

    Args:
        calibration: single requests, needed where activations are quantised ahead of time.
        provider: ONNX Runtime's name of the provider that will run the copy; it decides the number formats.

    Raises ProbeError with the reasons named at the top of this package.
    """
    source = read_source(model)
    if source.stored_precision == "int8":
        raise ProbeError("AlreadyQuantised", f"{model.name} is quantised already, so it has no {file_precision} copy; serve it as it is (fp32)")
    if file_precision == source.stored_precision:
        return model
    recipe = _select(source.stored_precision, file_precision, model, provider)
    samples = tuple(calibration or ())[:CALIBRATION_SAMPLES] if recipe.needs_calibration else ()
    if recipe.needs_calibration and not samples:
        raise ProbeError(
            "CalibrationMissing", f"{recipe.name} of {model.name} needs calibration inputs; set accuracy.calibration (CALIBRATION_PATH for a server)"
        )
    target = workdir / "variants" / "-".join((source.digest[:16], recipe.name, *([_digest(samples)] if samples else [])))
    if (target / _FILE_NAME).is_file():
        return target / _FILE_NAME
    _check_memory(source.weight_bytes, recipe, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="variant-", dir=target.parent) as scratch:
        task = Task(source, Path(scratch), Path(scratch) / "made" / _FILE_NAME, samples)
        _make(recipe, task)
        try:
            task.target.parent.rename(target)
        except OSError:  # another process was faster: its copy is the same
            if not (target / _FILE_NAME).is_file():
                raise
    return target / _FILE_NAME


def _select(stored: Precision, wanted: Precision, model: Path, provider: str) -> Recipe:
    if stored == "fp32" and wanted == "fp16":
        return HALF_RECIPE
    if stored == "fp32" and wanted == "int8":
        return select_int8_recipe(model, provider)
    raise ProbeError("PrecisionUnsupported", f"no {wanted} copy can be made of {model.name}, whose weights are {stored}; start from the fp32 file")


def _make(recipe: Recipe, task: Task) -> None:
    task.target.parent.mkdir()
    try:
        recipe.make(task)
    except ProbeError:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ProbeError("DiskFull", f"no room left in the work directory for a {recipe.name} copy", retryable=True) from error
        raise _variant_failed(recipe, task, error) from error
    except Exception as error:  # the tools raise whatever the graph makes them stumble over
        raise _variant_failed(recipe, task, error) from error


def _variant_failed(recipe: Recipe, task: Task, error: Exception) -> ProbeError:
    words = next((f": {line.strip()}" for line in str(error).splitlines() if line.strip()), "")
    return ProbeError("VariantFailed", f"onnxruntime's tools cannot make a {recipe.name} copy of {task.source.path.name}: {type(error).__name__}{words}")


def _check_memory(weight_bytes: int, recipe: Recipe, model: Path) -> None:
    needed, limit = _PROCESS_BYTES + int(weight_bytes * recipe.memory_factor), memory_limit_bytes()
    if needed > limit:
        raise ProbeError(
            "OutOfMemory",
            f"making a {recipe.name} copy of {model.name} ({weight_bytes / 2**30:.2f} GiB of weights) needs about {needed / 2**30:.1f} GiB of memory, "
            f"the limit here is {limit / 2**30:.1f} GiB",
        )


def _digest(samples: Sequence[Feeds]) -> str:
    digest = hashlib.sha256()
    for feeds in samples:
        for name in sorted(feeds):
            array = np.ascontiguousarray(feeds[name])
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()[:12]
