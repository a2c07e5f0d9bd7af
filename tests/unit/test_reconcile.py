"""The order of a pass: record before deciding, claim before acting, one pass at a time where Jobs are started."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from tests.unit.decide.make_facts import FAMILY_LABEL_OF_VENDOR, make_node, make_pool
from tests.unit.decide.make_world import make_world
from tests.unit.decide.test_canary import AROUND, make_trial
from tests.unit.decide.test_watching import crash, write

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Outcome
from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import (
    AdaptationFacts,
    CanaryFacts,
    CheckResult,
    JobFacts,
    MeasuringLimits,
    PoolFacts,
    PoolSnapshot,
    ProbeResult,
    ProfileResult,
    RunResult,
)
from metainfer.decide.plan import Action, ApplyTarget, CreateCanary, CreateJob, EmitEvent, RestoreTarget
from metainfer.kube.errors import Conflict, FieldOwner
from metainfer.observe.gather import GatheredAdaptation, GatheredPool
from metainfer.predict.physics import PhysicsPredictor
from metainfer.reconcile import AGAIN_SECONDS, STORE_RETRY_SECONDS, Reconciler, Request
from metainfer_probe.contract import Failure

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POOL = Request("pool", "", "cards")


@dataclass
class Cluster:
    """Gathers, records and writes in memory; keeps a journal of what was called in which order."""

    pool: GatheredPool | None = None
    adaptation: GatheredAdaptation | None = None
    journal: list[str] = field(default_factory=list)
    statuses: list[AcceleratorPoolStatus | ModelAdaptationStatus] = field(default_factory=list)
    outcome: Outcome | None = None
    lost_race: bool = False
    problem: str = ""

    async def gather_pool(self, name: str) -> GatheredPool | None:
        """What was put there."""
        await asyncio.sleep(0)
        self.journal.append(f"gather {name}")
        return self.pool

    async def gather_adaptation(self, namespace: str, name: str) -> GatheredAdaptation | None:
        """What was put there."""
        self.journal.append(f"gather {namespace}/{name}")
        return self.adaptation

    async def record_probe(self, pool: str, result: ProbeResult) -> bool:
        """Journal only."""
        self.journal.append(f"record {pool} {result.job}")
        return True

    async def record_profile(self, adaptation_uid: str, result: ProfileResult) -> bool:
        """Journal only."""
        self.journal.append(f"record {adaptation_uid} {result.job}")
        return True

    async def record_run(self, adaptation_uid: str, result: RunResult) -> bool:
        """Journal only."""
        self.journal.append(f"record {adaptation_uid} {result.job}")
        return True

    async def record_check(self, adaptation_uid: str, result: CheckResult) -> bool:
        """Journal only."""
        self.journal.append(f"record {adaptation_uid} {result.job}")
        return True

    async def write_pool_status(self, facts: PoolFacts, status: AcceleratorPoolStatus) -> PoolFacts:
        """The claim; may lose the race."""
        if self.lost_race:
            raise Conflict(409, "Conflict", f"{facts.name} was modified")
        self.journal.append("claim")
        self.statuses.append(status)
        return replace(facts, status=status)

    async def write_adaptation_status(self, facts: AdaptationFacts, status: ModelAdaptationStatus) -> AdaptationFacts:
        """The claim."""
        self.journal.append("claim")
        self.statuses.append(status)
        return replace(facts, status=status)

    async def report_unreadable(self, request: Request, now: datetime) -> None:
        """For what has no facts."""
        self.journal.append(f"unreadable {request.name}")

    async def execute(self, actions: Sequence[Action], involved: ObjectRef) -> Sequence[Outcome]:
        """Started Jobs are in the cluster at once, as ``remember`` puts them into the cache."""
        outcomes = []
        for action in actions:
            await asyncio.sleep(0)
            self.journal.append(f"{type(action).__name__} {getattr(action, 'node', None) or getattr(action, 'reason', involved.kind)}")
            if isinstance(action, CreateJob) and self.outcome is None and self.pool is not None:
                job = JobFacts(action.namespace, action.name, "uid", action.labels, action.annotations, created_at=NOW, active=1)
                snapshot = self.pool.snapshot
                self.pool = replace(self.pool, snapshot=replace(snapshot, jobs=(*snapshot.jobs, job)))
            mine = self.outcome is not None and isinstance(action, CreateJob | ApplyTarget | RestoreTarget | CreateCanary)
            outcomes.append(replace(self.outcome, action=action) if mine and self.outcome is not None else Outcome(action, "Done"))
        return outcomes


def make_cluster(**fields: object) -> Cluster:
    """One pool with one unmeasured node, one measuring Job at a time."""
    node = make_node("n0", labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu"})
    other = make_node("n1", labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu"})
    pool = make_pool(spec={"limits": {"max_concurrent_measurements": 1}})
    result = ProbeResult("mi-probe-old", "n9", NOW, failure=Failure(reason="NodeLost", message="gone"))
    snapshot = PoolSnapshot(pool, (pool,), (node, other), (), {}, (), (result,), MeasuringLimits(probe_image="probe:1"))
    return Cluster(pool=GatheredPool(snapshot, (result,)), **fields)  # type: ignore[arg-type]  # test builder


def make_reconciler(cluster: Cluster) -> Reconciler:
    """A reconciler whose every side is the given cluster."""
    return Reconciler(cluster, cluster, cluster, PhysicsPredictor())


async def test_results_are_kept_before_the_claim_and_the_claim_comes_before_every_effect() -> None:
    """Killed anywhere, nothing is lost and nothing was done that the status does not know of."""
    cluster = make_cluster()
    await make_reconciler(cluster).reconcile(POOL, NOW)
    steps = [step.split()[0] for step in cluster.journal]
    effects = [index for index, step in enumerate(steps) if step in ("CreateJob", "WriteNodeLabels", "EmitEvent")]
    assert steps.index("record") < steps.index("claim")
    assert effects
    assert steps.index("claim") < min(effects)


async def test_passes_at_the_same_time_do_not_break_a_cap() -> None:
    """Ten passes at once over a pool that allows one measuring Job start one."""
    cluster = make_cluster()
    reconciler = make_reconciler(cluster)
    await asyncio.gather(*(reconciler.reconcile(POOL, NOW) for _ in range(10)))
    assert sum(step.startswith("CreateJob") for step in cluster.journal) == 1


async def test_a_lost_race_for_the_status_has_no_effect() -> None:
    """409 on the claim: drop the pass."""
    cluster = make_cluster(lost_race=True)
    with pytest.raises(Conflict):
        await make_reconciler(cluster).reconcile(POOL, NOW)
    assert not [step for step in cluster.journal if step.startswith("CreateJob")]


async def test_an_object_that_is_gone_is_no_work() -> None:
    """Deleted between event and pass."""
    cluster = Cluster()
    assert (await make_reconciler(cluster).reconcile(POOL, NOW)).requeue_after_seconds is None
    assert cluster.statuses == []


@pytest.mark.parametrize("request_", [POOL, Request("adaptation", "default", "ocr")], ids=["pool", "adaptation"])
async def test_an_object_without_facts_may_be_one_that_cannot_be_read(request_: Request) -> None:
    """Whoever keeps the problems is asked: a typed one belongs into the object's status."""
    cluster = Cluster()
    await make_reconciler(cluster).reconcile(request_, NOW)
    assert cluster.journal[-1] == f"unreadable {request_.name}"


def without_store(cluster: Cluster, problem: str) -> Cluster:
    """The same cluster as a pass finds it while the store is away; empty: it is back."""
    cluster.problem = problem
    if cluster.pool is not None:
        cluster.pool = replace(cluster.pool, snapshot=replace(cluster.pool.snapshot, store_problem=problem))
    if cluster.adaptation is not None:
        cluster.adaptation = replace(cluster.adaptation, snapshot=replace(cluster.adaptation.snapshot, store_problem=problem))
    return cluster


async def test_without_the_store_a_pool_goes_on_and_says_so() -> None:
    """Nodes are probed as ever; it is looked at again until the store is back."""
    cluster = without_store(make_cluster(), "disk full")
    result = await make_reconciler(cluster).reconcile(POOL, NOW)
    found = find_condition(cluster.statuses[-1].conditions, "StoreDegraded")
    assert found is not None
    assert (found.status, "disk full" in found.message) == ("True", True)
    assert sum(step.startswith("CreateJob") for step in cluster.journal) == 1
    assert result.requeue_after_seconds == STORE_RETRY_SECONDS
    await make_reconciler(without_store(cluster, "")).reconcile(POOL, NOW)
    assert find_condition(cluster.statuses[-1].conditions, "StoreDegraded") is None


async def test_without_the_store_an_adaptation_says_so_and_keeps_its_other_conditions() -> None:
    """StoreDegraded while it lasts and no longer."""
    world = make_world()
    world.play()
    before = world.snapshot.adaptation.status.conditions
    cluster = without_store(Cluster(adaptation=GatheredAdaptation(world.snapshot, ())), "disk full")
    request = Request("adaptation", "default", "ocr")
    assert (await make_reconciler(cluster).reconcile(request, world.now)).requeue_after_seconds == STORE_RETRY_SECONDS
    conditions = cluster.statuses[-1].conditions
    found = find_condition(conditions, "StoreDegraded")
    assert found is not None
    assert (found.status, "disk full" in found.message) == ("True", True)
    assert [item for item in conditions if item.type != "StoreDegraded"] == list(before)
    assert (await make_reconciler(without_store(cluster, "")).reconcile(request, world.now)).requeue_after_seconds is None
    assert find_condition(cluster.statuses[-1].conditions, "StoreDegraded") is None


async def test_a_store_that_goes_away_during_a_pass_is_looked_at_again() -> None:
    """The snapshot knew nothing of it, and what the pass recorded waits in memory: the next pass says so."""
    cluster = make_cluster()
    cluster.problem = "disk full"
    assert (await make_reconciler(cluster).reconcile(POOL, NOW)).requeue_after_seconds == STORE_RETRY_SECONDS


REFUSED = Outcome(EmitEvent("Normal", "x", "x"), "Refused", Failure(reason="QuotaExceeded", message="exceeded quota: cards, used 4 of 4", retryable=True))


async def test_a_probe_that_the_api_server_does_not_take_is_put_on_record() -> None:
    """By compare-and-swap on the status just claimed; the next pass says it, and does not try again at once."""
    cluster = make_cluster(outcome=REFUSED)
    result = await make_reconciler(cluster).reconcile(POOL, NOW)
    assert result.requeue_after_seconds == AGAIN_SECONDS
    claimed, recorded = cluster.statuses
    assert isinstance(claimed, AcceleratorPoolStatus)
    assert isinstance(recorded, AcceleratorPoolStatus)
    assert recorded.refusal is not None
    assert (recorded.refusal.reason, recorded.refusal.message, recorded.refusal.attempts) == ("QuotaExceeded", "exceeded quota: cards, used 4 of 4", 1)
    assert recorded.model_copy(update={"refusal": None}) == claimed


async def test_a_job_of_a_run_that_the_api_server_does_not_take_is_put_on_record() -> None:
    """The same, in the run."""
    world = make_world()
    cluster = Cluster(adaptation=GatheredAdaptation(world.snapshot, ()), outcome=REFUSED)
    result = await make_reconciler(cluster).reconcile(Request("adaptation", "default", "ocr"), world.now)
    last = cluster.statuses[-1]
    assert isinstance(last, ModelAdaptationStatus)
    assert last.run is not None
    assert last.run.refusal is not None
    assert (last.run.refusal.reason, result.requeue_after_seconds) == ("QuotaExceeded", AGAIN_SECONDS)


async def test_a_restore_that_the_api_server_does_not_take_is_put_on_record() -> None:
    """A decision that is taken back: the next try comes later, and the status says why it is not done."""
    world = write(make_world())
    crash(world)
    refused = Outcome(EmitEvent("Normal", "x", "x"), "Refused", Failure(reason="RestoreRefused", message="denied by policy no-gpu"))
    cluster = Cluster(adaptation=GatheredAdaptation(world.snapshot, ()), outcome=refused)
    await make_reconciler(cluster).reconcile(Request("adaptation", "default", "ocr"), world.now)
    status = cluster.statuses[-1]
    assert isinstance(status, ModelAdaptationStatus)
    assert status.apply_refusal is not None
    assert (status.apply_refusal.attempts, status.apply_refusal.message) == (1, "denied by policy no-gpu")
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status))
    plan = world.turn()
    assert world.condition("Stalled") == ("True", "ApplyRefused")
    assert [action for action in plan.actions if isinstance(action, RestoreTarget)] == []


async def test_a_trial_that_the_api_server_does_not_take_is_put_on_record() -> None:
    """The next pass writes in place."""
    trial = make_trial()
    snapshot = replace(trial.world.snapshot, canary=CanaryFacts(AROUND))
    refused = Outcome(EmitEvent("Normal", "x", "x"), "Refused", Failure(reason="CreateCanaryForbidden", message="cannot create resource deployments"))
    cluster = Cluster(adaptation=GatheredAdaptation(snapshot, ()), outcome=refused)
    await make_reconciler(cluster).reconcile(Request("adaptation", "default", "ocr"), trial.world.now)
    status = cluster.statuses[-1]
    assert isinstance(status, ModelAdaptationStatus)
    assert status.canary is not None
    assert (status.canary.outcome, status.canary.reason) == ("Skipped", "CanaryRefused")
    assert "cannot create resource deployments" in status.canary.message


async def test_a_contested_apply_ends_in_the_status_with_path_and_manager() -> None:
    """The second status write of the pass: what the API server said."""
    world = make_world()
    while world.applies == 0:
        world.turn()
    status = world.snapshot.adaptation.status
    target = world.snapshot.target
    assert target is not None
    before = replace(world.snapshot, target=replace(target, template=replace(target.template, annotations={})))
    before = replace(before, adaptation=replace(before.adaptation, status=status.model_copy(update={"placement": None})))
    contested = Outcome(EmitEvent("Normal", "x", "x"), "Contested", None, (FieldOwner(".spec.template.spec.affinity", "argocd-controller"),))
    cluster = Cluster(adaptation=GatheredAdaptation(before, ()), outcome=contested)
    await make_reconciler(cluster).reconcile(Request("adaptation", "default", "ocr"), NOW)
    last = cluster.statuses[-1]
    found = find_condition(last.conditions, "FieldContested")
    assert found is not None
    assert (found.status, found.reason) == ("True", "ApplyConflict")
    assert "argocd-controller" in found.message
