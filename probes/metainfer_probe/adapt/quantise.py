"""int8 copies: static QDQ for convolutional graphs, dynamic for graphs of matrix products and recurrent layers.

The choices are measurements (facts of this project, AVX2 and AMX machines), not taste:

* activations of convolutions quantised on the fly ran 3-8 times slower than fp32, so convolutions are quantised ahead of
  time from calibration inputs, or not at all;
* MatMul and LSTM ran up to 1.65 times faster dynamically, without calibration; only onnxruntime's CPU provider has kernels
  for that, so every other provider gets the static form;
* only products with a constant side are quantised: quantising the mask and score products of a transformer broke the
  answers (cosine 0.40 against 0.94);
* one scale per output channel cut the error of an OCR recogniser from 0.80 to 0.21 at the same speed; it needs opset 13;
* on x86 without VNNI two products of u8*s8 overflow 16 bits, so weights get 7 bits there (half the error).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from metainfer_probe.adapt.recipe import Recipe, Task, constant_names, load_tidy, save
from metainfer_probe.backends.base import Array, Feeds, ProbeError
from metainfer_probe.model_file import parse_model
from metainfer_probe.static_facts import stored_precision

if TYPE_CHECKING:
    from onnx import ModelProto

CONVOLUTIONS = ("Conv", "ConvTranspose")
LINEAR = ("MatMul", "Gemm")
RECURRENT = ("LSTM",)
"""GRU and RNN have no quantised kernel in onnxruntime."""
PER_CHANNEL_OPSET = 13
CPU_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")
_DOT_PRODUCT_FLAGS = frozenset(("avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"))
_X86 = ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """``short_weights``: 7 bits instead of 8. ``symmetric``: signed activations around zero, as GPU kernels want them."""

    short_weights: bool
    symmetric: bool = False


def select_int8_recipe(model: Path, provider: str) -> Recipe:
    """Static or dynamic, by what the graph mostly consists of and what the provider can run.

    Raises ProbeError ``NothingToQuantise``.
    """
    convolutions, products = _count_quantisable(parse_model(model))
    if convolutions + products == 0:
        raise ProbeError("NothingToQuantise", f"{model.name} has no convolution, matrix product or LSTM with constant weights, so int8 gains nothing")
    numbers = NumberFormat(needs_short_weights(provider), symmetric=provider not in CPU_PROVIDERS)
    suffix = ("-s8" if numbers.symmetric else "") + ("-w7" if numbers.short_weights else "")
    if products > convolutions and provider == "CPUExecutionProvider":
        return Recipe(f"int8-dynamic{suffix}", partial(make_dynamic, numbers=numbers), needs_calibration=False, memory_factor=4.0)
    return Recipe(f"int8-static{suffix}", partial(make_static, numbers=numbers), needs_calibration=True, memory_factor=5.0)


def needs_short_weights(provider: str, *, machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether u8*s8 products saturate on this processor: x86 without a dot-product instruction."""
    if provider not in CPU_PROVIDERS or (machine or platform.machine()) not in _X86:
        return False
    try:
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:
        return True
    return not _DOT_PRODUCT_FLAGS.intersection(flags.split())


def make_dynamic(task: Task, *, numbers: NumberFormat) -> None:
    """Weights of matrix products and LSTMs in int8 per channel, activations quantised at run time. Convolutions stay."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        prepare(task),
        task.target,
        op_types_to_quantize=[*LINEAR, *RECURRENT],
        per_channel=True,
        reduce_range=numbers.short_weights,
        weight_type=QuantType.QInt8,
        use_external_data_format=task.source.is_large,
    )
    _check_quantised(task)


def make_static(task: Task, *, numbers: NumberFormat) -> None:
    """QDQ form with min-max calibration; per channel, or per tensor where the tool cannot."""
    prepared = prepare(task)
    model = parse_model(prepared)
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    floating = _products_of_activations(model)
    static = partial(_quantise_static, task, prepared, floating=floating, numbers=numbers)
    if opset < PER_CHANNEL_OPSET:
        static(per_channel=False)
    else:
        try:
            static(per_channel=True)
        except (ValueError, IndexError, KeyError, RuntimeError):  # e.g. a product whose constant side has three dimensions
            static(per_channel=False)
    _check_quantised(task)


def _products_of_activations(model: ModelProto) -> list[str]:
    """Names of products without a constant side; the quantiser's own option for them works in dynamic form only."""
    constants = constant_names(model)
    return [node.name for node in model.graph.node if node.op_type in LINEAR and constants.isdisjoint(node.input[:2])]


def _quantise_static(task: Task, prepared: Path, *, floating: list[str], numbers: NumberFormat, per_channel: bool) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        prepared,
        task.target,
        _reader(task.calibration),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=[*CONVOLUTIONS, *LINEAR],
        per_channel=per_channel,
        reduce_range=numbers.short_weights,
        activation_type=QuantType.QInt8 if numbers.symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        use_external_data_format=task.source.is_large,
        nodes_to_exclude=floating,
        extra_options={
            "OpTypesToExcludeOutputQuantization": list(LINEAR),  # else the scores of an attention would get int8 inputs all the same
            "ActivationSymmetric": numbers.symmetric,
            "WeightSymmetric": True,
        },
        calibration_cache_path=task.scratch / "ranges.json",  # the per-tensor retry need not run the model again
    )


def prepare(task: Task) -> Path:
    """A tidy copy, opset 13 or newer where the converter manages, constants folded and shapes inferred."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = task.source.is_large
    tidy, prepared = task.scratch / "tidy.onnx", task.scratch / "prepared.onnx"
    model = load_tidy(task.source.path)
    save(model if large else _upgrade(model), tidy, external=large)
    # Symbolic shape inference fails on half of the real models, slowly, and leaves files in the current folder when it does.
    quant_pre_process(tidy, prepared, skip_symbolic_shape=True, save_as_external_data=large, all_tensors_to_one_file=large)
    return prepared


def _upgrade(model: ModelProto) -> ModelProto:
    """The model at ``PER_CHANNEL_OPSET``, or as it is where the converter cannot or breaks it."""
    opsets = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not opsets or max(opsets) >= PER_CHANNEL_OPSET:
        return model
    try:
        upgraded = onnx.version_converter.convert_version(model, PER_CHANNEL_OPSET)
        onnx.checker.check_model(upgraded)
    except (RuntimeError, onnx.checker.ValidationError):
        return model
    return upgraded


def _count_quantisable(model: ModelProto) -> tuple[int, int]:
    """Convolutions, and products or LSTMs, with constant weights."""
    constants = constant_names(model)
    weighted = [node.op_type for node in model.graph.node if constants.intersection(node.input[1:2])]
    return sum(name in CONVOLUTIONS for name in weighted), sum(name in LINEAR + RECURRENT for name in weighted)


def _check_quantised(task: Task) -> None:
    if stored_precision(parse_model(task.target)) != "int8":
        raise ProbeError("NothingToQuantise", f"onnxruntime's quantiser found no operator of {task.source.path.name} that it can run in int8")


def _reader(samples: Iterable[Feeds]) -> object:
    """Calibration inputs as the quantiser reads them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._samples = iter(samples)

        def get_next(self) -> Mapping[str, Array] | None:
            feeds = next(self._samples, None)
            return None if feeds is None else {name: np.asarray(array) for name, array in feeds.items()}

    return Reader()
