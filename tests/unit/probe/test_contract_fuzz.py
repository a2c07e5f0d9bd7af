"""Reports from Jobs that lie: whatever a Job writes, the operator gets a report within its bounds or a typed error.

A hostile model that takes its Job over can write any termination message, with a checksum that fits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.probe.hostile_documents import nested, spoilt

from metainfer_probe.contract import (
    CONTRACT_VERSION,
    INTEGER_LIMIT,
    NESTING_LIMIT,
    REPORT_PREFIX,
    Accuracy,
    BenchReport,
    CurvePoint,
    Failure,
    HotOp,
    Machine,
    Measured,
    MicroProbe,
    NodeReport,
    OpWork,
    PrecisionSupport,
    ProfileReport,
    ProviderFigures,
    ProviderProblem,
    ProviderProfile,
    Readback,
    Report,
    ReportError,
    ServingConfig,
    TensorSpec,
    clean_text,
    decode_line,
    decode_summary,
    encode_line,
    encode_summary,
)

REASONS = {"ReportMissing", "ReportGarbled", "ReportVersion", "ReportChecksum"}
PROVIDER = "CPUExecutionProvider"
FAILURE = Failure(reason="NodeFailed", message="node x (Conv)")
MICRO = MicroProbe(gflops=50.5, bandwidth_gigabytes_per_second=9.1, spread_permille=12)
MEASURED = Measured(requests=900, errors=1, seconds=10, mean_us=1100, p50_us=1000, p99_us=1500, throughput_per_second=90, mean_batch=1.5)
NODE = NodeReport(
    machine=Machine(card_model="A CPU", architecture="x86_64", kernel="6.1", cores=4, memory_bytes=1 << 34, load_permille=3, throttle_reasons=("heat",)),
    micro=MICRO,
    bandwidth_gigabytes_per_second={"l2": 80.0, "main": 10.0},
    figures=(
        ProviderFigures(
            provider=PROVIDER, runtime_version="1", precision="fp32", matmul_gflops={"tiny": 1.0, "big": 80.0}, launch_p50_us=5, launch_p99_us=9,
            compile_ms=3, effective_precision="fp32",
        ),
    ),
    problems=(ProviderProblem(provider="Other", failure=FAILURE),),
    measured_seconds=30,
)  # fmt: skip
PROFILE = ProfileReport(
    digest="ab" * 32,
    file_bytes=10, weight_bytes=9, parameters=8, nodes=7, ir_version=9, opset=17, architecture="cnn",
    inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 3)),),
    work=(OpWork(op_class="convolution", count=3, macs=10**9, bytes_moved=10**6, time_permille=1000),),
    hot=(HotOp(op_type="Conv", node="/a/b", time_permille=900, provider=PROVIDER),),
    providers=(
        ProviderProfile(
            provider=PROVIDER, coverage_permille=1000, assigned_nodes=7, precisions=(PrecisionSupport(precision="int8", native=True, failure=FAILURE),),
            curve=(CurvePoint(batch_size=1, p50_us=900, p99_us=1000, mean_us=910),), batch_failure=FAILURE,
        ),
    ),
    notes=("a note",),
    micro=MICRO,
    failure=FAILURE,
    detail={"kernels": [{"node": "/a/b", "duration_us": 3.5}]},
)  # fmt: skip
BENCH = BenchReport(
    digest="ab" * 32, config=ServingConfig(execution_provider=PROVIDER), load_clients=4, candidate=MEASURED, reference=MEASURED, rounds=7,
    accuracy=Accuracy(metric="RelativeL2", difference_ppm=5, self_difference_ppm=0, batch_difference_ppm=0, inputs="calibration", samples=9,
        invalid_values=False),
    readback=Readback(provider=PROVIDER, precision="fp32", coverage_permille=1000, assigned_nodes=7), micro=MICRO, failure=FAILURE,
)  # fmt: skip
REPORTS: tuple[Report, ...] = (NODE, PROFILE, BENCH)


def signed(body: Any, version: Any = CONTRACT_VERSION) -> str:
    """A termination message as the probe would sign it, whatever is in it."""
    checked = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return json.dumps({"v": version, "sha": hashlib.sha256(checked.encode()).hexdigest()[:16], "body": body})


def attempt(decode: Callable[[str], Report], text: str) -> Report | ReportError:
    """The report, or the error; anything else that is raised fails the test."""
    try:
        return decode(text)
    except ReportError as error:
        return error


def check_refusal(error: ReportError, *want_reasons: str) -> None:
    """A typed reason, in few words that can be printed."""
    assert error.reason in want_reasons
    assert len(error.message) < 512
    assert clean_text(error.message) == error.message


def check(report: Report) -> None:
    """What every reader behind the contract relies on."""
    walk(report.model_dump())
    assert json.loads(report.model_dump_json())
    assert json.dumps(report.detail, allow_nan=False).encode()


def walk(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            walk(key)
            walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            walk(item)
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int):
        assert abs(value) <= INTEGER_LIMIT
    elif isinstance(value, str):
        assert value.encode() is not None


@given(st.sampled_from(REPORTS).flatmap(lambda report: spoilt(report.model_dump(mode="json", exclude={"detail"}))))
def test_a_signed_summary_with_odd_values_is_within_bounds_or_refused(body: Any) -> None:
    """The checksum fits: only the schema stands between it and a decision."""
    outcome = attempt(decode_summary, signed(body))
    if isinstance(outcome, ReportError):
        check_refusal(outcome, "ReportGarbled")
    else:
        check(outcome)


@given(st.sampled_from(REPORTS).flatmap(lambda report: spoilt(report.model_dump(mode="json") | {"detail": PROFILE.detail})))
def test_a_log_line_with_odd_values_is_within_bounds_or_refused(body: Any) -> None:
    """The same for the line, whose detail no schema bounds."""
    outcome = attempt(decode_line, REPORT_PREFIX + json.dumps(body))
    if isinstance(outcome, ReportError):
        check_refusal(outcome, "ReportGarbled")
    else:
        check(outcome)


@given(st.sampled_from(REPORTS), st.data())
def test_a_summary_with_a_flipped_bit_is_never_another_report(report: Report, data: st.DataObject) -> None:
    """One bit anywhere: the same report (where only JSON's spelling changed), or refused."""
    text = bytearray(encode_summary(report.model_copy(update={"detail": {}})).encode())
    position = data.draw(st.integers(0, len(text) * 8 - 1))
    text[position // 8] ^= 1 << (position % 8)
    outcome = attempt(decode_summary, text.decode(errors="replace"))
    if isinstance(outcome, ReportError):
        check_refusal(outcome, *REASONS)
    else:
        assert outcome == report.model_copy(update={"detail": {}})


@given(st.sampled_from(REPORTS), st.data())
def test_a_summary_cut_anywhere_is_refused(report: Report, data: st.DataObject) -> None:
    """As the kubelet cuts it."""
    text = encode_summary(report)
    with pytest.raises(ReportError) as caught:
        decode_summary(text[: data.draw(st.integers(0, len(text) - 1))])
    assert caught.value.reason in ("ReportMissing", "ReportGarbled")


@given(st.text() | st.binary().map(lambda content: content.decode("latin-1")) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_anything_else_is_refused(text: str) -> None:
    """Somebody else's output, in both places."""
    for decode, given_text in ((decode_summary, text), (decode_line, text), (decode_line, REPORT_PREFIX + text)):
        with pytest.raises(ReportError) as caught:
            decode(given_text)
        assert caught.value.reason in REASONS


@pytest.mark.parametrize(
    ("tail", "want"),
    [
        ('{"kind":"node","detail":' + "[" * 100_000 + "]" * 100_000 + "}", "ReportGarbled"),
        ('{"kind":"node","detail":{"a":' + "[" * NESTING_LIMIT + "]" * NESTING_LIMIT + "}}", "ReportGarbled"),
        ('{"kind":"node","detail":{"a":1e999}}', "ReportGarbled"),
        ('{"kind":"node","detail":{"a":NaN}}', "ReportGarbled"),
        ('{"kind":"node","detail":{"a":' + "9" * 400 + "}}", "ReportGarbled"),
        ('{"kind":"node","detail":{"a":' + "9" * 100_000 + "}}", "ReportGarbled"),
        ('{"kind":"node","detail":{"a":"\\ud800"}}', "ReportGarbled"),
        ('{"kind":"node","measured_seconds":-1}', "ReportGarbled"),
        ('{"kind":"node","measured_seconds":"NaN"}', "ReportGarbled"),
        ('{"kind":"bench","rounds":-3}', "ReportGarbled"),
        ('{"kind":"profile","digest":"' + "a" * 65 + '"}', "ReportGarbled"),
        ('{"kind":"profile","digest":"ab\\n"}', "ReportGarbled"),
        ('{"kind":"profile","parameters":18446744073709551616}', "ReportGarbled"),
    ],
    ids=["deep", "just too deep", "1e999", "NaN", "long number", "endless number", "half a character", "negative", "NaN as text", "-3", "long", "line", "2^64"],
)
def test_each_extreme_of_json_is_refused(tail: str, want: str) -> None:
    """Depth, size and spelling that other readers choke on."""
    with pytest.raises(ReportError) as caught:
        decode_line(REPORT_PREFIX + tail)
    assert caught.value.reason == want


@pytest.mark.parametrize("version", [0, 2, -1, "1", None, [1], 1.5, "x" * 9000, nested(20)])
def test_another_version_is_refused_in_few_words(version: Any) -> None:
    """The number is quoted, whatever it is, and cut."""
    with pytest.raises(ReportError) as caught:
        decode_summary(signed({"kind": "node"}, version))
    assert caught.value.reason == "ReportVersion"
    assert len(caught.value.message) < 200


def test_words_lose_what_would_move_a_terminal_and_names_keep_their_spelling() -> None:
    """Messages are printed; input names are keys."""
    report = ProfileReport(
        failure=Failure(reason="NodeFailed", message="a\x1b[2J\x00\u202eb"),
        notes=("x\x07y",),
        inputs=(TensorSpec(name="a\x00\n", dtype="float32", shape=None),),
    )
    decoded = decode_line(encode_line(report))
    assert isinstance(decoded, ProfileReport)
    assert decoded.failure is not None
    assert decoded.failure.message == "a\ufffd[2J\ufffd\ufffdb"
    assert decoded.notes == ("x\ufffdy",)
    assert decoded.inputs[0].name == "a\x00\n"
