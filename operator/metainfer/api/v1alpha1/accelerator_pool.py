"""AcceleratorPool: which nodes, in which families, how they are probed. Written by the user; status by us."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from metainfer.api.v1alpha1.common import (
    UNIQUE,
    ApiModel,
    Condition,
    Duration,
    FamilyName,
    JobRefusal,
    LabelKey,
    LabelSelector,
    ProviderName,
    Timestamp,
    duration_between,
    keyed_by,
)

KIND, PLURAL, SINGULAR, SHORT_NAMES = "AcceleratorPool", "acceleratorpools", "acceleratorpool", ("accpool",)


class AcceleratorFamily(ApiModel):
    """Cards that are the same on paper. Membership is by label selector, never by substring of a name."""

    name: FamilyName = Field(description="name of the family, unique in the pool; becomes the value of the node label metainfer.dev/family.")
    selector: LabelSelector = Field(description="selector picks the family's nodes, by the labels that the vendor's labeller sets.")
    resource: str = Field(
        min_length=3,
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
        description="resource is the extended resource that stands for one card, for example nvidia.com/gpu.",
    )
    execution_providers: tuple[ProviderName, ...] = Field(
        min_length=1,
        max_length=8,
        json_schema_extra=UNIQUE,
        description="executionProviders that can run on the family's cards, by ONNX Runtime's names, best first.",
    )
    driver_version_labels: tuple[LabelKey, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=UNIQUE,
        description="driverVersionLabels are node label keys that carry the driver version; the first one present counts. Default: those of the vendor's own "
        "labeller, by the resource (NVIDIA, AMD, Intel, Gaudi, Ascend, Cambricon).",
    )
    firmware_version_labels: tuple[LabelKey, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=UNIQUE,
        description="firmwareVersionLabels are node label keys that carry the firmware version; default as for driverVersionLabels.",
    )
    driver_upgrade_labels: tuple[LabelKey, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=UNIQUE,
        description="driverUpgradeLabels are node label keys that tell how far a driver upgrade is. Only upgrade-done, or no such label, counts as finished; "
        "any other state is believed for an hour. Default as for driverVersionLabels.",
    )
    shareable: bool = Field(
        default=False,
        description="shareable says that a pod reaches a card of the family without asking for the resource, beside the pod that holds it; true of processors. "
        "What runs can then be checked where it runs, though no card is free there.",
    )
    memory_bytes_per_card: int | None = Field(
        default=None, ge=1, description="memoryBytesPerCard bounds what a model may need; default: what the probe saw, else the node's allocatable memory."
    )
    hourly_cost_micros: int | None = Field(
        default=None, ge=0, description="hourlyCostMicros is the price of one card for one hour in millionths of your currency; needed by goal Cost."
    )


class Probe(ApiModel):
    """How nodes are measured."""

    duration: Duration = Field(default="30s", json_schema_extra=duration_between("5s", "10m"), description="duration of measured time per node.")
    max_age: Duration = Field(default="168h", description="maxAge after which a node's portrait is measured again before a decision.")


class Calibration(ApiModel):
    """How it is noticed that all cards of a family have become slower, or faster."""

    period: Duration = Field(
        default="168h",
        json_schema_extra=duration_between("1m", "8760h"),
        description="period in which five cards of each family (all of a smaller one) are measured at least once, when idle, by a short probe.",
    )
    threshold_percent: int = Field(
        default=10,
        ge=1,
        le=100,
        description="thresholdPercent by which their median has to differ from before until what was decided for the family counts as stale. At 10 a family "
        "of three cards that did not change is said to have once in 1,200 periods, if two probes of a card differ by 3 %.",
    )


class Limits(ApiModel):
    """Caps, counted from labelled Jobs."""

    max_concurrent_probes: int = Field(default=4, ge=1, le=1000, description="maxConcurrentProbes caps probe Jobs that run at the same time in the pool.")
    max_concurrent_measurements: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="maxConcurrentMeasurements caps all measuring Jobs (probe, profile, benchmark, check) of the pool that run at the same time. "
        "Set 1 where the cards share processors.",
    )
    max_concurrent_rollouts: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="maxConcurrentRollouts caps how many Deployments are rolled out onto the pool's cards at the same time because of what was decided.",
    )


class AcceleratorPoolSpec(ApiModel):
    """What the user says about the pool."""

    node_selector: LabelSelector = Field(
        default=LabelSelector(), description="nodeSelector bounds the pool; default: every node that one of the families selects."
    )
    families: tuple[AcceleratorFamily, ...] = Field(
        min_length=1, max_length=32, json_schema_extra=keyed_by("name"), description="families of cards in the pool; a node belongs to the first that matches."
    )
    probe: Probe = Field(default=Probe(), description="probe says how nodes are measured.")
    calibration: Calibration = Field(default=Calibration(), description="calibration says when a family's cards are compared with what they did before.")
    limits: Limits = Field(default=Limits(), description="limits cap what the operator runs at the same time.")


class FamilyCalibration(ApiModel):
    """Whether the cards of a family still do what they did."""

    epoch: int = Field(default=0, ge=0, description="epoch counts the shifts so far.")
    level_ppm: int = Field(default=1_000_000, ge=1, description="levelPpm is the cards' speed in this epoch, against their first probes, in millionths.")
    round: int = Field(default=0, ge=0, description="round is the last period that was judged, counted from the beginning of Unix time.")
    cards: int = Field(default=0, description="cards is how many were measured for it.")
    speed_permille: int = Field(default=1000, description="speedPermille is the median of their speeds against levelPpm as it was before.")
    judged_at: Timestamp | None = Field(default=None, description="judgedAt is when.")
    shifted_at: Timestamp | None = Field(default=None, description="shiftedAt is when the epoch began.")
    shift_permille: int = Field(default=1000, description="shiftPermille is the median that began it.")


class FamilyStatus(ApiModel):
    """Counts of one family. Per-node data lives in NodePortraits: 5,000 nodes do not fit into one object."""

    name: str = Field(max_length=63, description="name of the family.")
    nodes: int = Field(default=0, description="nodes is how many nodes the family has.")
    cards: int = Field(default=0, description="cards is how many cards these nodes offer.")
    free_cards: int = Field(default=0, description="freeCards is how many of the cards no pod holds.")
    probed: int = Field(default=0, description="probed is how many of the nodes have a portrait younger than probe.maxAge.")
    degraded: int = Field(default=0, description="degraded is how many of the nodes are slower than the family's median by more than the noise.")
    driver_versions: tuple[Annotated[str, Field(max_length=128)], ...] = Field(
        default=(), max_length=8, description="driverVersions lists the first 8 driver versions found, sorted."
    )
    calibration: FamilyCalibration = Field(default=FamilyCalibration(), description="calibration says whether the family's cards still do what they did.")
    learned_rows: int = Field(default=0, description="learnedRows is how many measurements of this family the serving model was trained on.")
    held_out_regret_permille: int | None = Field(
        default=None,
        description="heldOutRegretPermille is the throughput that the model's first pick loses against the best one in this family, on models that it "
        "was not trained on; absent while there are too few.",
    )
    base_regret_permille: int | None = Field(default=None, description="baseRegretPermille is the same for the roofline alone.")


class PredictorStatus(ApiModel):
    """Which learned model ranks candidates, for all pools."""

    version: int | None = Field(default=None, description="version of the model, counted in the sample store; 0 came with the operator, absent = none.")
    feature_version: int = Field(default=0, description="featureVersion of this operator: models of another one are made anew.")
    rows: int = Field(default=0, description="rows is how many measurements the model was trained on.")
    made_at: Timestamp | None = Field(default=None, description="madeAt is when the model was trained.")
    held_out_regret_permille: int | None = Field(
        default=None, description="heldOutRegretPermille is the throughput that its first pick loses against the best one, on models not trained on."
    )
    base_regret_permille: int | None = Field(default=None, description="baseRegretPermille is the same for the roofline alone.")
    newest_version: int | None = Field(
        default=None, description="newestVersion is the last model that was trained; it serves only where it won, so version may be older. Absent = none."
    )
    newest_verdict: str = Field(default="", max_length=256, description="newestVerdict is how it did on models not trained on, against the one before.")


class UnassignedNode(ApiModel):
    """A node of the pool that no family takes, and why."""

    name: str = Field(max_length=253, description="name of the node.")
    reason: str = Field(max_length=64, description="reason in one word.")
    message: str = Field(max_length=512, description="message names what is missing.")


class AcceleratorPoolStatus(ApiModel):
    """What the operator found."""

    observed_generation: int = Field(
        default=-1, description="observedGeneration is the metadata.generation that this status was made for; -1 before the first look."
    )
    nodes: int = Field(default=0, description="nodes is how many nodes the pool's families have together.")
    families: tuple[FamilyStatus, ...] = Field(default=(), max_length=32, json_schema_extra=keyed_by("name"), description="families has the counts per family.")
    predictor: PredictorStatus | None = Field(default=None, description="predictor is the learned model that ranks candidates now.")
    unassigned: tuple[UnassignedNode, ...] = Field(default=(), max_length=16, description="unassigned lists the first 16 nodes that no family takes.")
    unassigned_count: int = Field(default=0, description="unassignedCount is how many nodes no family takes.")
    refusal: JobRefusal | None = Field(default=None, description="refusal is set while the API server takes no probe Job; the next try comes later each time.")
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra=keyed_by("type"), description="conditions of the pool; Ready sums them up."
    )
