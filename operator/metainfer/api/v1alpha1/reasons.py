"""Condition types and reasons, one comment each. Names are an interface: scripts and alerts match on them."""

from __future__ import annotations

from typing import Final

# Condition types (facts: positive unless marked; Reconciling and Stalled only while True, as kstatus wants it).
READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
PROBES_COMPLETED: Final = "ProbesCompleted"  # pool: every node of every family has a portrait young enough
LABELS_AVAILABLE: Final = "LabelsAvailable"  # pool: every node still has the labels its family selects on
PROFILED: Final = "Profiled"
PLACEMENT_DECIDED: Final = "PlacementDecided"
VALIDATED: Final = "Validated"
APPLIED: Final = "Applied"
SETTINGS_EFFECTIVE: Final = "SettingsEffective"  # read back from the pods after the rollout
ANSWER_TRUE: Final = "AnswerTrue"  # what was decided still holds, as far as it is watched
LATENCY_OBSERVED: Final = "LatencyObserved"  # what the target serves can be read and compared
LOW_CONFIDENCE: Final = "LowConfidence"  # negative polarity
FIELD_CONTESTED: Final = "FieldContested"  # negative polarity
ROLLED_BACK: Final = "RolledBack"  # negative polarity: the newest decision was taken back
TARGET_CONFLICT: Final = "TargetConflict"  # negative polarity
NODE_CONFLICT: Final = "NodeConflict"  # pool, negative polarity: nodes that an older pool has
PREDICTOR_LEARNED: Final = "PredictorLearned"  # pool: a learned model ranks candidates; else the roofline alone
STORE_DEGRADED: Final = "StoreDegraded"  # negative polarity

# Reasons of the target.
TARGET_NOT_FOUND: Final = "TargetNotFound"  # no such Deployment in the namespace
TARGET_TAKEN: Final = "TargetTaken"  # an older adaptation has the same target
TARGET_NOT_RESTORED: Final = "TargetNotRestored"  # it still carries what another adaptation, now gone, has written
UNSUPPORTED_TARGET: Final = "UnsupportedTarget"  # the Deployment is owned by a controller
TARGET_PAUSED: Final = "TargetPaused"
TARGET_SCALED_TO_ZERO: Final = "TargetScaledToZero"
CONTAINER_AMBIGUOUS: Final = "ContainerAmbiguous"  # several containers, none named
CONTAINER_NOT_FOUND: Final = "ContainerNotFound"
MULTI_CARD_UNSUPPORTED: Final = "MultiCardUnsupported"
SUSPENDED: Final = "Suspended"

# Reasons of the pools.
NO_POOL: Final = "NoPool"  # poolSelector matches nothing
POOL_OVERLAP: Final = "PoolOverlap"  # a node is matched by an older pool too
COST_UNKNOWN: Final = "CostUnknown"  # goal Cost, family without hourlyCostMicros
NODE_BUSY: Final = "NodeBusy"
PROBE_FAILED: Final = "ProbeFailed"
LABEL_MISSING: Final = "LabelMissing"
