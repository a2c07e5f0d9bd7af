"""Brings a cluster to the point where the operator runs: nodes, images, models, chart. Each step is idempotent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


def ensure_models(lab: Lab, say: Say) -> Path:
    """The demo's models and calibration inputs, fetched once."""
    folder = models_folder(lab)
    folder.mkdir(parents=True, exist_ok=True)
    say("fetching the models")
    if subprocess.run([sys.executable, str(ROOT / "hack/demo/models.py"), str(folder)], check=False).returncode != 0:
        raise LabError("hack/demo/models.py failed, see above")
    return folder


def install_chart(lab: Lab, say: Say, values: Mapping[str, str] | None = None) -> None:
    """``helm upgrade --install`` with the images of this checkout, and a restart so that a rebuilt image is picked up."""
    say("installing the chart")
    repository, _, tag = IMAGES["operator"].rpartition(":")
    probe_repository, _, probe_tag = IMAGES["probe"].rpartition(":")
    chosen = {"image.repository": repository, "image.tag": tag, "probeImage.repository": probe_repository, "probeImage.tag": probe_tag, **(values or {})}
    settings = [argument for key, value in chosen.items() for argument in ("--set-string" if key.endswith(".tag") else "--set", f"{key}={value}")]
    lab.helm("upgrade", "--install", RELEASE, str(CHART), "-n", SYSTEM_NAMESPACE, "--create-namespace", *settings)
    lab.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "restart", "deployment", RELEASE)
    lab.kubectl("-n", SYSTEM_NAMESPACE, "rollout", "status", f"deployment/{RELEASE}", "--timeout=180s", timeout_seconds=190)


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
