"""What a measuring Job is asked and what it answers.

The only file that operator and probe image share; it needs nothing but pydantic. A request travels as one JSON
argument (``--request``). A report travels twice: *summary* (the report without ``detail``) with a checksum in the
container's termination message, at most ``SUMMARY_LIMIT_BYTES`` long and enough to decide; the whole report as the last line
of standard output, behind ``REPORT_PREFIX``. A lost log costs detail, never the result.

Units are in the names. ``_permille`` and ``_ppm`` are parts of one (1000 permille = 1.0).
"""

# budget: one file by design, the only one that operator and probe image share
from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

CONTRACT_VERSION = 1
REPORT_PREFIX = "metainfer-report "
SUMMARY_LIMIT_BYTES = 3072
"""Kubernetes cuts a termination message at 4096 bytes per container; injected sidecars share 12 KiB per pod."""
DETAIL_LIMIT_BYTES = 1 << 20
EXIT_MEASURED = 0
EXIT_FAILED_WITH_REASON = 3
"""The report was written and carries ``failure``: a retry of the same input cannot help unless ``failure.retryable``."""

Precision = Literal["fp32", "bf16", "fp16", "int8"]
OpClass = Literal["matmul", "convolution", "attention", "elementwise", "recurrent", "layout", "other"]
MatmulShape = Literal["tiny", "gemv", "m32", "m256", "big"]
ProbePurpose = Literal["portrait", "calibration"]
"""A calibration is a short probe of a card that has a portrait, made to find out whether its family still does what it did."""

NESTING_LIMIT = 32
"""Levels of a report; its own are 8. Deeper ones would end the reader's stack, not its patience."""
INTEGER_LIMIT = (1 << 63) - 1
"""What the API server, PostgreSQL and SQLite can hold."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text without what would move a terminal's cursor, turn its direction, or not fit into a database."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


CleanText = Annotated[str, AfterValidator(clean_text)]
ShortText = Annotated[CleanText, Field(max_length=512)]
ProviderName = Annotated[CleanText, Field(max_length=64)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
Count = Annotated[int, Field(ge=0, le=INTEGER_LIMIT)]
Micros = Annotated[float, Field(ge=0, le=1e12)]
"""Microseconds: less than 12 days."""
Rate = Annotated[float, Field(ge=0, le=1e12)]


class ContractModel(BaseModel):
    """Frozen; unknown fields are refused, because a newer contract has a newer version number. NaN and infinity are no figures."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServingConfig(ContractModel):
    """The knobs of one server. ``concurrency`` is its in-flight limit (parallel executions), not the load."""

    execution_provider: str = Field(max_length=64)
    """ONNX Runtime's name of the provider; ``OpenVINOExecutionProvider`` is served by native OpenVINO."""
    precision: Precision = "fp32"
    batch_size: int = Field(default=1, ge=1, le=1024)
    concurrency: int = Field(default=1, ge=1, le=256)
    dynamic_batching: bool = False
    """Join waiting requests along axis 0, up to ``batch_size``, waiting at most ``max_batch_delay_us``."""
    max_batch_delay_us: int = Field(default=0, ge=0, le=10_000_000)


class ModelSource(ContractModel):
    """Exactly one of a path below the mounted volume, or a URL; ``sha256`` (hex) pins the content when known."""

    path: str | None = Field(default=None, max_length=2048)
    url: str | None = Field(default=None, max_length=2048)
    sha256: str | None = Field(default=None, max_length=64)
    max_bytes: int = Field(default=16 << 30, ge=1)


class NodeRequest(ContractModel):
    """Hardware portrait of one card. ``providers`` that the image lacks are reported, not fatal."""

    kind: Literal["node"] = "node"
    providers: tuple[str, ...]
    duration_seconds: float = Field(default=30.0, gt=0, le=600)
    threads: int = Field(default=1, ge=1, le=1024)
    purpose: ProbePurpose = "portrait"


class RefusedModel(ContractModel):
    """A file that was tried before and cannot be profiled, by ``ProfileReport.digest``."""

    digest: str = Field(min_length=1, max_length=64)
    failure: Failure


class ProfileRequest(ContractModel):
    """Model portrait: static reading, one short profile per provider, batch and concurrency curve, determinism."""

    kind: Literal["profile"] = "profile"
    model: ModelSource
    providers: tuple[str, ...]
    precisions: tuple[Precision, ...] = ("fp32",)
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    calibration: ModelSource | None = None
    """``.npz`` with one array per ``INPUT/INDEX`` (ragged sizes allowed)."""
    budget_seconds: float = Field(default=120.0, gt=0, le=3600)
    threads: int = Field(default=1, ge=1, le=1024)
    memory_limit_bytes: int = Field(default=0, ge=0)
    """0 = the cgroup's own limit."""
    refused: RefusedModel | None = None
    """When the file is still this one, its failure is the answer and nothing is tried again."""


class BenchRequest(ContractModel):
    """One candidate, alternating with a fixed reference on the same card."""

    kind: Literal["bench"] = "bench"
    model: ModelSource
    candidate: ServingConfig
    reference: ServingConfig
    load_clients: int = Field(default=4, ge=1, le=1024)
    calibration: ModelSource | None = None
    accuracy_metric: Literal["RelativeL2"] = "RelativeL2"
    rounds: int = Field(default=7, ge=1, le=1000)
    window_seconds: float = Field(default=1.5, gt=0, le=600)
    deadline_seconds: float = Field(default=120.0, gt=0, le=3600)
    threads: int = Field(default=1, ge=1, le=1024)


Request = NodeRequest | ProfileRequest | BenchRequest


class Failure(ContractModel):
    """Why a measurement ended without a result: a PascalCase reason and a sentence that names the thing."""

    reason: str = Field(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")
    message: ShortText
    retryable: bool = False


class MicroProbe(ContractModel):
    """The 2 s look at the card that opens every measurement; the divisor that makes runs comparable.

    A fixed fp32 GEMM and a fixed copy on plain numpy/BLAS or the card's own library: never through the model's runtime path.
    """

    gflops: Rate
    bandwidth_gigabytes_per_second: Rate
    spread_permille: Count
    """Interquartile range of the repeated GEMM times, relative to their median."""


class Card(ContractModel):
    """An accelerator, as its vendor's management library describes it; what it does not tell is None or empty."""

    name: CleanText = Field(max_length=128)
    uuid: CleanText = Field(default="", max_length=96)
    pci_bus_id: CleanText = Field(default="", max_length=32)
    driver_version: CleanText = Field(default="", max_length=64)
    memory_bytes: Count = 0
    memory_used_bytes: Count | None = None
    sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None
    power_watts: Count | None = None
    power_limit_watts: Count | None = None
    temperature_celsius: int | None = Field(default=None, ge=-273, le=INTEGER_LIMIT)
    throttle_reasons: tuple[Annotated[CleanText, Field(max_length=64)], ...] = Field(default=(), max_length=32)
    is_ecc_on: bool | None = None
    uncorrected_errors: Count | None = None
    """Memory errors since the driver was loaded that ECC could not correct."""
    is_mig_on: bool | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    nvlinks: Count = 0
    """Active links to other cards."""
    utilization_permille: Count | None = None


class Machine(ContractModel):
    """What the probe saw of the machine. ``load_permille`` is the share of its processors that others used meanwhile."""

    card_model: CleanText = Field(max_length=128)
    architecture: CleanText = Field(max_length=32)
    kernel: CleanText = Field(max_length=128)
    cores: int = Field(ge=1, le=INTEGER_LIMIT)
    memory_bytes: Count
    load_permille: Count
    clock_mhz: Count | None = None
    temperature_celsius: int | None = Field(default=None, ge=-273, le=INTEGER_LIMIT)
    power_watts: Count | None = None
    throttled_permille: Count = 0
    """Share of the measured time in which the processor or card was held back (CPU quota, heat, power)."""
    throttle_reasons: tuple[Annotated[CleanText, Field(max_length=64)], ...] = Field(default=(), max_length=32)
    card: Card | None = None
    """The accelerator, where the measured one is not the processor."""


class ProviderFigures(ContractModel):
    """One provider at one precision on this card, one thread per card."""

    provider: ProviderName
    runtime_version: CleanText = Field(max_length=64)
    precision: Precision
    matmul_gflops: dict[MatmulShape, Rate]
    """2·M·N·K / time through the provider itself, for the shapes of ``node.MATMUL_SHAPES``."""
    launch_p50_us: Micros
    """Idle latency of a one-node graph, host side included."""
    launch_p99_us: Micros
    compile_ms: Micros
    effective_precision: Precision
    """Read back from the runtime; a precision that is emulated reports what it ran in."""


class ProviderProblem(ContractModel):
    """A provider (at a precision, when named) that could not be measured, and why."""

    provider: ProviderName
    precision: Precision | None = None
    failure: Failure


class NodeReport(ContractModel):
    """The portrait of one card."""

    kind: Literal["node"] = "node"
    contract_version: int = CONTRACT_VERSION
    machine: Machine | None = None
    micro: MicroProbe | None = None
    bandwidth_gigabytes_per_second: dict[Literal["l2", "l3", "main"], Rate] = {}
    figures: tuple[ProviderFigures, ...] = Field(default=(), max_length=32)
    problems: tuple[ProviderProblem, ...] = Field(default=(), max_length=256)
    measured_seconds: Rate = 0.0
    purpose: ProbePurpose = "portrait"
    failure: Failure | None = None
    detail: dict[str, object] = {}


class TensorSpec(ContractModel):
    """One true input or output (initialisers listed as inputs are not inputs); a free dimension is -1."""

    name: Annotated[str, Field(max_length=512)]
    """As it is in the file: sessions are fed by it."""
    dtype: CleanText = Field(max_length=32)
    shape: tuple[Annotated[int, Field(ge=-1, le=INTEGER_LIMIT)], ...] | None = Field(max_length=512)
    """None when the rank is unknown."""


class OpWork(ContractModel):
    """Work of one operator class in one forward pass at batch 1."""

    op_class: OpClass
    count: Count
    macs: Count
    bytes_moved: Count
    """Activations read and written plus parameters read."""
    time_permille: Count


class HotOp(ContractModel):
    """One of the five operators that take most of the time, and where it really ran."""

    op_type: CleanText = Field(max_length=64)
    node: CleanText = Field(max_length=96)
    time_permille: Count
    provider: ProviderName


class CurvePoint(ContractModel):
    """Per-call latency of one session at one batch size (and that many parallel callers)."""

    batch_size: int = Field(ge=1, le=1 << 20)
    concurrency: int = Field(default=1, ge=1, le=1 << 20)
    p50_us: Micros
    p99_us: Micros
    mean_us: Micros
    """What throughput follows from: parallel callers under a CPU quota are bimodal, and their median says nothing."""


class PrecisionSupport(ContractModel):
    """Whether this runtime can make and run this precision of this model, natively on this card."""

    precision: Precision
    native: bool
    failure: Failure | None = None


class ProviderProfile(ContractModel):
    """The model on one provider. ``failure`` set: this provider cannot run it; others may."""

    provider: ProviderName
    failure: Failure | None = None
    coverage_permille: Count = 0
    """Share of kernel time that ran on this provider (of node count where the runtime gives no times)."""
    assigned_nodes: Count = 0
    precisions: tuple[PrecisionSupport, ...] = Field(default=(), max_length=16)
    curve: tuple[CurvePoint, ...] = Field(default=(), max_length=256)
    batch_failure: Failure | None = None
    """Why batch > 1 (and so dynamic batching) is impossible or gives other answers than single requests."""
    self_difference_ppm: Count = 0
    """Relative L2 between two runs on the same input: a model that is not deterministic cannot be gated tighter."""
    load_ms: Micros = 0.0
    peak_memory_bytes: Count = 0


class ProfileReport(ContractModel):
    """The portrait of one model file."""

    kind: Literal["profile"] = "profile"
    contract_version: int = CONTRACT_VERSION
    digest: Digest = ""
    """sha256 hex of the model file followed by its external data files in name order."""
    file_bytes: Count = 0
    weight_bytes: Count = 0
    """Parameters including external data, at the file's own precision."""
    parameters: Count = 0
    nodes: Count = 0
    ir_version: Count = 0
    opset: Count = 0
    architecture: Literal["cnn", "transformer", "recurrent", "mixed", "other"] = "other"
    stored_precision: Precision = "fp32"
    """``int8`` when the file is already quantised, ``fp16`` when its weights are."""
    inputs: tuple[TensorSpec, ...] = Field(default=(), max_length=64)
    outputs: tuple[TensorSpec, ...] = Field(default=(), max_length=64)
    work: tuple[OpWork, ...] = Field(default=(), max_length=64)
    hot: tuple[HotOp, ...] = Field(default=(), max_length=64)
    activation_bytes_per_sample: Count = 0
    bound: Literal["compute", "memory", "launch", "unknown"] = "unknown"
    providers: tuple[ProviderProfile, ...] = Field(default=(), max_length=32)
    inputs_source: Literal["calibration", "generated", "zeros"] = "generated"
    """``zeros``: generated values were outside a table of the model, so only 0 and 1 were used."""
    ragged_inputs: bool = False
    """Calibration samples differ in a dimension other than the batch: joining requests would need padding."""
    notes: tuple[ShortText, ...] = Field(default=(), max_length=64)
    micro: MicroProbe | None = None
    failure: Failure | None = None
    detail: dict[str, object] = {}


class Measured(ContractModel):
    """Closed-loop load of ``load_clients`` requests in flight, all windows together."""

    requests: Count
    errors: Count
    seconds: Rate
    mean_us: Micros
    p50_us: Micros
    p99_us: Micros
    throughput_per_second: Rate
    mean_batch: Rate
    """Samples per execution that were really formed."""


class Accuracy(ContractModel):
    """Difference of the candidate's answers to fp32's on the same inputs, at the batch that will serve."""

    metric: Literal["RelativeL2"]
    difference_ppm: Count
    self_difference_ppm: Count
    """fp32 against itself."""
    batch_difference_ppm: Count
    """fp32 batched against fp32 single: not zero where joining requests along axis 0 changes answers."""
    inputs: Literal["calibration", "generated"]
    samples: Count
    invalid_values: bool
    """NaN or Inf where the reference has none."""


class Readback(ContractModel):
    """What the session says it really runs."""

    provider: ProviderName
    precision: Precision
    coverage_permille: Count
    assigned_nodes: Count


class BenchReport(ContractModel):
    """One candidate, really run. ``partial``: the deadline came first, figures are of the windows that finished."""

    kind: Literal["bench"] = "bench"
    contract_version: int = CONTRACT_VERSION
    digest: Digest = ""
    config: ServingConfig | None = None
    load_clients: Count = 0
    candidate: Measured | None = None
    reference: Measured | None = None
    rounds: Count = 0
    latency_ratio_permille: Count = 0
    """Median over rounds of the candidate's mean latency over the reference's (under the same load; < 1000 is faster)."""
    latency_ratio_spread_permille: Count = 0
    """Interquartile range of that ratio over rounds, relative to its median."""
    accuracy: Accuracy | None = None
    readback: Readback | None = None
    first_pass_us: Micros = 0.0
    """First request of each new shape, mean: what a cold server pays."""
    peak_memory_bytes: Count = 0
    micro: MicroProbe | None = None
    driver_version: CleanText = Field(default="", max_length=64)
    """As the card's own library tells it; empty where there is none to ask."""
    partial: bool = False
    failure: Failure | None = None
    detail: dict[str, object] = {}


Report = NodeReport | ProfileReport | BenchReport
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="kind")])
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


class ReportError(ValueError):
    """A report that cannot be believed: missing, truncated, wrong checksum, another contract version."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def decode_request(text: str) -> Request:
    """Parse a ``--request`` argument; raises pydantic's ValidationError naming the field."""
    return _REQUEST.validate_json(text)


def encode_summary(report: Report) -> str:
    """The termination message: report without detail, compact, with version and checksum.

    Raises ReportError ``ReportTooLarge`` past ``SUMMARY_LIMIT_BYTES``.
    """
    body = report.model_copy(update={"detail": {}}).model_dump_json(exclude_defaults=True)
    body = json.dumps(json.loads(body) | {"kind": report.kind}, separators=(",", ":"), sort_keys=True)
    text = json.dumps({"v": CONTRACT_VERSION, "sha": _checksum(body), "body": json.loads(body)}, separators=(",", ":"), sort_keys=True)
    if len(text.encode()) > SUMMARY_LIMIT_BYTES:
        raise ReportError("ReportTooLarge", f"summary of {len(text.encode())} bytes, limit {SUMMARY_LIMIT_BYTES}")
    return text


def decode_summary(text: str) -> Report:
    """Parse and verify a termination message.

    Raises ReportError with reason ``ReportMissing``, ``ReportGarbled``, ``ReportVersion`` or ``ReportChecksum``.
    """
    if not text.strip():
        raise ReportError("ReportMissing", "the container left no termination message")
    try:
        envelope = _parse(text)
        version, checksum, body = envelope["v"], envelope["sha"], envelope["body"]  # type: ignore[index]  # another document is a TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError("ReportGarbled", f"termination message of {len(text)} characters is not a report") from error
    if version != CONTRACT_VERSION:
        raise ReportError("ReportVersion", f"report of contract version {str(version)[:32]}, this operator reads {CONTRACT_VERSION}")
    if checksum != _checksum(json.dumps(body, separators=(",", ":"), sort_keys=True)):
        raise ReportError("ReportChecksum", "checksum of the report does not match: it was truncated or altered")
    return _validate(body)


def encode_line(report: Report) -> str:
    """The last line of standard output: the whole report."""
    return REPORT_PREFIX + report.model_dump_json(exclude_defaults=False)


def decode_line(line: str) -> Report:
    """Parse a line made by ``encode_line``; raises ReportError ``ReportMissing`` or ``ReportGarbled``."""
    if not line.startswith(REPORT_PREFIX):
        raise ReportError("ReportMissing", "the last line of the log is not a report")
    try:
        body = _parse(line[len(REPORT_PREFIX) :])
    except ValueError as error:
        raise ReportError("ReportGarbled", "the last line of the log is cut off, or is no JSON that a report can be") from error
    return _validate(body)


def _validate(body: object) -> Report:
    try:
        return _REPORT.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError("ReportGarbled", clean_text(f"report does not match the contract: {where[:128]} {first['msg'][:128]}")) from error


def _parse(text: str) -> object:
    """JSON of bounded depth, with numbers and text that every reader can hold. Raises ValueError."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        msg = "nested too deeply"
        raise ValueError(msg) from error
    _refuse_extremes(document, NESTING_LIMIT)
    return document


def _refuse_extremes(value: object, levels_left: int) -> None:
    """Also in ``detail``, which no schema bounds: it is stored, and what cannot be stored would be tried again for ever."""
    if isinstance(value, (dict, list)) and levels_left > 0:
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            _refuse_extremes(item, levels_left - 1)
    elif not _is_ordinary(value):
        msg = f"{type(value).__name__} beyond all bounds"
        raise ValueError(msg)


def _is_ordinary(value: object) -> bool:
    """Of a leaf: a number or text that can be stored. Lists and objects are none."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= INTEGER_LIMIT
    return value is None or (isinstance(value, str) and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
