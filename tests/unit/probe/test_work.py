"""Counting work: formulas against hand-computed figures, and runtimes against each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data import models

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import KernelTime, SessionOptions
from metainfer_probe.classify import op_class
from metainfer_probe.contract import MicroProbe
from metainfer_probe.inputs import generate
from metainfer_probe.model_file import read_model
from metainfer_probe.portrait import find_bound, find_hot, sum_work
from metainfer_probe.vector import VECTOR_NAMES, build_vector
from metainfer_probe.work import TensorSeen, count_bytes, count_macs

SQUEEZENET_MACS = 349_151_936
"""SqueezeNet 1.0 at 224 x 224, added up by hand from its published layers (conv1 7x7/2 without padding: 111 x 111)."""


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "want"),
    [
        ("MatMul", [(4, 8), (8, 3)], [(4, 3)], 4 * 8 * 3),
        ("MatMul", [(2, 5, 4, 8), (2, 5, 8, 3)], [(2, 5, 4, 3)], 10 * 4 * 8 * 3),
        ("MatMul", [(4, 8)], [(4, 3)], 4 * 8 * 3),
        ("MatMul", [(8,), (8, 3)], [(3,)], 24),
        ("Gemm", [(8, 4), (8, 3)], [(4, 3)], 4 * 8 * 3),
        ("FusedMatMul", [(1, 8, 6), (6, 5)], [(1, 8, 5)], 8 * 6 * 5),
        ("FullyConnected", [(1, 160, 96), (800, 96)], [(1, 160, 800)], 160 * 96 * 800),
        ("MatMulInteger", [(7, 16), (16, 2)], [(7, 2)], 7 * 16 * 2),
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3), (16,)], [(1, 16, 8, 8)], 16 * 64 * 27),
        ("Conv", [(1, 16, 8, 8), (16, 1, 3, 3)], [(1, 16, 4, 4)], 16 * 16 * 9),
        ("Conv", [(2, 4, 10), (6, 4, 3)], [(2, 6, 8)], 2 * 6 * 8 * 12),
        ("QLinearConv", [(1, 3, 8, 8), (), (), (16, 3, 3, 3), (16,), (), (), ()], [(1, 16, 8, 8)], 16 * 64 * 27),
        ("Convolution", [(1, 8, 4, 4), (2, 3, 4, 1, 1)], [(1, 6, 4, 4)], 6 * 16 * 4),
        ("ConvTranspose", [(1, 8, 4, 4), (8, 5, 2, 2)], [(1, 5, 8, 8)], 8 * 16 * 20),
        ("Einsum", [(4, 8), (8, 3)], [(4, 3)], 4 * 8 * 3),
        ("LSTM", [(6, 2, 4), (1, 32, 4), (1, 32, 8)], [(6, 1, 2, 8)], 12 * (32 * 4 + 32 * 8)),
        ("MultiHeadAttention", [(2, 5, 16), (2, 7, 16), (2, 7, 16)], [(2, 5, 16)], 2 * 2 * 5 * 7 * 16),
        ("ScaledDotProductAttention", [(2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16)], [(2, 3, 5, 16)], 2 * 6 * 5 * 7 * 16),
        ("Attention", [(2, 5, 16), (16, 48), (48,)], [(2, 5, 16)], 2 * 5 * 16 * 48 + 2 * 2 * 5 * 5 * 16),
        ("Relu", [(4, 4)], [(4, 4)], 0),
        ("Conv", [(1, 3, 8, 8)], [(1, 16, 8, 8)], 0),
        ("MatMul", [], [], 0),
    ],
)
def test_macs_of_one_node(op_type: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], want: int) -> None:
    """Each formula against the figure by hand, also without the weight's shape where the runtime repacked it."""
    assert count_macs(op_type, inputs, outputs) == want


def test_bytes_are_everything_read_and_written_once() -> None:
    """Strings have no size; half precision has half."""
    assert count_bytes([TensorSeen("float", (2, 3)), TensorSeen("float16", (4,)), TensorSeen("string", (9,))], [TensorSeen("i64", ())]) == 24 + 8 + 8


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "OpenVINOExecutionProvider"])
@pytest.mark.parametrize(
    ("build", "want"),
    [
        (models.dense, 32 * 32),
        (models.small_cnn, models.SMALL_CNN_MACS),
        (models.attention, 3 * 64 * 16 * 16 + 2 * 64 * 64 * 16),
        (models.recurrent, 6 * (32 * 4 + 32 * 8)),
        (lambda _: models.light("squeezenet"), SQUEEZENET_MACS),
    ],
    ids=["dense", "convolutions", "attention", "recurrent", "squeezenet"],
)
def test_macs_counted_from_a_run_are_those_by_hand(provider: str, build: Callable[[Path], Path], want: int, tmp_path: Path) -> None:
    """The runtime's own profile gives the work, whatever it fused; blocked layouts pad channels by under one percent."""
    path = build(tmp_path)
    session = find_backend(provider).open(path, SessionOptions(profiling=True))
    feeds = generate(read_model(path), 0)
    for _ in range(3):
        session.run(feeds)
    kernels = session.kernel_times()
    session.close()
    assert want <= sum(kernel.macs for kernel in kernels) <= want * 1.01
    assert all(kernel.provider == provider for kernel in kernels)


@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["counted in a second session", "read from the file"])
def test_weights_count_as_traffic_although_kernels_repack_them(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repacked weight is no longer reported by its kernel, but it is most of what a small batch moves."""
    monkeypatch.setattr("metainfer_probe.backends.onnxruntime.COUNTING_LIMIT_BYTES", limit)
    path = models.dense(tmp_path, width=256)
    session = find_backend("CPUExecutionProvider").open(path, SessionOptions(profiling=True))
    for _ in range(2):
        session.run(generate(read_model(path), 0))
    product = next(kernel for kernel in session.kernel_times() if kernel.op_type == "MatMul")
    session.close()
    assert product.bytes_moved == 4 * (256 * 256 + 256 + 256)
    assert product.macs == 256 * 256


@pytest.mark.parametrize(
    ("layer", "stands_for", "shapes", "want"),
    [
        ("Subgraph", "scores,p,mix,", ([(1, 4, 8)], [(1, 4, 8)]), 30),
        ("Convolution", "renamed", ([(1, 3, 8, 8), (16, 3, 3, 3)], [(1, 16, 8, 8)]), 16 * 64 * 27),
        ("RNNSeq", "mix", ([(6, 1, 4)], [(6, 1, 8)]), 20),
        ("Eltwise", "", ([(4,)], [(4,)]), 0),
    ],
    ids=["fused", "renamed by folding", "recurrent", "no products"],
)
def test_a_layer_counts_its_own_shapes_or_what_it_stands_for(layer: str, stands_for: str, shapes: tuple[list[tuple[int, ...]], ...], want: int) -> None:
    """Folding renames convolutions; fusion hides shapes: each way covers what the other loses."""
    from metainfer_probe.backends.ov_work import layer_macs

    assert layer_macs(layer, stands_for, (shapes[0], shapes[1]), {"scores": 10, "mix": 20}) == want


def test_branches_are_not_counted_twice(tmp_path: Path) -> None:
    """A control-flow node contains its branch: own times never add up to more than the whole run."""
    path = models.compared_with(tmp_path)
    session = find_backend("CPUExecutionProvider").open(path, SessionOptions(profiling=True))
    for _ in range(4):
        session.run({"x": np.ones((1, 4), np.float32), "rate": np.array(16000)})
    kernels = {kernel.op_type: kernel for kernel in session.kernel_times()}
    session.close()
    assert kernels["If"].duration_us >= 0
    assert "Identity" in kernels


@pytest.mark.parametrize(
    ("op_type", "want"),
    [
        ("Conv", "convolution"),
        ("FullyConnected", "matmul"),
        ("LSTMSequence", "recurrent"),
        ("Softmax", "elementwise"),
        ("Reorder", "layout"),
        ("Nonsense", "other"),
    ],
)
def test_operators_of_both_runtimes_fall_into_the_same_classes(op_type: str, want: str) -> None:
    """Figures of different runtimes add up under the same names."""
    assert op_class(op_type) == want


def kernel(duration_us: float, *, macs: int = 0, moved: int = 0, op_type: str = "MatMul", node: str = "n") -> KernelTime:
    return KernelTime(node, op_type, "P", duration_us, op_class(op_type), macs, moved)


def test_work_adds_up_per_class_and_shares_to_one() -> None:
    """Counts, MACs, bytes; time as a share of all time."""
    work = {entry.op_class: entry for entry in sum_work([kernel(30, macs=5, moved=7), kernel(30, macs=5, moved=1), kernel(40, op_type="Relu")])}
    assert (work["matmul"].count, work["matmul"].macs, work["matmul"].bytes_moved, work["matmul"].time_permille) == (2, 10, 8, 600)
    assert sum(entry.time_permille for entry in work.values()) == 1000


def test_the_five_hottest_nodes_are_named_by_the_end_of_their_path() -> None:
    """Exporters write the module path first: the end tells nodes apart."""
    hot = find_hot([kernel(index, node="/model" * 30 + f"/layer.{index}") for index in range(1, 9)])
    assert len(hot) == 5
    assert hot[0].node.endswith("/layer.8")
    assert len(hot[0].node) <= 96


@pytest.mark.parametrize(
    ("kernels", "want"),
    [
        ([kernel(900, macs=10**9, moved=10**3), kernel(100, moved=10**7)], "compute"),
        ([kernel(100, macs=10**6), kernel(900, moved=10**8)], "memory"),
        ([kernel(20, macs=1000, moved=1000)] * 50, "launch"),
        ([], "unknown"),
    ],
    ids=["arithmetic", "traffic", "many small nodes", "nothing measured"],
)
def test_the_bound_is_where_the_time_goes(kernels: list[KernelTime], want: str) -> None:
    """Roofline per node with the card's own peaks."""
    assert find_bound(kernels, MicroProbe(gflops=50, bandwidth_gigabytes_per_second=10, spread_permille=0)) == want


def test_the_vector_has_its_fixed_length_with_and_without_measurements(tmp_path: Path) -> None:
    """Stored vectors outlive the code: the length belongs to the version."""
    model = read_model(models.dense(tmp_path))
    empty, full = build_vector(model, (), (), 0), build_vector(model, [kernel(5, macs=1024, moved=4096)], (), 99)
    assert len(empty) == len(full) == len(VECTOR_NAMES) == 45
    assert all(np.isfinite(empty))
    assert full[VECTOR_NAMES.index("time_share_matmul")] == 1.0
