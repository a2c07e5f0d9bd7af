"""A pull that fills a small node's disk gets the served pods evicted: not there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.decide.make_facts import GIB, make_node

from metainfer.decide.facts import MeasuringLimits
from metainfer.decide.image_room import full_name, why_no_image_room

LIMITS = MeasuringLimits(probe_image="meta-infer/probe:1", image_bytes=round(6.2 * GIB))
SERVER = {"vision-server:4": 9_100_000_000}


@pytest.mark.parametrize(
    ("disk_gib", "images", "want"),
    [
        pytest.param(19, SERVER, True, id="19 GiB beside 9.1 GB of images"),
        pytest.param(420, {}, False, id="a big disk"),
        pytest.param(40, SERVER, False, id="room for image and margin"),
        pytest.param(19, SERVER | {"docker.io/meta-infer/probe:1": 6 * GIB}, False, id="the image is there, under its full name"),
        pytest.param(19, SERVER | {"meta-infer/probe:1": 6 * GIB}, False, id="the image is there, under its short name"),
        pytest.param(19, SERVER | {"meta-infer/probe:2": 6 * GIB}, True, id="another version of it is there"),
        pytest.param(40, {"a": 20 * GIB, "b": 20 * GIB, "a@sha256:1": 20 * GIB}, False, id="names of one image are one image"),
    ],
)
def test_an_image_is_pulled_only_where_it_leaves_the_eviction_margin(disk_gib: int, images: dict[str, int], *, want: bool) -> None:
    """Layers are on the disk twice while they are unpacked, and the kubelet evicts below 15 % free."""
    node = make_node("edge-1", allocatable={"ephemeral-storage": disk_gib * GIB}, image_bytes=images)
    assert bool(why_no_image_room(node, LIMITS)) == want


def test_the_reason_has_the_numbers() -> None:
    """So that somebody can do something about it."""
    words = why_no_image_room(make_node("edge-1", allocatable={"ephemeral-storage": 19 * GIB}, image_bytes=SERVER), LIMITS)
    assert words == ("node edge-1 has 10777 MiB left beside its images; pulling the probe image takes 9523 MiB, and below 2918 MiB the kubelet starts to evict")


def test_a_node_that_does_not_say_how_big_its_disk_is_is_not_judged() -> None:
    """Unknown is not full."""
    node: Any = make_node("n", image_bytes=SERVER)
    assert why_no_image_room(node, LIMITS) == ""


@pytest.mark.parametrize(
    ("short", "want"),
    [
        ("probe", "docker.io/library/probe:latest"),
        ("meta-infer/probe:1", "docker.io/meta-infer/probe:1"),
        ("localhost/meta-infer/probe:dev", "localhost/meta-infer/probe:dev"),
        ("registry.example:5000/probe", "registry.example:5000/probe:latest"),
        ("registry.example/a/probe@sha256:0", "registry.example/a/probe@sha256:0"),
    ],
)
def test_names_are_completed_as_the_runtime_does_it(short: str, want: str) -> None:
    """A node lists images under their full names."""
    assert full_name(short) == want
