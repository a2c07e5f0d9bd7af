"""Brings a cluster to the point where the operator runs: nodes, images, models, chart. Each step is idempotent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from lab import IMAGES, RELEASE, ROOT, SYSTEM_NAMESPACE, Lab, LabError

CHART = ROOT / "charts" / "meta-infer"
Say = Callable[[str], None]


def ensure_cluster(say: Say) -> None:
    """The local cluster with our images on every node; nothing of it when KUBECONFIG points elsewhere."""
    if "KUBECONFIG" in os.environ:
        say("using the cluster of KUBECONFIG: images must be reachable from it")
        return
    for what, command in (
        ("cluster", ["hack/cluster/up"]),
        ("images", ["hack/images/build"]),
        ("images onto the nodes", ["hack/cluster/load", *IMAGES.values()]),
    ):
        say(f"bringing up: {what}")
        if subprocess.run([str(ROOT / command[0]), *command[1:]], stdin=subprocess.DEVNULL, check=False).returncode != 0:
            raise LabError(f"{command[0]} failed, see above")


def models_folder(lab: Lab) -> Path:
    """Where the nodes see the models (hostPath of the static volumes)."""
    return Path(os.environ.get("META_INFER_MODELS", lab.kubeconfig.parent / "volumes" / "models"))


def ensure_models(lab: Lab, say: Say, *names: str) -> Path:
    """Models and calibration inputs, fetched once; the demo's where none is named."""
    folder = models_folder(lab)
    folder.mkdir(parents=True, exist_ok=True)
    only = ["--only", *names] if names else []
    say("fetching the models")
    if subprocess.run([sys.executable, str(ROOT / "hack/demo/models.py"), str(folder), *only], check=False).returncode != 0:
        raise LabError("hack/demo/models.py failed, see above")
    return folder


def install_chart(lab: Lab, say: Say, settings: Mapping[str, object] | None = None, **more: object) -> None:
    """``helm upgrade --install`` with the images of this checkout, and a restart so that a rebuilt image is picked up. ``more``: other values."""
    say("installing the chart")
    values: dict[str, object] = {"image": _image("operator"), "probeImage": _image("probe"), "settings": dict(settings or {}), **more}
    if "KUBECONFIG" not in os.environ:
        values["store"] = {"persistence": {"storageClassName": "mi-store"}}  # the local cluster's static volume
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(values, file)
        file.flush()
        lab.helm("upgrade", "--install", RELEASE, str(CHART), "-n", SYSTEM_NAMESPACE, "--create-namespace", "-f", file.name)
    lab.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "restart", "deployment", RELEASE)
    lab.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "status", f"deployment/{RELEASE}", "--timeout=180s", timeout_seconds=190)


def _image(name: str) -> Mapping[str, str]:
    repository, _, tag = IMAGES[name].rpartition(":")
    return {"repository": repository, "tag": tag}


def models_volume(models: Path, namespace: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A static volume over the folder with the models, and the claim of one namespace."""
    name = f"models-{namespace}"
    reference = {"namespace": namespace, "name": "models"}
    common = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": "mi-models", "persistentVolumeReclaimPolicy": "Retain"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {**common, "claimRef": reference, "hostPath": {"path": str(models)}},
    }
    request = {"accessModes": ["ReadOnlyMany"], "storageClassName": "mi-models", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    return volume, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": request}
