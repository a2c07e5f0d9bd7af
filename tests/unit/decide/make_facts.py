"""Builders of facts for tests of pure rules: one line per object, and only what the test is about is spelled out.

Every builder takes the fields of its dataclass as keywords; what is left out is a plain, healthy, small thing: a Linux
node with one free card, a Deployment with one replica of one container, a pool of one family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily, AcceleratorPoolSpec
from metainfer.api.v1alpha1.common import FIELD_MANAGER
from metainfer.api.v1alpha1.model_adaptation import ModelAdaptationSpec, ModelAdaptationStatus
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus, PortraitFigures
from metainfer.decide.facts import (
    AdaptationFacts,
    AdaptationSnapshot,
    ContainerFacts,
    EnvEntry,
    ManagedFields,
    MeasuringLimits,
    NodeFacts,
    PodFacts,
    PodTemplateFacts,
    PoolFacts,
    Portrait,
    TargetFacts,
)
from metainfer_probe.contract import ServingConfig

CARD = "metainfer.dev/card"
CPU_PROVIDER = "CPUExecutionProvider"
OPENVINO_PROVIDER = "OpenVINOExecutionProvider"
FAMILY_LABEL_OF_VENDOR = "cards.example/family"
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1 << 20
GIB = 1 << 30


def make_node(name: str = "node-1", **fields: Any) -> NodeFacts:
    """A ready amd64 node with 4 cores, 16 GiB and one card, which carries its name as hostname."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": fields.get("architecture", "amd64")} | dict(fields.pop("labels", {}))
    allocatable = {"cpu": 4000, "memory": 16 * GIB, "pods": 110, CARD: 1} | dict(fields.pop("allocatable", {}))
    return NodeFacts(name=name, uid=fields.pop("uid", f"uid-{name}"), labels=labels, allocatable=allocatable, **fields)


def make_container(name: str = "server", **fields: Any) -> ContainerFacts:
    """One container; ``env`` may be a mapping of plain values."""
    env = fields.pop("env", ())
    if isinstance(env, Mapping):
        env = tuple(EnvEntry(key, value) for key, value in env.items())
    return ContainerFacts(name=name, image=fields.pop("image", f"{name}:1"), env=env, **fields)


def make_template(*containers: ContainerFacts, **fields: Any) -> PodTemplateFacts:
    """A pod template of the given containers; one that asks for one card when none is given."""
    return PodTemplateFacts(containers=containers or (make_container(limits={CARD: 1}),), labels=fields.pop("labels", {"app": "ocr"}), **fields)


def make_target(name: str = "ocr", *containers: ContainerFacts, **fields: Any) -> TargetFacts:
    """A Deployment that has rolled out completely; ``template`` beats ``containers``."""
    template = fields.pop("template", None) or make_template(*containers)
    replicas = fields.get("replicas", 1)
    defaults: dict[str, Any] = {
        "namespace": "default",
        "uid": f"uid-{name}",
        "resource_version": "1",
        "generation": 1,
        "observed_generation": fields.get("generation", 1),
        "match_labels": {"app": name},
        "updated_replicas": replicas,
        "available_replicas": replicas,
        "status_replicas": replicas,
        "progressing_reason": "NewReplicaSetAvailable",
    }
    return TargetFacts(name=name, template=template, **(defaults | fields))


def make_pod(name: str = "ocr-1", *containers: ContainerFacts, **fields: Any) -> PodFacts:
    """A ready pod on node-1 that holds one card."""
    defaults: dict[str, Any] = {
        "namespace": "default",
        "uid": f"uid-{name}",
        "labels": {"app": "ocr"},
        "node": "node-1",
        "phase": "Running",
        "ready": True,
        "requests": {CARD: 1},
        "owner": "ReplicaSet/ocr-6d5f",
        "created_at": LONG_AGO,
    }
    return PodFacts(name=name, containers=containers or (make_container(),), **(defaults | fields))


def make_family(name: str = "ort-cpu", **fields: Any) -> AcceleratorFamily:
    """A family whose nodes are labelled with its name by the vendor's labeller."""
    defaults: dict[str, Any] = {
        "selector": {"matchLabels": {FAMILY_LABEL_OF_VENDOR: name}},
        "resource": CARD,
        "execution_providers": (CPU_PROVIDER,),
    }
    return AcceleratorFamily.model_validate({"name": name} | defaults | fields)


def make_pool(name: str = "cards", *families: AcceleratorFamily, **fields: Any) -> PoolFacts:
    """A pool of the given families; ``spec`` holds further fields of the spec, by their names in code."""
    spec = AcceleratorPoolSpec.model_validate({"families": families or (make_family(),)} | dict(fields.pop("spec", {})))
    defaults: dict[str, Any] = {"uid": f"uid-{name}", "generation": 1, "created_at": LONG_AGO, "labels": {}}
    return PoolFacts(name=name, spec=spec, **(defaults | fields))


def make_figures(provider: str = CPU_PROVIDER, precision: str = "fp32", **fields: Any) -> PortraitFigures:
    """Plausible figures of one provider at one precision."""
    defaults: dict[str, Any] = {
        "runtime_version": "1.32.0",
        "effective_precision": precision,
        "matmul_megaflops": {"tiny": 2_000, "gemv": 4_000, "m32": 40_000, "m256": 60_000, "big": 70_000},
        "launch_p50": "12us",
        "launch_p99": "30us",
        "launch_p50_nanoseconds": 12_000,
    }
    return PortraitFigures.model_validate({"execution_provider": provider, "precision": precision} | defaults | fields)


def make_portrait(node: str = "node-1", family: str = "ort-cpu", **fields: Any) -> Portrait:
    """A healthy, typical, young portrait; ``fields`` are those of its status, ``pool`` and ``node_uid`` of its spec."""
    spec = NodePortraitSpec(node_uid=fields.pop("node_uid", f"uid-{node}"), pool=fields.pop("pool", "cards"), family=family)
    resource_version = fields.pop("resource_version", "1")
    defaults: dict[str, Any] = {
        "observed_generation": 1,
        "identity": f"identity-{node}",
        "card_model": "Some CPU",
        "cards": 1,
        "memory_bytes": 16 * GIB,
        "measured_at": "2026-01-01T00:00:00Z",
        "figures": (make_figures(),),
        "bandwidth_megabytes_per_second": {"l2": 80_000, "l3": 40_000, "main": 10_000},
        "micro_megaflops": 60_000,
        "micro_megabytes_per_second": 10_000,
        "health": "Healthy",
    }
    return Portrait(node=node, spec=spec, status=NodePortraitStatus.model_validate(defaults | fields), resource_version=resource_version)


def make_adaptation(name: str = "ocr", **fields: Any) -> AdaptationFacts:
    """An adaptation of the Deployment of the same name with the MetaInfer preset.

    ``target`` and ``container`` make the targetRef; ``spec`` holds further fields of the spec (in code's or the API's spelling),
    ``status`` those of the status.
    """
    target_ref = {"name": fields.pop("target", name), "container": fields.pop("container", None)}
    spec = {"target_ref": target_ref, "model": {"uri": "pvc://models/ocr.onnx"}, "settings": {"preset": "MetaInfer"}} | dict(fields.pop("spec", {}))
    defaults: dict[str, Any] = {
        "namespace": "default",
        "uid": f"uid-adaptation-{name}",
        "generation": 1,
        "resource_version": "1",
        "created_at": LONG_AGO,
        "status": ModelAdaptationStatus.model_validate(fields.pop("status", {})),
    }
    return AdaptationFacts(name=name, spec=ModelAdaptationSpec.model_validate(spec), **(defaults | fields))


def make_snapshot(**fields: Any) -> AdaptationSnapshot:
    """One adaptation of one Deployment in a cluster of one node with one card, nothing measured yet."""
    node = make_node(labels={FAMILY_LABEL_OF_VENDOR: "ort-cpu"})
    defaults: dict[str, Any] = {
        "adaptation": make_adaptation(),
        "peers": (),
        "target": make_target(),
        "target_pods": (),
        "config_maps": {},
        "runtime_class": None,
        "claim_terms": {},
        "pools": (make_pool(),),
        "nodes": (node,),
        "card_pods": (),
        "portraits": {node.name: make_portrait(node.name)},
        "jobs": (),
        "profile": None,
        "runs": (),
        "limits": MeasuringLimits(probe_image="probe:1"),
    }
    return AdaptationSnapshot(**(defaults | fields))


def make_config(**fields: Any) -> ServingConfig:
    """A plain serving configuration: fp32, batch 1, one execution at a time on the CPU."""
    return ServingConfig.model_validate({"execution_provider": CPU_PROVIDER} | fields)


def make_managed(*path: str, manager: str = FIELD_MANAGER, operation: str = "Apply", leaf: Mapping[str, Any] | None = None) -> ManagedFields:
    """A managedFields item that owns one path, given step by step as in FieldsV1 (``f:spec``, ``k:{"name":"server"}``)."""
    tree: dict[str, Any] = dict(leaf or {})
    for step in reversed(path):
        tree = {step: tree}
    return ManagedFields(manager=manager, operation=operation, fields=tree)


def make_env_owner(container: ContainerFacts, *names: str, manager: str = FIELD_MANAGER, **fields: Any) -> ManagedFields:
    """A managedFields item that owns env entries of a container; ``leaf`` says which parts of each (default: the whole entry)."""
    leaf = fields.pop("leaf", {".": {}, "f:name": {}, "f:value": {}})
    entries = {f"k:{json.dumps({'name': name}, separators=(',', ':'))}": leaf for name in names}
    containers = "f:initContainers" if container.init else "f:containers"
    step = f"k:{json.dumps({'name': container.name}, separators=(',', ':'))}"
    return make_managed("f:spec", "f:template", "f:spec", containers, step, "f:env", manager=manager, leaf=entries, **fields)


def with_env(container: ContainerFacts, **values: str) -> ContainerFacts:
    """The container with plain env entries appended."""
    return replace(container, env=container.env + tuple(EnvEntry(name, value) for name, value in values.items()))
