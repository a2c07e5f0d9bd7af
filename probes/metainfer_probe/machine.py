"""What can be read about the machine, and how much it was disturbed while something was measured.

Everything is optional: inside a container clocks, temperatures and power are often hidden; what cannot be read is left
out, never guessed.
"""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from metainfer_probe.cgroup import Throttling, read_throttling
from metainfer_probe.contract import Card, Machine

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
_MODEL_KEYS = ("model name", "Model", "Hardware", "cpu model")
STEAL_PERMILLE = 10
"""Stolen time (the hypervisor ran somebody else) below one percent is rounding."""


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """Counters at the beginning of a measurement; ``finish`` reads them again."""

    started: float
    busy_seconds: float
    total_seconds: float
    stolen_seconds: float
    own_seconds: float
    throttling: Throttling | None
    thermal_events: int
    energy_microjoules: int | None

    def finish(self) -> Machine:
        """The machine, with the share of it that others used and the share of time it was held back since the start."""
        now = watch_machine()
        wall = max(now.started - self.started, 1e-6)
        total = max(now.total_seconds - self.total_seconds, 1e-6)
        others = (now.busy_seconds - self.busy_seconds) - (now.own_seconds - self.own_seconds)
        stolen_permille = round(1000 * (now.stolen_seconds - self.stolen_seconds) / total)
        throttled = now.throttling.throttled_seconds - self.throttling.throttled_seconds if now.throttling and self.throttling else 0.0
        reasons = [
            *(["cpu-quota"] if throttled > 0 else []),
            *(["thermal"] if now.thermal_events > self.thermal_events else []),
            *(["hypervisor-steal"] if stolen_permille >= STEAL_PERMILLE else []),
        ]
        return Machine(
            card_model=card_model()[:128],
            architecture=platform.machine()[:32],
            kernel=platform.release()[:128],
            cores=psutil.cpu_count() or 1,
            memory_bytes=psutil.virtual_memory().total,
            load_permille=min(1000, max(0, round(1000 * others / total))),
            clock_mhz=_clock_mhz(),
            temperature_celsius=_temperature_celsius(),
            power_watts=self._power_watts(now, wall),
            throttled_permille=min(1000, max(0, round(1000 * throttled / wall))),
            throttle_reasons=tuple(reasons),
        )

    def _power_watts(self, now: MachineWatch, wall: float) -> int | None:
        if self.energy_microjoules is None or now.energy_microjoules is None or now.energy_microjoules < self.energy_microjoules:
            return None
        return round((now.energy_microjoules - self.energy_microjoules) / 1e6 / wall)


def with_card(machine: Machine, card: Card | None) -> Machine:
    """The machine of an accelerator: name, memory, clock, temperature and power are the card's, and what holds it back counts besides."""
    if card is None:
        return machine
    return machine.model_copy(
        update={
            "card": card,
            "card_model": card.name,
            "memory_bytes": card.memory_bytes,
            "clock_mhz": card.sm_clock_mhz,
            "temperature_celsius": card.temperature_celsius,
            "power_watts": card.power_watts,
            "throttle_reasons": (*machine.throttle_reasons, *card.throttle_reasons),
        }
    )


def watch_machine() -> MachineWatch:
    """Read all counters now."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # guest time is in user time already
    idle = times.idle + getattr(times, "iowait", 0.0)
    own = psutil.Process().cpu_times()
    return MachineWatch(
        started=time.monotonic(),
        busy_seconds=total - idle,
        total_seconds=total,
        stolen_seconds=getattr(times, "steal", 0.0),
        own_seconds=own.user + own.system + own.children_user + own.children_system,
        throttling=read_throttling(),
        thermal_events=_thermal_events(),
        energy_microjoules=_read_int(_ENERGY),
    )


def card_model(path: Path = _CPUINFO) -> str:
    """The processor's name as the kernel knows it, else its architecture."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in _MODEL_KEYS and value.strip():
                return " ".join(value.split())
    return platform.machine()


def _thermal_events() -> int:
    return sum(_read_int(path) or 0 for path in _CPUS.glob("cpu[0-9]*/thermal_throttle/package_throttle_count"))


def _clock_mhz() -> int | None:
    with suppress(OSError, NotImplementedError, AttributeError, RuntimeError):
        frequency = psutil.cpu_freq()
        if frequency is not None and frequency.current > 0:
            return round(frequency.current)
    return None


def _temperature_celsius() -> int | None:
    with suppress(OSError, AttributeError, RuntimeError):
        readings = [sensor.current for sensors in psutil.sensors_temperatures().values() for sensor in sensors if sensor.current > 0]
        if readings:
            return round(max(readings))
    return None


def _read_int(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
