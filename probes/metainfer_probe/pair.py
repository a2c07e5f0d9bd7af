"""Candidate and reference beside each other in one process: the part of a benchmark that can crash. Runs in a child.

Steps: inputs; candidate opened, its first requests, its peak memory; the same for the reference; answers compared with
fp32; then rounds of one window each, in alternating order, because two windows apart on one node differ by up to a third
while neighbours share the node's mood. What is finished is sent to the parent after every round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from metainfer_probe.assess import Assessment, Requests, assess_answers
from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import Inputs, ProbeError, Session
from metainfer_probe.batching import refuse_batch
from metainfer_probe.contract import BenchRequest, ServingConfig
from metainfer_probe.figures import Run, summarise_pair
from metainfer_probe.inputs import batch_feeds, make_inputs
from metainfer_probe.isolate import send_partial
from metainfer_probe.load import InProcessServer, joins_requests, run_window
from metainfer_probe.memory import peak_resident_bytes, reset_peak
from metainfer_probe.model_file import ModelFile
from metainfer_probe.serving import open_serving_session, prepare_file

CALIBRATION_REQUESTS = 64
GENERATED_REQUESTS = 8
"""Generated requests all have one size; eight keep caches from seeing the same bytes again and again."""
WARM_UP_SECONDS = 0.5
FIRST_PASS_SHARE = 0.15
"""Of the time left: the first pass over the requests ends there, however many there are."""
TRUTH_PROVIDER = "CPUExecutionProvider"
"""Whose fp32 answers are held to be right. Not the candidate's own runtime: some compute nonsense in fp32 on some processors (OpenVINO without
newer instructions: a speech model answered something else, twenty times faster), and a runtime beside itself shows no difference."""
_SILENCE = ProbeError("NoAnswers", "no request was answered")


@dataclass(frozen=True, slots=True)
class PairCall:
    """What the child is asked. ``deadline`` on ``time.monotonic``, which all processes of a machine share."""

    request: BenchRequest
    model: ModelFile
    calibration: Path | None
    workdir: Path
    deadline: float

    def left_seconds(self) -> float:
        """Until the deadline; negative past it."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class Progress:
    """The step under way and the fields of ``BenchReport`` that are known."""

    step: str
    figures: dict[str, object] = field(default_factory=dict)


def prepare_pair(call: PairCall) -> Progress:
    """Make the copies of the file that the two configurations need. Raises ProbeError as ``prepare_file`` does."""
    for role, config in (("candidate", call.request.candidate), ("reference", call.request.reference)):
        with _blaming(role):
            if find_backend(config.execution_provider).file_precision(config.precision) is not None:
                send_partial(Progress(f"making the {role}'s {config.precision} file"))
                prepare_file(call.model.path, config, calibration=_read_inputs(call).samples, workdir=call.workdir)
    return Progress("made the files")


def measure_pair(call: PairCall) -> Progress:
    """The whole measurement; raises ProbeError when either side cannot be opened or answers nothing."""
    send_partial(Progress("reading the inputs"))
    inputs = _read_inputs(call)
    with ExitStack() as stack:
        candidate = _open_side(call, "candidate", inputs, stack)
        same = call.request.candidate == call.request.reference
        reference = candidate if same else _open_side(call, "reference", inputs, stack)
        send_partial(Progress("comparing the answers with fp32"))
        assessment = _assess(call, candidate, reference, inputs)
        known = {"readback": candidate.session.readback(), "peak_memory_bytes": candidate.run.peak_memory_bytes, "accuracy": assessment.accuracy}
        return _Rounds(call, inputs, candidate, reference, assessment).measure(known)


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration at work."""

    role: str
    config: ServingConfig
    session: Session
    server: InProcessServer
    run: Run


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Alternating windows until the request or the deadline is met."""

    call: PairCall
    inputs: Inputs
    candidate: Side
    reference: Side
    assessment: Assessment

    def measure(self, known: dict[str, object]) -> Progress:
        """``known`` are figures of the report that are not about time. Raises ProbeError ``TimedOut`` without any round."""
        pair = [self.candidate] if self.candidate is self.reference else [self.candidate, self.reference]
        figures, finished = known, 0
        while finished < self.call.request.rounds and self.call.left_seconds() > self._expected_seconds(pair):
            send_partial(Progress(f"measuring round {finished + 1}", figures))
            for side in pair if finished % 2 == 0 else reversed(pair):
                self._measure_window(side)
            figures, finished = known | self._summarise(), finished + 1
        if finished == 0:
            raise ProbeError("TimedOut", "no round could be finished before the deadline", retryable=True)
        return Progress("done", figures | {"partial": finished < self.call.request.rounds})

    def _measure_window(self, side: Side) -> None:
        request = self.call.request
        window = run_window(side.server, self.inputs.samples, clients=request.load_clients, seconds=request.window_seconds)
        if window.latencies_us.size == 0:
            raise _blame(side.role, window.first_error or _SILENCE)
        side.run.windows.append(window)

    def _summarise(self) -> dict[str, object]:
        figures = summarise_pair(self.candidate.run, self.reference.run, ragged=self.inputs.ragged)
        per_output = [float(f"{value:.4g}") for value in self.assessment.per_output]
        return figures | {"detail": figures["detail"] | {"difference_per_output": per_output, "notes": list(self.inputs.notes)}}  # type: ignore[operator]

    def _expected_seconds(self, pair: list[Side]) -> float:
        last = [side.run.windows[-1].seconds if side.run.windows else self.call.request.window_seconds for side in pair]
        return sum(max(self.call.request.window_seconds, seconds) for seconds in last)


def _read_inputs(call: PairCall) -> Inputs:
    count = CALIBRATION_REQUESTS if call.calibration else GENERATED_REQUESTS
    inputs = make_inputs(call.model, find_backend(call.request.candidate.execution_provider), call.calibration, count)
    if joins_requests(call.request.candidate):
        refused = refuse_batch(call.model, inputs)
        if refused is not None:
            raise ProbeError(refused.reason, refused.message)
    return inputs


def _open_side(call: PairCall, role: str, inputs: Inputs, stack: ExitStack) -> Side:
    send_partial(Progress(f"opening the {role}"))
    config = call.request.candidate if role == "candidate" else call.request.reference
    reset_peak()
    with _blaming(role):
        session = open_serving_session(call.model.path, config, calibration=inputs.samples, workdir=call.workdir, threads=call.request.threads)
        stack.callback(session.close)
        server = stack.enter_context(InProcessServer(session, config, batch_feeds))
        send_partial(Progress(f"running the {role}'s first requests"))
        clients, seconds = call.request.load_clients, max(0.0, call.left_seconds() * FIRST_PASS_SHARE)
        first_pass = run_window(server, inputs.samples, clients=clients, seconds=seconds, limit=len(inputs.samples))
        if first_pass.errors:
            raise _explain_error(session, config, inputs, first_pass.first_error or _SILENCE)
        if not inputs.ragged:  # else every new width is a first one for the server as well, and stays in the figures
            run_window(server, inputs.samples, clients=clients, seconds=min(WARM_UP_SECONDS, seconds))
    return Side(role, config, session, server, Run(first_pass, peak_resident_bytes()))


def _assess(call: PairCall, candidate: Side, reference: Side, inputs: Inputs) -> Assessment:
    """Against fp32 on ONNX Runtime's CPU provider: the reference where it is that, else a session of its own."""
    config = candidate.config
    requests = Requests(call.model, inputs, config.batch_size if joins_requests(config) else 1)
    with ExitStack() as stack:
        truth = reference.session
        if (reference.config.execution_provider, reference.config.precision) != (TRUTH_PROVIDER, "fp32"):
            truth = _open_truth(call, config)
            stack.callback(truth.close)
        return assess_answers(truth, candidate.session, requests, call.left_seconds())


def _open_truth(call: PairCall, config: ServingConfig) -> Session:
    """On the candidate's own runtime only where the CPU provider cannot read the model."""

    def open_on(provider: str) -> Session:
        plain = ServingConfig(execution_provider=provider)
        return open_serving_session(call.model.path, plain, calibration=None, workdir=call.workdir, threads=call.request.threads)

    try:
        return open_on(TRUTH_PROVIDER)
    except ProbeError:
        return open_on(config.execution_provider)


def _explain_error(session: Session, config: ServingConfig, inputs: Inputs, error: ProbeError) -> ProbeError:
    """A refused request: whether only joined requests are refused is the first thing to know about it."""
    if not joins_requests(config):
        return error
    try:
        session.run(inputs.samples[0])
    except ProbeError:
        return error
    return ProbeError("BatchUnsupported", f"joined requests fail where single ones run: {error.message}")


@contextmanager
def _blaming(role: str) -> Iterator[None]:
    """Errors of the reference say so: the candidate may be fine."""
    try:
        yield
    except ProbeError as error:
        raise _blame(role, error) from error


def _blame(role: str, error: ProbeError) -> ProbeError:
    if role == "candidate":
        return error
    return ProbeError("ReferenceFailed", f"the current configuration cannot be measured: {error.reason}: {error.message}", retryable=error.retryable)
