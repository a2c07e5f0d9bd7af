"""Is there room on a node for the probe image? Pure. A pull that fills the disk makes the kubelet evict the pods that are served."""

from __future__ import annotations

from typing import Final

from metainfer.decide.facts import MeasuringLimits, NodeFacts

EVICTION_SHARE: Final = 0.15
"""The kubelet evicts below 15 % free of the disk that holds the images, its default for ``imagefs.available``."""
LEAST_MARGIN_BYTES: Final = 2 << 30
PULL_FACTOR: Final = 1.5
"""While and after a pull containerd keeps the compressed layers beside the unpacked ones: about half as much again."""
_DEFAULT_REGISTRY: Final = "docker.io"


def why_no_image_room(node: NodeFacts, limits: MeasuringLimits) -> str:
    """In numbers, why the probe image must not be pulled there; empty when it is on the node, fits, or nobody says how big the disk is.

    A node lists its largest images only (50 by default), and their compressed size in some runtimes: what is left is an upper bound,
    hence the margin.
    """
    disk = node.allocatable.get("ephemeral-storage")
    if disk is None or has_image(node, limits.probe_image):
        return ""
    left = disk - sum(set(node.image_bytes.values()))
    needed, margin = round(limits.image_bytes * PULL_FACTOR), max(LEAST_MARGIN_BYTES, round(disk * EVICTION_SHARE))
    if left >= needed + margin:
        return ""
    return (
        f"node {node.name} has {left >> 20} MiB left beside its images; pulling the probe image takes {needed >> 20} MiB, "
        f"and below {margin >> 20} MiB the kubelet starts to evict"
    )


def has_image(node: NodeFacts, image: str) -> bool:
    """Whether the image is on the node, under the short or the full form of its name."""
    return image in node.image_bytes or full_name(image) in node.image_bytes


def full_name(image: str) -> str:
    """As containerd names it: with registry, and with a tag."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"{_DEFAULT_REGISTRY}/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"{_DEFAULT_REGISTRY}/{image}"
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"
