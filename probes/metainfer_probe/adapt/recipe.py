"""What a recipe is given and what it must leave behind; reading and writing graphs for the tools.

The tools expect a tidy file: weights not listed among the inputs (files older than IR 4 list them all), and external data
wherever one protobuf message would pass 2 GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from metainfer_probe.backends.base import Feeds
from metainfer_probe.contract import Precision
from metainfer_probe.external_data import check_external_data
from metainfer_probe.graph import iter_tensors, true_inputs
from metainfer_probe.model_file import digest_files, parse_model
from metainfer_probe.static_facts import count_weights, stored_precision

EXTERNAL_ABOVE_BYTES = 1536 << 20
"""Weights beyond this go beside the file: the graph, intermediate copies and ``value_info`` must stay below 2 GiB together."""
_MIN_IR_WITHOUT_LISTED_WEIGHTS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """The file to copy; ``digest`` covers its external data too."""

    path: Path
    digest: str
    stored_precision: Precision
    weight_bytes: int

    @property
    def is_large(self) -> bool:
        """Needs external data whatever is done to it."""
        return self.weight_bytes > EXTERNAL_ABOVE_BYTES


@dataclass(frozen=True, slots=True)
class Task:
    """One copy to make: write ``target`` (and data files beside it); ``scratch`` is emptied afterwards."""

    source: Source
    scratch: Path
    target: Path
    calibration: tuple[Feeds, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to make a copy. ``name`` appears in messages and in the copy's path."""

    name: str
    make: Callable[[Task], None]
    needs_calibration: bool
    memory_factor: float
    """Peak resident memory while making it, in multiples of the weights' bytes."""


def read_source(path: Path) -> Source:
    """Look at a file without loading external data; raises ProbeError as ``parse_model`` and ``check_external_data`` do."""
    model = parse_model(path)
    external = check_external_data(iter_tensors(model), path.parent)
    return Source(
        path=path,
        digest=digest_files((path, *(path.parent / name for name in external))),
        stored_precision=stored_precision(model),
        weight_bytes=count_weights(model).total_bytes,
    )


def load_tidy(path: Path) -> ModelProto:
    """The whole model in memory, weights taken off the list of inputs, every node with a name.

    An optional input with a default becomes a constant: the server never sends it. The quantiser tells nodes apart by name.
    """
    model = onnx.load(str(path))
    keep = [value.name for value in true_inputs(model)]
    for value in [value for value in model.graph.input if value.name not in keep]:
        model.graph.input.remove(value)
    for position, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_unnamed_{position}"
    model.ir_version = max(model.ir_version, _MIN_IR_WITHOUT_LISTED_WEIGHTS)
    return model


def save(model: ModelProto, path: Path, *, external: bool) -> None:
    """Write a model, its weights in ``<name>.data`` beside it when ``external``."""
    if external:
        onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=f"{path.name}.data")
    else:
        onnx.save_model(model, str(path))


def constant_names(model: ModelProto) -> set[str]:
    """Names of tensors in the main graph whose value follows from the file alone (``Transpose`` of a weight included)."""
    names = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:  # stored in topological order
        if node.op_type == "Constant" or (node.input and names.issuperset(name for name in node.input if name)):
            names.update(node.output)
    return names
