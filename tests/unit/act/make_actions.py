"""Builders of actions, for tests of what is written."""

from __future__ import annotations

from typing import Any

from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.plan import CreateJob, ModelVolume
from metainfer_probe.contract import BenchRequest, ModelSource, NodeRequest, ServingConfig

CARD = "metainfer.dev/card"
LIMITS = MeasuringLimits(operator_namespace="operator", probe_image="probe:1", image_pull_policy="IfNotPresent", priority_class="meta-infer-probe")
POOL_OWNER = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "AcceleratorPool", "name": "lab", "uid": "uid-lab"}
ADAPTATION_OWNER = {"apiVersion": "metainfer.dev/v1alpha1", "kind": "ModelAdaptation", "name": "ocr", "uid": "uid-ocr"}


def make_probe_job(**fields: Any) -> CreateJob:
    """The probe of node-1."""
    known: dict[str, Any] = {
        "namespace": "operator",
        "name": "mi-probe-1",
        "purpose": "probe",
        "request": NodeRequest(providers=("CPUExecutionProvider",), threads=2),
        "owner": POOL_OWNER,
        "node": "node-1",
        "resource": CARD,
        "deadline_seconds": 120,
        "labels": {"metainfer.dev/purpose": "probe", "metainfer.dev/pool": "lab"},
        "annotations": {"metainfer.dev/node": "node-1", "metainfer.dev/pool": "lab"},
    }
    return CreateJob(**(known | fields))


def make_bench_job(**fields: Any) -> CreateJob:
    """A benchmark of models/ocr.onnx with the resources of a server that has 4 processors."""
    config = ServingConfig(execution_provider="CPUExecutionProvider", precision="int8", batch_size=4)
    reference = ServingConfig(execution_provider="CPUExecutionProvider")
    known: dict[str, Any] = {
        "namespace": "models",
        "name": "mi-bench-1",
        "purpose": "bench",
        "request": BenchRequest(model=ModelSource(path="ocr.onnx", max_bytes=1 << 20), candidate=config, reference=reference),
        "owner": ADAPTATION_OWNER,
        "labels": {"metainfer.dev/purpose": "bench", "metainfer.dev/adaptation-uid": "uid-ocr"},
        "volume": ModelVolume("models"),
        "requests": {"cpu": 4000, "memory": 2 << 30},
        "limits": {"cpu": 4000, "memory": 4 << 30},
    }
    return make_probe_job(**(known | fields))
