"""The two ways a report travels: what comes back is what was sent, or a typed reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer_probe.contract import (
    CONTRACT_VERSION,
    SUMMARY_LIMIT_BYTES,
    BenchReport,
    CurvePoint,
    Failure,
    HotOp,
    MicroProbe,
    NodeReport,
    ProfileReport,
    ProviderProfile,
    Report,
    ReportError,
    TensorSpec,
    decode_line,
    decode_request,
    decode_summary,
    encode_line,
    encode_summary,
)

MICRO = MicroProbe(gflops=50.5, bandwidth_gigabytes_per_second=9.1, spread_permille=12)


def reports() -> st.SearchStrategy[Report]:
    failures = st.none() | st.builds(Failure, reason=st.from_regex(r"\A[A-Z][A-Za-z0-9]{0,20}\Z"), message=st.text(max_size=40), retryable=st.booleans())
    nodes = st.builds(NodeReport, micro=st.none() | st.just(MICRO), measured_seconds=st.floats(0, 1e3), failure=failures)
    profiles = st.builds(ProfileReport, digest=st.text("0123456789abcdef", max_size=64), parameters=st.integers(0, 2**62), failure=failures)
    benches = st.builds(BenchReport, rounds=st.integers(0, 99), partial=st.booleans(), failure=failures)
    return st.one_of(nodes, profiles, benches)


@given(reports())
def test_a_summary_comes_back_as_it_was_sent(report: Report) -> None:
    """encode_summary and decode_summary are inverse, for every kind of report."""
    assert decode_summary(encode_summary(report)) == report


@given(reports())
def test_a_log_line_comes_back_as_it_was_sent(report: Report) -> None:
    """encode_line and decode_line are inverse, detail included."""
    detailed = report.model_copy(update={"detail": {"kernels": [1, 2, {"node": "ä\n"}]}})
    line = encode_line(detailed)
    assert "\n" not in line
    assert decode_line(line) == detailed


def test_a_summary_leaves_the_detail_out() -> None:
    """Detail travels in the log only."""
    report = NodeReport(detail={"runs": [1] * 5000})
    assert decode_summary(encode_summary(report)).detail == {}


def test_a_summary_over_the_limit_is_refused() -> None:
    """A cut-off JSON would be worse than none: the writer finds out, not the reader."""
    hot = tuple(HotOp(op_type="Conv", node="n" * 96, time_permille=1, provider="P") for _ in range(40))
    with pytest.raises(ReportError) as caught:
        encode_summary(ProfileReport(hot=hot))
    assert caught.value.reason == "ReportTooLarge"
    assert str(SUMMARY_LIMIT_BYTES) in caught.value.message


@pytest.mark.parametrize(
    ("tamper", "want"),
    [
        (lambda text: "", "ReportMissing"),
        (lambda text: "  \n", "ReportMissing"),
        (lambda text: text[:-20], "ReportGarbled"),
        (lambda text: "Error: out of memory", "ReportGarbled"),
        (lambda text: "[1, 2]", "ReportGarbled"),
        (lambda text: text.replace('"measured_seconds":3.5', '"measured_seconds":9.5'), "ReportChecksum"),
        (lambda text: text.replace(f'"v":{CONTRACT_VERSION}', '"v":99'), "ReportVersion"),
    ],
    ids=["nothing", "blanks", "cut off", "somebody else's text", "other JSON", "a changed figure", "another version"],
)
def test_a_damaged_summary_ends_in_its_reason(tamper: object, want: str) -> None:
    """Missing, truncated, altered and foreign messages are told apart."""
    text = encode_summary(NodeReport(measured_seconds=3.5))
    with pytest.raises(ReportError) as caught:
        decode_summary(tamper(text))  # type: ignore[operator]
    assert caught.value.reason == want


def test_an_unknown_field_is_refused() -> None:
    """A newer contract has a newer version number: unknown fields under this one are damage."""
    body = json.loads(encode_line(NodeReport()).split(" ", 1)[1]) | {"surprise": 1}
    with pytest.raises(ReportError) as caught:
        decode_line("metainfer-report " + json.dumps(body))
    assert caught.value.reason == "ReportGarbled"
    assert "surprise" in caught.value.message


@pytest.mark.parametrize("line", ["", "hello", "metainfer-report {cut", "metainfer-report []"], ids=["empty", "other output", "cut off", "not a report"])
def test_a_log_without_a_report_ends_in_a_reason(line: str) -> None:
    """The last line of a log may be anything."""
    with pytest.raises(ReportError):
        decode_line(line)


@pytest.mark.parametrize(
    "request_json",
    [
        '{"kind":"node","providers":[],"duration_seconds":0}',
        '{"kind":"profile","model":{"path":"m"},"providers":[],"threads":0}',
        '{"kind":"bench","model":{},"candidate":{"execution_provider":"x","batch_size":0},"reference":{"execution_provider":"x"}}',
        '{"kind":"other"}',
        "not json",
    ],
    ids=["no time", "no threads", "batch zero", "unknown kind", "no JSON"],
)
def test_a_request_out_of_bounds_is_refused(request_json: str) -> None:
    """Bounds are checked at the border, not in the middle of a measurement."""
    with pytest.raises(ValueError, match=r".+"):
        decode_request(request_json)


def test_a_report_of_eight_providers_with_full_curves_is_encodable_after_fitting() -> None:
    """The summary of a large real profile fits, keeps every provider, and says what it left out."""
    from metainfer_probe.summary import fit_summary

    curve = tuple(
        CurvePoint(batch_size=size, concurrency=callers, p50_us=12345.6, p99_us=23456.7, mean_us=12456.7)
        for size, callers in ((1, 1), (1, 2), (1, 4), (4, 1), (8, 1))
    )
    failure = Failure(reason="BatchUnsupported", message="batch 4 fails: node " + "/deep/path" * 40)
    providers = tuple(ProviderProfile(provider=f"Provider{index}", curve=curve, batch_failure=failure, coverage_permille=1000) for index in range(8))
    tensors = tuple(TensorSpec(name="tensor" * 20, dtype="float32", shape=(-1, 3, 224, 224)) for _ in range(20))
    hot = tuple(HotOp(op_type="Conv", node="n" * 96, time_permille=100, provider="P") for _ in range(5))
    report = ProfileReport(digest="a" * 64, providers=providers, inputs=tensors, outputs=tensors, hot=hot, notes=("n" * 500,) * 8, micro=MICRO)
    text = fit_summary(report)
    assert len(text.encode()) <= SUMMARY_LIMIT_BYTES
    decoded = decode_summary(text)
    assert isinstance(decoded, ProfileReport)
    assert [profile.provider for profile in decoded.providers] == [f"Provider{index}" for index in range(8)]
    assert all(profile.batch_failure is not None and profile.batch_failure.reason == "BatchUnsupported" for profile in decoded.providers)


def test_a_report_that_fits_is_not_shortened() -> None:
    """Nothing is dropped without need."""
    from metainfer_probe.summary import fit_summary

    report = ProfileReport(notes=("one",), hot=(HotOp(op_type="Conv", node="n" * 90, time_permille=1, provider="P"),))
    assert decode_summary(fit_summary(report)) == report
