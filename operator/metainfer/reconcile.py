"""The loop: one pass over one object, in numbered steps. It knows no rule and no client, only the order.

A pass is level-triggered: everything is recomputed from the API server and the store, it may run twice and may be killed at any
line. The claim (step 4) comes before every side effect; side effects have names derived from their inputs.
"""

from __future__ import annotations

import asyncio
import logging
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
from metainfer.decide.applying import report_conflict, report_refusal, report_store_problem
from metainfer.decide.facts import AdaptationFacts, AdaptationSnapshot, PoolFacts, ProbeResult, ProfileResult, RunResult
from metainfer.decide.plan import Action, ApplyTarget, CreateJob, EmitEvent
from metainfer.decide.pool import decide_pool
from metainfer.decide.predictor import Predictor
from metainfer.observe.gather import GatheredAdaptation, GatheredPool

REFUSED_RETRY_SECONDS = 60.0
"""After the API server refused a Job (quota, missing right): only somebody else can cure it."""
STORE_RETRY_SECONDS = 30.0
API_VERSION = f"{GROUP}/{VERSION}"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at."""

    kind: Literal["pool", "adaptation"]
    namespace: str
    name: str


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


class Records(Protocol):
    """Keeps results: ``store.SampleStore``. Raises ConnectionError when it cannot be reached."""

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """Keep a node probe."""

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """Keep a model profile."""

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """Keep a benchmark."""


class Writes(Protocol):
    """Writes: ``act``, joined in ``app``. All raise retryable ApiErrors; a status write that lost the race raises Conflict."""

    async def execute(self, actions: Sequence[Action], involved: ObjectRef) -> Sequence[Outcome]:
        """Carry actions out in order."""

    async def write_pool_status(self, facts: PoolFacts, status: AcceleratorPoolStatus) -> None:
        """Compare-and-swap, only when it changed."""

    async def write_adaptation_status(self, facts: AdaptationFacts, status: ModelAdaptationStatus) -> AdaptationFacts:
        """Compare-and-swap, only when it changed; returns the facts to base the next write on."""


class Reconciler:
    """Runs passes. The only state is a lock that admits one pass at a time to starting Jobs, because caps are counted."""

    def __init__(self, gather: Gathers, record: Records, write: Writes, predictor: Predictor) -> None:
        self._gather = gather
        self._record = record
        self._write = write
        self._predictor = predictor
        self._admission = asyncio.Lock()

    async def reconcile(self, request: Request, now: datetime) -> Result:
        """One pass. Raises ApiError and ConnectionError; the queue then tries again with back-off."""
        result = await self._pass(request, now, may_start_jobs=False)
        if result is not None:
            return result
        # A pass that would start a Job looks again while no other one can: two passes must not take the same last place under a cap.
        async with self._admission:
            return await self._pass(request, now, may_start_jobs=True) or Result()

    async def _pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        """None = nothing was done, because the plan starts a Job and this pass may not."""
        if request.kind == "pool":
            return await self._pool_pass(request, now, may_start_jobs=may_start_jobs)
        return await self._adaptation_pass(request, now, may_start_jobs=may_start_jobs)

    async def _pool_pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        # 1. Gather one snapshot.
        gathered = await self._gather.gather_pool(request.name)
        if gathered is None or gathered.snapshot.pool.deleting:
            return Result()
        if gathered.store_problem:
            return _without_store(request, gathered.store_problem)
        # 2. Keep what finished Jobs have left, before anything is decided on it.
        for result in gathered.fresh:
            await self._record.record_probe(request.name, result)
        # 3. Decide.
        plan = decide_pool(gathered.snapshot, now)
        if _starts_jobs(plan.actions) and not may_start_jobs:
            return None
        # 4. Claim, 5. act, 6. say when to look again.
        pool = gathered.snapshot.pool
        await self._write.write_pool_status(pool, plan.status)
        involved = ObjectRef(api_version=API_VERSION, kind="AcceleratorPool", name=pool.name, uid=pool.uid)
        outcomes = await self._write.execute(plan.actions, involved)
        return Result(await self._after(outcomes, plan.requeue_after_seconds, involved))

    async def _adaptation_pass(self, request: Request, now: datetime, *, may_start_jobs: bool) -> Result | None:
        # 1. Gather one snapshot, the target read fresh.
        gathered = await self._gather.gather_adaptation(request.namespace, request.name)
        if gathered is None or gathered.snapshot.adaptation.deleting:
            return Result()
        if gathered.store_problem:
            status = report_store_problem(gathered.snapshot, gathered.store_problem, now)
            await self._write.write_adaptation_status(gathered.snapshot.adaptation, status)
            return _without_store(request, gathered.store_problem)
        # 2. Keep what finished Jobs have left.
        snapshot, uid = gathered.snapshot, gathered.snapshot.adaptation.uid
        for result in gathered.fresh:
            await (self._record.record_run(uid, result) if isinstance(result, RunResult) else self._record.record_profile(uid, result))
        # 3. Decide.
        plan = decide_adaptation(snapshot, self._predictor, now)
        if _starts_jobs(plan.actions) and not may_start_jobs:
            return None
        # 4. Claim, 5. act, 6. say when to look again.
        claimed = await self._write.write_adaptation_status(snapshot.adaptation, plan.status)
        involved = ObjectRef(api_version=API_VERSION, kind="ModelAdaptation", name=request.name, uid=uid, namespace=request.namespace)
        outcomes = await self._write.execute(plan.actions, involved)
        await self._report_refused_apply(snapshot, claimed, outcomes, now)
        return Result(await self._after(outcomes, plan.requeue_after_seconds, involved))

    async def _report_refused_apply(self, snapshot: AdaptationSnapshot, claimed: AdaptationFacts, outcomes: Sequence[Outcome], now: datetime) -> None:
        """A write to the target that the API server did not take is news for the status: the next pass must not try it again."""
        for outcome in outcomes:
            if not isinstance(outcome.action, ApplyTarget) or outcome.result not in ("Contested", "Refused"):
                continue
            if outcome.conflicts:
                status = report_conflict(snapshot, claimed.status, [(item.field, item.manager) for item in outcome.conflicts], now)
            else:
                status = report_refusal(snapshot, claimed.status, outcome.failure.message if outcome.failure else "", now)
            await self._write.write_adaptation_status(claimed, status)

    async def _after(self, outcomes: Sequence[Outcome], requeue_after_seconds: float | None, involved: ObjectRef) -> float | None:
        """A Job that the API server refused is told to the user, and tried again only after a while."""
        refused = [outcome for outcome in outcomes if isinstance(outcome.action, CreateJob) and outcome.result == "Refused"]
        for outcome in refused:
            if outcome.failure is not None:
                await self._write.execute((EmitEvent("Warning", outcome.failure.reason, outcome.failure.message),), involved)
        return REFUSED_RETRY_SECONDS if refused else requeue_after_seconds


def _starts_jobs(actions: Sequence[Action]) -> bool:
    return any(isinstance(action, CreateJob) for action in actions)


def _without_store(request: Request, problem: str) -> Result:
    """Without the store nothing is known to be recorded: reports wait in their Jobs, which are kept for an hour."""
    _log.warning("store unreachable, pass put off", extra={"object": f"{request.namespace}/{request.name}", "error": problem})
    return Result(STORE_RETRY_SECONDS)
