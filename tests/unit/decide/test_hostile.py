"""Whatever a user writes into an adaptation or pool, and whatever a Job answers: a plan with a status, within every bound.

Nothing here may raise: a pass that dies on one object is a pass that its user can end at will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.decide.check_plan import LIMITS, check_adaptation_plan, check_written, is_storable
from tests.unit.decide.make_facts import make_family, make_node, make_pool
from tests.unit.decide.make_world import START, World, make_bench, make_profile, make_world
from tests.unit.probe.hostile_documents import spoilt
from tests.unit.probe.test_contract_fuzz import NODE, signed

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec, AcceleratorPoolStatus
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec
from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus
from metainfer.decide.facts import Candidate, EnvEntry, EnvFrom, JobFacts, PoolSnapshot, ProbeResult, ProfileResult, RunResult
from metainfer.decide.plan import CreateJob, WritePortrait
from metainfer.decide.pool import decide_pool
from metainfer.decide.settings_mapping import PRESETS
from metainfer_probe.contract import BenchReport, BenchRequest, ProfileReport, Report, ReportError, ServingConfig, decode_summary

SpecT = TypeVar("SpecT", ModelAdaptationSpec, AcceleratorPoolSpec)
ENV_NAMES = PRESETS["MetaInfer"].names
SETTING_TEXTS = (
    "9" * 5000, "0" * 5000 + "4", "1e999999999", "1e1000000", "-1e999999", "9" * 400 + "s", "1h" * 5000, "NaN", "Infinity", "-Infinity", "sNaN",
    "1_0", "\u0663", "+4", " 4 ", "4.0", "0x4", "", "\n", "$(OTHER)", "\x00", "CPUExecutionProvider,,", "," * 100, "x" * 100_000, "true", "null",
)  # fmt: skip
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
"""Each example plays a whole adaptation."""
URIS = (
    "pvc://models/$(HOME)/x.onnx", "pvc://models/$$(HOME).onnx", "pvc://models//etc/passwd", "pvc://models/./x", "pvc://models/" + "a" * 2000,
    "pvc://models/a b\tc", "pvc://models/\u202egnp.exe", "pvc://models/‥/x", 'pvc://models/"},"image":"evil"', "https://h/'; rm -rf /", "http://169.254.169.254/latest",
    "http://[::1]/x", "https://h/%2e%2e/%00", "pvc://" + "a" * 300 + "/x", "pvc://a..b/x", "https://h/\u2028x",
)  # fmt: skip
SPEC: dict[str, Any] = {
    "targetRef": {"name": "ocr", "container": "server"},
    "model": {"uri": "pvc://models/ocr.onnx"},
    "poolSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
    "configSpace": {
        "executionProviders": ["CPUExecutionProvider"],
        "precisions": ["fp32"],
        "batchSizes": [1, 4],
        "concurrencies": [1],
        "dynamicBatching": [True],
    },
    "objective": {"goal": "Latency"},
    "load": {"clients": 4},
    "slo": {"p99": "30ms", "minThroughputPerSecond": 3},
    "accuracy": {"budgetPermille": 10, "metric": "RelativeL2", "calibration": {"uri": "pvc://models/ocr.npz"}, "allowUnverified": True},
    "settings": {"env": {"precision": "P", "maxBatchSize": "B", "maxBatchDelay": "D", "concurrency": "C", "executionProviders": "E"}},
    "validation": {"topK": 2, "budget": "5m"},
    "updatePolicy": {"mode": "Apply", "minimumGainPercent": 5},
    "suspend": False,
}


@dataclass
class LyingWorld(World):
    """A world whose Jobs answer what they are told to."""

    answers: Mapping[str, Report] = field(default_factory=dict)

    def run(self, job: CreateJob) -> None:
        self.jobs_started.append(job)
        facts = JobFacts(job.namespace, job.name, f"uid-{job.name}", job.labels, job.annotations, created_at=self.now, condition="Complete", succeeded=1)
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, facts))
        run = self.status.run
        assert run is not None
        report = self.answers.get(job.purpose)
        if job.purpose == "profile":
            profile = report if isinstance(report, ProfileReport) else self.profile
            answer = ProfileResult(job.name, self.now, profile, node=job.node or "", run_id=run.id, job_uid=f"uid-{job.name}")
            self.snapshot = replace(self.snapshot, profile=answer)
            return
        assert isinstance(job.request, BenchRequest)
        family = self.snapshot.portraits[job.node or ""].spec.family
        candidate = Candidate("cards", family, job.request.candidate)
        bench = report if isinstance(report, BenchReport) else make_bench(self.p50_us(candidate), candidate, self.difference_ppm)
        done = RunResult(job.name, run.id, candidate, job.node or "", self.now, bench, job_uid=f"uid-{job.name}")
        self.snapshot = replace(self.snapshot, runs=(*self.snapshot.runs, done))


def play(world: World, turns: int = 12) -> None:
    """Passes, each of them checked."""
    for _ in range(turns):
        plan = world.turn()
        check_adaptation_plan(plan)
        if plan.requeue_after_seconds is None or plan.requeue_after_seconds > 60:
            return


@FEW
@given(spoilt(SPEC, changes=4), st.sampled_from(URIS) | st.none())
def test_any_spec_that_is_accepted_leads_to_a_status(document: Any, uri: str | None) -> None:
    """What the schema lets through, the rules take: conditions, never an exception."""
    if uri is not None and isinstance(document, dict):
        document["model"] = {"uri": uri}
    spec = accepted_spec(ModelAdaptationSpec, document)
    world = make_world()
    pools = tuple(replace(pool, labels={"a": "b"}) for pool in world.snapshot.pools)  # else no spec that keeps its selector would get far
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, spec=spec), pools=pools)
    play(world)


@FEW
@given(spoilt(make_profile().model_dump(mode="json"), changes=4))
def test_any_model_portrait_leads_to_a_status(document: Any) -> None:
    """A Job that a model took over answers what it likes."""
    profile = accepted(document)
    world = make_world()
    play(LyingWorld(world.snapshot, world.p50_us, answers={"profile": profile}))


@FEW
@given(
    spoilt(make_bench(9_000, Candidate("cards", "ort-cpu", ServingConfig(execution_provider="CPUExecutionProvider")), 100).model_dump(mode="json"), changes=4)
)
def test_any_benchmark_leads_to_a_status(document: Any) -> None:
    """The same for figures."""
    bench = accepted(document)
    world = make_world()
    play(LyingWorld(world.snapshot, world.p50_us, answers={"bench": bench}))


def accepted_spec(model: type[SpecT], document: Any) -> SpecT:
    """The spec that the API server would store; examples that it refuses are tested elsewhere."""
    assume(is_storable(document))
    try:
        return model.model_validate(document)
    except ValidationError:
        assume(False)
        raise


def accepted(document: Any) -> Report:
    """The report that the operator would decide on; examples that the contract refuses are tested elsewhere."""
    try:
        return decode_summary(signed(document))
    except ReportError:
        assume(False)
        raise


@FEW
@given(name=st.sampled_from(sorted(ENV_NAMES.values())), text=st.sampled_from(SETTING_TEXTS) | st.text(max_size=30), by_config_map=st.booleans())
def test_any_value_of_a_setting_in_the_target_leads_to_a_status(name: str, text: str, *, by_config_map: bool) -> None:
    """The owner of the Deployment writes what he likes; what cannot be read counts as declared and unusable."""
    world = make_world()
    if by_config_map:
        world.change_target(env_from=(EnvFrom("ConfigMap", "site"),))
        world.snapshot = replace(world.snapshot, config_maps={"site": {name: text}})
    else:
        world.change_target(env=(EnvEntry(name, text),))
    play(world)


POOL: dict[str, Any] = {
    "families": [make_family().model_dump(mode="json", by_alias=True), make_family("other").model_dump(mode="json", by_alias=True)],
    "nodeSelector": {"matchLabels": {"a": "b"}},
    "probe": {"duration": "30s", "maxAge": "168h"},
    "limits": {"maxConcurrentProbes": 4, "maxConcurrentMeasurements": 8},
}


@FEW
@given(spoilt(POOL, changes=3) | st.just(POOL), spoilt(NODE.model_dump(mode="json"), changes=3))
def test_any_pool_and_any_probe_lead_to_a_status(pool: Any, report: Any) -> None:
    """Families, selectors and what a probe says of a card."""
    spec = accepted_spec(AcceleratorPoolSpec, pool)
    node = make_node(labels={"a": "b", "cards.example/family": "ort-cpu"})
    facts = replace(make_pool(), spec=spec)
    result = ProbeResult("mi-probe-1", node.name, START, accepted(report), job_uid="uid")  # type: ignore[arg-type]  # a probe's Job answers a node report
    plan = decide_pool(PoolSnapshot(facts, (facts,), (node,), (), {}, (), (result,), LIMITS), START)
    check_written(plan.status, AcceleratorPoolStatus)
    assert "Ready" in {condition.type for condition in plan.status.conditions}
    for action in plan.actions:
        if isinstance(action, WritePortrait):
            check_written(action.status, NodePortraitStatus)
