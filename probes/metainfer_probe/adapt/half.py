"""fp16 copies: weights and computation in half precision, inputs and outputs as they were."""

from __future__ import annotations

import onnx

from metainfer_probe.adapt.recipe import Recipe, Task, load_tidy, save


def make_half(task: Task) -> None:
    """Convert with ``onnxruntime.transformers.float16``; operators that it knows to lack fp16 kernels stay in fp32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    if task.source.is_large:
        tidy = task.scratch / "tidy.onnx"
        save(load_tidy(task.source.path), tidy, external=True)
        inferred = task.scratch / "inferred.onnx"
        onnx.shape_inference.infer_shapes_path(str(tidy), str(inferred))  # in memory it is limited to 2 GiB
        converted = convert_float_to_float16(onnx.load(str(inferred)), keep_io_types=True, disable_shape_infer=True)
    else:
        converted = convert_float_to_float16(load_tidy(task.source.path), keep_io_types=True)
    ordered = OnnxModel(converted)
    ordered.topological_sort()  # the converter appends its casts at the end, which strict readers refuse
    save(ordered.model, task.target, external=task.source.is_large)


HALF_RECIPE = Recipe("fp16", make_half, needs_calibration=False, memory_factor=3.0)
