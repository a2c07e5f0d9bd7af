"""Carries a plan's actions out, in order, after the status was claimed. Decides nothing.

Every action may be repeated: Jobs have names made from their inputs, applies are idempotent, decisions have natural keys. What another
try can cure (conflict, overload, no connection) is raised and ends the pass; what it cannot is an Outcome, for the next decision.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from metainfer import metrics
from metainfer.act.canary import create_canary, delete_canary
from metainfer.act.events import EventRecorder, ObjectRef
from metainfer.act.jobs import build_job, build_owner_reference
from metainfer.act.portraits import delete_portrait, write_node_labels, write_portrait
from metainfer.act.ports import Clock, ClusterWriter, DecisionLog, Raw, Remember, utc_now
from metainfer.act.quality import count_decision
from metainfer.act.restore import restore_target
from metainfer.act.status import write_adaptation_status, write_pool_status
from metainfer.act.target import apply_target
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.facts import AdaptationFacts, MeasuringLimits, PoolFacts
from metainfer.decide.names import PURPOSE_LABEL
from metainfer.decide.plan import (
    Action,
    ApplyTarget,
    CreateCanary,
    CreateJob,
    DeleteCanary,
    DeleteJob,
    DeletePortrait,
    EmitEvent,
    RecordDecision,
    RecordServed,
    RestoreTarget,
    WriteNodeLabels,
    WritePortrait,
)  # fmt: skip
from metainfer.kube.errors import AlreadyExists, ApiError, FieldConflict, FieldOwner, Forbidden, Invalid, NotFound, is_webhook_down
from metainfer.kube.kinds import JOB
from metainfer_probe.contract import Failure

_log = logging.getLogger(__name__)

_NO_RIGHT = "cannot create resource"
"""Of RBAC, and of no admission rule."""
_TERMINATING = "because it is being terminated"
_ADMISSION = ("denied the request", "denied request")
"""Of webhooks and of admission policies, which may answer with any code."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one action.

    ``Done``: it is so now. ``Unchanged``: it was so already. ``Pending``: an earlier Job of that name is still being deleted.
    ``Contested``: others own fields it would write or give back (``conflicts``). ``Refused``: see ``failure``. ``Dropped``: an Event too many.
    """

    action: Action
    result: Literal["Done", "Unchanged", "Pending", "Contested", "Refused", "Dropped"]
    failure: Failure | None = None
    conflicts: tuple[FieldOwner, ...] = ()


class Actor:
    """All writes of a pass. Holds no state but the Events' brake."""

    def __init__(self, client: ClusterWriter, store: DecisionLog, limits: MeasuringLimits, remember: Remember, *, clock: Clock = utc_now) -> None:
        self._client = client
        self._store = store
        self._limits = limits
        self._remember = remember
        self._clock = clock
        self._events = EventRecorder(client, clock)

    async def execute(self, actions: Sequence[Action], involved: ObjectRef) -> tuple[Outcome, ...]:
        """Carry the actions out in order; ``involved`` is the object whose pass it is.

        After an apply that was not taken the rest is left out: it would tell of something that did not happen. Raises retryable
        ApiErrors, and ConnectionError when the decision log cannot be reached.
        """
        outcomes: list[Outcome] = []
        for action in actions:
            outcome = await self._guarded(action, involved)
            outcomes.append(outcome)
            _log_outcome(outcome, involved)
            if isinstance(action, ApplyTarget) and outcome.result in ("Contested", "Refused"):
                break
        return tuple(outcomes)

    async def write_pool_status(self, facts: PoolFacts, status: AcceleratorPoolStatus) -> PoolFacts:
        """See ``status.write_pool_status``."""
        return await write_pool_status(self._client, facts, status, self._remember)

    async def write_adaptation_status(self, facts: AdaptationFacts, status: ModelAdaptationStatus) -> AdaptationFacts:
        """See ``status.write_adaptation_status``."""
        return await write_adaptation_status(self._client, facts, status, self._remember)

    async def _guarded(self, action: Action, involved: ObjectRef) -> Outcome:
        try:
            return await self._carry_out(action, involved)
        except FieldConflict as error:
            return Outcome(action, "Contested", _failure(action, error), error.causes)
        except ApiError as error:
            if error.retryable and not (isinstance(action, CreateJob) and is_webhook_down(error)):
                raise
            return Outcome(action, "Refused", _failure(action, error))

    async def _carry_out(self, action: Action, involved: ObjectRef) -> Outcome:
        match action:
            case CreateJob():
                return await self._create_job(action)
            case DeleteJob():
                return await self._delete_job(action)
            case WriteNodeLabels():
                return self._written(action, await write_node_labels(self._client, action))
            case WritePortrait():
                return self._written(action, await write_portrait(self._client, action))
            case DeletePortrait():
                return Outcome(action, "Done" if await delete_portrait(self._client, action.node, involved.name) else "Unchanged")
            case ApplyTarget():
                return self._written(action, await apply_target(self._client, action))
            case RestoreTarget():
                return await self._restore(action)
            case CreateCanary():
                created = await create_canary(self._client, action)
                return Outcome(action, "Done" if created is not None else "Unchanged")
            case DeleteCanary():
                await delete_canary(self._client, action)
                metrics.CANARIES.labels(action.outcome).inc()
                return Outcome(action, "Done")
            case RecordDecision():
                fresh = await self._store.record_decision(involved.uid, action)
                if fresh and action.quality is not None:
                    count_decision(action.quality)
                if fresh and action.rollback:
                    metrics.ROLLBACKS.labels(action.rollback).inc()
                return Outcome(action, "Done" if fresh else "Unchanged")
            case RecordServed():
                return Outcome(action, "Done" if await self._store.record_served(involved.uid, action) else "Unchanged")
            case EmitEvent():
                return Outcome(action, "Done" if await self._events.emit(action, involved) else "Dropped")

    def _written(self, action: Action, written: Raw | None) -> Outcome:
        if written is None:
            return Outcome(action, "Unchanged")
        self._remember(written)
        return Outcome(action, "Done")

    async def _restore(self, action: RestoreTarget) -> Outcome:
        try:
            restored = await restore_target(self._client, action.namespace, action.name, uid=action.uid, resource_version=action.resource_version)
        except NotFound:
            return Outcome(action, "Unchanged")
        self._remember(restored.deployment)
        left = tuple(FieldOwner(item.path, item.manager) for item in restored.left)
        metrics.RESTORES.labels("left" if left else "restored" if restored.changed else "unchanged").inc()
        return Outcome(action, "Contested" if left else "Done" if restored.changed else "Unchanged", conflicts=left)

    async def _create_job(self, action: CreateJob) -> Outcome:
        try:
            created = await self._client.create(JOB, build_job(action, self._limits))
        except AlreadyExists:
            return await self._adopt_job(action)
        metrics.JOBS_STARTED.labels(action.purpose).inc()
        return self._written(action, created)

    async def _adopt_job(self, action: CreateJob) -> Outcome:
        """The name is taken: by this very work, done before a crash; by its deleted predecessor; or by somebody else."""
        try:
            found = await self._client.get(JOB, action.name, action.namespace)
        except NotFound:
            return Outcome(action, "Pending")
        if not _is_ours(found, action):
            words = f"Job {action.namespace}/{action.name} exists and is not of {action.owner['kind']} {action.owner['name']}: delete or rename it"
            return Outcome(action, "Refused", Failure(reason="NameTaken", message=words[:512]))
        if "deletionTimestamp" in found["metadata"]:
            return Outcome(action, "Pending")
        self._remember(found)
        return Outcome(action, "Unchanged")

    async def _delete_job(self, action: DeleteJob) -> Outcome:
        uid = action.uid or await self._find_job_uid(action)
        if uid is None:
            return Outcome(action, "Unchanged")
        await self._client.delete(JOB, action.name, action.namespace, uid=uid)
        return Outcome(action, "Done")

    async def _find_job_uid(self, action: DeleteJob) -> str | None:
        """UID of the Job of ours that has the name now; somebody else's is left alone."""
        try:
            found = await self._client.get(JOB, action.name, action.namespace)
        except NotFound:
            return None
        return str(found["metadata"]["uid"]) if PURPOSE_LABEL in (found["metadata"].get("labels") or {}) else None


def _is_ours(job: Raw, action: CreateJob) -> bool:
    owners = {owner["uid"] for owner in job["metadata"].get("ownerReferences") or ()}
    labels = job["metadata"].get("labels") or {}
    owned = action.owner["uid"] in owners or build_owner_reference(action) is None
    return owned and labels.get(PURPOSE_LABEL) == action.purpose


def _failure(action: Action, error: ApiError) -> Failure:
    """A refusal with a reason of its own for what a user can cure."""
    if isinstance(action, CreateJob):
        return _refused_job(error)
    reason = f"{type(action).__name__}{type(error).__name__}"
    if isinstance(error, FieldConflict):
        reason = "FieldContested"
    elif isinstance(error, NotFound) and isinstance(action, ApplyTarget):
        reason = "TargetNotFound"
    elif isinstance(action, RestoreTarget):
        reason = "RestoreRefused"
    return Failure(reason=reason, message=error.message[:512])


def _refused_job(error: ApiError) -> Failure:
    """Why the API server takes no Job; retryable = that may pass without anybody changing anything."""
    words = error.message[:512]
    if "exceeded quota" in words:
        return Failure(reason="QuotaExceeded", message=words, retryable=True)
    if is_webhook_down(error):
        return Failure(reason="AdmissionUnavailable", message=words, retryable=True)
    if isinstance(error, NotFound) or _TERMINATING in words:
        return Failure(reason="NamespaceGone", message=words)
    if isinstance(error, Forbidden) and _NO_RIGHT in words:
        return Failure(reason="RightMissing", message=words)
    if isinstance(error, Invalid) and error.status == 422 and not any(text in words for text in _ADMISSION):
        return Failure(reason="JobInvalid", message=words)
    return Failure(reason="JobRefused", message=words)


def _log_outcome(outcome: Outcome, involved: ObjectRef) -> None:
    level = logging.WARNING if outcome.result in ("Contested", "Refused") else logging.INFO
    words = {"object": f"{involved.namespace}/{involved.name}", "action": type(outcome.action).__name__, "result": outcome.result}
    if outcome.failure is not None:
        words |= {"reason": outcome.failure.reason, "error": outcome.failure.message}
    _log.log(level, "action carried out" if outcome.failure is None else "action refused", extra=words)
