"""Why a measuring Job has not started yet: one typed reason each, from what the cluster says about it. Pure.

The same words make the condition while a Job waits and, when it has waited too long, its failure (``observe``): so the tables of the
kubelet's reasons stand here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from metainfer.decide.conditions import format_time
from metainfer.decide.facts import JobFacts, PodFacts, Told

PULL_FAILED: Final = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
CREATE_FAILED: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
MOUNT_FAILED: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
PATIENCE_SECONDS: Final = 15.0
"""A pod that waits for its predecessor's card, or whose first pull failed, is not worth a reason of its own before."""
_STARTED: Final = ("Running", "Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a Job waits for; ``reason`` is empty while nothing says more than that it is on its way."""

    reason: str
    words: str


def find_waiting(job: JobFacts, now: datetime) -> Waiting | None:
    """What the Job waits for; None once a container was started, or the Job is over."""
    if job.finished or any(pod.phase in _STARTED for pod in job.pods) or job.created_at is None:
        return None
    found = why_suspended(job) or why_not_placed(job) or why_not_begun(job) or why_no_pod(job.told)
    if found is None:
        return Waiting("", "no pod was started yet" if not job.pods else "its container is being started")
    patient = found.reason != "JobSuspended" and (now - job.created_at).total_seconds() < PATIENCE_SECONDS
    return Waiting("", found.words) if patient else found


def why_suspended(job: JobFacts) -> Waiting | None:
    """A queue holds it: its deadline does not run, and it may take days."""
    if not job.suspended:
        return None
    since = job.suspended_at or job.created_at
    when = f" since {format_time(since)}" if since is not None else ""
    return Waiting("JobSuspended", f"suspended by {job.suspended_by or 'a queue or an admission webhook'}{when}")


def why_not_placed(job: JobFacts) -> Waiting | None:
    """The scheduler found no node, in its own words: no free card, a taint, a claim that is not there."""
    words = next((pod.unschedulable for pod in job.pods if pod.node is None and pod.unschedulable), "")
    if not words:
        return None
    return Waiting("ClaimMissing" if is_claim_missing(words) else "Unschedulable", words)


def is_claim_missing(words: str) -> bool:
    """Whether the scheduler says that the pod's claim does not exist."""
    return "persistentvolumeclaim" in words and "not found" in words


def why_not_begun(job: JobFacts) -> Waiting | None:
    """The kubelet could not get the image, make the container or mount the volume."""
    for pod in job.pods:
        for state in pod.states:
            words = f"{state.waiting_reason}: {state.waiting_message}"
            if state.waiting_reason in PULL_FAILED:
                return Waiting("ImagePullFailed", words)
            if state.waiting_reason in CREATE_FAILED:
                return Waiting("ContainerNotCreated", words)
    return None


def why_no_pod(told: Told | None) -> Waiting | None:
    """What the Job controller or the kubelet said in an Event: a quota, an admission rule, a volume."""
    if told is None:
        return None
    if told.reason in MOUNT_FAILED:
        return Waiting("VolumeNotMounted", told.message)
    if told.reason != "FailedCreate":
        return None
    return Waiting("QuotaExceeded" if is_quota(told.message) else "PodRefused", told.message)


def is_quota(words: str) -> bool:
    """Whether the API server refused for a ResourceQuota, which may be free again; its numbers are in the words."""
    return "exceeded quota" in words


def waits_for_kubelet(pod: PodFacts) -> bool:
    """Whether the pod has a node and no container yet: only Events say what the kubelet is busy with."""
    return pod.node is not None and pod.phase == "Pending"
