"""The loop: one pass over one object, in numbered steps. It knows no rule and no client, only the order.

A pass is level-triggered: everything is recomputed from the API server and the store, it may run twice and may be killed at any
line. The claim (step 4) comes before every side effect; side effects have names derived from their inputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Outcome
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.common import GROUP, VERSION
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.applying import report_conflict, report_refusal
from metainfer.decide.canary.trying import report_canary_refused
from metainfer.decide.facts import AdaptationFacts, AdaptationSnapshot, CheckResult, PoolFacts, ProbeResult, ProfileResult, RunResult
from metainfer.decide.lasting import note_written_again
from metainfer.decide.leaving import LeavingSnapshot, decide_leaving
from metainfer.decide.orphans import OrphanSnapshot, decide_orphans
from metainfer.decide.plan import Action, ApplyTarget, CreateCanary, CreateJob, EmitEvent, RestoreTarget
from metainfer.decide.pool import decide_pool
from metainfer.decide.predictor import Predictor
from metainfer.decide.refusal import record_refusal
from metainfer.observe.gather import GatheredAdaptation, GatheredPool
from metainfer_probe.contract import Failure

AGAIN_SECONDS = 1.0
"""After a refused Job was put on record: the next pass says it in the conditions."""
STORE_RETRY_SECONDS = 30.0
RESTORE_QUIET_SECONDS = 3600.0
"""What stays true of a Deployment that could not be given back is said once an hour: as long as Events are kept."""
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at."""

    kind: Literal["pool", "adaptation", "target", "orphans"]
    namespace: str
    name: str


ORPHANS = Request("orphans", "", "")
"""The one pass that looks for what deleted pools left behind."""


@dataclass(frozen=True, slots=True)
class Result:
    """When to look again without an event; None = only on events and at the resync."""

    requeue_after_seconds: float | None = None


class Gathers(Protocol):
    """Reads: ``observe.gather.Gatherer``."""

    async def gather_pool(self, name: str) -> GatheredPool | None:
        """A pool's snapshot; None when it is gone."""

    async def gather_adaptation(self, namespace: str, name: str) -> GatheredAdaptation | None:
        """An adaptation's snapshot; None when it is gone."""

    async def gather_leaving(self, namespace: str, name: str) -> LeavingSnapshot | None:
        """A Deployment that we wrote to and who claims it; None when there is nothing to do about it."""

    async def gather_orphans(self) -> OrphanSnapshot | None:
        """What deleted pools may have left; None when it is nothing."""


class Records(Protocol):
    """Keeps results: ``store.PatientStore``, in memory while the store is away."""

    @property
    def problem(self) -> str:
        """Why the store is away; empty = it is not."""

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """Keep a node probe."""

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """Keep a model profile."""

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """Keep a benchmark."""

    async def record_check(self, adaptation_uid: str, result: CheckResult) -> bool:
        """Keep a check of what runs."""


class Writes(Protocol):
    """Writes: ``act``, joined in ``app``. All raise retryable ApiErrors; a status write that lost the race raises Conflict."""

    async def execute(self, actions: Sequence[Action], involved: ObjectRef) -> Sequence[Outcome]:
        """Carry actions out in order."""

    async def write_pool_status(self, facts: PoolFacts, status: AcceleratorPoolStatus) -> PoolFacts:
        """Compare-and-swap, only when it changed; returns the facts to base the next write on."""

    async def write_adaptation_status(self, facts: AdaptationFacts, status: ModelAdaptationStatus) -> AdaptationFacts:
        """Compare-and-swap, only when it changed; returns the facts to base the next write on."""

    async def report_unreadable(self, request: Request, now: datetime) -> None:
        """Say in the status of an object that cannot be read that it cannot; nothing for one that is gone."""


class Reconciler:
    """Runs passes. The only state is a lock that admits one pass at a time to starting Jobs and rollouts, because caps are counted."""

    def __init__(self, gather: Gathers, record: Records, write: Writes, predictor: Predictor) -> None:
        self._gather = gather
        self._record = record
        self._write = write
        self._predictor = predictor
        self._admission = asyncio.Lock()

    async def reconcile(self, request: Request, now: datetime) -> Result:
        """One pass. Raises ApiError and ConnectionError; the queue then tries again with back-off."""
        result = await self._pass(request, now, may_start_jobs=False)
        if result is None:
            # A pass that would start a Job or a rollout looks again while no other one can: two must not take the same last place under a cap.
            async with self._admission:
                result = await self._pass(request, now, may_start_jobs=True) or Result()
        return self._sooner_without_store(result)

    def _sooner_without_store(self, result: Result) -> Result:
        """Until the store is back, whoever has needed it looks again now and then: to say so, and then no longer to say so."""
        if not self._record.problem:
            return result
        return Result(min(result.requeue_after_seconds or STORE_RETRY_SECONDS, STORE_RETRY_SECONDS))

    async def _pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        """None = nothing was done, because the plan takes a place under a cap and this pass may not."""
        match request.kind:
            case "pool":
                return await self._pool_pass(request, now, may_start_jobs=may_start_jobs)
            case "adaptation":
                return await self._adaptation_pass(request, now, may_start_jobs=may_start_jobs)
            case "target":
                return await self._target_pass(request)
            case "orphans":
                return await self._orphans_pass()

    async def _pool_pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        # 1. Gather one snapshot.
        gathered = await self._gather.gather_pool(request.name)
        if gathered is None:
            return await self._without_facts(request, now)
        if gathered.snapshot.pool.deleting:
            return Result()
        # 2. Keep what finished Jobs have left, before anything is decided on it.
        for result in gathered.fresh:
            await self._record.record_probe(request.name, result)
        # 3. Decide.
        plan = decide_pool(gathered.snapshot, now)
        if _takes_place(plan.actions) and not may_start_jobs:
            return None
        # 4. Claim, 5. act, 6. say when to look again.
        pool = gathered.snapshot.pool
        claimed = await self._write.write_pool_status(pool, plan.status)
        involved = ObjectRef(api_version=API_VERSION, kind="AcceleratorPool", name=pool.name, uid=pool.uid)
        outcomes = await self._write.execute(plan.actions, involved)
        # 7. A Job that was not taken is remembered: the next try is not at once.
        if (refused := _first_refused(outcomes)) is not None:
            refusal = record_refusal(claimed.status.refusal, refused.action.name, refused.failure, now)
            await self._write.write_pool_status(claimed, claimed.status.model_copy(update={"refusal": refusal}))
        return Result(AGAIN_SECONDS if refused is not None else plan.requeue_after_seconds)

    async def _adaptation_pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        # 1. Gather one snapshot, the target read fresh.
        gathered = await self._gather.gather_adaptation(request.namespace, request.name)
        if gathered is None:
            return await self._without_facts(request, now)
        if gathered.snapshot.adaptation.deleting:
            return Result()
        # 2. Keep what finished Jobs have left.
        snapshot, uid = gathered.snapshot, gathered.snapshot.adaptation.uid
        for result in gathered.fresh:
            await self._keep(uid, result)
        # 3. Decide.
        plan = decide_adaptation(snapshot, self._predictor, now)
        if (_takes_place(plan.actions) or plan.takes_turn) and not may_start_jobs:
            return None
        # 4. Claim, 5. act, 6. say when to look again.
        claimed = await self._write.write_adaptation_status(snapshot.adaptation, plan.status)
        involved = ObjectRef(api_version=API_VERSION, kind="ModelAdaptation", name=request.name, uid=uid, namespace=request.namespace)
        outcomes = await self._write.execute(plan.actions, involved)
        await self._report_refused_apply(snapshot, claimed, outcomes, now)
        # 7. A Job that was not taken is remembered: the next try is not at once.
        refused, run = _first_refused(outcomes), claimed.status.run
        if refused is not None and run is not None:
            refusal = record_refusal(run.refusal, refused.action.name, refused.failure, now)
            await self._write.write_adaptation_status(claimed, claimed.status.model_copy(update={"run": run.model_copy(update={"refusal": refusal})}))
        return Result(AGAIN_SECONDS if refused is not None else plan.requeue_after_seconds)

    async def _keep(self, uid: str, result: ProfileResult | RunResult | CheckResult) -> None:
        match result:
            case RunResult():
                await self._record.record_run(uid, result)
            case CheckResult():
                await self._record.record_check(uid, result)
            case ProfileResult():
                await self._record.record_profile(uid, result)

    async def _without_facts(self, request: Request, now: datetime) -> Result:
        """It is gone, or this version cannot read it, and then its status says so."""
        await self._write.report_unreadable(request, now)
        return Result()

    async def _target_pass(self, request: Request) -> Result:
        """A Deployment that we wrote to: restored once nobody claims it, without a finalizer that could hold anything up."""
        snapshot = await self._gather.gather_leaving(request.namespace, request.name)
        if snapshot is None:
            return Result()
        target = snapshot.target
        involved = ObjectRef(api_version="apps/v1", kind="Deployment", name=target.name, uid=target.uid, namespace=target.namespace)
        outcomes = await self._write.execute(decide_leaving(snapshot), involved)
        await self._write.execute(tuple(event for outcome in outcomes if (event := _tell_restoring(outcome)) is not None), involved)
        return Result()

    async def _orphans_pass(self) -> Result:
        """What deleted pools left behind is taken away."""
        snapshot = await self._gather.gather_orphans()
        for pool, actions in decide_orphans(snapshot).items() if snapshot is not None else ():
            await self._write.execute(actions, ObjectRef(api_version=API_VERSION, kind="AcceleratorPool", name=pool, uid=""))
        return Result()

    async def _report_refused_apply(self, snapshot: AdaptationSnapshot, claimed: AdaptationFacts, outcomes: Sequence[Outcome], now: datetime) -> None:
        """A write to the target that the API server did not take is news for the status: the next pass must not try it again."""
        for outcome in outcomes:
            if isinstance(outcome.action, CreateCanary) and outcome.failure is not None:
                trial = report_canary_refused(claimed.status.canary, outcome.failure.message)
                await self._write.write_adaptation_status(claimed, claimed.status.model_copy(update={"canary": trial}))
            if not isinstance(outcome.action, ApplyTarget | RestoreTarget):
                continue
            if isinstance(outcome.action, RestoreTarget) and outcome.result != "Refused":
                continue  # what is left on it, if anything is, the next pass reads from the Deployment
            if outcome.result not in ("Contested", "Refused"):
                status = note_written_again(claimed.status)
            elif outcome.conflicts:
                status = report_conflict(snapshot, claimed.status, [(item.field, item.manager) for item in outcome.conflicts], now)
            else:
                status = report_refusal(snapshot, claimed.status, outcome.failure.message if outcome.failure else "", now)
            await self._write.write_adaptation_status(claimed, status)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A Job that the API server did not take, and why."""

    action: CreateJob
    failure: Failure


def _first_refused(outcomes: Sequence[Outcome]) -> _Refused | None:
    found = ((item.action, item.failure) for item in outcomes if item.result == "Refused")
    return next((_Refused(action, failure) for action, failure in found if isinstance(action, CreateJob) and failure is not None), None)


def _tell_restoring(outcome: Outcome) -> EmitEvent | None:
    """An Event on the Deployment, as there is no adaptation any more that could carry a condition."""
    if not isinstance(outcome.action, RestoreTarget):
        return None
    if outcome.failure is not None:
        return EmitEvent("Warning", outcome.failure.reason, f"not given back to its owner: {outcome.failure.message}", RESTORE_QUIET_SECONDS)
    if outcome.conflicts:
        words = "; ".join(f"{item.field} (manager {item.manager})" for item in outcome.conflicts)
        return EmitEvent("Warning", "FieldsLeft", f"no longer recorded as the operator's, hence left as they are: {words}", RESTORE_QUIET_SECONDS)
    words = "no ModelAdaptation wants the operator's fields here any more: the Deployment is what its owner declares"
    return EmitEvent("Normal", "Restored", words) if outcome.result == "Done" else None


def _takes_place(actions: Sequence[Action]) -> bool:
    """Whether Jobs or rollouts are started, of which only so many may be at a time."""
    return any(isinstance(action, CreateJob | ApplyTarget) for action in actions)
