"""The path to NVIDIA cards, as far as it can be gone without one: every value here is constructed, none was read from a card."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.backends.ort_providers import build_provider_chain
from metainfer_probe.contract import Card, Machine
from metainfer_probe.machine import with_card
from metainfer_probe.micro_cuda import CudaLibraries, CudaWork, load_cuda
from metainfer_probe.nvidia import describe_card, read_card


class Refused(Exception):
    """Stands for the library's NVMLError."""


class ConstructedNvml:
    """Answers like the management library of a card that is hot, held back by its power cap, and has no NVLink."""

    NVMLError = Refused

    def __init__(self, **answers: Any) -> None:
        self._answers: dict[str, Any] = {
            "nvmlDeviceGetName": b"Constructed Card",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:17:00.0"),
            "nvmlSystemGetDriverVersion": "575.57",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30, used=1 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
            "nvmlDeviceGetPowerUsage": 299_600,
            "nvmlDeviceGetEnforcedPowerLimit": 300_000,
            "nvmlDeviceGetTemperature": 84,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20 | 0x1,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetMigMode": [0, 0],
        } | answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers and name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*_: object) -> Any:
            value = self._answers[name]
            if isinstance(value, Exception):
                raise value
            return value

        return answer


def test_a_card_is_described_with_units_and_words() -> None:
    """Milliwatts become watts, percent permille, bits words; an idle card is not held back."""
    card = describe_card(ConstructedNvml(), 0)
    assert (card.name, card.driver_version, card.memory_bytes) == ("Constructed Card", "575.57", 24 << 30)
    assert (card.power_watts, card.power_limit_watts, card.utilization_permille) == (300, 300, 970)
    assert card.throttle_reasons == ("power-cap", "thermal-software")
    assert (card.is_ecc_on, card.is_mig_on, card.nvlinks) == (True, False, 0)


@pytest.mark.parametrize("question", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"])
def test_what_a_card_refuses_is_left_out(question: str) -> None:
    """Virtual cards and slices refuse some questions; the others are answered all the same."""
    card = describe_card(ConstructedNvml(**{question: Refused()}), 0)
    assert card.temperature_celsius == 84
    assert None in (card.power_watts, card.is_mig_on, card.utilization_permille) or card.memory_bytes == 0


def test_throttle_reasons_are_found_under_their_older_name() -> None:
    """Drivers before 535 know only the old question."""
    nvml = ConstructedNvml(nvmlDeviceGetCurrentClocksEventReasons=Refused(), nvmlDeviceGetCurrentClocksThrottleReasons=0x8)
    assert describe_card(nvml, 0).throttle_reasons == ("hardware-slowdown",)


def test_without_a_driver_there_is_no_card() -> None:
    """Really run where there is none: the library or the driver is missing, and that is no error."""
    card = read_card()
    assert card is None or card.name


def test_the_machine_of_a_card_is_the_card() -> None:
    """Name, memory, clock and what holds it back are the card's, not the host's."""
    machine = Machine(card_model="Some CPU", architecture="x86_64", kernel="6", cores=8, memory_bytes=1 << 40, load_permille=0, throttle_reasons=("cpu-quota",))
    card = Card(name="Constructed Card", memory_bytes=24 << 30, sm_clock_mhz=1200, throttle_reasons=("power-cap",))
    seen = with_card(machine, card)
    assert (seen.card_model, seen.memory_bytes, seen.clock_mhz) == ("Constructed Card", 24 << 30, 1200)
    assert seen.throttle_reasons == ("cpu-quota", "power-cap")


@pytest.mark.parametrize(
    ("provider", "precision", "want_options"),
    [
        pytest.param("CUDAExecutionProvider", "fp32", {"use_tf32": "0"}, id="fp32 is fp32, not TF32"),
        pytest.param("TensorrtExecutionProvider", "fp32", {"trt_fp16_enable": "0"}, id="fp32 allows no fp16"),
        pytest.param("TensorrtExecutionProvider", "fp16", {"trt_fp16_enable": "1"}, id="fp16 is a permission at load"),
    ],
)
def test_precision_is_always_said_to_the_provider(provider: str, precision: Any, want_options: dict[str, str]) -> None:
    """Left alone, a provider picks a precision by itself."""
    (name, options), *rest = build_provider_chain(provider, precision)
    assert name == provider
    assert want_options.items() <= options.items()  # type: ignore[union-attr]
    assert rest[-1] == "CPUExecutionProvider"


def test_a_card_without_its_libraries_says_what_is_missing() -> None:
    """Never the processor's figures under the card's name."""
    if read_card() is not None:
        pytest.skip("this machine has a card")
    with pytest.raises(ProbeError, match="libcudart") as caught:
        load_cuda()
    assert caught.value.reason == "CardLibraryMissing"


class ConstructedCuda:
    """Counts the calls and answers ``status`` to those that are named."""

    def __init__(self, **status: int) -> None:
        self.calls: list[str] = []
        self._status = status

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> int:
            self.calls.append(name)
            return self._status.get(name, 0)

        return call


def test_every_timed_call_waits_for_the_card() -> None:
    """Launches return at once: without waiting, the launch would be timed."""
    cuda = ConstructedCuda()
    work = CudaWork(CudaLibraries(cuda, cuda))
    work.gemm()
    work.copy()
    assert cuda.calls[-4:] == ["cublasSgemm_v2", "cudaDeviceSynchronize", "cudaMemcpy", "cudaDeviceSynchronize"]
    work.close()
    assert cuda.calls.count("cudaMalloc") == cuda.calls.count("cudaFree")
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_a_call_that_fails_names_itself_and_its_status() -> None:
    """A card that fell off the bus ends as a reason."""
    with pytest.raises(ProbeError, match="cudaMalloc failed with status 2"):
        CudaWork(CudaLibraries(ConstructedCuda(cudaMalloc=2), ConstructedCuda()))
