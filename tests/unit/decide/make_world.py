"""A small world in which the pass over an adaptation is played to its end: Jobs finish, applies land, pods move."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.unit.decide.make_facts import (
    CARD,
    CPU_PROVIDER,
    FAMILY_LABEL_OF_VENDOR,
    GIB,
    OPENVINO_PROVIDER,
    make_adaptation,
    make_container,
    make_env_owner,
    make_family,
    make_figures,
    make_managed,
    make_node,
    make_pod,
    make_pool,
    make_portrait,
    make_snapshot,
    make_target,
)  # fmt: skip

from metainfer.api.v1alpha1.common import DECISION_ANNOTATION
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.applying import report_conflict
from metainfer.decide.conditions import find_condition
from metainfer.decide.facts import AdaptationSnapshot, Candidate, CheckResult, EnvEntry, JobFacts, PodFacts, ProfileResult, RunResult, TargetFacts
from metainfer.decide.lasting import note_written_again
from metainfer.decide.names import CANDIDATE_ANNOTATION
from metainfer.decide.ownership import PREFERRED_AFFINITY, REQUIRED_AFFINITY
from metainfer.decide.plan import Action, AdaptationPlan, ApplyTarget, CreateJob, RestoreTarget
from metainfer.decide.wanted import find_wanted
from metainfer.observe.pods import project_terms
from metainfer.predict.physics import PhysicsPredictor
from metainfer_probe.contract import (
    Accuracy,
    BenchReport,
    BenchRequest,
    CurvePoint,
    Failure,
    Measured,
    MicroProbe,
    OpWork,
    PrecisionSupport,
    ProfileReport,
    ProviderProfile,
    Readback,
)  # fmt: skip

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MICRO = MicroProbe(gflops=60.0, bandwidth_gigabytes_per_second=10.0, spread_permille=10)
ORT, OPENVINO = "ort-cpu", "openvino-cpu"


def make_profile(**fields: Any) -> ProfileReport:
    """A small convolutional model that runs on both providers."""
    precisions = tuple(PrecisionSupport(precision=item, native=True) for item in ("fp32", "bf16", "int8"))
    providers = tuple(
        ProviderProfile(
            provider=name, coverage_permille=1000, assigned_nodes=50, precisions=precisions,
            curve=(CurvePoint(batch_size=1, p50_us=5000, p99_us=5500, mean_us=5000), CurvePoint(batch_size=4, p50_us=19000, p99_us=20000, mean_us=19000)),
        )
        for name in (CPU_PROVIDER, OPENVINO_PROVIDER)
    )  # fmt: skip
    work = (OpWork(op_class="convolution", count=50, macs=250_000_000, bytes_moved=30_000_000, time_permille=1000),)
    defaults: dict[str, Any] = {
        "digest": "d" * 64, "file_bytes": 7_000_000, "weight_bytes": 7_000_000, "parameters": 1_700_000, "nodes": 60, "opset": 15, "architecture": "cnn",
        "work": work, "providers": providers, "inputs_source": "calibration", "bound": "compute", "activation_bytes_per_sample": 1_000_000, "micro": MICRO,
    }  # fmt: skip
    return ProfileReport(**(defaults | fields))


Cost = Callable[[Candidate], float]


@dataclass
class World:
    """A cluster in which everything that is started ends well, and time passes."""

    snapshot: AdaptationSnapshot
    p50_us: Cost
    now: datetime = START
    difference_ppm: int = 100
    profile: ProfileReport = field(default_factory=make_profile)
    profile_failure: Failure | None = None
    bench_failure: Callable[[Candidate, int], Failure | None] = lambda _candidate, _attempt: None
    conflict: tuple[tuple[str, str], ...] = ()
    measured: Callable[[BenchReport, CreateJob], BenchReport] = lambda report, _job: report
    """What a benchmark finds, made from what it would find without any error."""
    checked: Callable[[BenchReport, CreateJob], BenchReport | None] = lambda report, _job: report
    """What a check of what runs finds, made from what its benchmark would find; None = its Job fails."""
    jobs_started: list[CreateJob] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    applies: int = 0
    restores: int = 0

    def __post_init__(self) -> None:
        """What the owner declares, for when everything is given back."""
        self.owners, self.owners_pods = self.snapshot.target, self.snapshot.target_pods

    def turn(self) -> AdaptationPlan:
        """One pass and what follows from it."""
        plan = decide_adaptation(self.snapshot, PhysicsPredictor(), self.now)
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: AdaptationPlan) -> None:
        """What follows from a pass."""
        self.take(plan)
        for action in plan.actions:
            self.actions.append(action)
            if isinstance(action, CreateJob):
                self.run(action)
            elif isinstance(action, ApplyTarget):
                self._apply(action)
            elif isinstance(action, RestoreTarget):
                self._restore()
        self.now += timedelta(seconds=30)

    def play(self, turns: int = 25) -> AdaptationPlan:
        """Passes until nothing is waited for."""
        plan = self.turn()
        while plan.requeue_after_seconds is not None and plan.requeue_after_seconds < 60 and turns > 0:
            turns -= 1
            plan = self.turn()
        return plan

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = find_condition(self.snapshot.adaptation.status.conditions, kind)
        assert found is not None, kind
        return found.status, found.reason

    def benched(self) -> list[Candidate]:
        """Candidates of the benchmark Jobs, in order."""
        return [run.candidate for run in self.snapshot.runs]

    def change_target(self, **fields: Any) -> None:
        """The owner writes the Deployment: fields of its template's first container by name, others of the Deployment itself."""
        target = self.snapshot.target
        assert target is not None
        server = target.template.containers[0]
        own = {name: fields.pop(name) for name in list(fields) if hasattr(server, name) and name != "name"}
        template = fields.pop("template", replace(target.template, containers=(replace(server, **own), *target.template.containers[1:])))
        self.snapshot = replace(self.snapshot, target=replace(target, template=template, **fields))

    def change_spec(self, **fields: Any) -> None:
        """The user edits the adaptation."""
        adaptation = self.snapshot.adaptation
        spec = adaptation.spec.model_copy(update=fields)
        self.snapshot = replace(self.snapshot, adaptation=replace(adaptation, spec=spec, generation=adaptation.generation + 1))

    @property
    def status(self) -> ModelAdaptationStatus:
        """As the last pass left it."""
        return self.snapshot.adaptation.status

    def message(self, kind: str) -> str:
        """Of a condition."""
        found = find_condition(self.status.conditions, kind)
        assert found is not None, kind
        return found.message

    def started(self, purpose: str) -> int:
        """How many Jobs of the purpose were started so far."""
        return [job.purpose for job in self.jobs_started].count(purpose)

    def take(self, plan: AdaptationPlan) -> None:
        """What ``gather`` reads for the next pass is of the run that the status names, the model's portrait perhaps of an earlier one."""
        before, after = self.status.run, plan.status.run
        self.snapshot = replace(self.snapshot, adaptation=replace(self.snapshot.adaptation, status=plan.status))
        if after is None or (before is not None and before.id == after.id):
            return
        profile = self.snapshot.profile
        kept = profile if profile is not None and profile.run_id == after.profile_run else None
        self.snapshot = replace(self.snapshot, profile=kept, runs=(), checks=())

    def run(self, job: CreateJob) -> None:
        """A Job that ends at once, and well."""
        assert job.name not in {item.name for item in self.jobs_started}, f"{job.name} was started twice"
        self.jobs_started.append(job)
        facts = JobFacts(job.namespace, job.name, f"uid-{job.name}", job.labels, job.annotations, created_at=self.now, condition="Complete", succeeded=1)
        run = self.snapshot.adaptation.status.run
        assert run is not None
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, facts))
        if job.purpose == "profile":
            result = ProfileResult(job.name, self.now, self._portrait(), None, node=job.node or "", run_id=run.id, job_uid=f"uid-{job.name}")
            self.snapshot = replace(self.snapshot, profile=result)
            return
        assert isinstance(job.request, BenchRequest)
        if job.purpose == "check":
            self._check(job, run.id)
            return
        candidate = Candidate("cards", json.loads(job.annotations[CANDIDATE_ANNOTATION])["family"], job.request.candidate)
        attempt = sum(item.candidate == candidate for item in self.snapshot.runs)
        failure = self.bench_failure(candidate, attempt)
        report = None if failure else self.measured(make_bench(self.p50_us(candidate), candidate, self.difference_ppm, digest=self.profile.digest), job)
        done = RunResult(job.name, run.id, candidate, job.node or "", self.now, report, failure, job_uid=f"uid-{job.name}")
        self.snapshot = replace(self.snapshot, runs=(*self.snapshot.runs, done))

    def _check(self, job: CreateJob, run_id: str) -> None:
        """The present configuration is measured once more."""
        assert isinstance(job.request, BenchRequest)
        candidate = Candidate("cards", json.loads(job.annotations[CANDIDATE_ANNOTATION])["family"], job.request.candidate)
        report = self.checked(make_bench(self.p50_us(candidate), candidate, self.difference_ppm, digest=self.profile.digest), job)
        failure = Failure(reason="Evicted", message="the node was short of memory", retryable=True) if report is None else None
        done = CheckResult(job.name, run_id, candidate, job.node or "", self.now, report, failure, job_uid=f"uid-{job.name}")
        self.snapshot = replace(self.snapshot, checks=(*self.snapshot.checks, done))

    def _portrait(self) -> ProfileReport:
        if self.profile_failure is None:
            return self.profile
        return ProfileReport(digest=self.profile.digest, failure=self.profile_failure)

    def _apply(self, action: ApplyTarget) -> None:
        self.applies += 1
        if self.conflict:
            status = report_conflict(self.snapshot, self.snapshot.adaptation.status, self.conflict, self.now)
            self.snapshot = replace(self.snapshot, adaptation=replace(self.snapshot.adaptation, status=status))
            return
        target = self.snapshot.target
        assert target is not None
        template = action.body["spec"]["template"]
        containers = template["spec"].get("containers", [])
        env = {entry["name"]: entry["value"] for item in containers for entry in item["env"]}
        written = with_affinity(applied(target, env, action.decision_id), template["spec"].get("affinity", {}).get("nodeAffinity", {}))
        former, moved = {pod.uid for pod in self.snapshot.target_pods}, self._moved_pod(env, action.decision_id)
        others = tuple(pod for pod in self.snapshot.card_pods if pod.uid not in former)
        adaptation = replace(self.snapshot.adaptation, status=note_written_again(self.status))
        self.snapshot = replace(self.snapshot, adaptation=adaptation, target=written, target_pods=(moved,), card_pods=(*others, moved))

    def _restore(self) -> None:
        """The Deployment as its owner declares it, and its rollout over."""
        self.restores += 1
        assert self.owners is not None
        assert self.snapshot.target is not None
        generation = self.snapshot.target.generation + 1
        target = replace(self.owners, generation=generation, observed_generation=generation)
        ended = {pod.uid for pod in self.snapshot.target_pods}
        others = tuple(pod for pod in self.snapshot.card_pods if pod.uid not in ended)
        self.snapshot = replace(self.snapshot, target=target, target_pods=self.owners_pods, card_pods=(*others, *self.owners_pods))

    def _moved_pod(self, env: Mapping[str, str], decision_id: str) -> PodFacts:
        wanted = find_wanted(self.snapshot.adaptation.status)
        assert wanted is not None
        assert wanted.config is not None
        node = next(name for name, item in self.snapshot.portraits.items() if item.spec.family == wanted.config.family)
        server = make_container(env=env)
        return make_pod("ocr-2", server, node=node, ready=True, phase="Running", annotations={DECISION_ANNOTATION: decision_id}, requests={CARD: 1})


def applied(target: TargetFacts, env: Mapping[str, str], decision_id: str) -> TargetFacts:
    """The Deployment after our apply and a finished rollout."""
    server = target.template.containers[0]
    merged = (*(entry for entry in server.env if entry.name not in env), *(EnvEntry(name, value) for name, value in env.items()))
    container = replace(server, env=merged)
    template = replace(target.template, containers=(container,), annotations={DECISION_ANNOTATION: decision_id})
    done = {"updated_replicas": 1, "available_replicas": 1, "status_replicas": 1, "observed_generation": target.generation + 1}
    return replace(target, template=template, generation=target.generation + 1, managed=(*target.managed, make_env_owner(container, *env)), **done)


def with_affinity(target: TargetFacts, written: Mapping[str, Any]) -> TargetFacts:
    """The Deployment with our halves of node affinity."""
    required, preferred = (f"{half}DuringSchedulingIgnoredDuringExecution" for half in ("required", "preferred"))
    if required in written:
        ours = make_managed(*REQUIRED_AFFINITY)
        target = replace(target, template=replace(target.template, required_terms=project_terms(written[required])), managed=(*target.managed, ours))
    if preferred in written:
        ours = make_managed(*PREFERRED_AFFINITY)
        target = replace(target, template=replace(target.template, preferred_present=True), managed=(*target.managed, ours))
    return target


def make_bench(p50_us: float, candidate: Candidate, difference_ppm: int, digest: str = "d" * 64) -> BenchReport:
    """A clean benchmark of a candidate, its reference at 20 ms."""

    def measured(p50: float, batch: float) -> Measured:
        return Measured(requests=500, errors=0, seconds=10, mean_us=p50 * 0.98, p50_us=p50, p99_us=p50 * 1.2, throughput_per_second=4e6 / p50, mean_batch=batch)

    accuracy = Accuracy(
        metric="RelativeL2", difference_ppm=0 if candidate.config.precision == "fp32" else difference_ppm, self_difference_ppm=0, batch_difference_ppm=0,
        inputs="calibration", samples=16, invalid_values=False,
    )  # fmt: skip
    readback = Readback(provider=candidate.config.execution_provider, precision=candidate.config.precision, coverage_permille=1000, assigned_nodes=50)
    return BenchReport(
        digest=digest, config=candidate.config, load_clients=4, candidate=measured(p50_us, candidate.config.batch_size), reference=measured(20_000, 1),
        rounds=7, latency_ratio_permille=round(1000 * p50_us / 20_000), latency_ratio_spread_permille=10, accuracy=accuracy, readback=readback, micro=MICRO,
    )  # fmt: skip


def make_world(p50_us: Cost | None = None, **fields: Any) -> World:
    """Two families of two nodes each; the target's pod runs on the first node of ort-cpu."""
    nodes = [
        make_node(f"{family}-{index}", labels={FAMILY_LABEL_OF_VENDOR: family}, allocatable={"memory": 8 * GIB})
        for family in (ORT, OPENVINO)
        for index in (1, 2)
    ]
    families = (make_family(ORT), make_family(OPENVINO, execution_providers=(OPENVINO_PROVIDER,)))
    figures = {
        ORT: tuple(make_figures(CPU_PROVIDER, item) for item in ("fp32", "int8")),
        OPENVINO: tuple(make_figures(OPENVINO_PROVIDER, item) for item in ("fp32", "bf16", "int8")),
    }
    portraits = {
        node.name: make_portrait(node.name, family, figures=figures[family]) for node in nodes for family in (ORT, OPENVINO) if node.name.startswith(family)
    }
    pod = make_pod("ocr-1", make_container(), node=f"{ORT}-1", requests={CARD: 1}, phase="Running", ready=True)
    spec = {"accuracy": {"calibration": {"uri": "pvc://models/ocr.npz"}}} | dict(fields.pop("spec", {}))
    target = fields.pop("target", make_target("ocr", make_container(requests={CARD: 1})))
    snapshot = make_snapshot(
        adaptation=make_adaptation(spec=spec), target=target, target_pods=(pod,), card_pods=(pod,), nodes=tuple(nodes), portraits=portraits,
        pools=(make_pool("cards", *families),), **fields.pop("snapshot", {}),
    )  # fmt: skip
    return World(snapshot, p50_us or faster_on(OPENVINO), **fields)


def faster_on(family: str) -> Cost:
    """20 ms everywhere, 10 ms on one family, batches a little worse."""
    return lambda candidate: (
        (10_000 if candidate.family == family else 20_000) * (1 + 0.05 * (candidate.config.batch_size > 1) + 0.05 * (candidate.config.concurrency > 1))
    )


def kinds(actions: Sequence[Action], kind: type) -> list[Any]:
    """Actions of one type."""
    return [action for action in actions if isinstance(action, kind)]
