"""Builders of objects as they are on the wire: complete by default, one keyword per thing a test is about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Raw = dict[str, Any]
_versions = itertools.count(1)


def make_metadata(name: str, namespace: str | None = None, **more: Any) -> Raw:
    """Metadata with a uid derived from the name and a rising resourceVersion."""
    where = {} if namespace is None else {"namespace": namespace}
    fixed = {"name": name, "uid": f"uid-{namespace or ''}-{name}", "resourceVersion": str(next(_versions)), "creationTimestamp": "2026-01-02T03:04:05Z"}
    return {**fixed, **where, **more}


def make_node(name: str = "n1", *, labels: Mapping[str, str] | None = None, allocatable: Mapping[str, str] | None = None, **spec: Any) -> Raw:
    """A ready node with one card."""
    return {
        "metadata": make_metadata(name, labels=dict(labels or {})),
        "spec": spec,
        "status": {
            "allocatable": dict(allocatable or {"cpu": "4", "memory": "8Gi", "metainfer.dev/card": "1"}),
            "conditions": [make_condition("Ready"), make_condition("DiskPressure", "False")],
            "nodeInfo": {"architecture": "arm64", "kernelVersion": "6.1.0"},
            "images": [{"names": ["a@sha256:1", "a:1"], "sizeBytes": 1000}, {"sizeBytes": 5}],
        },
    }


def make_condition(kind: str, status: str = "True", **more: str) -> Raw:
    """A condition of any object."""
    return {"type": kind, "status": status, "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z", **more}


def make_container(name: str = "server", **more: Any) -> Raw:
    """A container."""
    return {"name": name, "image": "example/server:1", **more}


def make_pod(name: str = "p1", namespace: str = "apps", *, labels: Mapping[str, str] | None = None, **parts: Any) -> Raw:
    """A bound, running pod; ``parts`` replace spec entries, ``status`` and ``owner`` are taken out first."""
    status = parts.pop("status", {"phase": "Running"})
    owner = parts.pop("owner", None)
    owners = {} if owner is None else {"ownerReferences": [{"kind": owner.split("/")[0], "name": owner.split("/")[1], "controller": True}]}
    return {
        "metadata": make_metadata(name, namespace, labels=dict(labels or {}), **owners),
        "spec": {"nodeName": "n1", "containers": [make_container()], **parts},
        "status": status,
    }


def make_deployment(name: str = "ocr", namespace: str = "apps", *, labels: Mapping[str, str] | None = None, **parts: Any) -> Raw:
    """A Deployment; ``pod`` replaces entries of the pod spec, ``spec`` of its own, ``metadata`` and ``status`` theirs."""
    pod_labels = dict(labels or {"app": name})
    return {
        "metadata": make_metadata(name, namespace, generation=3, **parts.get("metadata", {})),
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": pod_labels},
            "template": {"metadata": {"labels": pod_labels}, "spec": {"containers": [make_container()], **parts.get("pod", {})}},
            **parts.get("spec", {}),
        },
        "status": parts.get("status", {}),
    }


def make_job(name: str = "j1", namespace: str = "apps", *, labels: Mapping[str, str] | None = None, conditions: Sequence[Raw] = (), **status: Any) -> Raw:
    """A Job of ours."""
    return {
        "metadata": make_metadata(name, namespace, labels={"metainfer.dev/purpose": "bench", **(labels or {})}),
        "spec": {},
        "status": {"conditions": list(conditions), **status},
    }


def make_pool(name: str = "lab", **spec: Any) -> Raw:
    """An AcceleratorPool with one family."""
    family = {"name": "ort-cpu", "selector": {"matchLabels": {"card": "ort"}}, "resource": "metainfer.dev/card", "executionProviders": ["CPUExecutionProvider"]}
    return {"metadata": make_metadata(name, generation=1), "spec": {"families": [family], **spec}}


def make_adaptation(name: str = "ocr", namespace: str = "apps", *, target: str = "ocr", status: Raw | None = None, **spec: Any) -> Raw:
    """A complete ModelAdaptation."""
    return {
        "metadata": make_metadata(name, namespace, generation=1),
        "spec": {"targetRef": {"name": target}, "model": {"uri": "pvc://models/ocr.onnx"}, **spec},
        "status": status if status is not None else {"observedGeneration": -1},
    }


def make_portrait(name: str = "n1", pool: str = "lab") -> Raw:
    """A NodePortrait without figures."""
    return {"metadata": make_metadata(name), "spec": {"nodeUid": f"uid--{name}", "pool": pool, "family": "ort-cpu"}, "status": {}}
