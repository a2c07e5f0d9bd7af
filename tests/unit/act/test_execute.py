from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.act.fake_cluster import FakeCluster
from tests.unit.act.make_actions import ADAPTATION_OWNER, LIMITS, make_bench_job, make_probe_job
from tests.unit.decide.keeping.make_windows import make_window
from tests.unit.decide.make_runs import make_candidate

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor, Outcome
from metainfer.act.jobs import build_job
from metainfer.decide.plan import Action, ApplyTarget, CreateJob, DeleteJob, EmitEvent, RecordDecision, RecordServed
from metainfer.kube.errors import ApiError, Conflict, FieldConflict, FieldOwner, Forbidden, Invalid, NotFound, ServerUnavailable, TooManyRequests

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OCR = ObjectRef("metainfer.dev/v1alpha1", "ModelAdaptation", "ocr", "uid-ocr", "models")
TOLD = EmitEvent("Normal", "Told", "words")
APPLY = ApplyTarget("models", "ocr", {"spec": {}}, "decision-1")
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "ocr", "namespace": "models"}}


class Log:
    """The decision log."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], datetime] = {}

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        fresh = (adaptation_uid, decision.decision_id) not in self.kept
        self.kept.setdefault((adaptation_uid, decision.decision_id), decision.decided_at)
        return fresh

    async def record_served(self, adaptation_uid: str, served: RecordServed) -> bool:
        fresh = (adaptation_uid, served.window.ended_at.isoformat()) not in self.kept
        self.kept.setdefault((adaptation_uid, served.window.ended_at.isoformat()), served.window.ended_at)
        return fresh


def make_actor(cluster: FakeCluster, remembered: list[Any] | None = None, log: Log | None = None) -> Actor:
    remember = (remembered if remembered is not None else []).append
    return Actor(cluster, log or Log(), LIMITS, remember, clock=lambda: NOON)


async def execute(cluster: FakeCluster, *actions: Action, remembered: list[Any] | None = None) -> list[Outcome]:
    return list(await make_actor(cluster, remembered).execute(actions, OCR))


def job_of(action: CreateJob, **metadata: Any) -> dict[str, Any]:
    job = build_job(action, LIMITS)
    return job | {"metadata": job["metadata"] | metadata}


async def test_actions_are_carried_out_in_order() -> None:
    """A plan says what comes first."""
    cluster = FakeCluster()
    outcomes = await execute(cluster, make_bench_job(), TOLD)
    assert [item.result for item in outcomes] == ["Done", "Done"]
    assert [kind for verb, kind, _ in cluster.calls if verb == "create"] == ["Job", "Event"]


async def test_a_created_job_is_remembered_at_once() -> None:
    """The next pass counts it against the caps before the watch tells."""
    remembered: list[Any] = []
    await execute(FakeCluster(), make_bench_job(), remembered=remembered)
    assert [item["metadata"]["name"] for item in remembered] == ["mi-bench-1"]


async def test_a_job_made_before_a_crash_is_taken_over() -> None:
    """AlreadyExists under a derived name means 'done'."""
    remembered: list[Any] = []
    (outcome,) = await execute(FakeCluster(job_of(make_bench_job())), make_bench_job(), remembered=remembered)
    assert (outcome.result, len(remembered)) == ("Unchanged", 1)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(job_of(make_bench_job(owner=ADAPTATION_OWNER | {"uid": "uid-of-another"})), id="of another adaptation"),
        pytest.param(job_of(make_bench_job(), labels={}), id="without our label"),
        pytest.param(job_of(make_bench_job(), ownerReferences=[]), id="without our owner"),
    ],
)
async def test_somebody_elses_job_of_that_name_is_not_taken_for_ours(found: dict[str, Any]) -> None:
    """A user could otherwise answer our questions."""
    remembered: list[Any] = []
    (outcome,) = await execute(FakeCluster(found), make_bench_job(), remembered=remembered)
    assert (outcome.result, remembered) == ("Refused", [])
    assert outcome.failure is not None
    assert outcome.failure.reason == "NameTaken"
    assert "models/mi-bench-1" in outcome.failure.message


async def test_a_predecessor_that_is_being_deleted_is_not_the_job() -> None:
    """Taken for done it would never be made."""
    (outcome,) = await execute(FakeCluster(job_of(make_bench_job(), deletionTimestamp="2026-03-01T12:00:00Z")), make_bench_job())
    assert outcome.result == "Pending"


NO_RIGHT = 'jobs.batch is forbidden: User "x" cannot create resource "jobs" in API group "batch" in the namespace "models"'
WEBHOOK = 'admission webhook "policy.example" denied the request: no team label'
POLICY = "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no team label"
TERMINATING = 'jobs.batch "x" is forbidden: unable to create new content in namespace models because it is being terminated'
WEBHOOK_DOWN = 'Internal error occurred: failed calling webhook "policy.example": Post "https://policy.default.svc": no endpoints available'
QUOTA = 'jobs.batch "x" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used: count/jobs.batch=4, limited: count/jobs.batch=4'


@pytest.mark.parametrize(
    ("error", "want_reason", "want_retryable"),
    [
        pytest.param(Forbidden(403, "Forbidden", QUOTA), "QuotaExceeded", True, id="a quota"),
        pytest.param(Forbidden(403, "Forbidden", NO_RIGHT), "RightMissing", False, id="a missing right"),
        pytest.param(Forbidden(403, "Forbidden", WEBHOOK), "JobRefused", False, id="an admission webhook"),
        pytest.param(Invalid(422, "Invalid", POLICY), "JobRefused", False, id="an admission policy"),
        pytest.param(Forbidden(403, "Forbidden", "maximum cpu usage per Container is 6, but limit is 8"), "JobRefused", False, id="a built-in rule"),
        pytest.param(Invalid(422, "Invalid", "spec.template: wrong"), "JobInvalid", False, id="an invalid manifest"),
        pytest.param(NotFound(404, "NotFound", 'namespaces "x" not found'), "NamespaceGone", False, id="the namespace is gone"),
        pytest.param(Forbidden(403, "Forbidden", TERMINATING), "NamespaceGone", False, id="the namespace is going"),
        pytest.param(ServerUnavailable(500, "InternalError", WEBHOOK_DOWN), "AdmissionUnavailable", True, id="a webhook that does not answer"),
    ],
)
async def test_a_refusal_is_an_outcome_with_the_servers_words_and_the_rest_goes_on(error: ApiError, want_reason: str, want_retryable: bool) -> None:
    """Asking again in the same pass cannot help; other actions can."""
    outcome, _ = await execute(FakeCluster(failures={"create": error}), make_bench_job(), TOLD)
    assert (outcome.result, outcome.failure and outcome.failure.reason, outcome.failure and outcome.failure.retryable) == (
        "Refused",
        want_reason,
        want_retryable,
    )
    assert outcome.failure is not None
    assert outcome.failure.message == error.message


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", ""), ServerUnavailable(0, "", "no answer"), TooManyRequests(429, "", "slow down", 1.0)])
async def test_what_another_try_can_cure_ends_the_pass(error: ApiError) -> None:
    """Whether the write happened may not be known: everything is looked at again."""
    with pytest.raises(type(error)):
        await execute(FakeCluster(failures={"create": error}), make_bench_job(), TOLD)


async def test_a_conflict_on_the_target_names_path_and_manager_and_leaves_the_rest_out() -> None:
    """'Applied' must not be told of something that was not."""
    owner = FieldOwner('.spec.template.spec.containers[name="server"].env[name="X"].value', "helm")
    cluster = FakeCluster(DEPLOYMENT, failures={"apply": FieldConflict(409, "Conflict", "conflict with helm", (owner,))})
    outcomes = await execute(cluster, APPLY, RecordDecision("d", "r", NOON, {}), TOLD)
    assert [(item.result, item.conflicts) for item in outcomes] == [("Contested", (owner,))]
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.reason == "FieldContested"


@pytest.mark.parametrize(
    ("cluster", "want_reason"),
    [
        pytest.param(FakeCluster(), "TargetNotFound", id="the target is gone"),
        pytest.param(FakeCluster(DEPLOYMENT, failures={"apply": Forbidden(403, "Forbidden", "no")}), "ApplyTargetForbidden", id="recommend-only rights"),
        pytest.param(FakeCluster(DEPLOYMENT, failures={"apply": Invalid(422, "Invalid", "image: Required")}), "ApplyTargetInvalid", id="no such container"),
    ],
)
async def test_a_target_that_cannot_be_written_is_an_outcome(cluster: FakeCluster, want_reason: str) -> None:
    """The status has to say it; nothing is retried by itself."""
    outcomes = await execute(cluster, APPLY, TOLD)
    assert [(item.result, item.failure and item.failure.reason) for item in outcomes] == [("Refused", want_reason)]


async def test_a_job_is_deleted_by_the_uid_that_was_judged() -> None:
    """A new Job under the same name was judged by nobody."""
    cluster = FakeCluster(job_of(make_probe_job(), uid="new"))
    await execute(cluster, DeleteJob("operator", "mi-probe-1", "stuck", uid="old"))
    assert ("Job", "operator", "mi-probe-1") in cluster.objects
    await execute(cluster, DeleteJob("operator", "mi-probe-1", "stuck", uid="new"))
    assert cluster.objects == {}


async def test_without_a_uid_the_job_of_ours_that_has_the_name_is_deleted() -> None:
    """Gone is fine; somebody else's is left alone."""
    cluster = FakeCluster(job_of(make_probe_job()), job_of(make_probe_job(name="theirs"), labels={}))
    outcomes = await execute(cluster, *(DeleteJob("operator", name, "stuck") for name in ("mi-probe-1", "theirs", "gone")))
    assert [item.result for item in outcomes] == ["Done", "Unchanged", "Unchanged"]
    assert [name for _, _, name in cluster.objects] == ["theirs"]


async def test_a_decision_is_recorded_once_with_the_time_it_was_taken() -> None:
    """Killed after recording: the first time stands."""
    log = Log()
    actor = make_actor(FakeCluster(), log=log)
    decision = RecordDecision("d1", "run-1", NOON, {"why": "faster"})
    results = [item.result for _ in range(2) for item in await actor.execute((decision,), OCR)]
    assert (results, log.kept) == (["Done", "Unchanged"], {("uid-ocr", "d1"): NOON})


async def test_events_too_many_are_dropped_not_raised() -> None:
    """The brake shows in the outcome."""
    outcomes = await make_actor(FakeCluster()).execute([replace(TOLD, message=f"words {number}") for number in range(12)], OCR)
    assert [item.result for item in outcomes].count("Dropped") == 2


async def test_a_served_window_is_recorded_for_the_adaptation() -> None:
    """Carried out like any other action; the same window again changes nothing."""
    window = RecordServed("decision-1", "run-1", make_candidate(), "digest", make_window(0))
    outcomes = await execute(FakeCluster(), window, window)
    assert [item.result for item in outcomes] == ["Done", "Unchanged"]
