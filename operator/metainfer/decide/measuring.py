"""The profile and benchmark Jobs of one adaptation, and where they may run now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metainfer.decide.caps import free_measurements, measured_nodes, running_jobs
from metainfer.decide.facts import AdaptationFacts, AdaptationSnapshot, Candidate, NodeFacts
from metainfer.decide.families import FamilyOption
from metainfer.decide.names import (
    ADAPTATION_ANNOTATION,
    ADAPTATION_UID_LABEL,
    CANDIDATE_ANNOTATION,
    NODE_ANNOTATION,
    NODE_LABEL,
    POOL_ANNOTATION,
    POOL_LABEL,
    PURPOSE_LABEL,
    RUN_LABEL,
    candidate_json,
    claim_of,
    job_name,
    label_value,
)  # fmt: skip
from metainfer.decide.plan import CreateJob, ModelVolume, Purpose
from metainfer.decide.probing import PRESSURES, tolerations_for
from metainfer.decide.scene import Scene, occupied_nodes
from metainfer_probe.contract import BenchRequest, ModelSource, ProfileRequest, RefusedModel, ServingConfig

BENCH_SETUP_SECONDS = 60.0
"""Allowance inside a benchmark Job for making the variant, loading twice, the accuracy check and the micro probe."""


BESIDE_SERVER: Mapping[str, int] = {"cpu": 10}
"""Millicores: what it measures with is reserved by the server already, and a second time there may be none left."""
CHECK_ROUNDS = 5
"""Of a check: 15 s of windows where a benchmark has 21 s. It compares a thing with itself, and the first check was as short."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node on which one measuring Job may start now."""

    option: FamilyOption
    node: NodeFacts
    beside_server: bool = False
    """The Job takes no card of its own: it reaches the one that a serving pod holds."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to measure: identity of the Job and its request."""

    run_id: str
    inputs: tuple[str, ...]
    request: ProfileRequest | BenchRequest
    deadline_seconds: float
    candidate: Candidate | None = None
    is_check: bool = False
    """Of what runs, instead of what might run."""

    @property
    def purpose(self) -> Purpose:
        """The Job's purpose label."""
        return "check" if self.is_check else self.request.kind


def closed_nodes(snapshot: AdaptationSnapshot, option: FamilyOption) -> frozenset[str]:
    """Nodes of the family where nothing can be measured now: card held, another measuring Job there, under pressure, or not at all."""
    return occupied_nodes(snapshot, option) | disturbed_nodes(snapshot, option)


def disturbed_nodes(snapshot: AdaptationSnapshot, option: FamilyOption) -> frozenset[str]:
    """The same, whoever holds the cards."""
    pressed = {node.name for node in option.nodes if any(node.conditions.get(kind) == "True" for kind in PRESSURES)}
    return frozenset(measured_nodes(snapshot.jobs)) | option.unmeasurable.keys() | pressed


def pool_allows(snapshot: AdaptationSnapshot, pool_name: str) -> bool:
    """Whether the pool's cap leaves room for one more measuring Job."""
    pool = snapshot.pool(pool_name)
    return pool is not None and free_measurements(pool.spec.limits, running_jobs(snapshot.jobs, pool_name)) > 0


def find_profile_site(snapshot: AdaptationSnapshot, options: Sequence[FamilyOption]) -> Site | None:
    """The most typical measurable node of the first family that has one."""
    for option in options:
        if not pool_allows(snapshot, option.pool):
            continue
        closed = closed_nodes(snapshot, option)
        nodes = {node.name: node for node in option.nodes}
        for portrait in option.portraits:
            if portrait.node not in closed:
                return Site(option, nodes[portrait.node])
    return None


def profile_assignment(  # budget: what to measure, for which run, and what is known of the file
    snapshot: AdaptationSnapshot, run_id: str, providers: Sequence[str], attempt: int, refused: RefusedModel | None = None
) -> Assignment:
    """The model portrait, on every provider in question at once; ``refused``: a file that needs no second attempt."""
    spec, limits = snapshot.adaptation.spec, snapshot.limits
    request = ProfileRequest(
        model=_source(spec.model.uri),
        providers=tuple(providers),
        precisions=spec.config_space.precisions or ("fp32", "bf16", "fp16", "int8"),
        batch_sizes=spec.config_space.batch_sizes or (1, 4, 8),
        calibration=_calibration(snapshot),
        budget_seconds=limits.profile_budget_seconds,
        threads=limits.threads_per_card,
        refused=refused,
    )
    return Assignment(run_id, _profile_inputs(snapshot, run_id, attempt), request, limits.job_start_seconds + limits.profile_budget_seconds + 30.0)


def profile_job_name(snapshot: AdaptationSnapshot, run_id: str, attempt: int) -> str:
    """Of the Job that makes the run's portrait of the model. Another image or user is another Job: what failed with one may succeed with the other."""
    return job_name("profile", snapshot.adaptation.uid, *_profile_inputs(snapshot, run_id, attempt))


def _profile_inputs(snapshot: AdaptationSnapshot, run_id: str, attempt: int) -> tuple[str, ...]:
    return run_id, snapshot.limits.probe_image, str(snapshot.limits.job_user_id), str(attempt)


def bench_seconds(snapshot: AdaptationSnapshot) -> float:
    """Measured and set-up time of one benchmark: rounds x (reference + candidate window), and the allowance before them."""
    return 2 * snapshot.limits.bench_rounds * snapshot.limits.bench_window_seconds + BENCH_SETUP_SECONDS


def bench_assignment(snapshot: AdaptationSnapshot, run_id: str, candidate: Candidate, attempt: int) -> Assignment:
    """One candidate against the family's fixed reference: fp32, one request at a time, same provider."""
    spec, limits = snapshot.adaptation.spec, snapshot.limits
    request = BenchRequest(
        model=_source(spec.model.uri).model_copy(update={"sha256": _profiled_digest(snapshot)}),
        candidate=candidate.config,
        reference=ServingConfig(execution_provider=candidate.config.execution_provider),
        load_clients=spec.load.clients,
        calibration=_calibration(snapshot),
        accuracy_metric=spec.accuracy.metric,
        rounds=limits.bench_rounds,
        window_seconds=limits.bench_window_seconds,
        deadline_seconds=bench_seconds(snapshot),
        threads=limits.threads_per_card,
    )
    deadline = limits.job_start_seconds + bench_seconds(snapshot) + 30.0
    return Assignment(run_id, (run_id, candidate.key, str(attempt)), request, deadline, candidate)


def check_assignment(snapshot: AdaptationSnapshot, run_id: str, candidate: Candidate, inputs: tuple[str, ...]) -> Assignment:
    """The present configuration once more, as short as it can be; whatever file is there now, because that is one of the questions."""
    bench = bench_assignment(snapshot, run_id, candidate, attempt=0)
    model = _source(snapshot.adaptation.spec.model.uri)
    request = BenchRequest.model_validate(bench.request.model_dump() | {"model": model.model_dump(), "rounds": CHECK_ROUNDS})
    return Assignment(run_id, inputs, request, bench.deadline_seconds, candidate, is_check=True)


def build_measuring_job(snapshot: AdaptationSnapshot, scene: Scene, site: Site, assignment: Assignment) -> CreateJob:
    """The Job in the adaptation's namespace. A benchmark has the target container's own resources, else its figures mean nothing."""
    adaptation = snapshot.adaptation
    return CreateJob(
        namespace=adaptation.namespace,
        name=job_name(assignment.purpose, adaptation.uid, *assignment.inputs),
        purpose=assignment.purpose,
        request=assignment.request,
        owner={"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "name": adaptation.name, "uid": adaptation.uid},
        node=site.node.name,
        resource="" if site.beside_server else site.option.family.resource,
        deadline_seconds=round(assignment.deadline_seconds),
        labels=_labels(adaptation, site, assignment),
        annotations=_annotations(adaptation, site, assignment),
        volume=_volume(adaptation.spec.model.uri),
        requests={**_plain(scene.container.requests), **(BESIDE_SERVER if site.beside_server else {})},
        limits=_plain(scene.container.limits),
        tolerations=(*scene.target.template.tolerations, *tolerations_for(site.node)),
        runtime_class=scene.target.template.runtime_class,
    )


def _labels(adaptation: AdaptationFacts, site: Site, assignment: Assignment) -> Mapping[str, str]:
    return {
        PURPOSE_LABEL: assignment.purpose,
        POOL_LABEL: label_value(site.option.pool),
        NODE_LABEL: label_value(site.node.name),
        ADAPTATION_UID_LABEL: adaptation.uid,
        RUN_LABEL: assignment.run_id,
    }


def _annotations(adaptation: AdaptationFacts, site: Site, assignment: Assignment) -> Mapping[str, str]:
    """Untruncated names for people and for ``observe``."""
    annotations = {
        ADAPTATION_ANNOTATION: f"{adaptation.namespace}/{adaptation.name}",
        POOL_ANNOTATION: site.option.pool,
        NODE_ANNOTATION: site.node.name,
    }
    candidate = assignment.candidate
    return annotations if candidate is None else annotations | {CANDIDATE_ANNOTATION: candidate_json(candidate)}


def _plain(quantities: Mapping[str, int]) -> dict[str, int]:
    """cpu, memory and ephemeral storage; the card is added by its own field."""
    return {name: value for name, value in quantities.items() if "/" not in name}


def _profiled_digest(snapshot: AdaptationSnapshot) -> str | None:
    """Pins benchmarks to the file that was profiled: another one fails before it is measured."""
    report = snapshot.profile.report if snapshot.profile is not None else None
    return (report.digest or None) if report is not None else None


def _calibration(snapshot: AdaptationSnapshot) -> ModelSource | None:
    calibration = snapshot.adaptation.spec.accuracy.calibration
    return _source(calibration.uri) if calibration is not None else None


def _source(uri: str) -> ModelSource:
    """pvc://CLAIM/PATH -> a path below the mounted claim; everything else is a URL."""
    if uri.startswith("pvc://"):
        return ModelSource(path=uri.removeprefix("pvc://").partition("/")[2])
    return ModelSource(url=uri)


def _volume(uri: str) -> ModelVolume | None:
    claim = claim_of(uri)
    return ModelVolume(claim) if claim is not None else None
