"""What a pass wants done. ``decide`` returns it, ``act`` carries it out, in order, after the status was claimed.

Each action is safe to run twice: Jobs and portraits have names derived from their inputs, applies are idempotent,
samples have natural keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorPoolStatus
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationStatus
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus
from metainfer.decide.facts import Candidate, Labels, NodeTerm, Quantities, Toleration
from metainfer.decide.latency.served import ServedWindow
from metainfer_probe.contract import Request

Purpose = Literal["probe", "profile", "bench", "check"]


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """The claim that a measuring Job mounts read-only at /models."""

    claim: str


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Start one measuring Job. ``name`` is derived from its inputs: AlreadyExists means it was done before a crash."""

    namespace: str
    name: str
    purpose: Purpose
    request: Request
    owner: Mapping[str, str]
    """apiVersion, kind, name, uid of the owner (the pool, or the adaptation)."""
    node: str | None
    """Pinned by matchFields metadata.name; None = any node that ``terms`` and ``resource`` allow."""
    resource: str
    """The card's extended resource; one piece is requested. Empty = the pod reaches a card without asking, beside whoever holds it."""
    deadline_seconds: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    volume: ModelVolume | None = None
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    """Resources other than the card: a benchmark has the target container's own."""
    tolerations: tuple[Toleration, ...] = ()
    terms: tuple[NodeTerm, ...] = ()
    runtime_class: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Remove a Job of ours (stuck, superseded, or read)."""

    namespace: str
    name: str
    reason: str
    uid: str = ""
    """Of the Job that was judged; empty = whichever Job of ours has the name now."""


@dataclass(frozen=True, slots=True)
class WriteNodeLabels:
    """Set our labels on a node under our field manager; the full set, empty = give them up."""

    node: str
    labels: Mapping[str, str]
    uid: str = ""
    """Of the node that was judged; empty = whichever node has the name now."""


@dataclass(frozen=True, slots=True)
class WritePortrait:
    """Create or update a NodePortrait (owned by its Node)."""

    node: str
    spec: NodePortraitSpec
    status: NodePortraitStatus


@dataclass(frozen=True, slots=True)
class DeletePortrait:
    """Remove the portrait of a node that left the pool."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ApplyTarget:
    """Server-side apply on the target Deployment: the full set of our fields; a conflict is never forced."""

    namespace: str
    name: str
    body: Mapping[str, Any]
    decision_id: str
    release_env: tuple[tuple[str, str], ...] = ()
    """(container, env name) entries that must be released from our managedFields first (contested by the owner)."""
    resource_version: str = ""
    """Of the Deployment that was judged: another version is judged again. Empty = as it is when it is written."""


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Give back every field of ours on a Deployment, if it is still this version of it."""

    namespace: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class CreateCanary:
    """Start the pods that try a decision. ``name`` is made from the decision: one that is there was made before a crash."""

    name: str
    replicas: int
    labels: Labels
    """Of its pods; one of them is its own mark."""
    owner: Mapping[str, str]
    """apiVersion, kind, name and uid of the adaptation."""
    apply: ApplyTarget
    """What would be written: its pods are the target's as this would make them."""


@dataclass(frozen=True, slots=True)
class DeleteCanary:
    """Take a trial away, whatever came of it."""

    namespace: str
    name: str
    uid: str
    outcome: str = "Dropped"
    """Of the trial; ``Dropped``: nobody wants to know it any more."""


@dataclass(frozen=True, slots=True)
class PredictionQuality:
    """What the predictions behind a decision were worth (see ``quality``)."""

    family: str
    """Of the chosen candidate."""
    reason: str
    predicted_rank: int | None
    """1 = what measured best was predicted to be best; None = it was not predicted."""
    error_ratios: tuple[tuple[str, float], ...] = ()
    """Family, and measured over predicted latency, of each validated candidate."""


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """Keep a decision with everything it was based on."""

    decision_id: str
    run_id: str
    decided_at: datetime
    document: Mapping[str, Any]
    quality: PredictionQuality | None = None
    """None where it cannot be told any more."""
    rollback: str = ""
    """Why an earlier decision was taken back by this one; empty = it was made by a run."""


@dataclass(frozen=True, slots=True)
class RecordServed:
    """Keep what a window served: a training sample of aggregates, without payloads. Its key is adaptation and end of the window."""

    decision_id: str
    run_id: str
    candidate: Candidate
    digest: str
    """Of the model file; empty = not known."""
    window: ServedWindow


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """A user-visible Event on a decision; repeated ones are aggregated."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    quiet_seconds: float = 0.0
    """For how long the same is not said again."""


Action = (
    CreateJob | DeleteJob | WriteNodeLabels | WritePortrait | DeletePortrait | ApplyTarget | RestoreTarget | CreateCanary | DeleteCanary
    | RecordDecision | RecordServed | EmitEvent
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Result of one pass over a pool."""

    status: AcceleratorPoolStatus
    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AdaptationPlan:
    """Result of one pass over an adaptation."""

    status: ModelAdaptationStatus
    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None
    takes_turn: bool = False
    """The status claims a turn that is counted over all adaptations: no two passes may do that at the same time."""
