"""NodePortrait: what was measured on one node's cards. Written by the operator only, owned by its Node."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from metainfer.api.v1alpha1.common import ApiModel, Condition, Precision, Timestamp, keyed_by

KIND, PLURAL, SINGULAR, SHORT_NAMES = "NodePortrait", "nodeportraits", "nodeportrait", ("nodep",)


class NodePortraitSpec(ApiModel):
    """Whose portrait it is; the object has the node's name."""

    node_uid: str = Field(max_length=64, description="nodeUid is the UID of the Node: a node that was replaced under its old name gets a new portrait.")
    pool: str = Field(max_length=253, description="pool is the AcceleratorPool that the node belongs to.")
    family: str = Field(max_length=63, description="family of the node's cards in that pool.")


class PortraitFigures(ApiModel):
    """One provider at one precision. Integers: the API has no floats."""

    execution_provider: str = Field(max_length=64, description="executionProvider that was measured, by ONNX Runtime's name.")
    runtime_version: str = Field(max_length=64, description="runtimeVersion of the provider in the probe image.")
    precision: Precision = Field(description="precision that was asked for.")
    effective_precision: Precision = Field(description="effectivePrecision is what the runtime says it really ran in.")
    matmul_megaflops: dict[str, int] = Field(
        default={}, max_length=8, description="matmulMegaflops by shape (tiny, gemv, m32, m256, big): 2·M·N·K over time, in millions per second."
    )
    launch_p50: str = Field(max_length=32, description="launchP50 is the median latency of a graph with one operator, host side included.")
    launch_p99: str = Field(max_length=32, description="launchP99 is its 99th percentile: bad hosts show only there.")
    launch_p50_nanoseconds: int = Field(description="launchP50Nanoseconds is launchP50 unrounded, for the predictor.")


class ProbeFailure(ApiModel):
    """The last probe gave no portrait. Kept here because it outlives the Job, and goes with the node."""

    job: str = Field(max_length=63, description="job is the name of the Job that failed.")
    reason: str = Field(max_length=64, description="reason in one word; docs/conditions.md explains each.")
    message: str = Field(max_length=512, description="message says what happened.")
    attempts: int = Field(ge=1, description="attempts is how many probes failed in a row.")
    retryable: bool = Field(description="retryable says whether it is tried again by itself, later each time.")
    failed_at: Timestamp = Field(description="failedAt is when the last one failed.")
    circumstances: str = Field(
        max_length=64,
        description="circumstances is a hash over cards, driver, probe image and pool: others are another try. Delete the portrait for one at once.",
    )


class Sighting(ApiModel):
    """What a node's labels say, and since when."""

    value: str = Field(max_length=128, description="value of the label.")
    since: Timestamp = Field(description="since is when it was seen first; a label that is missing for a while changes nothing.")


class HealthTrial(ApiModel):
    """What the probes of a card that is slower than its siblings add up to: one raises a doubt, its repeats decide."""

    job: str = Field(max_length=63, description="job is the probe that was counted last.")
    probes: int = Field(default=0, ge=0, description="probes is how many have been counted while the doubt stands; 0 = it is decided.")
    mean_permille: int = Field(default=1000, description="meanPermille is their mean speed against the siblings' median.")
    good: int = Field(default=0, ge=0, description="good is how many probes in a row were good since the card is degraded; the second makes it healthy.")
    bad: int = Field(default=0, ge=0, description="bad is how many were not; each doubles the time until the next.")


class NodePortraitStatus(ApiModel):
    """The portrait."""

    observed_generation: int = Field(
        default=-1, description="observedGeneration is the metadata.generation that this status was made for; -1 before the first measurement."
    )
    identity: str = Field(
        default="",
        max_length=64,
        description="identity is a hash over card model, card count, sharing mode and node UID: another identity is another portrait.",
    )
    card_model: str = Field(default="", max_length=128, description="cardModel is the card's own name.")
    cards: int = Field(default=0, description="cards is how many cards the node offers.")
    sharing: str = Field(
        default="",
        max_length=63,
        description="sharing says how a card is offered several times (time-slicing, mps); such a card is compared with no sibling. Empty = it is not.",
    )
    memory_bytes: int = Field(default=0, description="memoryBytes of one card, as the probe saw it.")
    driver_version: str = Field(
        default="", max_length=128, description="driverVersion at the time of the measurement, by the node's labels, else as the card itself told the probe."
    )
    driver_seen: Sighting | None = Field(default=None, description="driverSeen is the driver version that the node's labels tell now, or told last.")
    firmware_seen: Sighting | None = Field(default=None, description="firmwareSeen is the same of the cards' firmware, where labels tell it.")
    upgrade_seen: Sighting | None = Field(default=None, description="upgradeSeen is set while the node's labels say that its driver is being upgraded.")
    measured_at: Timestamp | None = Field(default=None, description="measuredAt is when the measurement ended.")
    probe_job: str = Field(default="", max_length=63, description="probeJob is the name of the Job that measured.")
    figures: tuple[PortraitFigures, ...] = Field(default=(), max_length=32, description="figures per provider and precision.")
    bandwidth_megabytes_per_second: dict[str, int] = Field(
        default={}, max_length=8, description="bandwidthMegabytesPerSecond by memory level (l2, l3, main): bytes read and written over time."
    )
    micro_megaflops: int = Field(
        default=0, description="microMegaflops of the 2 s micro-probe (one fixed fp32 matrix product), by which runs on different nodes are compared."
    )
    micro_megabytes_per_second: int = Field(default=0, description="microMegabytesPerSecond of the micro-probe's fixed copy.")
    load_permille: int = Field(default=0, description="loadPermille is the share of the node's processors that others used meanwhile; 1000 = all of them.")
    throttled_permille: int = Field(
        default=0, description="throttledPermille is the share of the measured time in which the card was held back (quota, heat, power)."
    )
    speed_ppm: int = Field(
        default=1_000_000,
        description="speedPpm is the card's speed against its own first probe, in millionths; changes of driver, runtime and cards are left out of it.",
    )
    speed_compared_at: Timestamp | None = Field(
        default=None, description="speedComparedAt is when a measurement was last compared with the one before it; a card's first tells nothing."
    )
    correction_factor_permille: int = Field(
        default=1000, description="correctionFactorPermille is this instance's speed against its family's median; 1000 = typical."
    )
    health: Literal["Healthy", "Degraded", "Unknown"] = Field(
        default="Unknown", description="health of the node's cards, by their speed against the siblings'."
    )
    trial: HealthTrial | None = Field(default=None, description="trial is set while the cards' health is in doubt, and after it was.")
    probe_wanted: Sighting | None = Field(
        default=None, description="probeWanted says why and since when another probe is wanted; one that was made later has answered it."
    )
    probe_failure: ProbeFailure | None = Field(default=None, description="probeFailure is set while the last probe of the node gave no portrait.")
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=16, json_schema_extra=keyed_by("type"), description="conditions of the portrait; Ready sums them up."
    )
