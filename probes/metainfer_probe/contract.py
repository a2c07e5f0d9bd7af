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
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

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
ShortText = Annotated[str, Field(max_length=512)]


class ContractModel(BaseModel):
    """Frozen; unknown fields are refused, because a newer contract has a newer version number."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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

    path: str | None = Field(default=None, max_length=1024)
    url: str | None = Field(default=None, max_length=2048)
    sha256: str | None = Field(default=None, max_length=64)
    max_bytes: int = Field(default=16 << 30, ge=1)


class NodeRequest(ContractModel):
    """Hardware portrait of one card. ``providers`` that the image lacks are reported, not fatal."""

    kind: Literal["node"] = "node"
    providers: tuple[str, ...]
    duration_seconds: float = Field(default=30.0, gt=0, le=600)
    threads: int = Field(default=1, ge=1, le=1024)


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

    gflops: float = Field(ge=0)
    bandwidth_gigabytes_per_second: float = Field(ge=0)
    spread_permille: int = Field(ge=0)
    """Interquartile range of the repeated GEMM times, relative to their median."""


class Card(ContractModel):
    """An accelerator, as its vendor's management library describes it; what it does not tell is None or empty."""

    name: str = Field(max_length=128)
    uuid: str = Field(default="", max_length=96)
    pci_bus_id: str = Field(default="", max_length=32)
    driver_version: str = Field(default="", max_length=64)
    memory_bytes: int = Field(default=0, ge=0)
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: int | None = None
    power_limit_watts: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    is_ecc_on: bool | None = None
    uncorrected_errors: int | None = None
    """Memory errors since the driver was loaded that ECC could not correct."""
    is_mig_on: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int = 0
    """Active links to other cards."""
    utilization_permille: int | None = None


class Machine(ContractModel):
    """What the probe saw of the machine. ``load_permille`` is the share of its processors that others used meanwhile."""

    card_model: str = Field(max_length=128)
    architecture: str = Field(max_length=32)
    kernel: str = Field(max_length=128)
    cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)
    load_permille: int = Field(ge=0)
    clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: int | None = None
    throttled_permille: int = Field(default=0, ge=0)
    """Share of the measured time in which the processor or card was held back (CPU quota, heat, power)."""
    throttle_reasons: tuple[Annotated[str, Field(max_length=64)], ...] = ()
    card: Card | None = None
    """The accelerator, where the measured one is not the processor."""


class ProviderFigures(ContractModel):
    """One provider at one precision on this card, one thread per card."""

    provider: str
    runtime_version: str = Field(max_length=64)
    precision: Precision
    matmul_gflops: dict[MatmulShape, float]
    """2·M·N·K / time through the provider itself, for the shapes of ``node.MATMUL_SHAPES``."""
    launch_p50_us: float = Field(ge=0)
    """Idle latency of a one-node graph, host side included."""
    launch_p99_us: float = Field(ge=0)
    compile_ms: float = Field(ge=0)
    effective_precision: Precision
    """Read back from the runtime; a precision that is emulated reports what it ran in."""


class ProviderProblem(ContractModel):
    """A provider (at a precision, when named) that could not be measured, and why."""

    provider: str
    precision: Precision | None = None
    failure: Failure


class NodeReport(ContractModel):
    """The portrait of one card."""

    kind: Literal["node"] = "node"
    contract_version: int = CONTRACT_VERSION
    machine: Machine | None = None
    micro: MicroProbe | None = None
    bandwidth_gigabytes_per_second: dict[Literal["l2", "l3", "main"], float] = {}
    figures: tuple[ProviderFigures, ...] = ()
    problems: tuple[ProviderProblem, ...] = ()
    measured_seconds: float = 0.0
    failure: Failure | None = None
    detail: dict[str, object] = {}


class TensorSpec(ContractModel):
    """One true input or output (initialisers listed as inputs are not inputs); a free dimension is -1."""

    name: ShortText
    dtype: str = Field(max_length=32)
    shape: tuple[int, ...] | None
    """None when the rank is unknown."""


class OpWork(ContractModel):
    """Work of one operator class in one forward pass at batch 1."""

    op_class: OpClass
    count: int
    macs: int
    bytes_moved: int
    """Activations read and written plus parameters read."""
    time_permille: int


class HotOp(ContractModel):
    """One of the five operators that take most of the time, and where it really ran."""

    op_type: str = Field(max_length=64)
    node: Annotated[str, Field(max_length=96)]
    time_permille: int
    provider: str = Field(max_length=64)


class CurvePoint(ContractModel):
    """Per-call latency of one session at one batch size (and that many parallel callers)."""

    batch_size: int
    concurrency: int = 1
    p50_us: float
    p99_us: float
    mean_us: float
    """What throughput follows from: parallel callers under a CPU quota are bimodal, and their median says nothing."""


class PrecisionSupport(ContractModel):
    """Whether this runtime can make and run this precision of this model, natively on this card."""

    precision: Precision
    native: bool
    failure: Failure | None = None


class ProviderProfile(ContractModel):
    """The model on one provider. ``failure`` set: this provider cannot run it; others may."""

    provider: str
    failure: Failure | None = None
    coverage_permille: int = 0
    """Share of kernel time that ran on this provider (of node count where the runtime gives no times)."""
    assigned_nodes: int = 0
    precisions: tuple[PrecisionSupport, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    batch_failure: Failure | None = None
    """Why batch > 1 (and so dynamic batching) is impossible or gives other answers than single requests."""
    self_difference_ppm: int = 0
    """Relative L2 between two runs on the same input: a model that is not deterministic cannot be gated tighter."""
    load_ms: float = 0.0
    peak_memory_bytes: int = 0


class ProfileReport(ContractModel):
    """The portrait of one model file."""

    kind: Literal["profile"] = "profile"
    contract_version: int = CONTRACT_VERSION
    digest: str = ""
    """sha256 hex of the model file followed by its external data files in name order."""
    file_bytes: int = 0
    weight_bytes: int = 0
    """Parameters including external data, at the file's own precision."""
    parameters: int = 0
    nodes: int = 0
    ir_version: int = 0
    opset: int = 0
    architecture: Literal["cnn", "transformer", "recurrent", "mixed", "other"] = "other"
    stored_precision: Precision = "fp32"
    """``int8`` when the file is already quantised, ``fp16`` when its weights are."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    work: tuple[OpWork, ...] = ()
    hot: tuple[HotOp, ...] = ()
    activation_bytes_per_sample: int = 0
    bound: Literal["compute", "memory", "launch", "unknown"] = "unknown"
    providers: tuple[ProviderProfile, ...] = ()
    inputs_source: Literal["calibration", "generated", "zeros"] = "generated"
    """``zeros``: generated values were outside a table of the model, so only 0 and 1 were used."""
    ragged_inputs: bool = False
    """Calibration samples differ in a dimension other than the batch: joining requests would need padding."""
    notes: tuple[ShortText, ...] = ()
    micro: MicroProbe | None = None
    failure: Failure | None = None
    detail: dict[str, object] = {}


class Measured(ContractModel):
    """Closed-loop load of ``load_clients`` requests in flight, all windows together."""

    requests: int
    errors: int
    seconds: float
    mean_us: float
    p50_us: float
    p99_us: float
    throughput_per_second: float
    mean_batch: float
    """Samples per execution that were really formed."""


class Accuracy(ContractModel):
    """Difference of the candidate's answers to fp32's on the same inputs, at the batch that will serve."""

    metric: Literal["RelativeL2"]
    difference_ppm: int
    self_difference_ppm: int
    """fp32 against itself."""
    batch_difference_ppm: int
    """fp32 batched against fp32 single: not zero where joining requests along axis 0 changes answers."""
    inputs: Literal["calibration", "generated"]
    samples: int
    invalid_values: bool
    """NaN or Inf where the reference has none."""


class Readback(ContractModel):
    """What the session says it really runs."""

    provider: str
    precision: Precision
    coverage_permille: int
    assigned_nodes: int


class BenchReport(ContractModel):
    """One candidate, really run. ``partial``: the deadline came first, figures are of the windows that finished."""

    kind: Literal["bench"] = "bench"
    contract_version: int = CONTRACT_VERSION
    digest: str = ""
    config: ServingConfig | None = None
    load_clients: int = 0
    candidate: Measured | None = None
    reference: Measured | None = None
    rounds: int = 0
    latency_ratio_permille: int = 0
    """Median over rounds of the candidate's mean latency over the reference's (under the same load; < 1000 is faster)."""
    latency_ratio_spread_permille: int = 0
    """Interquartile range of that ratio over rounds, relative to its median."""
    accuracy: Accuracy | None = None
    readback: Readback | None = None
    first_pass_us: float = 0.0
    """First request of each new shape, mean: what a cold server pays."""
    peak_memory_bytes: int = 0
    micro: MicroProbe | None = None
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
        envelope = json.loads(text)
        version, checksum, body = envelope["v"], envelope["sha"], envelope["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError("ReportGarbled", f"termination message of {len(text)} characters is not a report") from error
    if version != CONTRACT_VERSION:
        raise ReportError("ReportVersion", f"report of contract version {version}, this operator reads {CONTRACT_VERSION}")
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
        body = json.loads(line[len(REPORT_PREFIX) :])
    except ValueError as error:
        raise ReportError("ReportGarbled", "the last line of the log is cut off") from error
    return _validate(body)


def _validate(body: object) -> Report:
    try:
        return _REPORT.validate_python(body)
    except ValidationError as error:
        raise ReportError("ReportGarbled", f"report does not match the contract: {error.errors()[0]['loc']} {error.errors()[0]['msg']}") from error


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
