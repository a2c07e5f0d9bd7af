"""Everything a decision may look at, frozen. ``observe`` fills it, ``decide`` only reads it.

Own dataclasses instead of Kubernetes objects: rules are tested without a cluster, and nobody reads the API in the middle
of a rule. Quantities are integers: cpu in millicores, memory and storage in bytes, extended resources in pieces.
"""

# budget: the vocabulary of every rule, in one place
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolSpec, AcceleratorPoolStatus
from metainfer.api.v1alpha1.common import LabelSelector
from metainfer.api.v1alpha1.model_adaptation import DecisionStatus, ModelAdaptationSpec, ModelAdaptationStatus
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.latency.served import ServedFacts
from metainfer.decide.learned import LearnedState
from metainfer_probe.contract import BenchReport, Failure, NodeReport, ProfileReport, ServingConfig

Quantities = Mapping[str, int]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; empty key with Exists tolerates everything, empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One node selector term: all expressions (labels) and fields (metadata.name) hold. An empty term matches nothing."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    name: str
    uid: str
    labels: Labels
    resource_version: str = ""
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    architecture: str = "amd64"
    kernel_version: str = ""
    allocatable: Quantities = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    """type -> status, for example DiskPressure -> True."""
    image_bytes: Mapping[str, int] = field(default_factory=dict)
    """Images already on the node, by every name they have."""


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One env entry as written: ``value`` None and ``source`` None = declared without a value."""

    name: str
    value: str | None = None
    source: str | None = None
    """Of ``valueFrom``: for example ``configMap app/KEY``, ``secret app/KEY``, ``field metadata.name``."""


@dataclass(frozen=True, slots=True)
class EnvFrom:
    """One envFrom source, in order; the last one wins, and ``env`` beats all."""

    kind: Literal["ConfigMap", "Secret"]
    name: str
    prefix: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class KubeletProbe:
    """One of a container's own probes, with Kubernetes' defaults filled in."""

    initial_delay_seconds: int = 0
    period_seconds: int = 10
    failure_threshold: int = 3
    success_threshold: int = 1


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """One container of a pod template or pod."""

    name: str
    image: str = ""
    init: bool = False
    restartable: bool = False
    """A native sidecar: an init container with restartPolicy Always."""
    env: tuple[EnvEntry, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    host_ports: tuple[int, ...] = ()
    startup_probe: KubeletProbe | None = None
    readiness_probe: KubeletProbe | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """How a Deployment's own pods must spread over the values of a node label (topologySpreadConstraints, anti-affinity against itself)."""

    topology_key: str
    max_skew: int = 1
    """How many more pods one value may have than the one with the fewest."""
    min_domains: int = 1
    """With fewer values than this the fewest counts as 0."""
    one_per_domain: bool = False
    """Anti-affinity: at most one pod for each value, whatever the others have."""


@dataclass(frozen=True, slots=True)
class PodTemplateFacts:
    """What of a pod template restricts where and how it may run."""

    containers: tuple[ContainerFacts, ...]
    """Init containers included, in pod order (init first)."""
    labels: Labels = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Labels = field(default_factory=dict)
    node_name: str | None = None
    tolerations: tuple[Toleration, ...] = ()
    required_terms: tuple[NodeTerm, ...] | None = None
    """OR-ed; None = no required node affinity at all."""
    preferred_present: bool = False
    one_per_host: bool = False
    """Required anti-affinity against itself by hostname, or a host port."""
    spreads: tuple[Spread, ...] = ()
    """Those that the scheduler must keep (DoNotSchedule)."""
    runtime_class: str | None = None
    claims: tuple[str, ...] = ()
    """Names of PersistentVolumeClaims it mounts."""
    host_network: bool = False
    termination_grace_seconds: int = 30


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """One managedFields item: ``fields`` is the FieldsV1 tree as it is on the wire."""

    manager: str
    operation: str
    fields: Mapping[str, Any]
    subresource: str = ""
    time: str = ""
    """When the manager last took fields, as on the wire (RFC 3339, UTC): taking fields away leaves no trace."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The inference Deployment."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    template: PodTemplateFacts
    replicas: int = 1
    paused: bool = False
    controller: str | None = None
    """``Kind/name`` of an owner with controller: true."""
    strategy: Literal["RollingUpdate", "Recreate"] = "RollingUpdate"
    max_surge: int = 1
    max_unavailable: int = 0
    """Both resolved to pods as the Deployment controller does it (surge rounds up, unavailable rounds down)."""
    match_labels: Labels = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    managed: tuple[ManagedFields, ...] = ()
    observed_generation: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    status_replicas: int = 0
    progressing_reason: str = ""
    progressing_message: str = ""
    created_at: datetime | None = None
    min_ready_seconds: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)
    """The object on the wire, for exact pre-images only; rules read the typed fields."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """Status of one container of a pod."""

    name: str
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated_reason: str = ""
    exit_code: int | None = None
    termination_message: str = ""
    restarts: int = 0
    image_digest: str = ""
    """``sha256:...`` of the repository that it was pulled from; empty where the runtime tells another id."""
    started_at: datetime | None = None
    """``state.running.startedAt``."""
    finished_at: datetime | None = None
    """``state.terminated.finishedAt``."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod."""

    namespace: str
    name: str
    uid: str
    labels: Labels = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    ready: bool = False
    deleting: bool = False
    address: str = ""
    """Its IP; empty = none yet."""
    host_network: bool = False
    """Whether ``address`` is the node's own."""
    requests: Quantities = field(default_factory=dict)
    """Effective requests: containers and restartable init containers added, other init containers as a maximum."""
    owner: str = ""
    """``Kind/name`` of its controller."""
    containers: tuple[ContainerFacts, ...] = ()
    states: tuple[ContainerState, ...] = ()
    unschedulable: str = ""
    """The scheduler's words when it found no node."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget while True: who takes the pod away (taint, preemption, eviction, garbage collection)."""
    created_at: datetime | None = None

    @property
    def holds_resources(self) -> bool:
        """Whether it counts against its node: bound and not finished."""
        return self.node is not None and self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Told:
    """A Warning Event about an object."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One Job of ours, by its labels, with what its pods left behind."""

    namespace: str
    name: str
    uid: str
    labels: Labels = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime | None = None
    started_at: datetime | None = None
    suspended: bool = False
    suspended_at: datetime | None = None
    """Since when, by the Job controller's condition."""
    suspended_by: str = ""
    """Who holds it, as far as its labels and managed fields tell."""
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    condition: str = ""
    """``Complete``, ``Failed`` or empty while it runs."""
    condition_reason: str = ""
    """Of ``condition``, or of the failure that the controller is carrying out."""
    condition_message: str = ""
    finished_at: datetime | None = None
    """When ``condition`` became true."""
    deleting: bool = False
    pods: tuple[PodFacts, ...] = ()
    told: Told | None = None
    """Why no container runs; read only while none does."""

    @property
    def finished(self) -> bool:
        """Whether the Job controller is done with it."""
        return self.condition in ("Complete", "Failed")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One AcceleratorPool."""

    name: str
    uid: str
    generation: int
    created_at: datetime
    labels: Labels
    spec: AcceleratorPoolSpec
    status: AcceleratorPoolStatus = field(default_factory=AcceleratorPoolStatus)
    resource_version: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Portrait:
    """One NodePortrait."""

    node: str
    spec: NodePortraitSpec
    status: NodePortraitStatus
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeClassFacts:
    """What a RuntimeClass adds to every pod that names it."""

    name: str
    node_selector: Labels = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    overhead: Quantities = field(default_factory=dict)
    """What the runtime takes for itself, beside the containers' requests."""


@dataclass(frozen=True, slots=True)
class AdaptationFacts:
    """One ModelAdaptation as it is on the API server."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created_at: datetime
    spec: ModelAdaptationSpec
    status: ModelAdaptationStatus
    labels: Labels = field(default_factory=dict)
    rollback_to: str = ""
    """Annotation metainfer.dev/rollback-to; empty = not there."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the choice: a family of cards and how the server would run there."""

    pool: str
    family: str
    config: ServingConfig

    @property
    def key(self) -> str:
        """Short, stable, readable; part of Job labels and of the store's keys."""
        config = self.config
        return (
            f"{self.pool}/{self.family}/{config.execution_provider}/{config.precision}"
            f"/b{config.batch_size}/c{config.concurrency}/d{config.max_batch_delay_us if config.dynamic_batching else 'off'}"
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that was dropped, with the rule's PascalCase reason and a sentence."""

    candidate: Candidate
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """One finished benchmark: a report, or why there is none."""

    job: str
    run_id: str
    candidate: Candidate
    node: str
    finished_at: datetime
    report: BenchReport | None = None
    failure: Failure | None = None
    job_uid: str = ""
    """Tells a Job from a later one of the same name; the store's key."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finished check of what runs: the present configuration measured once more, to be compared with an earlier check of it."""

    job: str
    run_id: str
    """Of the run whose decision was checked."""
    candidate: Candidate
    node: str
    finished_at: datetime
    report: BenchReport | None = None
    failure: Failure | None = None
    job_uid: str = ""

    def as_run(self) -> RunResult:
        """For the rules about what a benchmark is worth."""
        return RunResult(self.job, self.run_id, self.candidate, self.node, self.finished_at, self.report, self.failure, self.job_uid)


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """One finished profile: a report (its own ``failure`` included), or why there is none."""

    job: str
    finished_at: datetime
    report: ProfileReport | None = None
    failure: Failure | None = None
    node: str = ""
    """Where it ran."""
    run_id: str = ""
    job_uid: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One finished node probe."""

    job: str
    node: str
    finished_at: datetime
    report: NodeReport | None = None
    failure: Failure | None = None
    job_uid: str = ""


@dataclass(frozen=True, slots=True)
class CanarySurroundings:
    """What else selects pods in the target's namespace."""

    services: Mapping[str, Labels] = field(default_factory=dict)
    """Name -> selector; empty = it selects none."""
    budgets: Mapping[str, LabelSelector | None] = field(default_factory=dict)
    """PodDisruptionBudgets by name; None = its selector cannot be read."""
    unread: str = ""
    """Why they could not be read; empty = they were."""


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """The trial of a decision, as it is."""

    around: CanarySurroundings = field(default_factory=CanarySurroundings)
    deployment: TargetFacts | None = None
    """Ours; None = there is none."""
    pods: tuple[PodFacts, ...] = ()
    served: ServedFacts | None = None
    """What its pods serve; None = nothing of it is read."""


@dataclass(frozen=True, slots=True)
class MeasuringLimits:
    """Operator settings that decisions need. Images come from here, never from a custom resource."""

    operator_namespace: str = "meta-infer-system"
    probe_image: str = ""
    image_pull_policy: str = "IfNotPresent"
    image_bytes: int = 2 << 30
    """Space a node needs for the probe image when it has to be pulled."""
    priority_class: str = "meta-infer-probe"
    job_user_id: int = 65_532
    """User and group of measuring containers, ``nonroot`` of the usual minimal images; 0 = left to the image and the cluster's policy."""
    bench_window_seconds: float = 1.5
    bench_rounds: int = 7
    profile_budget_seconds: float = 120.0
    job_start_seconds: float = 300.0
    """Allowance for scheduling, image pull and start of a Job before its own measured time."""
    threads_per_card: int = 1
    driver_settle_seconds: float = 180.0
    """For how long a driver or firmware version must stand in a node's labels before it counts: labellers work in steps of a minute by
    default, and two of those may pass while one restarts."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """All facts for one pass over a pool."""

    pool: PoolFacts
    pools: tuple[PoolFacts, ...]
    """All pools, this one included: overlaps go to the older one."""
    nodes: tuple[NodeFacts, ...]
    card_pods: tuple[PodFacts, ...]
    """Pods that hold extended resources on these nodes."""
    portraits: Mapping[str, Portrait]
    jobs: tuple[JobFacts, ...]
    """Probe Jobs of this pool, and every other measuring Job that runs on its nodes (for the caps)."""
    results: tuple[ProbeResult, ...]
    """Finished probes that are not yet in a portrait."""
    limits: MeasuringLimits
    store_problem: str = ""
    """Why the sample store is away; empty = it is not."""
    learned: LearnedState = field(default_factory=LearnedState)
    """Of the predictor that ranks now."""
    adaptations: tuple[AdaptationFacts, ...] = ()
    """Of the whole cluster: their checks tell what no probe can see while the cards are held."""


@dataclass(frozen=True, slots=True)
class AdaptationSnapshot:
    """All facts for one pass over an adaptation."""

    adaptation: AdaptationFacts
    peers: tuple[AdaptationFacts, ...]
    """Other adaptations of the namespace."""
    target: TargetFacts | None
    target_pods: tuple[PodFacts, ...]
    config_maps: Mapping[str, Mapping[str, str] | None]
    """Those that the target's envFrom names; None = it does not exist."""
    runtime_class: RuntimeClassFacts | None
    claim_terms: Mapping[str, tuple[NodeTerm, ...] | None]
    """Node affinity of the volume behind each claim of the target, and the model's; None = anywhere."""
    pools: tuple[PoolFacts, ...]
    """All pools."""
    nodes: tuple[NodeFacts, ...]
    card_pods: tuple[PodFacts, ...]
    portraits: Mapping[str, Portrait]
    jobs: tuple[JobFacts, ...]
    """Every measuring Job: this adaptation's own by label, the others for the caps."""
    profile: ProfileResult | None
    """Of this model under this run's inputs."""
    runs: tuple[RunResult, ...]
    """Benchmarks of this run, oldest first."""
    limits: MeasuringLimits
    checks: tuple[CheckResult, ...] = ()
    """Checks of what this run decided, oldest first."""
    others: tuple[AdaptationFacts, ...] = ()
    """Every other adaptation of the cluster: who else measures, rolls out or has failed just now."""
    earlier: tuple[RunResult, ...] = ()
    """Benchmarks of the same model file in other runs, oldest first."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, ``Kind name`` -> the API server's words (a ConfigMap in here is missing from ``config_maps``)."""
    absent_claims: frozenset[str] = frozenset()
    """Those of the target's and the model's claims that do not exist."""
    store_problem: str = ""
    """Why the sample store is away; empty = it is not."""
    canary: CanaryFacts | None = None
    """None = nobody looked: no trial is wanted, and none was made."""
    history: tuple[DecisionStatus, ...] = ()
    """The decision that ``rollback_to`` names, where the store has it and the status has not."""
    decision_recorded: bool | None = None
    """Whether the store has the decision in the status, or will get it; None = no decision, or nobody knows."""
    served: ServedFacts | None = None
    """What the target serves by its own metrics; None = nobody looked, because nothing was decided yet."""

    def pool(self, name: str) -> PoolFacts | None:
        """The pool of that name."""
        return next((item for item in self.pools if item.name == name), None)
