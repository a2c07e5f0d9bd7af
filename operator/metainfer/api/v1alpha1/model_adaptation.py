"""ModelAdaptation: one model, one inference Deployment, and what we may choose for it."""

# budget: the declarations of one kind, better read in one piece
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from metainfer.api.v1alpha1.checks import CheckStatus
from metainfer.api.v1alpha1.common import (
    ONE_CLAIM,
    UNIQUE,
    ApiModel,
    Condition,
    Duration,
    EnvName,
    JobRefusal,
    LabelSelector,
    ModelUri,
    Name,
    Precision,
    ProviderName,
    Timestamp,
    duration_between,
    keyed_by,
    rules,
)
from metainfer.api.v1alpha1.known_family import KnownFamily
from metainfer.api.v1alpha1.served import Drift, ServedBaseline, ServedStatus
from metainfer.api.v1alpha1.slow_node import SlowNode

KIND, PLURAL, SINGULAR, SHORT_NAMES = "ModelAdaptation", "modeladaptations", "modeladaptation", ("madapt",)


class TargetRef(ApiModel):
    """The inference Deployment, in the adaptation's namespace."""

    kind: Literal["Deployment"] = Field(default="Deployment", description="kind of the target; only Deployment.")
    name: Name = Field(description="name of the Deployment.")
    container: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="container that serves the model; may be a restartable init container. Optional when the pod has exactly one container.",
    )


class ModelRef(ApiModel):
    """Where the model file is."""

    uri: ModelUri = Field(description="uri of the ONNX file: pvc://CLAIM/PATH, http:// or https://.")


class ConfigSpace(ApiModel):
    """What may be chosen. An empty list means: everything the preset and the families offer."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.batchSizes) || !has(self.dynamicBatching) || size(self.dynamicBatching) == 0 || self.dynamicBatching.exists(on, on)"
                    " || self.batchSizes.all(batch, batch == 1)"
                ),
                "a batch size above 1 needs dynamic batching: add true to dynamicBatching, or leave dynamicBatching out",
            )
        )
    )

    execution_providers: tuple[ProviderName, ...] = Field(
        default=(), max_length=8, json_schema_extra=UNIQUE, description="executionProviders that the target's image can serve; default from the preset."
    )
    precisions: tuple[Precision, ...] = Field(default=(), max_length=4, json_schema_extra=UNIQUE, description="precisions that may be chosen.")
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(), max_length=16, json_schema_extra=UNIQUE, description="batchSizes that may be chosen."
    )
    concurrencies: tuple[Annotated[int, Field(ge=1, le=256)], ...] = Field(
        default=(), max_length=16, json_schema_extra=UNIQUE, description="concurrencies (parallel executions in the server) that may be chosen."
    )
    dynamic_batching: tuple[bool, ...] = Field(
        default=(), max_length=2, json_schema_extra=UNIQUE, description="dynamicBatching values that may be chosen; a batch size above 1 needs true."
    )


class Objective(ApiModel):
    """What better means."""

    goal: Literal["Latency", "Throughput", "Cost"] | None = Field(
        default=None,
        description="goal of the choice; default Throughput when slo is set, else Latency. At the same number of requests in flight the mean latency is their "
        "number over the throughput, so both agree on what is faster; Latency without slo.p99 besides refuses a P99 clearly longer than today's.",
    )


class Load(ApiModel):
    """The load under which every candidate is measured."""

    clients: int = Field(default=4, ge=1, le=256, description="clients is the number of requests in flight when it matters.")


class Slo(ApiModel):
    """Limits that a choice must keep."""

    model_config = ConfigDict(
        json_schema_extra=rules(("has(self.p99) || has(self.minThroughputPerSecond)", "set p99, minThroughputPerSecond or both, or remove slo"))
    )

    p99: Duration | None = Field(default=None, description="p99 latency that must not be exceeded.")
    min_throughput_per_second: int | None = Field(default=None, ge=1, description="minThroughputPerSecond that must be reached.")


class CalibrationRef(ApiModel):
    """Real inputs: .npz with one array per INPUT/INDEX."""

    uri: ModelUri = Field(description="uri of the .npz file, with one array per INPUT/INDEX (ragged sizes allowed).")


class Accuracy(ApiModel):
    """How far a lossy variant may be from fp32."""

    budget_permille: int = Field(default=10, ge=0, le=1000, description="budgetPermille is the largest allowed difference to fp32 in thousandths, by metric.")
    metric: Literal["RelativeL2"] = Field(default="RelativeL2", description="metric of the difference.")
    calibration: CalibrationRef | None = Field(default=None, description="calibration inputs. Without them no lossy variant can be verified.")
    allow_unverified: bool = Field(default=False, description="allowUnverified permits lossy variants that were compared on generated inputs only.")


class SettingsEnv(ApiModel):
    """Environment variable names of the server, where no preset fits."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.precision) || has(self.maxBatchSize) || has(self.maxBatchDelay) || has(self.concurrency) || has(self.executionProviders)",
                "map at least one setting to an environment variable, or remove settings to get a recommendation only",
            ),
            (  # The list of one list gives the inner one a name, for each name in it to be counted.
                (
                    "[[self.?precision.orValue(''), self.?maxBatchSize.orValue(''), self.?maxBatchDelay.orValue(''), self.?concurrency.orValue(''),"
                    " self.?executionProviders.orValue('')].filter(name, name != '')]"
                    ".all(names, names.all(name, names.exists_one(other, other == name)))"
                ),
                "each setting needs a variable of its own: name no variable twice",
            ),
        )
    )

    precision: EnvName | None = Field(default=None, description="precision is the variable that takes fp32, bf16, fp16 or int8.")
    max_batch_size: EnvName | None = Field(default=None, description="maxBatchSize is the variable that takes the batch size.")
    max_batch_delay: EnvName | None = Field(default=None, description="maxBatchDelay is the variable that takes the batching delay, a duration string.")
    concurrency: EnvName | None = Field(default=None, description="concurrency is the variable that takes the number of parallel executions.")
    execution_providers: EnvName | None = Field(default=None, description="executionProviders is the variable that takes a comma-separated list of providers.")


class Settings(ApiModel):
    """How settings reach the server: a preset, or names of environment variables."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.preset) != has(self.env)", "set exactly one of preset (a known server) and env (the names of its environment variables)")
        )
    )

    preset: Literal["MetaInfer", "MLServer"] | None = Field(default=None, description="preset names a known server.")
    env: SettingsEnv | None = Field(default=None, description="env maps settings to the server's own environment variables.")


class Validation(ApiModel):
    """How much is really measured before a decision."""

    top_k: int = Field(default=4, ge=1, le=5, description="topK candidates are benchmarked besides the current configuration.")
    budget: Duration = Field(default="10m", json_schema_extra=duration_between("1m", "1h"), description="budget from start to decision, Jobs included.")


class MaintenanceWindow(ApiModel):
    """A time in which changes may be made that nobody asked for at that moment."""

    schedule: str = Field(
        min_length=9,
        max_length=128,
        pattern=r"^[-0-9A-Za-z*/,]+( [-0-9A-Za-z*/,]+){4}$",
        description="schedule of its beginnings in the five fields of cron: minute, hour, day of the month, month, day of the week; for example 0 2 * * 1-5.",
    )
    duration: Duration = Field(default="1h", json_schema_extra=duration_between("1m", "168h"), description="duration for which it is open.")
    time_zone: str = Field(
        default="UTC",
        max_length=64,
        pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
        description="timeZone of schedule, for example Europe/Berlin.",
    )


class UpdatePolicy(ApiModel):
    """When a choice is written."""

    mode: Literal["Off", "Apply"] = Field(default="Apply", description="mode Off recommends only.")
    minimum_gain_percent: int = Field(default=5, ge=0, le=1000, description="minimumGainPercent below which the current configuration stays.")
    cooldown: Duration = Field(
        default="24h",
        json_schema_extra=duration_between("1m", "8760h"),
        description="cooldown after a change before anything automatic follows, and before a choice that somebody took off by hand is written again.",
    )
    maintenance_windows: tuple[MaintenanceWindow, ...] = Field(
        default=(),
        max_length=16,
        description="maintenanceWindows in which a choice may be written that nobody asked for just now (age, drivers, latency, calibration); default: always. "
        "A lost place waits for none.",
    )


class Canary(ApiModel):
    """A trial on a few pods beside the present ones, behind the same Service, before a choice is written."""

    share_percent: int = Field(default=20, ge=1, le=50, description="sharePercent of the replicas that the trial gets in addition, at least one.")
    limit: Duration = Field(
        default="3h",
        json_schema_extra=duration_between("1m", "168h"),
        description="limit for the trial: a choice of which nothing can be told by then is not written.",
    )


class Rollout(ApiModel):
    """How a choice is brought in, and taken back when it turns out worse."""

    auto_rollback: bool = Field(
        default=True, description="autoRollback goes back to what was there before when a choice turns out worse: the rollout fails, settings do not arrive."
    )
    watch: Duration = Field(
        default="30m", json_schema_extra=duration_between("10s", "24h"), description="watch is for how long a choice is watched after its rollout was over."
    )
    canary: Canary | None = Field(
        default=None,
        description="canary tries a choice on a few pods first. Needs the latency that they serve (drift.source); without canary a choice is written in place.",
    )


class ModelAdaptationSpec(ApiModel):
    """model + targetRef + settings + poolSelector is complete: nobody types a performance number."""

    model_config = ConfigDict(
        json_schema_extra=rules((ONE_CLAIM, "a measuring Job mounts one claim: keep the calibration file in the model's own, or give it by http(s)"))
    )

    target_ref: TargetRef = Field(description="targetRef names the inference Deployment.")
    model: ModelRef = Field(description="model that the Deployment serves.")
    pool_selector: LabelSelector = Field(default=LabelSelector(), description="poolSelector picks the AcceleratorPools by their labels; default: all.")
    config_space: ConfigSpace = Field(default=ConfigSpace(), description="configSpace bounds the choice.")
    objective: Objective = Field(default=Objective(), description="objective says what better means.")
    load: Load = Field(default=Load(), description="load under which every candidate is measured.")
    slo: Slo | None = Field(default=None, description="slo that a choice must keep.")
    accuracy: Accuracy = Field(default=Accuracy(), description="accuracy bounds lossy variants.")
    settings: Settings | None = Field(default=None, description="settings say how a choice reaches the server. Without them it is only recommended.")
    validation: Validation = Field(default=Validation(), description="validation bounds the real measurements.")
    update_policy: UpdatePolicy = Field(default=UpdatePolicy(), description="updatePolicy says when a choice is written.")
    freshness: Duration = Field(
        default="168h",
        json_schema_extra=duration_between("1m", "8760h"),
        description="freshness is the age at which a decision is worked out anew though nothing speaks against it, up to a tenth more.",
    )
    deletion_policy: Literal["Restore", "Retain"] = Field(
        default="Restore",
        description="deletionPolicy for a Deployment that this adaptation leaves: Restore gives every field back, Retain keeps what is applied.",
    )
    rollout: Rollout = Field(default=Rollout(), description="rollout says how a choice is brought in, and taken back.")
    drift: Drift = Field(default=Drift(), description="drift says where the latency that the target serves is read, and when it counts as slower.")
    suspend: bool = Field(default=False, description="suspend stops new work for this adaptation; what is applied stays.")


class InputStatus(ApiModel):
    """One part of what a run was started for."""

    name: str = Field(max_length=32, description="name of the part: spec, model, target, image, settings, resources, restrictions or families.")
    hash: str = Field(max_length=64, description="hash over the part.")


class RunStatus(ApiModel):
    """The adaptation under way: claimed here before any side effect, so that a restart goes on with it."""

    id: str = Field(max_length=32, description="id of the run; its Jobs carry it as a label.")
    inputs_hash: str = Field(max_length=64, description="inputsHash is over everything the run was started for; other inputs start another run.")
    started_at: Timestamp = Field(description="startedAt is when the run began; validation.budget counts from here.")
    step: Literal["Probing", "Profiling", "Validating", "Applying", "RollingOut", "Done"] = Field(description="step that is under way.")
    progress: str = Field(default="", max_length=256, description="progress in words, for example: validating 2 of 4, about 3 min left.")
    refusal: JobRefusal | None = Field(
        default=None, description="refusal is set while the API server takes no Job of this run; the next try comes later each time."
    )
    trigger: str = Field(default="", max_length=512, description="trigger says why the run was started.")
    inputs: tuple[InputStatus, ...] = Field(
        default=(), max_length=16, json_schema_extra=keyed_by("name"), description="inputs are the parts behind inputsHash, so that a change can be named."
    )
    attempt: int = Field(default=0, ge=0, description="attempt is how many runs for the same inputs ended without a decision before this one.")
    profile_run: str = Field(
        default="", max_length=32, description="profileRun is the earlier run whose model portrait this run uses; empty when it makes its own."
    )
    avoid: str = Field(default="", max_length=253, description="avoid is the node that the pods are to leave: a check found its card slower than it was.")
    before: ServedBaseline | None = Field(
        default=None, description="before is what the target served before the run began: a decision under which it serves slower is taken back."
    )
    profile_key: str = Field(default="", max_length=64, description="profileKey is a hash over what the model portrait was asked for and by which probe image.")


class PendingRunStatus(ApiModel):
    """A run that starts as soon as what changed stands still."""

    trigger: str = Field(max_length=512, description="trigger says what changed.")
    inputs_hash: str = Field(max_length=64, description="inputsHash is over what the run will be started for.")
    noticed_at: Timestamp = Field(description="noticedAt is when a change was first seen; the wait is bounded from here.")
    changed_at: Timestamp = Field(description="changedAt is when the last change was seen.")


class ModelStatus(ApiModel):
    """What the profile found."""

    digest: str = Field(default="", max_length=64, description="digest is the SHA-256 of the model file and its external data.")
    parameters: int = Field(default=0, description="parameters is how many numbers the model's weights are.")
    weight_bytes: int = Field(default=0, description="weightBytes is the size of the weights as stored.")
    architecture: str = Field(default="", max_length=32, description="architecture is cnn, transformer, recurrent, mixed or other.")
    bound: str = Field(default="", max_length=32, description="bound is what limits the model: compute, memory, launch or unknown.")


class ConfigStatus(ApiModel):
    """One serving configuration on one family."""

    pool: str = Field(default="", max_length=253, description="pool is the AcceleratorPool.")
    family: str = Field(default="", max_length=63, description="family of cards in that pool.")
    execution_provider: str = Field(default="", max_length=64, description="executionProvider that runs the model, by ONNX Runtime's name.")
    precision: Precision = Field(default="fp32", description="precision of the computation.")
    batch_size: int = Field(default=1, description="batchSize is the largest batch.")
    concurrency: int = Field(default=1, description="concurrency is the server's in-flight limit (parallel executions), not the load.")
    dynamic_batching: bool = Field(default=False, description="dynamicBatching says whether waiting requests are joined up to batchSize.")
    max_batch_delay: str = Field(default="0us", max_length=32, description="maxBatchDelay is how long a request waits for others to join.")


class Figures(ApiModel):
    """Measured under spec.load."""

    p50: str = Field(default="", max_length=32, description="p50 is the median latency.")
    p99: str = Field(default="", max_length=32, description="p99 is the 99th percentile of the latency.")
    throughput_per_second: int = Field(default=0, description="throughputPerSecond is how many requests were answered per second.")
    difference_ppm: int | None = Field(default=None, description="differencePpm to fp32 in millionths, by spec.accuracy.metric.")


class CandidateStatus(ApiModel):
    """One line of the ranking."""

    config: ConfigStatus = Field(description="config of the candidate.")
    score_permille: int = Field(description="scorePermille is relative to the current configuration; 1000 = equal, higher is better.")
    measured: Figures | None = Field(default=None, description="measured is what the benchmark found; absent when there was none.")
    current: bool = Field(default=False, description="current marks the configuration that the Deployment had.")
    verdict: str = Field(max_length=64, description="verdict is Selected, Tie, Slower, SloMissed, AccuracyExceeded, Unverified, Failed or NotMeasured.")
    message: str = Field(default="", max_length=512, description="message explains the verdict.")


class RejectionStatus(ApiModel):
    """Candidates that were dropped for one reason."""

    reason: str = Field(max_length=64, description="reason in one word; docs/conditions.md explains each.")
    count: int = Field(description="count of candidates.")
    message: str = Field(max_length=512, description="message of the first of them.")


class Recommendation(ApiModel):
    """What we advise."""

    decision_id: str = Field(max_length=32, description="decisionId names the decision in annotations, Events and the store.")
    config: ConfigStatus = Field(description="config that is advised.")
    expected: Figures = Field(description="expected is what the benchmark of this configuration found.")
    gain_percent: int = Field(default=0, description="gainPercent is how much better it is than the configuration before, by the objective.")
    predicted_gain_percent: int | None = Field(
        default=None, description="predictedGainPercent is how much better it was predicted to be before anything of this run was measured."
    )
    decided_at: Timestamp = Field(description="decidedAt is when the decision was made.")
    took: str = Field(default="", max_length=32, description="took is the time from start to decision.")
    patch: str = Field(default="", max_length=8192, description="patch is the ready apply-patch (JSON) for the Deployment.")


DecisionOutcome = Literal["Recommended", "Kept", "Applied", "Superseded", "RolledBack", "TakenBack"]


class DecisionStatus(ApiModel):
    """A decision, and what became of it."""

    id: str = Field(max_length=32, description="id of the decision, as in annotations, Events and the store.")
    decided_at: Timestamp = Field(description="decidedAt is when it was made.")
    trigger: str = Field(default="", max_length=256, description="trigger says why its run was started.")
    config: ConfigStatus = Field(description="config that was chosen.")
    gain_percent: int = Field(default=0, description="gainPercent is how much better it measured than the configuration before, by the objective.")
    predicted_gain_percent: int | None = Field(
        default=None, description="predictedGainPercent is how much better it was predicted to be before anything was measured."
    )
    outcome: DecisionOutcome = Field(
        default="Recommended",
        description="outcome is Recommended (not written), Kept (what ran stayed), Applied (it is on the Deployment), Superseded (a later one took its place), "
        "RolledBack (it turned out worse and was taken back; it is not chosen again for the same inputs) or TakenBack (by annotation).",
    )
    reason: str = Field(default="", max_length=64, description="reason in one word why it was taken back; docs/conditions.md explains each.")
    message: str = Field(default="", max_length=512, description="message says why it was taken back.")
    replaced: str = Field(
        default="", max_length=32, description="replaced is the decision that was on the Deployment before; empty = it was as its owner declares it."
    )
    inputs_hash: str = Field(default="", max_length=64, description="inputsHash is over what its run was started for.")


class CanaryStatus(ApiModel):
    """The trial of a decision."""

    decision_id: str = Field(max_length=32, description="decisionId of the decision that is tried.")
    name: str = Field(default="", max_length=63, description="name of the Deployment that its pods belong to; empty = there was none.")
    replicas: int = Field(default=0, description="replicas of it.")
    started_at: Timestamp = Field(description="startedAt is when the trial began.")
    ready_at: Timestamp | None = Field(default=None, description="readyAt is when all its pods served as decided; windows count from then on.")
    outcome: Literal["Running", "Promoted", "Worse", "Failed", "Inconclusive", "Skipped"] = Field(
        default="Running",
        description="outcome is Running, Promoted (then written), Worse or Failed (taken back), Inconclusive (not written) or Skipped (written in place).",
    )
    reason: str = Field(default="", max_length=64, description="reason for the outcome in one word; docs/conditions.md explains each.")
    message: str = Field(default="", max_length=512, description="message explains the outcome.")


class RollbackStatus(ApiModel):
    """What somebody went back to by annotation."""

    requested: str = Field(max_length=64, description="requested is the value of the annotation that is honoured.")
    decision_id: str = Field(default="", max_length=32, description="decisionId of the decision that is gone back to; empty = what the owner declares.")
    config: ConfigStatus | None = Field(default=None, description="config of that decision.")
    run: str = Field(max_length=32, description="run during which it was asked for; once another one has begun, because the inputs changed, it is used up.")
    since: Timestamp = Field(description="since is when it was first honoured.")


class RemovalStatus(ApiModel):
    """That somebody took off what was applied."""

    count: int = Field(ge=1, description="count of removals, each less than a day after the one before.")
    noticed_at: Timestamp = Field(description="noticedAt is when the last one was noticed.")
    written_again: bool = Field(default=False, description="writtenAgain says that it was put back since; what is missing then was taken off once more.")
    manager: str = Field(default="", max_length=128, description="manager that did it, where the Deployment's managedFields tell.")


class ApplyRefusal(ApiModel):
    """The API server does not take what was decided. Kept until it does, so that tries come further and further apart, also across restarts."""

    decision_id: str = Field(max_length=32, description="decisionId of the decision that is refused.")
    attempts: int = Field(ge=1, description="attempts is how often it was tried in a row.")
    refused_at: Timestamp = Field(description="refusedAt is when it was tried last.")
    message: str = Field(default="", max_length=512, description="message is what the API server said.")


class Placement(ApiModel):
    """What is applied."""

    decision_id: str = Field(max_length=32, description="decisionId of the decision that was applied.")
    config: ConfigStatus = Field(description="config that was written.")
    applied_at: Timestamp = Field(description="appliedAt is when it was written.")
    target_uid: str = Field(
        default="", max_length=64, description="targetUid is the UID of the Deployment that was written: one created anew under the name has another."
    )
    container: str = Field(default="", max_length=63, description="container that the settings were written to.")
    rollout_since: Timestamp | None = Field(
        default=None, description="rolloutSince is when the rollout could begin: when it was written, or when the Deployment was last resumed."
    )
    settled_at: Timestamp | None = Field(default=None, description="settledAt is when its rollout was first seen to be over, with everything as decided.")
    nodes: tuple[Annotated[str, Field(max_length=253)], ...] = Field(default=(), max_length=16, description="nodes on which the first 16 pods run; read back.")
    removal: RemovalStatus | None = Field(default=None, description="removal is set when somebody took off what was applied.")


class ModelAdaptationStatus(ApiModel):
    """What the operator found, advises and applied."""

    observed_generation: int = Field(
        default=-1, description="observedGeneration is the metadata.generation that this status was made for; -1 before the first look."
    )
    run: RunStatus | None = Field(default=None, description="run is the adaptation under way, or the last one.")
    next_run: PendingRunStatus | None = Field(default=None, description="nextRun is the run that starts once what changed has settled.")
    model: ModelStatus | None = Field(default=None, description="model is what the profile found.")
    baseline: CandidateStatus | None = Field(default=None, description="baseline is the configuration that the Deployment had when the run began.")
    recommendation: Recommendation | None = Field(default=None, description="recommendation is what we advise.")
    placement: Placement | None = Field(default=None, description="placement is what is applied.")
    check: CheckStatus | None = Field(default=None, description="check is how what runs is kept true; absent while nothing ever spoke against it.")
    decisions: tuple[DecisionStatus, ...] = Field(
        default=(), max_length=10, json_schema_extra=keyed_by("id"), description="decisions are the last 10, newest first; the store has all of them."
    )
    canary: CanaryStatus | None = Field(default=None, description="canary is the last trial, where rollout.canary asks for one.")
    rollback: RollbackStatus | None = Field(
        default=None, description="rollback is set while annotation metainfer.dev/rollback-to is there and names a decision."
    )
    apply_refusal: ApplyRefusal | None = Field(
        default=None, description="applyRefusal is set while the API server does not take what was decided; the next try comes later each time."
    )
    served: ServedStatus | None = Field(default=None, description="served is what the target's own metrics say since the decision is in place.")
    slow_nodes: tuple[SlowNode, ...] = Field(
        default=(),
        max_length=4,
        json_schema_extra=keyed_by("name"),
        description="slowNodes are nodes whose pods served slower than the target's others in each of the last windows; their cards are measured soon.",
    )
    image_digests: tuple[Annotated[str, Field(max_length=128)], ...] = Field(
        default=(), max_length=8, description="imageDigests of the serving container, as pods ran it after the last run; another build of the tag differs."
    )
    families: tuple[KnownFamily, ...] = Field(
        default=(), max_length=32, json_schema_extra=keyed_by("key"), description="families are the cards as the last run found them, for comparison."
    )
    candidates: tuple[CandidateStatus, ...] = Field(default=(), max_length=16, description="candidates are the best 16 of the ranking, best first.")
    candidate_count: int = Field(default=0, description="candidateCount is how many candidates were ranked.")
    rejections: tuple[RejectionStatus, ...] = Field(
        default=(),
        max_length=24,
        description="rejections are the candidates that were dropped before ranking, by reason.",
    )
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=24, json_schema_extra=keyed_by("type"), description="conditions of the adaptation; Ready sums them up."
    )
