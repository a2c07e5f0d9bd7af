"""What a node's labels say of its driver, and since when: told by other people's labellers, so never believed at once. Pure.

Labellers restart, and then labels vanish for a minute and come back; an upgrade takes a node out and in again. So the pool pass keeps in
each NodePortrait the last value that it saw and since when (``sight``), and a value counts only when it has stood for the settle time on
a node that is back in service (``VersionCase``). A label that is missing is unknown, which is never 'changed'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from metainfer.api.v1alpha1.accelerator_pool import AcceleratorFamily
from metainfer.api.v1alpha1.known_family import KnownFamily
from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus, Sighting
from metainfer.decide.conditions import format_time, parse_time
from metainfer.decide.facts import NodeFacts

UPGRADE_LIMIT: Final = timedelta(hours=1)
"""For how long an unfinished upgrade state is believed: upgrades take minutes per node, but ``upgrade-required`` can stay for weeks when
nobody lets the upgrade begin, and a state stays for ever when its operator was removed under way. After that the node itself is asked:
Ready, schedulable, and as many cards as before."""
UPGRADE_FINISHED: Final = frozenset({"", "upgrade-done"})
"""Of all states of NVIDIA's and AMD's upgrade operators (they share the library) the only ones that say that nothing is under way."""
UPGRADE_QUEUED: Final = "upgrade-required"
VALUE_LIMIT = 128


@dataclass(frozen=True, slots=True)
class VendorLabels:
    """Which label keys of a vendor tell what. A pool's family may name others."""

    driver: tuple[str, ...] = ()
    """First one present counts; ``a+b`` = the values of both, joined by a dot."""
    firmware: tuple[str, ...] = ()
    upgrade: tuple[str, ...] = ()


KERNEL_LABEL: Final = "feature.node.kubernetes.io/kernel-version.full"
_INTEL: Final = VendorLabels(driver=(KERNEL_LABEL,))
VENDOR_LABELS: Final[tuple[tuple[str, VendorLabels], ...]] = (
    # Prefix of the family's resource, and the keys that this vendor's labeller writes.
    ("nvidia.com/", VendorLabels(
        driver=("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major+nvidia.com/cuda.driver.minor+nvidia.com/cuda.driver.rev"),
        upgrade=("nvidia.com/gpu-driver-upgrade-state",),
    )),
    ("amd.com/", VendorLabels(driver=("amd.com/gpu.driver-version",), upgrade=("operator.amd.com/gpu-driver-upgrade-state",))),
    ("gpu.intel.com/", _INTEL),  # the driver is a module of the kernel, and no label names it
    ("npu.intel.com/", _INTEL),
    ("habana.ai/", VendorLabels(driver=("habana.ai/driver.version",), firmware=("habana.ai/fw.version",))),
    ("huawei.com/", VendorLabels(driver=("huawei.com/driver.version",))),
    ("cambricon.com/", VendorLabels(driver=("DriverVersion",), firmware=("MCUVersion",))),
)  # fmt: skip


def vendor_labels(family: AcceleratorFamily) -> VendorLabels:
    """The keys that count for a family: its own where it names any, else its vendor's."""
    return _labels(family.resource, family.driver_version_labels, family.firmware_version_labels, family.driver_upgrade_labels)


@lru_cache(maxsize=256)
def _labels(resource: str, driver: tuple[str, ...], firmware: tuple[str, ...], upgrade: tuple[str, ...]) -> VendorLabels:
    known = next((labels for prefix, labels in VENDOR_LABELS if resource.startswith(prefix)), VendorLabels())
    return VendorLabels(driver=driver or known.driver, firmware=firmware or known.firmware, upgrade=upgrade or known.upgrade)


def read_driver(family: AcceleratorFamily, node: NodeFacts) -> str | None:
    """The driver version by the node's labels; None = unknown. A kernel module's is the kernel's, which the kubelet tells as well."""
    keys = vendor_labels(family).driver
    found = _first(keys, node)
    return found or (node.kernel_version if KERNEL_LABEL in keys else "") or None


def read_firmware(family: AcceleratorFamily, node: NodeFacts) -> str | None:
    """The firmware version by the node's labels; None = unknown."""
    return _first(vendor_labels(family).firmware, node)


def read_upgrade(family: AcceleratorFamily, node: NodeFacts) -> str | None:
    """The state of a driver upgrade under way; None = there is none, or it is finished."""
    state = _first(vendor_labels(family).upgrade, node) or ""
    return None if state in UPGRADE_FINISHED else state


def _first(keys: Sequence[str], node: NodeFacts) -> str | None:
    for key in keys:
        values = [node.labels.get(part, "") for part in key.split("+")]
        if values[0]:
            return ".".join(value for value in values if value)[:VALUE_LIMIT]
    return None


def is_same_version(left: str, right: str) -> bool:
    """Compared number by number: sources disagree about leading zeros (550.107.02, 550.107.2)."""
    return left == right or _numbers(left) == _numbers(right)


def _numbers(version: str) -> tuple[int | str, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"[.\-+_]", version))


def sight(status: NodePortraitStatus, family: AcceleratorFamily, node: NodeFacts, now: datetime) -> NodePortraitStatus:
    """The status with what the labels say now and since when; the very same where nothing is new. Labels that are missing leave it as it is."""
    news: dict[str, Sighting | None] = {}
    driver, firmware, state = read_driver(family, node), read_firmware(family, node), read_upgrade(family, node)
    if driver is not None and not _is_seen(status.driver_seen, driver):
        measured = status.measured_at if status.driver_seen is None and is_same_version(driver, status.driver_version) else None
        news["driver_seen"] = Sighting(value=driver, since=measured or format_time(now))
    if firmware is not None and not _is_seen(status.firmware_seen, firmware):
        news["firmware_seen"] = Sighting(value=firmware, since=format_time(now))
    if (state or "") != (status.upgrade_seen.value if status.upgrade_seen is not None else ""):
        news["upgrade_seen"] = Sighting(value=state, since=format_time(now)) if state is not None else None
    return status.model_copy(update=news) if news else status


def _is_seen(seen: Sighting | None, value: str) -> bool:
    return seen is not None and is_same_version(seen.value, value)


def is_upgrading(status: NodePortraitStatus, family: AcceleratorFamily, node: NodeFacts, now: datetime) -> bool:
    """Whether an upgrade of the node's driver is under way, as far as its state can still be believed."""
    state, seen = read_upgrade(family, node), status.upgrade_seen
    if state is None:
        return False
    return seen is None or seen.value != state or now - parse_time(seen.since) < UPGRADE_LIMIT


@dataclass(frozen=True, slots=True)
class Settling:
    """How far a node's version is believed."""

    version: str | None
    """None = unknown."""
    seconds_left: float | None = 0.0
    """Until it counts; 0 = it does, None = that depends on the node and not on time."""

    @property
    def settled(self) -> str | None:
        """The version, if it counts."""
        return self.version if self.seconds_left == 0 else None


UNKNOWN: Final = Settling(None, None)


@dataclass(frozen=True, slots=True)
class VersionCase:
    """One node in question."""

    status: NodePortraitStatus
    family: AcceleratorFamily
    node: NodeFacts
    settle_seconds: float
    now: datetime

    def driver(self) -> Settling:
        """A version that only the probe knows (no label was ever seen) counts as measured; one that a label tells, when it has settled."""
        label, seen = read_driver(self.family, self.node), self.status.driver_seen
        if label is None and seen is None and self.status.driver_version:
            return Settling(self.status.driver_version)
        return self._settle(label, seen)

    def firmware(self) -> Settling:
        """The same of the firmware, which no probe knows."""
        return self._settle(read_firmware(self.family, self.node), self.status.firmware_seen)

    def _settle(self, label: str | None, seen: Sighting | None) -> Settling:
        """It counts when it has stood for the settle time on a node that is back: no upgrade under way, Ready, schedulable, all cards there."""
        if label is None:
            return UNKNOWN
        if seen is None or not _is_seen(seen, label):
            return Settling(label, self.settle_seconds)  # not noted yet: the pool's next pass does that
        if is_upgrading(self.status, self.family, self.node, self.now) or not self._is_back():
            return Settling(seen.value, None)
        return Settling(seen.value, max(0.0, self.settle_seconds - (self.now - parse_time(seen.since)).total_seconds()))

    def _is_back(self) -> bool:
        """``upgrade-done`` can be stale, and a driver that was just loaded has its label before the kubelet sees any card."""
        cards = self.node.allocatable.get(self.family.resource, 0)
        return self.node.ready and not self.node.unschedulable and cards >= max(1, self.status.cards)


def is_of_present_driver(status: NodePortraitStatus | None, finished_at: datetime, measured_under: str = "") -> bool:
    """Whether something that was measured on a node holds for the driver that it has now; nobody knowing, it does.

    ``measured_under``: the version that the measurement itself told, where it did.
    """
    seen = status.driver_seen if status is not None else None
    if seen is None or finished_at >= parse_time(seen.since):
        return True
    return bool(measured_under) and is_same_version(measured_under, seen.value)


def key_of(pool: str, family: str) -> str:
    """Of a family in the status of an adaptation."""
    return f"{pool}/{family}"


def leading_driver(families: Sequence[KnownFamily], pool: str, family: str) -> str:
    """The driver version that a family's figures should be of: the latest that was acted on; empty = nobody knows any."""
    known = next((item.driver_versions for item in families if item.key == key_of(pool, family)), ())
    return known[0] if known else ""


def is_leading(status: NodePortraitStatus, leading: str) -> bool:
    """Whether a node has that driver; a node that tells none may have it."""
    return not leading or status.driver_seen is None or is_same_version(status.driver_seen.value, leading)
