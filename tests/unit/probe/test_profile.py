"""The model portrait: what is measured, what is refused, and what survives a crash, a hang or a lack of time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import models

from metainfer_probe import profile as profile_module
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Inputs, ProbeError, SessionOptions
from metainfer_probe.batching import compare_batch, refuse_batch
from metainfer_probe.contract import SUMMARY_LIMIT_BYTES, Failure, MicroProbe, ModelSource, ProfileReport, ProfileRequest, ProviderProfile, RefusedModel
from metainfer_probe.inputs import make_inputs
from metainfer_probe.isolate import send_partial
from metainfer_probe.model_file import digest_files, read_model
from metainfer_probe.profile import profile_model
from metainfer_probe.provider_profile import ProviderCall, ProviderMeasurement, measure_provider, support_precisions
from metainfer_probe.summary import fit_summary

ORT, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
BOTH = (ORT, OPENVINO)
MICRO = MicroProbe(gflops=50, bandwidth_gigabytes_per_second=10, spread_permille=10)
BUDGET_SECONDS = 90.0
"""Ample, because a busy machine takes seconds to start a child; small models are done long before."""


def call_for(path: Path, provider: str, *, budget_seconds: float = 2.0, batch_sizes: tuple[int, ...] = (1, 3)) -> ProviderCall:
    return ProviderCall(read_model(path), provider, None, ("fp32", "bf16", "fp16", "int8"), batch_sizes, 1, budget_seconds)


def measured(path: Path, provider: str, **options: object) -> ProviderMeasurement:
    """In this process: the child's own code without the cost of starting one."""
    return measure_provider(call_for(path, provider, **options))  # type: ignore[arg-type]


def profiled(path: Path, *, providers: tuple[str, ...] = (ORT,), budget_seconds: float = BUDGET_SECONDS, **options: object) -> ProfileReport:
    request = ProfileRequest(model=ModelSource(path=path.name), providers=providers, batch_sizes=(1, 2), budget_seconds=budget_seconds, **options)  # type: ignore[arg-type]
    return profile_model(request, path.parent, micro=MICRO)


@pytest.mark.parametrize("provider", BOTH)
def test_a_good_model_is_measured_in_full(provider: str, tmp_path: Path) -> None:
    """Coverage, load time, memory, a curve over batches and callers, and no complaint."""
    result = measured(models.dense(tmp_path), provider)
    profile = result.profile
    assert profile.failure is None
    assert profile.batch_failure is None
    assert (profile.coverage_permille, profile.self_difference_ppm) == (1000, 0)
    assert {(point.batch_size, point.concurrency) for point in profile.curve} == {(1, 1), (1, 2), (1, 4), (3, 1)}
    assert all(0 < point.p50_us <= point.p99_us for point in profile.curve)
    assert profile.load_ms > 0
    assert profile.peak_memory_bytes > 10 << 20
    assert sum(kernel.macs for kernel in result.kernel_times) == 32 * 32
    assert result.activation_bytes > 0


@pytest.mark.parametrize("provider", BOTH)
def test_a_batch_that_was_baked_in_is_refused_and_its_node_named(provider: str, tmp_path: Path) -> None:
    """One runtime fails in the node, the other answers silently for one request only: both end with the node's name."""
    profile = measured(models.batch_baked_in(tmp_path), provider).profile
    assert profile.failure is None
    assert profile.batch_failure is not None
    assert profile.batch_failure.reason == "BatchUnsupported"
    assert "/head/Reshape_7" in profile.batch_failure.message
    assert profile.curve[0].batch_size == 1


@pytest.mark.parametrize(
    ("build", "reason", "names"),
    [
        (models.batch_mixes, "BatchChangesAnswers", "'y'"),
        (models.odd_outputs, "BatchNotSeparable", "'hits'"),
        (models.recurrent, "BatchAxisFixed", "'x'"),
        (models.compared_with, "BatchAxisFixed", "'rate'"),
    ],
    ids=["mixes the batch", "rows of nobody", "fixed axis", "a scalar input"],
)
def test_why_requests_cannot_be_joined(build: Callable[[Path], Path], reason: str, names: str, tmp_path: Path) -> None:
    """Each way has its reason and names the tensor."""
    failure = measured(build(tmp_path), ORT).profile.batch_failure
    assert failure is not None
    assert failure.reason == reason
    assert names in failure.message


def test_a_row_count_that_depends_on_the_values_cannot_be_divided(tmp_path: Path) -> None:
    """Detections: which rows belong to which request is lost in a joined answer."""
    nodes = [
        models.node("Greater", ["x", "limit"], ["above"]),
        models.node("NonZero", ["above"], ["where"]),
        models.node("Transpose", ["where"], ["hits"], perm=[1, 0]),
    ]
    net = models.graph(nodes, [models.value("x", models.FLOAT, ["n", 8])], [models.value("hits", models.INT64, [None, 2])], {"limit": np.float32(0)})
    path = models.save(tmp_path / "detections.onnx", net)
    session = find_backend(ORT).open(path, SessionOptions())
    failure = compare_batch(session, read_model(path), [{"x": np.full((1, 8), sign, np.float32)} for sign in (1.0, -1.0)], 1000)
    assert failure is not None
    assert failure.reason == "BatchNotSeparable"


def test_requests_of_different_widths_are_not_joined(tmp_path: Path) -> None:
    """The user's own mix would need padding: said as the reason against batches."""
    inputs = Inputs(({"x": np.zeros((1, 3))}, {"x": np.zeros((1, 5))}), "calibration", batch_axis_free=True, ragged=True)
    failure = refuse_batch(read_model(models.dense(tmp_path)), inputs)
    assert failure is not None
    assert failure.reason == "RaggedInputs"


def test_a_model_that_is_not_deterministic_says_how_much(tmp_path: Path) -> None:
    """It cannot be gated tighter than that, and batching is not blamed for it."""
    profile = measured(models.never_the_same(tmp_path), ORT).profile
    assert profile.self_difference_ppm > 100_000
    assert profile.batch_failure is None


def test_precisions_are_supported_by_runtime_and_file(tmp_path: Path) -> None:
    """A reason where this runtime has none of it, and for files that are int8 already."""
    ort = find_backend(ORT)
    found = {entry.precision: entry for entry in support_precisions(ort, read_model(models.dense(tmp_path)), ("fp32", "bf16", "int8"))}
    assert found["fp32"].native
    assert found["fp32"].failure is None
    assert found["bf16"].failure is not None
    assert found["bf16"].failure.reason == "PrecisionUnsupported"
    assert found["int8"].native
    quantised = {entry.precision: entry.failure for entry in support_precisions(ort, read_model(models.quantized_dense(tmp_path)), ("fp32", "int8"))}
    assert quantised["fp32"] is None
    assert quantised["int8"] is not None
    assert quantised["int8"].reason == "AlreadyQuantised"


def test_time_that_runs_out_leaves_what_was_measured(tmp_path: Path) -> None:
    """A batch nobody compared is not a candidate, and says so; single requests have their figures."""
    result = measured(models.small_cnn(tmp_path), ORT, budget_seconds=0.0)
    assert result.profile.curve[0].p50_us > 0
    assert result.profile.batch_failure is not None
    assert result.profile.batch_failure.reason == "BatchUnverified"


def test_a_profile_of_both_runtimes_end_to_end(tmp_path: Path) -> None:
    """Static part, work, hot operators, bound, both providers, and a summary that fits."""
    report = profiled(models.small_cnn(tmp_path), providers=(ORT, OPENVINO, "TensorrtExecutionProvider"), budget_seconds=120)
    assert report.failure is None
    assert (report.architecture, report.opset, report.stored_precision) == ("cnn", 17, "fp32")
    assert sum(entry.macs for entry in report.work) == models.SMALL_CNN_MACS
    assert report.hot
    assert report.bound in {"compute", "memory", "launch"}
    reasons = {profile.provider: profile.failure and profile.failure.reason for profile in report.providers}
    assert reasons == {ORT: None, OPENVINO: None, "TensorrtExecutionProvider": "ProviderMissing"}
    vector = report.detail["vector"]
    assert isinstance(vector, dict)
    assert len(vector["names"]) == len(vector["values"])
    assert len(fit_summary(report).encode()) <= SUMMARY_LIMIT_BYTES


def test_a_model_no_runtime_can_read_has_the_common_reason(tmp_path: Path) -> None:
    """Domain and operators, once for the report and once per provider."""
    report = profiled(models.extension_operators(tmp_path), providers=BOTH)
    assert report.failure is not None
    assert report.failure.reason == "UnknownOperators"
    assert "ai.onnx.contrib" in report.failure.message
    assert [profile.failure.reason for profile in report.providers if profile.failure] == ["UnknownOperators"] * 2


@pytest.mark.parametrize("reason", ["GitLfsPointer", "HtmlPage", "Truncated"])
def test_a_file_that_is_no_model_ends_with_its_reason_and_digest(reason: str, tmp_path: Path) -> None:
    """No runtime sees it, and the digest keeps the same content from being tried again."""
    path = models.not_models(tmp_path)[reason]
    report = profiled(path)
    assert report.failure is not None
    assert (report.failure.reason, report.failure.retryable) == (reason, False)
    assert report.digest == digest_files((path,))
    assert report.providers == ()


@pytest.mark.parametrize("build", [lambda folder: models.not_models(folder)["HtmlPage"], models.extension_operators], ids=["not a model", "no runtime runs it"])
def test_a_refused_file_is_not_tried_again_but_a_new_one_under_its_name_is(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """One attempt per content: the known failure comes back word by word; other content is measured."""
    path = build(tmp_path)
    first = profiled(path)
    assert first.failure is not None
    known = RefusedModel(digest=first.digest, failure=Failure(reason="SaidBefore", message="the words of the first attempt"))
    again = profiled(path, refused=known)
    assert (again.failure, again.digest, again.providers) == (known.failure, first.digest, ())
    path.write_bytes(models.dense(tmp_path).read_bytes())
    assert profiled(path, refused=known).failure is None


def test_a_model_that_is_not_there_has_no_report_of_its_own(tmp_path: Path) -> None:
    """Nothing was fetched, so there is nothing to describe."""
    with pytest.raises(ProbeError) as caught:
        profiled(tmp_path / "absent.onnx")
    assert caught.value.reason == "ModelNotFound"


def test_too_little_memory_is_said_before_loading(tmp_path: Path) -> None:
    """With the amount that would be needed and the size of the weights, so that nobody retries an out-of-memory kill."""
    path = models.external(tmp_path, "w.bin", data_bytes=4 * 8192 * 8192, width=8192)
    report = profiled(path, memory_limit_bytes=300 << 20)
    assert report.failure is not None
    assert (report.failure.reason, report.failure.retryable) == ("OutOfMemory", False)
    assert "needs about 0.40 GiB" in report.failure.message
    assert report.weight_bytes == 4 * 8192 * 8192
    assert report.digest


def crash_while_loading(call: ProviderCall) -> ProviderMeasurement:
    """Stands for a runtime that dies: with a signal, after it said which precisions it has."""
    send_partial(ProviderMeasurement(ProviderProfile(provider=call.provider, batch_failure=Failure(reason="BatchUnverified", message="m"))))
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def crash_in_a_batch(call: ProviderCall) -> ProviderMeasurement:
    """The same, later: single requests were measured already."""
    real = measure_provider(replace(call, batch_sizes=(1,), budget_seconds=1.0))
    unverified = Failure(reason="BatchUnverified", message="m")
    send_partial(replace(real, step="batch", profile=real.profile.model_copy(update={"batch_failure": unverified})))
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


@pytest.mark.parametrize("where", ["loading", "batch"])
def test_a_runtime_that_dies_costs_only_what_it_was_doing(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other providers are unaffected; single requests survive a crash in a batch."""
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent), str(Path(__file__).parents[3])])
    name = "crash_while_loading" if where == "loading" else "crash_in_a_batch"
    real = profile_module.run_in_child

    def run(function: object, args: tuple[object, ...], **named: object) -> object:
        first = isinstance(args[0], ProviderCall) and args[0].provider == ORT
        return real(f"test_profile:{name}" if first else function, args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(profile_module, "run_in_child", run)
    report = profiled(models.dense(tmp_path), providers=BOTH, budget_seconds=120)
    crashed, other = report.providers
    assert report.failure is None
    assert other.failure is None
    if where == "loading":
        assert crashed.failure is not None
        assert crashed.failure.reason == "RuntimeCrashed"
        assert "SIGSEGV" in crashed.failure.message
        assert crashed.batch_failure is None
    else:
        assert crashed.failure is None
        assert crashed.curve
        assert crashed.batch_failure is not None
        assert crashed.batch_failure.reason == "RuntimeCrashed"


def test_a_budget_that_is_gone_still_gives_the_static_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Providers say that no time was left; a retry may help."""
    model = read_model(models.dense(tmp_path))
    plan = profile_module._Plan(ProfileRequest(model=ModelSource(path="x"), providers=(ORT,)), model, None, 1 << 40, time.monotonic())
    failure = profile_module._measure(plan, ORT, 1).profile.failure
    assert failure is not None
    assert (failure.reason, failure.retryable) == ("TimedOut", True)


def test_a_real_network_is_profiled() -> None:
    """SqueezeNet from the onnx wheel: a fixed batch of one, hot convolutions, real figures."""
    path = models.light("squeezenet")
    result = measured(path, ORT)
    assert result.profile.failure is None
    assert result.profile.batch_failure is not None
    assert result.profile.batch_failure.reason == "BatchAxisFixed"
    assert sum(kernel.macs for kernel in result.kernel_times) == pytest.approx(349_151_936, rel=0.001)


def test_the_user_s_requests_are_used_where_given(tmp_path: Path) -> None:
    """The report says so, and that they are ragged."""
    path = models.token_tables(tmp_path)
    np.savez(tmp_path / "requests.npz", **{f"{name}/{index}": np.ones((1, 3 + index), np.int64) for name in "pqr" for index in range(3)})
    report = profiled(path, calibration=ModelSource(path="requests.npz"), budget_seconds=120)
    assert (report.inputs_source, report.ragged_inputs) == ("calibration", True)
    batch_failure = report.providers[0].batch_failure
    assert batch_failure is not None
    assert batch_failure.reason == "RaggedInputs"


def test_a_calibration_file_that_does_not_fit_is_the_report_s_reason(tmp_path: Path) -> None:
    """It fails on every provider alike: the user's file, not the runtimes."""
    path = models.token_tables(tmp_path)
    np.savez(tmp_path / "requests.npz", **{"p/0": np.ones((1, 3), np.int64)})
    report = profiled(path, calibration=ModelSource(path="requests.npz"))
    assert report.failure is not None
    assert report.failure.reason == "CalibrationInputMissing"


def test_inputs_of_every_provider_are_the_same(tmp_path: Path) -> None:
    """Providers are compared on equal requests."""
    model = read_model(models.token_tables(tmp_path))
    left, right = (make_inputs(model, find_backend(provider), None, 2) for provider in BOTH)
    for one, other in zip(left.samples, right.samples, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in "pqr")
