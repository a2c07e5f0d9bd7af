"""One adaptation while something happens to it: what the API server and Prometheus say of it, and waiting for what should come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab import Lab, LabError, condition

from scenarios.prometheus import Prometheus

Object = dict[str, Any]
EVERY_SECONDS = 0.5
P99_RANGE = "12s"
"""A little more than the windows of the scenarios' adaptations."""


def say(text: str) -> None:
    """One line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@dataclass(frozen=True, slots=True)
class Moment:
    """One adaptation, its Deployment and its Jobs, read one after the other."""

    item: Object
    deployment: Object
    jobs: Sequence[Object]

    @property
    def status(self) -> Object:
        """The adaptation's."""
        found: Object = self.item.get("status") or {}
        return found

    @property
    def check(self) -> Object:
        """What is suspected, checked and found."""
        found: Object = self.status.get("check") or {}
        return found

    @property
    def suspicion(self) -> str:
        """Reason of what is suspected now."""
        return str((self.check.get("suspicion") or {}).get("reason", ""))

    @property
    def verdict(self) -> Object:
        """The last check's."""
        found: Object = self.check.get("verdict") or {}
        return found

    @property
    def trial(self) -> Object:
        """Of the newest decision, where one was asked for."""
        found: Object = self.status.get("canary") or {}
        return found

    @property
    def run(self) -> Object:
        """The run under way, or the last one."""
        found: Object = self.status.get("run") or {}
        return found

    @property
    def is_ready(self) -> bool:
        """Decided, and applied where it may be."""
        return bool(condition(self.item, "Ready")["status"] == "True")

    @property
    def generation(self) -> int:
        """Of the Deployment: moves with each write to its spec."""
        return int(self.deployment["metadata"]["generation"])

    def count_jobs(self, purpose: str) -> int:
        """Measuring Jobs of this adaptation so far."""
        return sum(job["metadata"]["labels"].get("metainfer.dev/purpose") == purpose for job in self.jobs)

    @property
    def words(self) -> str:
        """What people would want to know, in one line; changes when the state does."""
        answer, ready = condition(self.item, "AnswerTrue"), condition(self.item, "Ready")
        parts = [f"Ready {ready['status']} {ready['reason']}", f"AnswerTrue {answer['status']} {answer['reason']}"]
        parts += [f"run {self.run.get('id', '-')[-6:]} {self.run.get('step', '')}", f"suspicion {self.suspicion or '-'}"]
        parts += [f"check on {(self.check.get('claim') or {}).get('node', '-')}", f"verdict {self.verdict.get('verdict', '-')}"]
        if self.trial:
            parts.append(f"trial {self.trial.get('outcome', '')}{' and serving' if self.trial.get('readyAt') else ''}")
        return "; ".join(parts)


@dataclass(slots=True)
class Watched:
    """An adaptation and the Deployment of the same name."""

    lab: Lab
    prometheus: Prometheus
    namespace: str
    name: str
    on_change: Callable[[Moment], None] = lambda _moment: None
    """Called once for each change of the state: where an operator is killed in every step."""
    _said: str = field(default="", repr=False)

    def look(self) -> Moment:
        """As it is now; a change is printed."""
        get, namespaced = self.lab.get, f"namespaces/{self.namespace}"
        item = get(f"/apis/metainfer.dev/v1alpha1/{namespaced}/modeladaptations/{self.name}")
        deployment = get(f"/apis/apps/v1/{namespaced}/deployments/{self.name}")
        jobs = [job for job in get(f"/apis/batch/v1/{namespaced}/jobs")["items"] if _is_owned_by(job, item["metadata"]["uid"])]
        moment = Moment(item, deployment, jobs)
        if moment.words != self._said:
            self._said = moment.words
            say(f"{self.name}: {moment.words}")
            self.on_change(moment)
        return moment

    def wait(self, what: str, holds: Callable[[Moment], bool], timeout_seconds: float) -> Moment:
        """The first moment of which it is true; raises LabError with the last one's conditions."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            moment = self.look()
            if holds(moment):
                return moment
            if time.monotonic() > deadline:
                states = [f"{item['type']}={item['status']} {item['reason']}: {item['message']}" for item in moment.status.get("conditions", [])]
                raise LabError(f"not within {timeout_seconds:.0f} s: {what}; " + " | ".join(states)[:1500])
            time.sleep(EVERY_SECONDS)

    def stand(self, seconds: float) -> Moment:
        """Look on for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.look()
            time.sleep(EVERY_SECONDS)
        return self.look()

    def nodes(self) -> set[str]:
        """Where its ready pods run that are not being deleted."""
        pods = self.lab.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=app%3D{self.name}")["items"]
        return {pod["spec"]["nodeName"] for pod in pods if "deletionTimestamp" not in pod["metadata"] and condition(pod, "Ready")["status"] == "True"}

    def p99_seconds(self, pods: str = ".*", over: str = P99_RANGE) -> float | None:
        """What Prometheus says of the last windowful. ``pods``: a regular expression of their names."""
        series = f'metainfer_request_duration_seconds_bucket{{namespace="{self.namespace}",model="{self.name}",pod=~"{pods}"}}'
        return self.prometheus.value(f"histogram_quantile(0.99, sum by (le) (rate({series}[{over}])))")

    def requests_per_second(self) -> float:
        """The same."""
        series = f'metainfer_request_duration_seconds_count{{namespace="{self.namespace}",model="{self.name}"}}'
        return self.prometheus.value(f"sum(rate({series}[{P99_RANGE}]))") or 0.0


def _is_owned_by(job: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in job["metadata"].get("ownerReferences", ()))
