"""Benchmarks of small models with both runtimes: what is reported, and how each trouble ends. No time is asserted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import models

from metainfer_probe import pair
from metainfer_probe.backends.base import Feeds, ProbeError, Session
from metainfer_probe.bench import bench_candidate
from metainfer_probe.contract import Accuracy, BenchReport, BenchRequest, Measured, MicroProbe, ModelSource, Precision, ServingConfig, decode_line, encode_line
from metainfer_probe.isolate import send_partial
from metainfer_probe.load import LoadWindow
from metainfer_probe.model_file import read_model
from metainfer_probe.pair import PairCall, Progress, measure_pair, prepare_pair
from metainfer_probe.summary import fit_summary

CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
MICRO = MicroProbe(gflops=10, bandwidth_gigabytes_per_second=5, spread_permille=20)
PATIENCE_SECONDS = 300.0


def config(provider: str = CPU, precision: Precision = "fp32", *, batch: int = 1, concurrency: int = 1, delay_us: int = 5_000) -> ServingConfig:
    return ServingConfig(
        execution_provider=provider,
        precision=precision,
        batch_size=batch,
        concurrency=concurrency,
        dynamic_batching=batch > 1,
        max_batch_delay_us=delay_us if batch > 1 else 0,
    )


def request(model: Path, candidate: ServingConfig, *, reference: ServingConfig | None = None, calibration: Path | None = None, rounds: int = 2) -> BenchRequest:
    return BenchRequest(
        model=ModelSource(path=model.name),
        candidate=candidate,
        reference=reference or config(),
        calibration=ModelSource(path=calibration.name) if calibration else None,
        rounds=rounds,
        window_seconds=0.05,
        deadline_seconds=PATIENCE_SECONDS,
    )


def save_requests(path: Path, name: str, shapes: list[tuple[int, ...]]) -> Path:
    arrays: Mapping[str, np.ndarray] = {
        f"{name}/{index}": np.random.default_rng(index).standard_normal(shape).astype(np.float32) for index, shape in enumerate(shapes)
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
    return path


def call(model: Path, asked: BenchRequest, calibration: Path | None = None) -> PairCall:
    return PairCall(asked, read_model(model), calibration, model.parent, time.monotonic() + PATIENCE_SECONDS)


def measure(model: Path, candidate: ServingConfig, *, calibration: Path | None = None, reference: ServingConfig | None = None, rounds: int = 2) -> BenchReport:
    """The child's part in this process, as a report."""
    asked = call(model, request(model, candidate, reference=reference, calibration=calibration, rounds=rounds), calibration)
    prepare_pair(asked)
    progress = measure_pair(asked)
    assert progress.step == "done"
    return BenchReport().model_copy(update=progress.figures)


def refused(model: Path, candidate: ServingConfig, **more: Path) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        measure(model, candidate, **more)  # type: ignore[arg-type]
    return caught.value


# The whole way, in child processes


def test_a_candidate_is_measured_beside_its_reference(tmp_path: Path) -> None:
    """OpenVINO int8 in batches against ONNX Runtime fp32: every field of the report is filled and travels."""
    model, calibration = models.dense(tmp_path), save_requests(tmp_path / "real.npz", "x", [(1, 32)] * 6)
    asked = request(model, config(OPENVINO, "int8", batch=2, concurrency=2), calibration=calibration)
    report = bench_candidate(asked, tmp_path, tmp_path / "work", micro=MICRO)
    assert report.failure is None
    assert not report.partial
    assert (report.rounds, report.load_clients, report.micro, report.config) == (2, 4, MICRO, asked.candidate)
    assert report.digest == read_model(model).digest
    assert isinstance(report.candidate, Measured)
    assert isinstance(report.reference, Measured)
    assert 1 <= report.candidate.mean_batch <= 2
    assert report.reference.mean_batch == 1
    assert report.candidate.errors == report.reference.errors == 0
    assert max(report.candidate.mean_us, report.candidate.p50_us) <= report.candidate.p99_us
    assert report.latency_ratio_permille > 0
    assert report.readback is not None
    assert (report.readback.provider, report.readback.precision) == (OPENVINO, "int8")
    assert isinstance(report.accuracy, Accuracy)
    assert (report.accuracy.inputs, report.accuracy.samples, report.accuracy.invalid_values) == ("calibration", 6, False)
    assert 0 < report.accuracy.difference_ppm < 100_000
    assert report.accuracy.self_difference_ppm == 0
    assert report.first_pass_us > 0
    assert report.peak_memory_bytes > 20 << 20
    assert decode_line(encode_line(report)) == report
    assert "detail" not in fit_summary(report)


class Wrong:
    """A session whose every answer is off by one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, feeds: Feeds) -> list[object]:
        return [np.asarray(output) + 1 for output in self._session.run(feeds)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


def test_a_runtime_that_is_wrong_in_fp32_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidate and reference on the same runtime agree with each other; both are compared with ONNX Runtime's fp32."""
    honest = pair.open_serving_session

    def open_session(path: Path, asked: ServingConfig, **more: object) -> object:
        session = honest(path, asked, **more)  # type: ignore[arg-type]
        return Wrong(session) if asked.execution_provider == OPENVINO else session

    monkeypatch.setattr(pair, "open_serving_session", open_session)
    report = measure(models.dense(tmp_path), config(OPENVINO, concurrency=2), reference=config(OPENVINO))
    assert report.accuracy is not None
    assert report.accuracy.difference_ppm > 100_000


def test_a_model_that_is_not_there_is_a_report(tmp_path: Path) -> None:
    """Also what fails before any child starts ends as a report with the configuration that was asked for."""
    report = bench_candidate(request(tmp_path / "gone.onnx", config()), tmp_path, tmp_path, micro=MICRO)
    assert report.failure is not None
    assert (report.failure.reason, report.config, report.micro) == ("ModelNotFound", config(), MICRO)


def crash(_: PairCall) -> None:
    send_partial(Progress("opening the candidate"))
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(PATIENCE_SECONDS)


def defect(_: PairCall) -> None:
    send_partial(Progress("measuring round 1"))
    raise KeyError("lost")


def time_out_early(_: PairCall) -> None:
    raise ProbeError("TimedOut", "not finished", retryable=True)


def time_out_late(_: PairCall) -> None:
    measured = Measured(requests=9, errors=0, seconds=1, mean_us=1, p50_us=2, p99_us=3, throughput_per_second=9, mean_batch=1)
    send_partial(Progress("measuring round 4", {"rounds": 3, "candidate": measured, "reference": measured}))
    raise ProbeError("TimedOut", "not finished", retryable=True)


@pytest.mark.parametrize(
    ("child", "reason", "words"),
    [
        pytest.param(crash, "RuntimeCrashed", "while opening the candidate: the runtime died with SIGSEGV", id="a crash of the runtime"),
        pytest.param(defect, "InternalError", "while measuring round 1: KeyError", id="a defect of ours"),
        pytest.param(time_out_early, "TimedOut", "while ", id="too slow for one round"),
    ],
)
def test_a_child_that_fails_is_a_reason(tmp_path: Path, child: object, reason: str, words: str) -> None:
    """With the step it was at."""
    report = bench_candidate(request(models.dense(tmp_path), config()), tmp_path, tmp_path, micro=MICRO, measure=child)  # type: ignore[arg-type]
    assert report.failure is not None
    assert report.failure.reason == reason
    assert words in report.failure.message
    assert report.digest


def test_rounds_that_finished_before_the_time_ended_are_reported(tmp_path: Path) -> None:
    """A hang in the fourth round costs the fourth round."""
    report = bench_candidate(request(models.dense(tmp_path), config()), tmp_path, tmp_path, micro=MICRO, measure=time_out_late)
    assert report.failure is None
    assert report.partial
    assert report.rounds == 3
    assert report.candidate is not None


# The measuring part


def test_windows_alternate_and_swap_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side is always the first: candidate, reference, reference, candidate, candidate, reference."""
    order: list[str] = []
    windows = pair.run_window

    def noted(server: object, samples: object, **options: object) -> LoadWindow:
        if options["seconds"] == 0.05:
            order.append(server._config.execution_provider)  # type: ignore[attr-defined]
        return windows(server, samples, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pair, "run_window", noted)
    measure(models.dense(tmp_path), config(OPENVINO), rounds=3)
    assert order == [OPENVINO, CPU, CPU, OPENVINO, OPENVINO, CPU]


def test_the_current_configuration_is_measured_once_and_reported_twice(tmp_path: Path) -> None:
    """Its ratio to itself is one, without the noise of a second session."""
    report = measure(models.dense(tmp_path), config())
    assert report.candidate == report.reference
    assert (report.latency_ratio_permille, report.latency_ratio_spread_permille) == (1000, 0)
    assert report.accuracy is not None
    assert report.accuracy.difference_ppm == 0


def test_the_deadline_ends_the_rounds_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past it no further round starts; what is there is partial."""
    model = models.dense(tmp_path)
    asked = call(model, request(model, config(OPENVINO), rounds=1000))
    windows = pair.run_window
    measured = []

    def until_four(server: object, samples: object, **options: object) -> LoadWindow:
        if options["seconds"] == 0.05:
            measured.append(1)
            if len(measured) == 4:
                object.__setattr__(asked, "deadline", 0.0)
        return windows(server, samples, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pair, "run_window", until_four)
    progress = measure_pair(asked)
    assert progress.figures["partial"] is True
    assert progress.figures["rounds"] == 2


def test_no_round_before_the_deadline_is_a_failure(tmp_path: Path) -> None:
    """Opened and compared, but nothing measured."""
    model = models.dense(tmp_path)
    with pytest.raises(ProbeError) as caught:
        measure_pair(replace(call(model, request(model, config())), deadline=0.0))
    assert caught.value.reason == "TimedOut"


def test_generated_inputs_are_called_that(tmp_path: Path) -> None:
    """They rank speed and never approve."""
    report = measure(models.dense(tmp_path), config(OPENVINO))
    assert report.accuracy is not None
    assert report.accuracy.inputs == "generated"


def test_a_batch_that_changes_answers_is_a_number(tmp_path: Path) -> None:
    """fp32 joined against fp32 single: the gate's business, so it is measured and reported."""
    report = measure(models.batch_mixes(tmp_path), config(batch=4))
    assert report.accuracy is not None
    assert report.accuracy.batch_difference_ppm > 100_000
    assert report.accuracy.difference_ppm > 100_000
    assert report.accuracy.self_difference_ppm == 0


def test_a_model_that_differs_from_itself_says_so(tmp_path: Path) -> None:
    """Else every candidate would be blamed for the noise."""
    report = measure(models.never_the_same(tmp_path), config())
    assert report.accuracy is not None
    assert report.accuracy.self_difference_ppm > 100_000


def test_a_batch_that_cannot_run_names_the_node(tmp_path: Path) -> None:
    """The reshape that was recorded with batch 1; batch 1 itself is fine."""
    model = models.batch_baked_in(tmp_path)
    for provider in (CPU, OPENVINO):
        error = refused(model, config(provider, batch=4))
        assert error.reason == "BatchUnsupported"
        assert "/head/Reshape_7" in error.message
    assert measure(model, config(OPENVINO)).rounds == 2


def test_outputs_that_cannot_be_divided_refuse_batches(tmp_path: Path) -> None:
    """Strings, maps and an empty list are measured one by one, and not joined."""
    model = models.odd_outputs(tmp_path)
    assert measure(model, config()).accuracy is not None
    assert refused(model, config(batch=2)).reason == "BatchNotSeparable"


def ragged_model(folder: Path) -> Path:
    nodes = [models.node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1]), models.node("ReduceMean", ["a"], ["y"], axes=[2], keepdims=0)]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 2, "len"])], [models.value("y", models.FLOAT, ["n", 4])], {"w": models.weights(4, 2, 3)})
    return models.save(folder / "ragged.onnx", net)


def test_every_width_of_the_given_mix_is_measured(tmp_path: Path) -> None:
    """First passes over new shapes are part of the latencies: all requests are there, warm-up or not."""
    model = ragged_model(tmp_path)
    shapes = [(1, 2, 8 + index) for index in range(12)]
    report = measure(model, config(OPENVINO), calibration=save_requests(tmp_path / "mix.npz", "x", shapes), rounds=1)
    assert report.candidate is not None
    windows = report.detail["candidate"]["window_throughput_per_second"]  # type: ignore[index,call-overload]
    assert report.candidate.requests > 12
    assert report.first_pass_us > 0
    assert len(windows) == 1


def test_requests_of_different_sizes_are_not_joined(tmp_path: Path) -> None:
    """Padding would be needed, and nobody said how."""
    model = ragged_model(tmp_path)
    mix = save_requests(tmp_path / "mix.npz", "x", [(1, 2, 8), (1, 2, 16)])
    error = refused(model, config(batch=2), calibration=mix)
    assert error.reason == "RaggedInputs"
    assert "'x'" in error.message


def test_a_reference_that_cannot_be_measured_is_not_the_candidates_fault(tmp_path: Path) -> None:
    """The current configuration's own reason is in the message."""
    with pytest.raises(ProbeError) as caught:
        measure(models.dense(tmp_path), config(), reference=config("TpuExecutionProvider"))
    assert caught.value.reason == "ReferenceFailed"
    assert "ProviderMissing" in caught.value.message


def overflowing(folder: Path) -> Path:
    """Squares of 10⁴: past 65504, the largest fp16 number, and far below fp32's."""
    nodes = [
        models.node("MatMul", ["x", "w"], ["a"], "grow"),
        models.node("Mul", ["a", "a"], ["b"], "square"),
        models.node("MatMul", ["b", "s"], ["y"], "shrink"),
    ]
    constants = {"w": np.full((8, 8), 2_000, np.float32), "s": np.full((8, 8), 1e-6, np.float32)}
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 8])], [models.value("y", models.FLOAT, ["n", 8])], constants)
    return models.save(folder / "overflow.onnx", net)


def test_overflow_in_a_narrow_precision_is_flagged(tmp_path: Path) -> None:
    """Inf where fp32 has none is no average of anything."""
    model = overflowing(tmp_path)
    try:
        report = measure(model, config(OPENVINO, "fp16"), calibration=save_requests(tmp_path / "real.npz", "x", [(1, 8)] * 2), rounds=1)
    except ProbeError as error:
        pytest.skip(f"this processor has no fp16: {error.message}")
    assert report.accuracy is not None
    assert report.accuracy.invalid_values


def test_the_detail_is_bounded_whatever_the_number_of_requests(tmp_path: Path) -> None:
    """Quantiles instead of raw latencies."""
    report = measure(models.dense(tmp_path), config(), rounds=20)
    quantiles = report.detail["candidate"]["quantiles_us"]  # type: ignore[index,call-overload]
    assert len(quantiles) == len(report.detail["quantile_percents"])  # type: ignore[arg-type]
    assert quantiles == sorted(quantiles)
    assert len(encode_line(report)) < 20_000
