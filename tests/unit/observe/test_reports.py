from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.observe.make_jobs import (
    CANDIDATE,
    NAMESPACE,
    NOON,
    at,
    make_ended,
    make_failed_job,
    make_job,
    make_pod,
    make_report,
    make_state,
)

from metainfer.decide.facts import CheckResult, ContainerFacts, JobFacts, PodFacts, ProbeResult, ProfileResult, RunResult, Told
from metainfer.kube.errors import Forbidden, NotFound
from metainfer.kube.kinds import EVENT, Kind
from metainfer.observe.reports import LOG_LIMIT_BYTES, AnyResult, Moment, find_ending, read_result
from metainfer.observe.told import with_told
from metainfer_probe.contract import (
    BenchReport,
    CurvePoint,
    Failure,
    HotOp,
    PrecisionSupport,
    ProfileReport,
    ProviderProfile,
    Report,
    decode_summary,
    encode_line,
    encode_summary,
)
from metainfer_probe.summary import fit_summary

SOON, LATER = Moment(at(30), 60.0), Moment(at(61), 60.0)


class Cluster:
    """What a result may be read from: one log and some Events."""

    def __init__(self, log: str | Exception = "", events: list[dict[str, Any]] | None = None) -> None:
        self.log, self.events, self.asked = log, events or [], list[Any]()

    async def pod_log(self, namespace: str, name: str, container: str, *, tail_lines: int, limit_bytes: int) -> str:
        self.asked.append((namespace, name, container, tail_lines, limit_bytes))
        if isinstance(self.log, Exception):
            raise self.log
        return self.log

    async def list(self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = "") -> tuple[list[dict[str, Any]], str]:
        self.asked.append((kind, namespace, field_selector))
        return self.events, "1"


async def read(job: JobFacts, cluster: Cluster | None = None, moment: Moment = LATER) -> AnyResult:
    ending = find_ending(job, moment)
    assert ending is not None
    result = await read_result(job, ending, cluster or Cluster(NotFound(404, "NotFound", "no log")))
    assert result is not None
    return result


async def failure_of(job: JobFacts, moment: Moment = LATER, cluster: Cluster | None = None) -> Failure:
    result = await read(job, cluster, moment)
    assert result.report is None
    assert result.failure is not None
    return result.failure


# --- A report that can be believed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("purpose", "want"), [("probe", ProbeResult), ("profile", ProfileResult), ("bench", RunResult), ("check", CheckResult)])
async def test_the_summary_alone_is_a_whole_result(purpose: str, want: type[AnyResult]) -> None:
    """A lost log means less detail, never a failure."""
    result = await read(make_job(make_pod(make_ended(purpose)), purpose=purpose))
    assert isinstance(result, want)
    assert result.report == make_report(purpose)
    assert (result.failure, result.finished_at, result.job, result.job_uid) == (None, at(60), f"mi-{purpose}-1", f"uid-{purpose}")


async def test_candidate_node_and_run_come_from_the_job() -> None:
    """The report says what was measured; the Job says for whom."""
    result = await read(make_job(make_pod(make_ended())))
    assert isinstance(result, RunResult)
    assert (result.candidate, result.node, result.run_id) == (CANDIDATE, "node-1", "run-1")
    profile = await read(make_job(make_pod(make_ended("profile")), purpose="profile"))
    assert isinstance(profile, ProfileResult)
    assert (profile.run_id, profile.node) == ("run-1", "node-1")


async def test_the_log_adds_detail() -> None:
    """One line is read, from the probe container only, and not without a limit."""
    full = make_report(detail={"quantiles_us": [1, 2, 3]})
    cluster = Cluster(encode_line(full) + "\n")
    assert (await read(make_job(make_pod(make_ended(report=make_report()))), cluster)).report == full
    assert cluster.asked == [(NAMESPACE, "job-abcde", "probe", 1, LOG_LIMIT_BYTES)]


async def test_a_log_may_say_more_than_a_summary_that_had_to_be_shortened() -> None:
    """Lists cut to fit into the termination message are whole in the log."""
    whole = make_report("profile", notes=("one", "two", "three"))
    short = make_report("profile", notes=("one",))
    result = await read(make_job(make_pod(make_ended("profile", report=short)), purpose="profile"), Cluster(encode_line(whole)))
    assert result.report == whole


def make_large_profile(nodes: int = 5) -> ProfileReport:
    """More than a termination message holds: two providers with whole curves, long paths and messages."""
    curve = tuple(
        CurvePoint(batch_size=batch, concurrency=calls, p50_us=101.25 * batch, p99_us=202.5 * batch, mean_us=101.25 * batch)
        for batch in (1, 2, 4, 8, 16)
        for calls in (1, 2)
    )
    odd = Failure(reason="BatchBakedIn", message="node " + "/model/with/a/long/path" * 12)
    support = tuple(PrecisionSupport(precision=name, native=True, failure=odd) for name in ("fp32", "bf16", "fp16", "int8"))
    hot = tuple(
        HotOp(op_type="Conv", node=f"/backbone/stage{number}/block/a/very/long/path/Conv_{number}", time_permille=100, provider="P") for number in range(nodes)
    )
    providers = tuple(ProviderProfile(provider=f"P{number}", coverage_permille=1000, curve=curve, precisions=support, batch_failure=odd) for number in range(2))
    return ProfileReport(digest="ab" * 32, parameters=82_915, hot=hot, providers=providers, notes=("a note " * 40,) * 5)


async def test_the_summary_that_the_probe_had_to_shorten_agrees_with_its_log() -> None:
    """Curves and paths that the termination message has no room for come from the log."""
    whole = make_large_profile()
    summary = fit_summary(whole)
    assert decode_summary(summary) != whole
    result = await read(make_job(make_pod(make_ended("profile", termination_message=summary)), purpose="profile"), Cluster(encode_line(whole)))
    assert result.report == whole


async def test_a_figure_that_differs_is_found_in_a_shortened_summary_too() -> None:
    """Tolerance is for what was left out, not for what is said."""
    whole = make_large_profile()
    forged = whole.model_copy(update={"parameters": whole.parameters + 1})
    summary = fit_summary(whole)
    result = await read(make_job(make_pod(make_ended("profile", termination_message=summary)), purpose="profile"), Cluster(encode_line(forged)))
    assert result.report == decode_summary(summary)


async def test_a_report_too_large_for_any_summary_is_whole_in_the_log() -> None:
    """The last resort of the probe says only where the rest is."""
    bare = make_report("profile", digest="", parameters=0, notes=(), failure=Failure(reason="ReportTooLarge", message="see the log"))
    whole = make_report("profile")
    job = make_job(make_pod(make_ended("profile", report=bare)), purpose="profile")
    assert (await read(job, Cluster(encode_line(whole)))).report == whole
    assert (await read(job)).report == bare


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(encode_line(make_report(latency_ratio_permille=1)), id="another figure"),
        pytest.param(encode_line(make_report(digest="cd" * 32)), id="another model"),
        pytest.param(encode_line(make_report("profile")), id="another kind"),
        pytest.param(encode_line(make_report())[:80], id="cut off"),
        pytest.param("Traceback (most recent call last):", id="not a report"),
        pytest.param("", id="empty"),
        pytest.param(Forbidden(403, "Forbidden", "pods/log"), id="may not be read"),
    ],
)
async def test_the_summary_wins_over_a_log_that_does_not_agree(log: str | Exception) -> None:
    """Only the summary has a checksum."""
    assert (await read(make_job(make_pod(make_ended())), Cluster(log))).report == make_report()


async def test_a_report_that_carries_a_failure_is_a_report() -> None:
    """What the probe itself found out needs no guess from the pod."""
    broken = make_report("profile", failure=Failure(reason="NotOnnx", message="a Git LFS pointer"))
    state = make_ended("profile", report=broken, exit_code=3, terminated_reason="Error")
    result = await read(make_failed_job(make_pod(state, phase="Failed"), purpose="profile"))
    assert (result.report, result.failure) == (broken, None)


async def test_the_report_is_read_when_the_container_has_ended_though_a_sidecar_keeps_the_job_alive() -> None:
    """A mesh proxy in the pod runs for ever: neither pod nor Job ever finish."""
    pod = make_pod(make_ended(), states=(make_state(name="istio-proxy"), make_ended()))
    job = make_job(pod)
    assert not job.finished
    assert (await read(job)).report == make_report()


async def test_a_report_survives_what_happens_to_its_pod_afterwards() -> None:
    """A kubelet restart can turn a finished pod with a card into UnexpectedAdmissionError: the report still counts."""
    pod = make_pod(make_ended(), phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed")
    assert (await read(make_failed_job(pod))).report == make_report()


async def test_of_several_pods_the_one_with_a_report_counts() -> None:
    """A pod lost before its container started was replaced."""
    lost = make_pod(name="job-1", phase="Failed", reason="NodeLost", node="node-9")
    assert (await read(make_job(lost, make_pod(make_ended(), name="job-2"), lost))).report == make_report()


# --- Not over yet ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "moment"),
    [
        pytest.param(make_job(make_pod(make_state())), LATER, id="the container runs, however long"),
        pytest.param(make_job(make_pod(phase="Pending", node=None, unschedulable="0/5 nodes")), SOON, id="pending, in its allowance"),
        pytest.param(make_job(make_pod(make_state(waiting_reason="ErrImagePull"), phase="Pending")), SOON, id="the first pull failed"),
        pytest.param(make_job(), SOON, id="no pod yet"),
        pytest.param(make_job(suspended=True, started_at=None), LATER, id="suspended by a queue: it has not begun"),
        pytest.param(make_job(started_at=at(20)), LATER, id="let go by the queue 41 s ago, created long before"),
    ],
)
def test_a_job_that_may_still_report_has_no_ending(job: JobFacts, moment: Moment) -> None:
    """Nothing is called a failure early."""
    assert find_ending(job, moment) is None


# --- Failures, each under its own name -------------------------------------------------------------------------------


def pending(**fields: Any) -> PodFacts:
    return make_pod(**({"phase": "Pending"} | fields))


def failed(state: Any = None, **fields: Any) -> PodFacts:
    return make_pod(state, **({"phase": "Failed"} | fields))


FAILURES = [
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "probe:1"'))),
        ("ImagePullFailed", True, 'pulling image "probe:1"'),
        id="the image cannot be pulled",
    ),
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="InvalidImageName", waiting_message="couldn't parse image name"))),
        ("ImagePullFailed", False, "couldn't parse"),
        id="the image name is none",
    ),
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="ErrImageNeverPull"))),
        ("ImagePullFailed", True, "ErrImageNeverPull"),
        id="the image is not on the node and may not be pulled",
    ),
    pytest.param(
        make_failed_job(failed(make_state(terminated_reason="StartError", exit_code=128, termination_message="exec /opt/venv/bin/x: exec format error"))),
        ("ArchitectureMismatch", False, "exec format error"),
        id="an image for another architecture, by the runtime's word",
    ),
    pytest.param(
        make_failed_job(failed(make_state(terminated_reason="Error", exit_code=255, termination_message="exec /opt/venv/bin/x: exec format error"))),
        ("ArchitectureMismatch", False, "exec format error"),
        id="an image for another architecture, by the end of its log",
    ),
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="ErrImagePull", waiting_message="no match for platform in manifest: not found"))),
        ("ArchitectureMismatch", False, "no match for platform"),
        id="an image that the registry has for other architectures only",
    ),
    pytest.param(
        make_failed_job(failed(make_state(terminated_reason="StartError", exit_code=128, termination_message="exec: metainfer-probe: not found"))),
        ("StartFailed", False, "not found"),
        id="an image without our program",
    ),
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="CreateContainerError", waiting_message="mkdir /models: read-only file system"))),
        ("ContainerNotCreated", False, "read-only file system"),
        id="a mount that the runtime cannot make",
    ),
    pytest.param(
        make_job(pending(node=None, unschedulable='0/5 nodes are available: persistentvolumeclaim "models" not found.')),
        ("ClaimMissing", True, 'persistentvolumeclaim "models" not found'),
        id="the claim went away",
    ),
    pytest.param(
        make_job(pending(), told=Told("FailedMount", 'MountVolume.SetUp failed for volume "models": timed out')),
        ("VolumeNotMounted", True, "MountVolume.SetUp failed"),
        id="the volume does not come",
    ),
    pytest.param(
        make_job(suspended=True, suspended_by="queue lab of kueue.x-k8s.io", created_at=at(-3600)),
        ("JobSuspended", True, "suspended by queue lab of kueue.x-k8s.io since 2026-03-01T11:00:00Z"),
        id="a queue holds it for an hour",
    ),
    pytest.param(
        make_job(pending(state=make_state(waiting_reason="CreateContainerConfigError", waiting_message="image has non-numeric user"))),
        ("ContainerNotCreated", False, "non-numeric user"),
        id="the container cannot be made",
    ),
    pytest.param(
        make_failed_job(failed(make_state(terminated_reason="OOMKilled", exit_code=137))),
        ("OutOfMemory", False, "memory limit of 512 MiB"),
        id="killed at its memory limit",
    ),
    pytest.param(
        make_failed_job(failed(reason="Evicted", message="The node was low on resource: ephemeral-storage.")),
        ("Evicted", False, "low on resource: ephemeral-storage"),
        id="evicted",
    ),
    pytest.param(
        make_failed_job(failed(reason="UnexpectedAdmissionError", message="Allocate failed: GPU is lost")),
        ("CardRefused", True, "GPU is lost"),
        id="the device plugin refused the card",
    ),
    pytest.param(
        make_failed_job(failed(reason="OutOfnvidia.com/gpu", message="Node didn't have enough resource: nvidia.com/gpu")),
        ("CardRefused", True, "OutOfnvidia.com/gpu"),
        id="the card was gone when the pod came",
    ),
    pytest.param(
        make_failed_job(failed(reason="NodeAffinity", message="Predicate NodeAffinity failed")),
        ("PodRejected", True, "Predicate NodeAffinity failed"),
        id="refused by the kubelet for another reason",
    ),
    pytest.param(make_failed_job(failed(reason="NodeLost")), ("NodeLost", True, "node node-1 was lost"), id="lost with its node, by the pod's word"),
    pytest.param(
        make_failed_job(failed(disruption="DeletionByTaintManager")), ("NodeLost", True, "node node-1 was lost"), id="its node is unreachable"
    ),
    pytest.param(
        make_failed_job(failed(disruption="PreemptionByScheduler", message="preempting to accommodate")),
        ("Disrupted", True, "PreemptionByScheduler"),
        id="preempted by somebody more important",
    ),
    pytest.param(make_failed_job(reason="DeadlineExceeded"), ("DeadlineExceeded", True, "words about DeadlineExceeded"), id="out of time, its pod is gone"),
    pytest.param(
        make_job(pending(node=None, unschedulable="0/5 nodes are available: 5 Insufficient metainfer.dev/card.")),
        ("Unschedulable", True, "5 Insufficient metainfer.dev/card"),
        id="no place, in the scheduler's words",
    ),
    pytest.param(make_job(pending()), ("NotStarted", True, "its container was not started"), id="bound to a node that does nothing with it"),
    pytest.param(make_job(), ("NotStarted", True, "made no pod"), id="no pod and nobody says why"),
    pytest.param(make_failed_job(), ("PodDisappeared", True, "its pod is gone"), id="the pod was deleted"),
    pytest.param(make_failed_job(failed(make_state(exit_code=1, terminated_reason="Error"))), ("ReportMissing", True, "exit code 1"), id="it left nothing"),
    pytest.param(
        make_failed_job(failed(make_state(exit_code=139, termination_message="Fatal Python error:\nSegmentation fault"))),
        ("ReportMissing", True, "exit code 139: the container left no report; its last words: Fatal Python error: Segmentation fault"),
        id="only the end of its log",
    ),
    pytest.param(make_failed_job(failed(make_state(exit_code=0, termination_message="all fine"))), ("ReportGarbled", True, "8 characters"), id="only words"),
    pytest.param(
        make_job(make_pod(make_ended(report=make_report("profile")))), ("ReportGarbled", True, "report from a Job with purpose bench"), id="another kind"
    ),
    pytest.param(
        make_job(make_pod(make_ended(termination_message=encode_summary(make_report()).replace('"v":1', '"v":2')))),
        ("ReportVersion", False, "contract version 2"),
        id="an image of another version",
    ),
    pytest.param(
        make_job(make_pod(make_ended(termination_message=encode_summary(make_report()).replace("700", "100")))),
        ("ReportChecksum", True, "checksum"),
        id="altered on its way",
    ),
    pytest.param(
        make_job(make_pod(make_ended(termination_message=encode_summary(make_report())[:60]))), ("ReportGarbled", True, "60 characters"), id="cut off"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("job", "want"), FAILURES)
async def test_each_way_to_fail_has_its_own_reason(job: JobFacts, want: tuple[str, bool, str]) -> None:
    """Reason, whether a retry can help, and words that name the thing."""
    reason, retryable, words = want
    failure = await failure_of(job)
    assert (failure.reason, failure.retryable) == (reason, retryable)
    assert words in failure.message
    assert job.name in failure.message


async def test_a_node_that_is_not_ready_is_lost_though_its_pod_still_says_running() -> None:
    """An unreachable kubelet reports nothing: pod and Job look alive for minutes."""
    job = make_job(make_pod(make_state()))
    assert (await failure_of(job, replace(SOON, lost_nodes={"node-1"}))).reason == "NodeLost"


async def test_a_lost_node_does_not_take_a_report_with_it() -> None:
    """What was reported before the node went counts."""
    result = await read(make_job(make_pod(make_ended())), moment=replace(SOON, lost_nodes={"node-1"}))
    assert result.report == make_report()


async def test_a_quota_refusal_gives_the_numbers() -> None:
    """The Job controller's newest Event is the only place that says why there is no pod."""
    words = 'pods "mi-bench-1-x" is forbidden: exceeded quota: team, requested: limits.cpu=4, used: limits.cpu=10, limited: limits.cpu=12'
    refused = {"type": "Warning", "reason": "FailedCreate"}
    events = [refused | {"message": "older", "lastTimestamp": "2026-03-01T12:00:00Z"}, refused | {"message": words, "lastTimestamp": "2026-03-01T12:00:40Z"}]
    cluster = Cluster(events=events)
    failure = await failure_of(make_job(active=0), cluster=cluster)
    assert (failure.reason, failure.retryable) == ("QuotaExceeded", True)
    assert "used: limits.cpu=10, limited: limits.cpu=12" in failure.message
    assert cluster.asked == [(EVENT, NAMESPACE, "involvedObject.uid=uid-bench")]


async def test_an_admission_refusal_is_told_in_its_own_words() -> None:
    """Whoever changes the rule tells nobody: it is tried again, ever later."""
    cluster = Cluster(events=[{"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity", "eventTime": "2026-03-01T12:00:40Z"}])
    failure = await failure_of(make_job(active=0), cluster=cluster)
    assert (failure.reason, failure.retryable) == ("PodRefused", True)


async def test_a_pod_that_was_made_after_all_was_not_refused() -> None:
    """The newest Event counts: the quota was free again, and then somebody deleted the pod."""
    events = [
        {"type": "Warning", "reason": "FailedCreate", "message": "exceeded quota", "lastTimestamp": "2026-03-01T12:00:00Z"},
        {"type": "Normal", "reason": "SuccessfulCreate", "message": "Created pod", "lastTimestamp": "2026-03-01T12:00:40Z"},
    ]
    assert (await failure_of(make_failed_job(), cluster=Cluster(events=events))).reason == "PodDisappeared"


ENDED = make_report(failure=Failure(reason="Terminated", message="the Job was ended (SIGTERM)", retryable=True))


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(make_failed_job(failed_with := make_pod(make_ended(report=ENDED), phase="Failed", reason="Evicted", message="low on memory")), "Evicted"),
        pytest.param(make_job(replace(failed_with, reason="", disruption="PreemptionByScheduler")), "Disrupted"),
        pytest.param(make_job(replace(failed_with, reason="", deleting=True), condition_reason="DeadlineExceeded"), "DeadlineExceeded"),
    ],
    ids=["evicted", "preempted", "the Job controller has just said that its time is over"],
)
async def test_a_probe_that_was_ended_does_not_hide_why(job: JobFacts, want: str) -> None:
    """The probe reports SIGTERM, because it cannot know more; an eviction taken for that would be tried again."""
    assert (await failure_of(job)).reason == want


async def test_a_probe_that_was_ended_for_no_known_reason_says_that() -> None:
    """Somebody deleted the pod: its own report is all there is."""
    report = (await read(make_job(make_pod(make_ended(report=ENDED), deleting=True)))).report
    assert report == ENDED


RESOURCES = {"metainfer.dev/resources": '{"limits":{"cpu":"4000m","memory":"4294967296"},"requests":{"cpu":"4000m"}}'}


@pytest.mark.parametrize(
    ("requests", "limits", "want"),
    [
        pytest.param({"cpu": 4000}, {"cpu": 4000, "memory": 4 << 30}, "", id="as it was asked for"),
        pytest.param({"cpu": 4000, "ephemeral-storage": 1}, {"cpu": 4000, "memory": 4 << 30, "pods": 1}, "", id="with a LimitRange's defaults beside"),
        pytest.param({"cpu": 100}, {"cpu": 500, "memory": 4 << 30}, "requests.cpu 100m in place of 4000m, limits.cpu 500m in place of 4000m", id="cut down"),
        pytest.param({"cpu": 4000}, {"memory": 4 << 30}, "limits.cpu none in place of 4000m", id="freed of a limit"),
    ],
)
async def test_figures_of_a_container_that_was_altered_are_no_result(requests: dict[str, int], limits: dict[str, int], want: str) -> None:
    """A webhook that gives a benchmark other resources than the target's makes its report worthless, and says so."""
    pod = make_pod(make_ended(), containers=(ContainerFacts("probe", requests=requests, limits=limits),))
    result = await read(make_job(pod, annotations=RESOURCES))
    assert (result.report is None) == bool(want)
    if want:
        assert result.failure is not None
        assert (result.failure.reason, result.failure.retryable) == ("ResourcesAltered", False)
        assert want in result.failure.message


# --- What Events say while nothing runs ------------------------------------------------------------------------------

FAILED_CREATE = {"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity", "lastTimestamp": "2026-03-01T12:00:01Z"}


@pytest.mark.parametrize(
    ("job", "want_uid"),
    [
        pytest.param(make_job(), "uid-bench", id="no pod: about the Job"),
        pytest.param(make_job(make_pod(phase="Pending")), "uid-pod", id="a pod that the kubelet does nothing with: about the pod"),
        pytest.param(make_job(make_pod(make_state())), "", id="it runs"),
        pytest.param(make_job(make_pod(phase="Pending", node=None, unschedulable="0/5 nodes")), "", id="the scheduler says why"),
        pytest.param(make_job(make_pod(make_state(waiting_reason="ErrImagePull"), phase="Pending")), "", id="the kubelet says why"),
        pytest.param(make_job(created_at=at(25)), "", id="made a moment ago"),
        pytest.param(make_job(suspended=True), "", id="suspended"),
        pytest.param(make_failed_job(), "", id="over"),
    ],
)
async def test_events_are_read_only_where_nothing_else_says_why(job: JobFacts, want_uid: str) -> None:
    """One request for each Job that waits in silence, and none for any other."""
    cluster = Cluster(events=[FAILED_CREATE])
    told = (await with_told(job, cluster, at(30))).told
    assert [selector for _, _, selector in cluster.asked] == ([f"involvedObject.uid={want_uid}"] if want_uid else [])
    assert told == (Told("FailedCreate", "violates PodSecurity") if want_uid else None)


def test_a_pod_that_admission_refuses_is_not_waited_for() -> None:
    """The Job controller asks again until the deadline, in vain; a quota may be free again."""
    assert find_ending(make_job(told=Told("FailedCreate", "violates PodSecurity")), SOON) is not None
    assert find_ending(make_job(told=Told("FailedCreate", "exceeded quota: team")), SOON) is None


async def test_the_time_of_a_failure_is_when_the_job_ended_not_when_it_was_read() -> None:
    """The same Job read twice gives the same result."""
    job = make_failed_job(reason="DeadlineExceeded")
    first, second = await read(job, moment=LATER), await read(job, moment=Moment(at(900), 60.0))
    assert first == second
    assert first.finished_at == at(90)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(make_job(make_pod(make_ended()), annotations={"metainfer.dev/candidate": "{"}), id="no candidate that can be read"),
        pytest.param(make_job(make_pod(make_ended("probe")), purpose="probe", annotations={"metainfer.dev/node": ""}), id="a probe of no node"),
    ],
)
async def test_a_job_that_is_not_ours_after_all_is_no_result(job: JobFacts) -> None:
    """Labels alone make no measurement."""
    ending = find_ending(job, LATER)
    assert ending is not None
    assert await read_result(job, ending, Cluster()) is None


async def test_without_detail_the_log_is_left_alone() -> None:
    """While the store is down the same Jobs are read in every pass."""
    job, cluster = make_job(make_pod(make_ended())), Cluster("never read")
    ending = find_ending(job, LATER)
    assert ending is not None
    result = await read_result(job, ending, cluster, detail=False)
    assert result is not None
    assert (result.report, cluster.asked) == (make_report(), [])


def test_reports_of_the_builders_are_what_they_say() -> None:
    """The builders above make three kinds, and noon is noon."""
    report: Report = make_report("bench")
    assert isinstance(report, BenchReport)
    assert at(0) == NOON
