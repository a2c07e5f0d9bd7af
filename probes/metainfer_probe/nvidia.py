"""What NVIDIA's management library says about the card that this container was given.

Read beside every measurement, because a figure without clock, power and throttle reasons cannot be compared with the next one. Every
field stands alone: virtual cards, MIG slices and old drivers refuse some of them; what is refused is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from metainfer_probe.contract import Card

NVIDIA_PROVIDERS = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider"})
MAX_NVLINKS = 18
"""Links of the largest card so far (NVML_NVLINK_MAX_LINKS of nvml.h)."""
_THROTTLE_REASONS = {
    0x2: "user-defined-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal-software",
    0x40: "thermal-hardware",
    0x80: "power-brake",
    0x100: "display-clock",
}
"""Bits of nvmlClocksEventReasons (nvml.h); 0x1, an idle card, holds nothing back."""


def uses_card(providers: tuple[str, ...]) -> bool:
    """Whether one of the providers computes on an NVIDIA card, and there is one to measure."""
    return not NVIDIA_PROVIDERS.isdisjoint(providers) and read_card() is not None


def read_card() -> Card | None:
    """The first card that this container sees (a pod asks for one), or None without the library, a driver or a card."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return describe_card(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def describe_card(nvml: Any, handle: Any) -> Card:
    """Everything that the library tells about one card. ``nvml`` is the module ``pynvml``, or what stands in for it in a test."""

    def ask(question: str, *arguments: object) -> Any:
        return _ask(nvml, getattr(nvml, question, None), *arguments)

    memory, utilization = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetUtilizationRates", handle)
    pci, mig, ecc = ask("nvmlDeviceGetPciInfo", handle), ask("nvmlDeviceGetMigMode", handle), ask("nvmlDeviceGetEccMode", handle)
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name before driver 535
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return Card(
        name=_text(ask("nvmlDeviceGetName", handle)),
        uuid=_text(ask("nvmlDeviceGetUUID", handle)),
        pci_bus_id=_text(getattr(pci, "busId", "")),
        driver_version=_text(ask("nvmlSystemGetDriverVersion")),
        memory_bytes=getattr(memory, "total", 0) or 0,
        memory_used_bytes=getattr(memory, "used", None),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, 1),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, 2),
        power_watts=_thousandth(ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_watts=_thousandth(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        temperature_celsius=ask("nvmlDeviceGetTemperature", handle, 0),
        throttle_reasons=tuple(word for bit, word in _THROTTLE_REASONS.items() if (reasons or 0) & bit),
        is_ecc_on=None if ecc is None else bool(ecc[0]),
        uncorrected_errors=ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        is_mig_on=None if mig is None else bool(mig[0]),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        nvlinks=sum(ask("nvmlDeviceGetNvLinkState", handle, link) == 1 for link in range(MAX_NVLINKS)),
        utilization_permille=None if utilization is None else 10 * utilization.gpu,
    )


def _ask(nvml: Any, question: Callable[..., Any] | None, *arguments: object) -> Any:
    """The answer, or None where the card or the driver does not have one."""
    if question is None:
        return None
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: object) -> str:
    """Older releases of the library answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _thousandth(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else round(milliwatts / 1000)
