"""What nodes' labels say of their drivers: which keys count, when a version is believed, and when a node is measured because of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.unit.decide.make_facts import CARD, make_family, make_node, make_pool
from tests.unit.decide.make_lab import NOW, Lab, make_lab

from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus, Sighting
from metainfer.decide.conditions import find_condition, format_time
from metainfer.decide.drivers import VersionCase, is_of_present_driver, is_same_version, read_driver, read_firmware, read_upgrade
from metainfer_probe.contract import Card

FAMILY = make_family(driver_version_labels=("vendor/driver",), driver_upgrade_labels=("vendor/upgrade",))


@pytest.mark.parametrize(
    ("resource", "labels", "want"),
    [
        pytest.param("nvidia.com/gpu", {"nvidia.com/cuda.driver-version.full": "550.107.02"}, "550.107.02", id="NVIDIA"),
        pytest.param(
            "nvidia.com/mig-1g.12gb",
            {"nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "107", "nvidia.com/cuda.driver.rev": "02"},
            "550.107.02",
            id="NVIDIA, an old labeller, slices",
        ),
        pytest.param("amd.com/gpu", {"amd.com/gpu.driver-version": "6.10.5"}, "6.10.5", id="AMD"),
        pytest.param("amd.com/gpu", {"amd.com/gpu.driver-version": ""}, None, id="AMD, written empty: unknown"),
        pytest.param("gpu.intel.com/xe", {"feature.node.kubernetes.io/kernel-version.full": "6.8.0-45"}, "6.8.0-45", id="Intel: the kernel's"),
        pytest.param("habana.ai/gaudi", {"habana.ai/driver.version": "1.17.0"}, "1.17.0", id="Gaudi"),
        pytest.param("huawei.com/Ascend910", {"huawei.com/driver.version": "24.1.rc2"}, "24.1.rc2", id="Ascend"),
        pytest.param("cambricon.com/mlu370", {"DriverVersion": "v4.5.6"}, "v4.5.6", id="Cambricon"),
        pytest.param("metax-tech.com/gpu", {"DriverVersion": "1"}, None, id="a vendor that labels nothing"),
    ],
)
def test_each_vendors_own_label_counts(resource: str, labels: dict[str, str], want: str | None) -> None:
    """Nobody has to type what a labeller writes by itself; a label that is missing is unknown."""
    family = make_family(resource=resource)
    assert read_driver(family, make_node("n", labels=labels)) == want
    assert read_driver(family, make_node("n")) is None


def test_a_pools_own_keys_beat_the_vendors() -> None:
    """A mirror of the labels under a company's own prefix."""
    family = make_family(
        resource="nvidia.com/gpu", driver_version_labels=("corp/driver",), firmware_version_labels=("corp/fw",), driver_upgrade_labels=("corp/upgrade",)
    )
    labels = {"nvidia.com/cuda.driver-version.full": "1", "corp/driver": "2", "corp/fw": "3", "corp/upgrade": "drain-required"}
    node = make_node("n", labels=labels)
    assert (read_driver(family, node), read_firmware(family, node), read_upgrade(family, node)) == ("2", "3", "drain-required")


def test_the_kubelet_tells_the_kernel_where_no_label_does() -> None:
    """A driver that is a module of the kernel, on a node without feature discovery."""
    assert read_driver(make_family(resource="gpu.intel.com/i915"), make_node("n", kernel_version="6.8.0-45-generic")) == "6.8.0-45-generic"


def test_versions_are_compared_number_by_number() -> None:
    """One source drops leading zeros, another does not: that is no other driver."""
    assert is_same_version("550.107.02", "550.107.2")
    assert not is_same_version("550.107.02", "550.107.20")
    assert not is_same_version("6.8.0-45-generic", "6.8.0-46-generic")


def make_driver_lab(**fields: object) -> Lab:
    """Four nodes with driver 1.0, all measured."""
    pool = make_pool("cards", FAMILY, spec={"limits": {"max_concurrent_probes": 8}})
    lab = make_lab(nodes=4, labels={"vendor/driver": "1.0"}, pool=pool, **fields)
    lab.play(5)
    assert sorted(node for _, node in lab.probes) == ["n0", "n1", "n2", "n3"]
    lab.probes.clear()
    return lab


def probed(lab: Lab) -> list[str]:
    """Nodes that were measured since."""
    return sorted(node for _, node in lab.probes)


def test_a_driver_that_stands_is_measured_once_on_each_changed_node() -> None:
    """Not before the settle time is over, and the portrait then has the new version."""
    lab = make_driver_lab()
    lab.relabel(("n0", "n1"), vendor___driver="2.0")
    lab.play(3)
    assert probed(lab) == []
    lab.play(20)
    assert probed(lab) == ["n0", "n1"]
    assert [lab.status(f"n{number}").driver_version for number in range(4)] == ["2.0", "2.0", "1.0", "1.0"]


def test_labels_that_vanish_for_a_minute_change_nothing() -> None:
    """A labeller restarts and takes all its labels along: nothing is written, nothing measured."""
    lab = make_driver_lab()
    before = lab.snapshot.portraits
    lab.relabel(("n0", "n1", "n2", "n3"), vendor___driver=None)
    lab.play(1)
    lab.relabel(("n0", "n1", "n2", "n3"), vendor___driver="1.0")
    lab.play(20)
    assert (probed(lab), lab.snapshot.portraits) == ([], before)


@pytest.mark.parametrize("every", [1, 2])
def test_labels_that_flap_are_not_believed(every: int) -> None:
    """Two labellers fight for ten minutes; what stands in the end is what stood before."""
    lab = make_driver_lab()
    for turn in range(10 // every):
        lab.relabel(("n0", "n1"), vendor___driver="2.0" if turn % 2 == 0 else "1.0")
        lab.play(every)
    lab.relabel(("n0", "n1"), vendor___driver="1.0")
    lab.play(20)
    assert probed(lab) == []


def test_a_node_is_not_measured_in_the_middle_of_its_upgrade() -> None:
    """A probe would hold the upgrade up; the last state says when it is over, and a node without its cards is not back yet."""
    lab = make_driver_lab()
    lab.relabel(("n0",), vendor___driver="2.0", vendor___upgrade="pod-restart-required")
    lab.play(20)
    assert probed(lab) == []
    lab.change(("n0",), allocatable={**lab.snapshot.nodes[0].allocatable, CARD: 0})
    lab.relabel(("n0",), vendor___upgrade="upgrade-done")
    lab.play(20)
    assert probed(lab) == []
    lab.change(("n0",), allocatable={**lab.snapshot.nodes[0].allocatable, CARD: 1})
    lab.play(2)
    assert probed(lab) == ["n0"]


def test_an_upgrade_that_never_begins_is_believed_for_an_hour_only() -> None:
    """``upgrade-required`` stays for weeks where nobody lets the upgrade begin: then the node itself is asked."""
    lab = make_driver_lab()
    lab.relabel(("n0",), vendor___driver="2.0", vendor___upgrade="upgrade-required")
    lab.play(55)
    assert probed(lab) == []
    completed = find_condition(lab.snapshot.pool.status.conditions, "ProbesCompleted")
    assert completed is not None
    lab.play(10)
    assert probed(lab) == ["n0"]


def test_a_new_node_that_waits_for_its_upgrade_is_measured() -> None:
    """Else a family whose upgrades are held back for weeks could not be used at all; in the middle of one it waits."""
    for state, want in (("upgrade-required", ["n0"]), ("drain-required", [])):
        pool = make_pool("cards", FAMILY)
        lab = make_lab(nodes=1, labels={"vendor/driver": "1.0", "vendor/upgrade": state}, pool=pool)
        lab.play(10)
        assert probed(lab) == want
    completed = find_condition(lab.snapshot.pool.status.conditions, "ProbesCompleted")
    assert completed is not None
    assert completed.reason == "DriverUpgrading"


def test_a_driver_that_only_the_card_tells_counts_as_measured() -> None:
    """No label at all: the version is the one that the probe read from the card's library."""
    lab = make_lab(nodes=1)
    lab.card = Card(name="Some Card", driver_version="550.107.02")
    lab.play(5)
    status = lab.status("n0")
    assert status.driver_version == "550.107.02"
    assert VersionCase(status, make_family(), lab.snapshot.nodes[0], 180.0, lab.now).driver().settled == "550.107.02"


def test_what_was_measured_under_the_former_driver_does_not_hold() -> None:
    """By when the present one was first seen, or by what the measurement itself tells; nobody knowing, it holds."""
    seen = NodePortraitStatus(driver_seen=Sighting(value="2.0", since=format_time(NOW)))
    assert not is_of_present_driver(seen, NOW - timedelta(minutes=1))
    assert not is_of_present_driver(seen, NOW - timedelta(minutes=1), "1.0")
    assert is_of_present_driver(seen, NOW - timedelta(minutes=1), "2.0")
    assert is_of_present_driver(seen, NOW + timedelta(minutes=1))
    assert is_of_present_driver(NodePortraitStatus(), NOW)
    assert is_of_present_driver(None, NOW)
