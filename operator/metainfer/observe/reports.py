"""From a measuring Job that has ended to its result: a report that can be believed, or a typed failure.

The summary in the termination message is enough; the log's last line only adds detail. Read as soon as the probe
container has ended, whatever the Job says: an injected sidecar may keep the Job alive for ever. Knows no rule of what follows
from a result.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import ValidationError

from metainfer.api.v1alpha1.common import GROUP
from metainfer.decide.facts import Candidate, CheckResult, ContainerState, JobFacts, NodeFacts, PodFacts, ProbeResult, ProfileResult, RunResult
from metainfer.decide.names import CANDIDATE_ANNOTATION, NODE_ANNOTATION, PURPOSE_LABEL, RESOURCES_ANNOTATION, RUN_LABEL
from metainfer.decide.waiting import PATIENCE_SECONDS, find_waiting
from metainfer.kube.errors import ApiError
from metainfer.kube.kinds import POD
from metainfer.observe.failures import PROBE_CONTAINER, SUSPENDED_SECONDS, Remains, find_failure, find_interruption
from metainfer.observe.projections import project_pod
from metainfer.observe.quantities import parse_quantities
from metainfer.observe.told import EventReader, read_told
from metainfer_probe.contract import (
    DETAIL_LIMIT_BYTES,
    SUMMARY_LIMIT_BYTES,
    BenchReport,
    Failure,
    NodeReport,
    ProfileReport,
    Report,
    ReportError,
    ServingConfig,
    decode_line,
    decode_summary,
)  # fmt: skip

AnyResult = ProbeResult | ProfileResult | RunResult | CheckResult
REPORT_KINDS = {"probe": "node", "profile": "profile", "bench": "bench", "check": "bench"}
LOG_LIMIT_BYTES = DETAIL_LIMIT_BYTES + 4 * SUMMARY_LIMIT_BYTES
"""Detail and, uncompressed by defaults, the rest of the report. A longer line is cut, and then counts as lost."""

CUT = "…"
"""Ends words that the probe has cut."""
SHORTEST_END = 32
"""Characters that the probe keeps at least of a long path."""
REPORT_TOO_LARGE = "ReportTooLarge"
TERMINATED = "Terminated"
"""What the probe reports when it was ended from outside: it cannot know why."""


class RemainsReader(EventReader, Protocol):
    """The reads that a result may need; ``KubeClient`` has them."""

    async def pod_log(self, namespace: str, name: str, container: str, *, tail_lines: int, limit_bytes: int) -> str:
        """The end of a container's log."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """What else than the Job decides whether it has ended."""

    now: datetime
    start_seconds: float
    """A Job that started no container for longer than this will not: ``MeasuringLimits.job_start_seconds``."""
    lost_nodes: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a Job ended: a report, or what is left to tell the failure from."""

    finished_at: datetime
    pod: PodFacts | None = None
    report: Report | None = None
    remains: Remains | None = None


def find_lost_nodes(jobs: Sequence[JobFacts], nodes: Sequence[NodeFacts]) -> frozenset[str]:
    """Nodes of Jobs that are gone, or whose kubelet is silent. One that says itself that it is not Ready is restarting, and its pods go on."""
    heard = {node.name for node in nodes if node.conditions.get("Ready") != "Unknown"}
    named = {pod.node for job in jobs for pod in job.pods if pod.node} | {job.annotations.get(NODE_ANNOTATION, "") for job in jobs}
    return frozenset(named - heard - {""})


def find_ending(job: JobFacts, moment: Moment) -> Ending | None:
    """How the Job ended, or None while it may still report. Pure.

    Ended is: the probe container terminated; its pod failed; the Job controller gave up; its node is lost; nothing was started
    within the allowance, or ever will be; or a queue has held it for too long. A suspended Job has not begun.
    """
    pod = _telling_pod(job)
    state = _probe_state(pod)
    remains = Remains(job, pod, state, moment.lost_nodes, altered=find_altered(job, pod))
    if state is not None and state.exit_code is not None:
        return _reported(state, remains, job.finished_at or moment.now)
    failed = pod is not None and pod.phase in ("Failed", "Succeeded")
    lost = pod is not None and pod.node in moment.lost_nodes
    if job.finished or failed or lost or _is_hopeless(job) or _waits_too_long(job, pod, moment):
        return Ending(job.finished_at or moment.now, pod, remains=remains)
    return None


async def look_again(job: JobFacts, ending: Ending, moment: Moment, reader: RemainsReader) -> Ending | None:
    """The ending by the Job's pods as they are on the API server now; None = it has not ended after all.

    The watch of pods may lag behind that of Jobs, and what is recorded once stays: no failure is recorded by hearsay. A report that can be
    believed needs no second look. Raises ApiError.
    """
    if ending.report is not None:
        return ending
    selector = ",".join(f"{key}={value}" for key, value in sorted(job.labels.items()) if key.startswith(f"{GROUP}/"))
    found, _ = await reader.list(POD, namespace=job.namespace, label_selector=selector)
    own = [raw for raw in found if any(owner.get("uid") == job.uid for owner in raw["metadata"].get("ownerReferences") or ())]
    return find_ending(replace(job, pods=tuple(project_pod(raw) for raw in own)), moment)


def _reported(state: ContainerState, remains: Remains, finished_at: datetime) -> Ending:
    """What an ended container left, if it can be believed and is worth more than what the cluster says."""
    finished_at = state.finished_at or finished_at
    try:
        report = _decode(remains.job, state)
    except ReportError as error:
        return Ending(finished_at, remains.pod, remains=replace(remains, report_error=error))
    interrupted = report.failure is not None and report.failure.reason == TERMINATED and find_interruption(remains) is not None
    if remains.altered or interrupted:
        return Ending(finished_at, remains.pod, remains=remains)
    return Ending(finished_at, remains.pod, report=report)


def _telling_pod(job: JobFacts) -> PodFacts | None:
    """Of several pods (a Job should have one) the one that says most: ended containers before failed pods before the youngest."""

    def rank(pod: PodFacts) -> tuple[bool, bool, str]:
        state = _probe_state(pod)
        return (state is not None and state.exit_code is not None, pod.phase == "Failed", pod.created_at.isoformat() if pod.created_at else "")

    return max(job.pods, key=rank, default=None)


def _probe_state(pod: PodFacts | None) -> ContainerState | None:
    return next((state for state in pod.states if state.name == PROBE_CONTAINER), None) if pod is not None else None


def _is_hopeless(job: JobFacts) -> bool:
    """Whether an admission rule refuses the Job's pod: the Job controller asks again in vain until the deadline."""
    waiting = find_waiting(job, job.created_at + timedelta(seconds=PATIENCE_SECONDS)) if job.created_at is not None else None
    return waiting is not None and waiting.reason == "PodRefused"


def _waits_too_long(job: JobFacts, pod: PodFacts | None, moment: Moment) -> bool:
    since = job.started_at or job.created_at  # a queue that lets a Job go sets startTime anew
    allowed_seconds = moment.start_seconds
    if job.suspended:
        since, allowed_seconds = job.suspended_at or job.created_at, SUSPENDED_SECONDS
    if since is None or (pod is not None and pod.phase != "Pending"):
        return False
    return (moment.now - since).total_seconds() > allowed_seconds


def find_altered(job: JobFacts, pod: PodFacts | None) -> str:
    """What of the probe container's resources is not as it was asked for, in words; empty when all is (or nobody knows). Pure.

    Only what was asked for is compared: defaults of a LimitRange reach the target's own pods in the same way.
    """
    container = next((item for item in pod.containers if item.name == PROBE_CONTAINER), None) if pod is not None else None
    try:
        asked: dict[str, dict[str, str]] = json.loads(job.annotations[RESOURCES_ANNOTATION])
        wanted = {kind: parse_quantities(asked.get(kind)) for kind in ("requests", "limits")}
    except (KeyError, ValueError, AttributeError):
        return ""
    if container is None:
        return ""
    have = {"requests": container.requests, "limits": container.limits}
    changed = [(f"{kind}.{name}", amount, have[kind].get(name)) for kind, amounts in wanted.items() for name, amount in amounts.items()]
    return ", ".join(f"{what} {_amount(what, got)} in place of {_amount(what, amount)}" for what, amount, got in changed if got != amount)


def _amount(what: str, quantity: int | None) -> str:
    if quantity is None:
        return "none"
    return f"{quantity}m" if what.endswith(".cpu") else str(quantity)


def _decode(job: JobFacts, state: ContainerState) -> Report:
    if state.exit_code and state.termination_message.strip() and not state.termination_message.lstrip().startswith("{"):
        # The kubelet fills in the end of the log where a failed container left no message of its own.
        raise ReportError("ReportMissing", "the container left no report")
    report = decode_summary(state.termination_message)
    purpose = job.labels.get(PURPOSE_LABEL, "")
    if report.kind != REPORT_KINDS.get(purpose):
        raise ReportError("ReportGarbled", f"a {report.kind} report from a Job with purpose {purpose}")
    return report


async def read_result(job: JobFacts, ending: Ending, reader: RemainsReader, *, detail: bool = True) -> AnyResult | None:
    """The result of an ended Job. None when it is not one of ours after all (no purpose, no candidate).

    ``detail`` False leaves the log alone. Reads that fail cost detail or words, never the result.
    """
    report, failure = ending.report, None
    if report is not None and detail and ending.pod is not None:
        report = await _enrich(report, ending.pod, reader)
    if ending.remains is not None:
        remains = ending.remains
        if remains.pod is None and job.told is None:
            remains = replace(remains, job=replace(job, told=await read_told(job.namespace, job.uid, reader)))
        failure = find_failure(remains)
    return _build_result(job, ending.finished_at, report, failure)


async def _enrich(summary: Report, pod: PodFacts, reader: RemainsReader) -> Report:
    """The log's report where it says the same as the checked summary, and more; else the summary."""
    try:
        text = await reader.pod_log(pod.namespace, pod.name, PROBE_CONTAINER, tail_lines=1, limit_bytes=LOG_LIMIT_BYTES)
        full = decode_line(text.strip())
    except (ApiError, ReportError):
        return summary
    stated = summary.model_dump(mode="json", exclude_defaults=True, exclude={"detail", "notes"})
    if summary.failure is not None and summary.failure.reason == REPORT_TOO_LARGE:
        del stated["failure"]  # it says only that the rest is in the log
    return full if full.kind == summary.kind and _is_part_of(stated, full.model_dump(mode="json")) else summary


def _is_part_of(part: Any, whole: Any) -> bool:
    """Whether ``whole`` says everything that ``part`` says, and ``part`` is at most shortened to fit into a summary.

    Shortened are lists (items left out), words (cut, and marked so) and paths of nodes (their end is kept); figures are not.
    """
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and _is_part_of(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        rest: Iterator[Any] = iter(whole if isinstance(whole, list) else ())
        return all(any(_is_part_of(item, candidate) for candidate in rest) for item in part)
    if isinstance(part, str) and isinstance(whole, str):
        return part == whole or (part.endswith(CUT) and whole.startswith(part[:-1])) or (len(part) >= SHORTEST_END and whole.endswith(part))
    return bool(part == whole)


def _build_result(job: JobFacts, finished_at: datetime, report: Report | None, failure: Failure | None) -> AnyResult | None:
    purpose, node = job.labels.get(PURPOSE_LABEL), job.annotations.get(NODE_ANNOTATION, "")
    run_id = job.labels.get(RUN_LABEL, "")
    if purpose == "probe" and node:
        portrait = report if isinstance(report, NodeReport) else None
        return ProbeResult(job.name, node, finished_at, portrait, failure, job_uid=job.uid)
    if purpose == "profile":
        profile = report if isinstance(report, ProfileReport) else None
        return ProfileResult(job.name, finished_at, profile, failure, node=node, run_id=run_id, job_uid=job.uid)
    candidate = read_candidate(job)
    if purpose not in ("bench", "check") or candidate is None:
        return None
    bench = report if isinstance(report, BenchReport) else None
    kind = CheckResult if purpose == "check" else RunResult
    return kind(job.name, run_id, candidate, node, finished_at, bench, failure, job_uid=job.uid)


def read_candidate(job: JobFacts) -> Candidate | None:
    """The candidate that the Job's annotation names; None when there is none that can be read."""
    try:
        document = json.loads(job.annotations[CANDIDATE_ANNOTATION])
        return Candidate(str(document["pool"]), str(document["family"]), ServingConfig.model_validate(document["config"]))
    except (KeyError, TypeError, ValueError, ValidationError):
        return None
