"""Why a measuring Job left no report, as one typed reason each. Pure: looks only at what Job and pods left behind.

Rules are ordered from the most telling remains (the kubelet's words) to the least (nothing is left); the first hit wins.
``retryable`` says whether the same Job can succeed later without anybody changing anything; how often and when is for ``decide``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from metainfer.decide.facts import ContainerState, JobFacts, PodFacts
from metainfer_probe.contract import Failure, ReportError

PROBE_CONTAINER = "probe"
MESSAGE_LIMIT = 512

_PULL_FAILED = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_CREATE_FAILED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_START_FAILED = ("StartError", "ContainerCannotRun")
_CARD_REFUSED = ("UnexpectedAdmissionError", "TopologyAffinityError")
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")


@dataclass(frozen=True, slots=True)
class Remains:
    """What a Job left behind."""

    job: JobFacts
    pod: PodFacts | None = None
    state: ContainerState | None = None
    """Of the probe container."""
    lost_nodes: Collection[str] = ()
    """Nodes that are gone or silent."""
    refusal: str = ""
    """What the Job controller was told when it could not create the pod."""
    report_error: ReportError | None = None
    """Why the termination message is no report."""

    @property
    def where(self) -> str:
        """Job and node, for messages."""
        node = self.pod.node if self.pod is not None and self.pod.node else None
        return f"Job {self.job.name} on node {node}" if node else f"Job {self.job.name}"


Rule = Callable[[Remains], Failure | None]


def find_failure(remains: Remains) -> Failure:
    """The first rule that recognises the remains. Pure."""
    for rule in RULES:
        failure = rule(remains)
        if failure is not None:
            return failure
    return _failure("PodDisappeared", f"{remains.where}: its pod is gone and left no report", retryable=True)


def _failure(reason: str, message: str, *, retryable: bool) -> Failure:
    return Failure(reason=reason, message=message[:MESSAGE_LIMIT], retryable=retryable)


def image_not_pulled(remains: Remains) -> Failure | None:
    """The kubelet could not get the image. A name that is no image name stays so; a registry may come back."""
    state = remains.state
    if state is None or state.waiting_reason not in _PULL_FAILED:
        return None
    words = state.waiting_message or state.waiting_reason
    return _failure("ImagePullFailed", f"{remains.where}: {words}", retryable=state.waiting_reason != "InvalidImageName")


def container_not_started(remains: Remains) -> Failure | None:
    """The runtime could not start the program: wrong architecture, missing file, refused security setting."""
    state = remains.state
    if state is None:
        return None
    if state.terminated_reason in _START_FAILED:
        return _failure("StartFailed", f"{remains.where}: {state.termination_message or state.terminated_reason}", retryable=False)
    if state.waiting_reason in _CREATE_FAILED:
        return _failure("StartFailed", f"{remains.where}: {state.waiting_message or state.waiting_reason}", retryable=False)
    return None


def out_of_memory(remains: Remains) -> Failure | None:
    """The kernel killed it at its memory limit: the same limit kills it again."""
    state = remains.state
    if state is None or state.terminated_reason != "OOMKilled":
        return None
    return _failure(
        "OutOfMemory", f"{remains.where} was killed at its memory limit{_memory_limit(remains.pod)}: give the target's container more", retryable=False
    )


def _memory_limit(pod: PodFacts | None) -> str:
    limits = [item.limits.get("memory", 0) for item in pod.containers if item.name == PROBE_CONTAINER] if pod else []
    return f" of {limits[0] >> 20} MiB" if limits and limits[0] else ""


def evicted(remains: Remains) -> Failure | None:
    """The node ran short of something. Not by itself again: the measurement may have been what filled the node."""
    pod = remains.pod
    if pod is None or pod.reason != "Evicted":
        return None
    return _failure("Evicted", f"{remains.where}: {pod.message or 'evicted by the kubelet'}", retryable=False)


def card_refused(remains: Remains) -> Failure | None:
    """The kubelet or the device plugin would not hand out what the scheduler had promised."""
    pod = remains.pod
    if pod is None or not (pod.reason in _CARD_REFUSED or pod.reason.startswith("OutOf")):
        return None
    return _failure("CardRefused", f"{remains.where}: {pod.reason}: {pod.message}", retryable=True)


def node_lost(remains: Remains) -> Failure | None:
    """The node went away under the pod."""
    pod = remains.pod
    node = (pod.node if pod else None) or remains.job.annotations.get("metainfer.dev/node", "")
    gone = node in remains.lost_nodes
    if not (gone or (pod is not None and (pod.reason == "NodeLost" or pod.disruption in _NODE_GONE))):
        return None
    return _failure("NodeLost", f"Job {remains.job.name}: node {node} was lost while it was measured", retryable=True)


def disrupted(remains: Remains) -> Failure | None:
    """Somebody took the pod away: preemption, a drain, a shutdown of the node."""
    pod = remains.pod
    if pod is None or not (pod.disruption or pod.reason in ("Preempting", "Terminated", "NodeShutdown")):
        return None
    return _failure("Disrupted", f"{remains.where} was taken away: {pod.disruption or pod.reason} {pod.message}".rstrip(), retryable=True)


def deadline_exceeded(remains: Remains) -> Failure | None:
    """It had its time."""
    by_job = remains.job.condition == "Failed" and remains.job.condition_reason == "DeadlineExceeded"
    if not (by_job or (remains.pod is not None and remains.pod.reason == "DeadlineExceeded")):
        return None
    return _failure("DeadlineExceeded", f"{remains.where} was not done in time: {remains.job.condition_message or 'deadline exceeded'}", retryable=True)


def unschedulable(remains: Remains) -> Failure | None:
    """The scheduler found no place; its own words say why."""
    pod = remains.pod
    if pod is None or pod.node is not None or not pod.unschedulable:
        return None
    return _failure("Unschedulable", f"{remains.where}: {pod.unschedulable}", retryable=True)


def pod_rejected(remains: Remains) -> Failure | None:
    """The kubelet refused the pod for another reason, before any container was made."""
    pod = remains.pod
    if pod is None or pod.phase != "Failed" or not pod.reason or pod.states:
        return None
    return _failure("PodRejected", f"{remains.where}: {pod.reason}: {pod.message}", retryable=True)


def pod_refused(remains: Remains) -> Failure | None:
    """The API server let no pod be made: a quota (may be free again) or an admission rule (will say no again)."""
    if remains.pod is not None or not remains.refusal:
        return None
    if "exceeded quota" in remains.refusal:
        return _failure("QuotaExceeded", f"{remains.where}: {remains.refusal}", retryable=True)
    return _failure("PodRefused", f"{remains.where}: {remains.refusal}", retryable=False)


def no_report(remains: Remains) -> Failure | None:
    """The container ended, but what it left is no report. Only a report of another version stays one."""
    error, state = remains.report_error, remains.state
    if error is None or state is None or state.exit_code is None:
        return None
    words = f"{remains.where} ended with exit code {state.exit_code}: {error.message}"
    return _failure(error.reason, words, retryable=error.reason != "ReportVersion")


def not_started(remains: Remains) -> Failure | None:
    """Nothing says why, but no container runs and the Job is not over."""
    if remains.job.finished or (remains.pod is not None and remains.pod.phase != "Pending"):
        return None
    words = "the Job controller made no pod" if remains.pod is None else "its container was not started"
    return _failure("NotStarted", f"{remains.where}: {words} in time", retryable=True)


RULES: tuple[Rule, ...] = (
    image_not_pulled,
    container_not_started,
    out_of_memory,
    evicted,
    card_refused,
    node_lost,
    disrupted,
    no_report,
    deadline_exceeded,
    unschedulable,
    pod_rejected,
    pod_refused,
    not_started,
)
