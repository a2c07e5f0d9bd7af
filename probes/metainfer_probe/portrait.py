"""Puts the answers of the providers together into one portrait. Pure: nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from metainfer_probe.backends.base import KernelTime
from metainfer_probe.contract import HotOp, MicroProbe, OpWork, ProfileReport
from metainfer_probe.model_file import ModelFile
from metainfer_probe.provider_profile import ProviderMeasurement
from metainfer_probe.vector import CLASSES, VECTOR_NAMES, VECTOR_VERSION, build_vector

Bound = Literal["compute", "memory", "launch", "unknown"]

HOT_COUNT = 5
LAUNCH_US = 3.0
"""Dispatching one node costs ONNX Runtime and OpenVINO 1-3 us on a CPU; a node with less work than that waits, not works."""
DETAIL_KERNELS = 200
DETAIL_OPERATORS = 100
MAX_NOTES = 8
MAX_TENSORS = 32


def describe(model: ModelFile, measurements: Sequence[ProviderMeasurement], micro: MicroProbe | None) -> ProfileReport:
    """The report of all providers together.

    Work and hot operators come from the provider that reported the most multiply-accumulates: fused layers hide what is
    inside them.
    """
    best = max(measurements, key=lambda measurement: sum(kernel.macs for kernel in measurement.kernel_times) + bool(measurement.kernel_times), default=None)
    kernels = best.kernel_times if best is not None else ()
    ran = [measurement for measurement in measurements if measurement.profile.failure is None]
    activation = best.activation_bytes if best is not None else 0
    return ProfileReport(
        digest=model.digest,
        file_bytes=model.file_bytes,
        weight_bytes=model.weight_bytes,
        parameters=model.parameters,
        nodes=model.nodes,
        ir_version=model.ir_version,
        opset=model.opset,
        architecture=model.architecture,
        stored_precision=model.stored_precision,
        inputs=model.inputs[:MAX_TENSORS],
        outputs=model.outputs[:MAX_TENSORS],
        work=sum_work(kernels),
        hot=find_hot(kernels),
        activation_bytes_per_sample=activation,
        bound=find_bound(kernels, micro),
        providers=tuple(measurement.profile for measurement in measurements),
        inputs_source=_source(ran),
        ragged_inputs=any(measurement.ragged for measurement in measurements),
        notes=tuple(dict.fromkeys(note for measurement in measurements for note in measurement.notes))[:MAX_NOTES],
        micro=micro,
        detail=_detail(model, measurements, best, activation),
    )


def sum_work(kernels: Sequence[KernelTime]) -> tuple[OpWork, ...]:
    """Count, MACs, bytes and share of time per operator class; classes without a node are left out."""
    total_us = sum(kernel.duration_us for kernel in kernels)
    work = []
    for name in CLASSES:
        members = [kernel for kernel in kernels if kernel.op_class == name]
        if members:
            spent = sum(kernel.duration_us for kernel in members)
            work.append(
                OpWork(
                    op_class=name,
                    count=len(members),
                    macs=sum(kernel.macs for kernel in members),
                    bytes_moved=sum(kernel.bytes_moved for kernel in members),
                    time_permille=round(1000 * spent / total_us) if total_us else 0,
                )
            )
    return tuple(work)


def find_hot(kernels: Sequence[KernelTime]) -> tuple[HotOp, ...]:
    """The five nodes that took most of the time."""
    total_us = sum(kernel.duration_us for kernel in kernels)
    hottest = sorted(kernels, key=lambda kernel: kernel.duration_us, reverse=True)[:HOT_COUNT]
    return tuple(
        HotOp(
            op_type=kernel.op_type[:64],
            node=kernel.node[-96:],  # exporters write the path of modules first: the end tells nodes apart
            time_permille=round(1000 * kernel.duration_us / total_us) if total_us else 0,
            provider=kernel.provider[:64],
        )
        for kernel in hottest
    )


def find_bound(kernels: Sequence[KernelTime], micro: MicroProbe | None) -> Bound:
    """What most of the time is spent on: arithmetic, memory traffic, or dispatching nodes.

    Roofline (Williams et al. 2009) per node with the micro-probe's own peaks: time of its FLOPs against time of its
    bytes; a node for which both are below ``LAUNCH_US`` is bound by its launch.
    """
    if micro is None or not kernels or micro.gflops <= 0 or micro.bandwidth_gigabytes_per_second <= 0:
        return "unknown"
    spent: dict[Bound, float] = {"compute": 0.0, "memory": 0.0, "launch": 0.0}
    for kernel in kernels:
        compute_us = 2 * kernel.macs / (micro.gflops * 1e3)
        memory_us = kernel.bytes_moved / (micro.bandwidth_gigabytes_per_second * 1e3)
        bound: Bound = "launch" if max(compute_us, memory_us) < LAUNCH_US else "compute" if compute_us >= memory_us else "memory"
        spent[bound] += kernel.duration_us
    return max(spent, key=lambda name: spent[name])


def _source(ran: Sequence[ProviderMeasurement]) -> Literal["calibration", "generated", "zeros"]:
    sources = {measurement.inputs_source for measurement in ran}
    return "zeros" if "zeros" in sources else "calibration" if "calibration" in sources else "generated"


def _detail(model: ModelFile, measurements: Sequence[ProviderMeasurement], best: ProviderMeasurement | None, activation_bytes: int) -> dict[str, object]:
    operators = sorted(model.operators.items(), key=lambda item: -item[1])[:DETAIL_OPERATORS]
    vector = build_vector(model, best.kernel_times if best else (), best.profile.curve if best else (), activation_bytes)
    return {
        "operators": dict(operators),
        "opsets": dict(model.opsets),
        "depth": model.depth,
        "external_files": list(model.external_files[:20]),
        "baked_batch_nodes": list(model.baked_batch_nodes),
        "value_ranges": {name: [found.low, found.high] for name, found in model.value_ranges.items()},
        "dimension_names": {name: list(names) for name, names in list(model.dimension_names.items())[:MAX_TENSORS]},
        "vector": {"version": VECTOR_VERSION, "names": list(VECTOR_NAMES), "values": list(vector)},
        "providers": {measurement.profile.provider: _provider_detail(measurement) for measurement in measurements},
    }


def _provider_detail(measurement: ProviderMeasurement) -> dict[str, object]:
    hottest = sorted(measurement.kernel_times, key=lambda kernel: kernel.duration_us, reverse=True)[:DETAIL_KERNELS]
    return {
        "runtime_version": measurement.runtime_version,
        "kernels": [
            {
                "node": kernel.node[-200:],
                "op_type": kernel.op_type,
                "kernel": kernel.kernel,
                "provider": kernel.provider,
                "duration_us": round(kernel.duration_us, 2),
                "macs": kernel.macs,
                "bytes_moved": kernel.bytes_moved,
            }
            for kernel in hottest
        ],
    }
