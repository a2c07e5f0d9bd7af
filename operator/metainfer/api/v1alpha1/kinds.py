"""The three kinds with their names, scopes and printer columns: what ``hack/generate`` turns into CRDs and the reference."""

from __future__ import annotations

from metainfer.api.crd import Column, KindDefinition
from metainfer.api.v1alpha1 import accelerator_pool, model_adaptation, node_portrait
from metainfer.api.v1alpha1.reasons import PROBES_COMPLETED, READY

CATEGORY = "metainfer"

_AGE = Column("Age", ".metadata.creationTimestamp", "Time since the object was created.", type="date")


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_READY = Column("Ready", _condition(READY, "status"), "Sum of the conditions.")
_REASON = Column("Reason", _condition(READY, "reason"), "Why it is ready or not; docs/conditions.md explains each.")

_POOL = KindDefinition(
    kind=accelerator_pool.KIND,
    plural=accelerator_pool.PLURAL,
    singular=accelerator_pool.SINGULAR,
    short_names=accelerator_pool.SHORT_NAMES,
    scope="Cluster",
    description="AcceleratorPool says which nodes have cards, which cards are the same, and how they are measured.",
    spec=accelerator_pool.AcceleratorPoolSpec,
    status=accelerator_pool.AcceleratorPoolStatus,
    columns=(
        _READY,
        Column("Nodes", ".status.nodes", "Nodes in the pool's families.", type="integer"),
        Column("Probed", _condition(PROBES_COMPLETED, "status"), "Whether every node has a portrait that is young enough."),
        _REASON,
        Column("Families", ".spec.families[*].name", "Families of cards.", wide=True),
        Column("Unassigned", ".status.unassignedCount", "Nodes that no family takes.", type="integer", wide=True),
        _AGE,
    ),
)

_CONFIG = ".status.recommendation.config"

_ADAPTATION = KindDefinition(
    kind=model_adaptation.KIND,
    plural=model_adaptation.PLURAL,
    singular=model_adaptation.SINGULAR,
    short_names=model_adaptation.SHORT_NAMES,
    scope="Namespaced",
    description="ModelAdaptation names one model and the Deployment that serves it, and says what may be chosen for it and what better means.",
    spec=model_adaptation.ModelAdaptationSpec,
    status=model_adaptation.ModelAdaptationStatus,
    columns=(
        _READY,
        Column("Family", f"{_CONFIG}.family", "Family of cards that is advised."),
        Column("Precision", f"{_CONFIG}.precision", "Precision that is advised."),
        Column("Batch", f"{_CONFIG}.batchSize", "Batch size that is advised.", type="integer"),
        Column("P99", ".status.recommendation.expected.p99", "Measured 99th percentile of the latency with it."),
        Column("Gain", ".status.recommendation.gainPercent", "Percent better than the configuration before, by the objective.", type="integer"),
        _REASON,
        Column("Provider", f"{_CONFIG}.executionProvider", "Execution provider that is advised.", wide=True),
        Column("Concurrency", f"{_CONFIG}.concurrency", "Parallel executions that are advised.", type="integer", wide=True),
        Column("Target", ".spec.targetRef.name", "The Deployment.", wide=True),
        Column("Step", ".status.run.progress", "What is under way.", wide=True),
        _AGE,
    ),
)

_PORTRAIT = KindDefinition(
    kind=node_portrait.KIND,
    plural=node_portrait.PLURAL,
    singular=node_portrait.SINGULAR,
    short_names=node_portrait.SHORT_NAMES,
    scope="Cluster",
    description="NodePortrait is what was measured on one node's cards. The operator writes it, under the node's name; the node owns it.",
    spec=node_portrait.NodePortraitSpec,
    status=node_portrait.NodePortraitStatus,
    columns=(
        Column("Pool", ".spec.pool", "The AcceleratorPool of the node."),
        Column("Family", ".spec.family", "Family of the node's cards."),
        Column("Card", ".status.cardModel", "The card's own name."),
        Column("Factor", ".status.correctionFactorPermille", "Speed against the family's median; 1000 = typical.", type="integer"),
        Column("Health", ".status.health", "Health of the cards, by the factor."),
        Column("Failure", ".status.probeFailure.reason", "Why the last probe gave no portrait."),
        Column("Driver", ".status.driverVersion", "Driver version at the measurement.", wide=True),
        Column("Measured", ".status.measuredAt", "Time since the measurement.", type="date", wide=True),
        _AGE,
    ),
)

KINDS = (_POOL, _ADAPTATION, _PORTRAIT)
