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


class Limits(ApiModel):
    """Caps, counted from labelled Jobs."""

    max_concurrent_probes: int = Field(default=4, ge=1, le=1000, description="maxConcurrentProbes caps probe Jobs that run at the same time in the pool.")
    max_concurrent_measurements: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="maxConcurrentMeasurements caps all measuring Jobs (probe, profile, benchmark) of the pool that run at the same time. "
        "Set 1 where the cards share processors.",
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
    limits: Limits = Field(default=Limits(), description="limits cap what the operator runs at the same time.")


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
