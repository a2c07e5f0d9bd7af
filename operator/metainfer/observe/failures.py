"""Why a measuring Job left no report, as one typed reason each. Pure: looks only at what Job and pods left behind.

Rules are ordered from the most telling remains (the kubelet's words) to the least (nothing is left); the first hit wins.
``retryable`` says whether the same Job can succeed later without anybody changing anything; how often and when is for ``decide``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from metainfer.decide.facts import ContainerState, JobFacts, PodFacts
from metainfer.decide.names import NODE_ANNOTATION, PURPOSE_LABEL
from metainfer.decide.waiting import CREATE_FAILED, PULL_FAILED, why_no_pod, why_not_placed, why_suspended
from metainfer_probe.contract import Failure, ReportError

PROBE_CONTAINER = "probe"
MESSAGE_LIMIT = 512
SUSPENDED_SECONDS = 3600.0
"""How long a queue may hold a Job before it is given up: its deadline does not run meanwhile. A queue that is only busy lets it go sooner."""

_START_FAILED = ("StartError", "ContainerCannotRun")
_CARD_REFUSED = ("UnexpectedAdmissionError", "TopologyAffinityError")
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")
_OTHER_ARCHITECTURE = ("exec format error", "no match for platform", "no matching manifest")
"""Of the kernel, containerd and other runtimes."""
_WORDS_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Remains:
    """What a Job left behind."""

    job: JobFacts
    pod: PodFacts | None = None
    state: ContainerState | None = None
    """Of the probe container."""
    lost_nodes: Collection[str] = ()
    """Nodes that are gone or silent."""
    report_error: ReportError | None = None
    """Why the termination message is no report."""
    altered: str = ""
    """What of the container's resources somebody changed: figures of another container than was asked for are no result."""

    @property
    def where(self) -> str:
        """Job and node, for messages."""
        node = self.pod.node if self.pod is not None and self.pod.node else None
        return f"Job {self.job.name} on node {node}" if node else f"Job {self.job.name}"


Rule = Callable[[Remains], Failure | None]


def find_failure(remains: Remains) -> Failure:
    """The first rule that recognises the remains. Pure."""
    found = _first(RULES, remains)
    return found or _failure("PodDisappeared", f"{remains.where}: its pod is gone and left no report", retryable=True)


def find_interruption(remains: Remains) -> Failure | None:
    """Why the cluster ended a container that could only report that it was ended; None when nothing says so. Pure."""
    return _first(INTERRUPTIONS, remains)


def _first(rules: tuple[Rule, ...], remains: Remains) -> Failure | None:
    return next((failure for rule in rules if (failure := rule(remains)) is not None), None)


def _failure(reason: str, message: str, *, retryable: bool) -> Failure:
    return Failure(reason=reason, message=message[:MESSAGE_LIMIT], retryable=retryable)


def resources_altered(remains: Remains) -> Failure | None:
    """A webhook gave the container other resources than the target's: what it did is not what the target would do."""
    if not remains.altered or remains.state is None or remains.state.exit_code is None:
        return None
    return _failure("ResourcesAltered", f"{remains.where} did not run with the resources it was given: {remains.altered}", retryable=False)


def other_architecture(remains: Remains) -> Failure | None:
    """The image is not built for the node's processor: it will not be by itself."""
    state = remains.state
    if state is None:
        return None
    words = state.waiting_message or state.termination_message
    if not any(text in words for text in _OTHER_ARCHITECTURE):
        return None
    return _failure("ArchitectureMismatch", f"{remains.where}: the probe image is not built for this node: {_tail(words)}", retryable=False)


def image_not_pulled(remains: Remains) -> Failure | None:
    """The kubelet could not get the image. A name that is no image name stays so; a registry may come back."""
    state = remains.state
    if state is None or state.waiting_reason not in PULL_FAILED:
        return None
    words = state.waiting_message or state.waiting_reason
    return _failure("ImagePullFailed", f"{remains.where}: {words}", retryable=state.waiting_reason != "InvalidImageName")


def container_not_created(remains: Remains) -> Failure | None:
    """The kubelet could not make the container: a security setting or a mount that the runtime refuses."""
    state = remains.state
    if state is None or state.waiting_reason not in CREATE_FAILED:
        return None
    return _failure("ContainerNotCreated", f"{remains.where}: {state.waiting_message or state.waiting_reason}", retryable=False)


def container_not_started(remains: Remains) -> Failure | None:
    """The runtime made the container and could not start the program in it."""
    state = remains.state
    if state is None or state.terminated_reason not in _START_FAILED:
        return None
    return _failure("StartFailed", f"{remains.where}: {state.termination_message or state.terminated_reason}", retryable=False)


def out_of_memory(remains: Remains) -> Failure | None:
    """The kernel killed it at its memory limit: the same limit kills it again."""
    state = remains.state
    if state is None or state.terminated_reason != "OOMKilled":
        return None
    probe = remains.job.labels.get(PURPOSE_LABEL) == "probe"
    advice = "raise the default limit of the operator's namespace" if probe else "give the target's container more"
    return _failure("OutOfMemory", f"{remains.where} was killed at its memory limit{_memory_limit(remains.pod)}: {advice}", retryable=False)


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
    node = (pod.node if pod else None) or remains.job.annotations.get(NODE_ANNOTATION, "")
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
    """It had its time. The Job controller says so before it ends the pod."""
    by_job = remains.job.condition != "Complete" and remains.job.condition_reason == "DeadlineExceeded"
    if not (by_job or (remains.pod is not None and remains.pod.reason == "DeadlineExceeded")):
        return None
    return _failure("DeadlineExceeded", f"{remains.where} was not done in time: {remains.job.condition_message or 'deadline exceeded'}", retryable=True)


def suspended(remains: Remains) -> Failure | None:
    """A queue held it for so long that nobody waits any more."""
    waiting = why_suspended(remains.job)
    if waiting is None or (remains.state is not None and remains.state.exit_code is not None):
        return None
    words = f"{remains.where} was {waiting.words} and is given up after {SUSPENDED_SECONDS / 60:.0f} min: free quota of that queue"
    return _failure(waiting.reason, words, retryable=True)


def unschedulable(remains: Remains) -> Failure | None:
    """The scheduler found no place; its own words say why."""
    waiting = why_not_placed(remains.job)
    return None if waiting is None else _failure(waiting.reason, f"{remains.where}: {waiting.words}", retryable=True)


def pod_rejected(remains: Remains) -> Failure | None:
    """The kubelet refused the pod for another reason, before any container was made."""
    pod = remains.pod
    if pod is None or pod.phase != "Failed" or not pod.reason or pod.states:
        return None
    return _failure("PodRejected", f"{remains.where}: {pod.reason}: {pod.message}", retryable=True)


def told_by_event(remains: Remains) -> Failure | None:
    """A quota, an admission rule, or a volume that does not come: each may be put right by somebody whom we do not hear."""
    waiting = why_no_pod(remains.job.told)
    if waiting is None:
        return None
    return _failure(waiting.reason, f"{remains.where}: {waiting.words}", retryable=True)


def no_report(remains: Remains) -> Failure | None:
    """The container ended, but what it left is no report. Only a report of another version stays one."""
    error, state = remains.report_error, remains.state
    if error is None or state is None or state.exit_code is None:
        return None
    said = f"; its last words: {_tail(state.termination_message)}" if error.reason == "ReportMissing" and state.termination_message.strip() else ""
    words = f"{remains.where} ended with exit code {state.exit_code}: {error.message}{said}"
    return _failure(error.reason, words, retryable=error.reason != "ReportVersion")


def _tail(words: str) -> str:
    """The end of somebody's output, on one line: the cause stands last."""
    return " ".join(words.split())[-_WORDS_LIMIT:]


def not_started(remains: Remains) -> Failure | None:
    """Nothing says why, but no container runs and the Job is not over."""
    if remains.job.finished or (remains.pod is not None and remains.pod.phase != "Pending"):
        return None
    words = "the Job controller made no pod" if remains.pod is None else "its container was not started"
    said = f": {remains.job.told.message}" if remains.job.told is not None else ""
    return _failure("NotStarted", f"{remains.where}: {words} in time{said}", retryable=True)


INTERRUPTIONS: tuple[Rule, ...] = (evicted, card_refused, node_lost, disrupted, deadline_exceeded)
RULES: tuple[Rule, ...] = (
    resources_altered,
    other_architecture,
    image_not_pulled,
    container_not_created,
    container_not_started,
    out_of_memory,
    evicted,
    card_refused,
    node_lost,
    disrupted,
    no_report,
    suspended,
    told_by_event,
    deadline_exceeded,
    unschedulable,
    pod_rejected,
    not_started,
)
