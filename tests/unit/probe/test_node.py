"""The hardware portrait: figures are measured, scaled and explained; what cannot be read is left out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import ProbeError, SessionOptions
from metainfer_probe.bandwidth import choose_sizes, measure_bandwidth, read_cache_sizes
from metainfer_probe.cgroup import memory_limit_bytes, read_throttling
from metainfer_probe.contract import NodeRequest, decode_summary, encode_summary
from metainfer_probe.machine import card_model, watch_machine
from metainfer_probe.memory import peak_resident_bytes, reset_peak
from metainfer_probe.micro import micro_probe
from metainfer_probe.node import measure_node, measure_provider_figures
from metainfer_probe.reference_graphs import MATMUL_SHAPES, write_launch, write_matmul
from metainfer_probe.timing import BLOCK_SECONDS, quantile, time_blocks, time_calls, time_parallel_calls

ORT, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
MIB = 1 << 20


def test_a_node_is_measured_with_the_providers_it_has() -> None:
    """One figure per provider and native precision; what the image lacks is a problem, not a failure; the summary fits."""
    report = measure_node(NodeRequest(providers=(ORT, "CUDAExecutionProvider"), duration_seconds=1.0))
    assert report.failure is None
    assert {(figures.provider, figures.precision) for figures in report.figures} == {(ORT, precision) for precision in find_backend(ORT).native_precisions()}
    for figures in report.figures:
        assert figures.matmul_gflops.keys() == MATMUL_SHAPES.keys()
        assert all(value > 0 for value in figures.matmul_gflops.values())
        assert 0 < figures.launch_p50_us <= figures.launch_p99_us
        assert figures.effective_precision == figures.precision
    assert [(problem.provider, problem.failure.reason) for problem in report.problems] == [("CUDAExecutionProvider", "ProviderMissing")]
    assert report.bandwidth_gigabytes_per_second.keys() == {"l2", "l3", "main"}
    assert report.measured_seconds >= 0.9  # the share of a provider that is not there goes to the others
    assert report.machine is not None
    assert report.machine.cores >= 1
    assert decode_summary(encode_summary(report)) == report.model_copy(update={"detail": {}})


def test_a_node_without_any_provider_has_the_reason() -> None:
    """Nothing to measure with is the image's fault, and named."""
    report = measure_node(NodeRequest(providers=("CUDAExecutionProvider",), duration_seconds=0.1))
    assert report.failure is not None
    assert report.failure.reason == "ProviderMissing"


def test_every_native_precision_of_openvino_is_measured_in_that_precision() -> None:
    """bf16 and int8 are read back from the layers that ran, so a silent fp32 would show."""
    precisions = find_backend(OPENVINO).native_precisions()
    answer = measure_provider_figures(OPENVINO, 0.2, 1)
    assert answer.problems == ()
    assert {figures.precision: figures.effective_precision for figures in answer.figures} == {precision: precision for precision in precisions}


@pytest.mark.parametrize("provider", [ORT, OPENVINO])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_reference_products_run_on_every_runtime(provider: str, precision: str, tmp_path: Path) -> None:
    """The same graph, in the file precision a backend asks for."""
    path, feeds = write_matmul(tmp_path, "tiny", precision)  # type: ignore[arg-type]
    session = find_backend(provider).open(path, SessionOptions(precision=precision))  # type: ignore[arg-type]
    (output,) = session.run(feeds)
    assert output.shape == MATMUL_SHAPES["tiny"][:2]  # type: ignore[attr-defined]
    path, feeds = write_launch(tmp_path)
    assert find_backend(provider).open(path, SessionOptions()).readback().assigned_nodes >= 1


@pytest.mark.parametrize(
    ("caches", "limit", "want"),
    [
        ({2: MIB, 3: 32 * MIB}, 1 << 40, {"l2": MIB // 2, "l3": 16 * MIB, "main": 128 * MIB}),
        ({2: 2 * MIB, 3: 480 * MIB}, 1 << 40, {"l2": MIB, "l3": 16 * MIB, "main": 512 * MIB}),
        ({2: MIB, 3: 32 * MIB}, 400 * MIB, {"l2": MIB // 2, "l3": 16 * MIB, "main": 50 * MIB}),
        ({}, 1 << 40, {"l2": MIB // 2, "l3": 16 * MIB, "main": 128 * MIB}),
    ],
    ids=["a usual core", "a whole socket's cache", "little memory", "unknown caches"],
)
def test_working_sets_follow_the_caches_and_the_memory(caches: dict[int, int], limit: int, want: dict[str, int]) -> None:
    """Inside the second level, beyond it, beyond the last, and never more than an eighth of what is allowed."""
    assert choose_sizes(caches, limit) == want


def test_cache_sizes_are_read_per_level(tmp_path: Path) -> None:
    """Instruction caches do not count; an unreadable entry is left out."""
    for index, (level, kind, size) in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("x", "Unified", "?")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, content in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(content + "\n")
    assert read_cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 * MIB}


def test_bandwidth_says_which_working_sets_it_used() -> None:
    """One figure per level."""
    figures = measure_bandwidth(0.05, 1 << 30)
    assert [figure.level for figure in figures] == ["l2", "l3", "main"]
    assert all(0 < figure.gigabytes_per_second <= figure.best_gigabytes_per_second for figure in figures)


def test_the_micro_probe_gives_peaks_and_their_spread() -> None:
    """Every measurement opens with it."""
    micro = micro_probe(0.1)
    assert micro.gflops > 0
    assert micro.bandwidth_gigabytes_per_second > 0


def write_cgroup(folder: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    for name, content in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "membership").write_text(membership)
    return folder / "cgroup", folder / "membership"


@pytest.mark.parametrize(
    ("files", "membership"),
    [
        ({"memory.max": f"{300 * MIB}\n"}, "0::/\n"),
        ({"pod/box/memory.max": "max\n", "pod/memory.max": f"{300 * MIB}\n"}, "0::/pod/box\n"),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/memory.limit_in_bytes": f"{300 * MIB}\n"}, "5:memory:/a\n0::/\n"),
        ({"memory/memory.limit_in_bytes": f"{300 * MIB}\n"}, "5:memory:/kubepods/not/visible/here\n"),
    ],
    ids=["v2 in a container", "v2, limit at the parent", "v1", "v1 in a container"],
)
def test_the_memory_limit_is_found_in_both_cgroup_versions(files: dict[str, str], membership: str, tmp_path: Path) -> None:
    """The smallest one in force, wherever it is set."""
    root, own = write_cgroup(tmp_path, files, membership)
    assert memory_limit_bytes(root=root, membership=own) == 300 * MIB


def test_without_a_limit_the_machine_s_memory_counts(tmp_path: Path) -> None:
    """No cgroup at all."""
    assert memory_limit_bytes(root=tmp_path / "none", membership=tmp_path / "none") > 64 * MIB


@pytest.mark.parametrize(
    ("files", "membership"),
    [
        ({"cpu.stat": "usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n"}, "0::/\n"),
        ({"cpu/x/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000\n"}, "3:cpu,cpuacct:/x\n"),
    ],
    ids=["v2", "v1"],
)
def test_throttling_is_read_in_both_cgroup_versions(files: dict[str, str], membership: str, tmp_path: Path) -> None:
    """Microseconds there, nanoseconds here."""
    root, own = write_cgroup(tmp_path, files, membership)
    found = read_throttling(root=root, membership=own)
    assert found is not None
    assert (found.periods, found.throttled_periods, found.throttled_seconds) == (10, 4, 2.5)
    assert read_throttling(root=tmp_path / "none", membership=own) is None


def test_a_watch_sees_the_load_of_others_not_its_own() -> None:
    """Shares are parts of the whole machine and never out of range."""
    watch = watch_machine()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    machine = watch.finish()
    assert 0 <= machine.load_permille <= 1000
    assert 0 <= machine.throttled_permille <= 1000
    assert machine.memory_bytes > 0


def test_the_card_s_name_is_the_processor_s(tmp_path: Path) -> None:
    """Blanks are tidied; without a name the architecture stands in."""
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some  CPU   v3 \n")
    assert card_model(tmp_path / "cpuinfo") == "Some CPU v3"
    assert card_model(tmp_path / "absent") != ""


def test_blocks_average_over_more_than_a_quota_period() -> None:
    """A call of microseconds is repeated until a block is long enough to contain the pause of a throttled card."""
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    blocks = time_blocks(call, 0.05)
    assert len(blocks) >= 3
    assert calls > 1000
    assert all(block < BLOCK_SECONDS * 1e6 for block in blocks)


def test_calls_are_timed_at_least_and_at_most_as_often_as_asked() -> None:
    """Slow calls still get a few, fast ones stop at the limit."""
    assert len(time_calls(lambda _: None, 0.0, min_runs=4)) == 4
    assert len(time_calls(lambda _: None, 5.0, max_runs=9)) == 9
    assert quantile([1.0, 2.0, 3.0], 50) == 2.0


def test_parallel_callers_all_count_and_a_failure_of_one_is_raised() -> None:
    """No caller's problem is lost in its thread."""
    assert len(time_parallel_calls(lambda _: None, 3, 0.0)) == 15

    def fail(turn: int) -> None:
        if turn == 2:
            raise ProbeError("NodeFailed", "third call")

    with pytest.raises(ProbeError):
        time_parallel_calls(fail, 3, 0.0)


def test_the_peak_of_memory_can_be_reset() -> None:
    """A session's own peak is told from what came before it."""
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    before = peak_resident_bytes()
    del block
    reset_peak()
    assert peak_resident_bytes() < before
