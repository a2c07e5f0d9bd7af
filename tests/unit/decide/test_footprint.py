from __future__ import annotations

from typing import Any

import pytest
from tests.unit.decide.make_facts import CPU_PROVIDER, MIB, OPENVINO_PROVIDER, make_config
from tests.unit.decide.make_runs import make_profile

from metainfer.decide.footprint import needed_bytes
from metainfer_probe.contract import CurvePoint, Failure, ProfileReport

CUDA = "CUDAExecutionProvider"
WEIGHTS, ACTIVATIONS, PEAK = 100 * MIB, 10 * MIB, 400 * MIB


def profiled(provider: str = OPENVINO_PROVIDER, *, batch: int = 1, peak: int = PEAK, **fields: Any) -> ProfileReport:
    """A model whose process had that peak on the provider, up to that batch."""
    curve = tuple(CurvePoint(batch_size=size, p50_us=1000, p99_us=1000, mean_us=1000) for size in (1, batch))
    parts = {"peak_memory_bytes": peak, "curve": curve} | fields
    return make_profile({provider: parts}, weight_bytes=WEIGHTS, activation_bytes_per_sample=ACTIVATIONS)


CASES = [
    pytest.param({}, profiled(), PEAK, id="what was measured is more than weights and activations"),
    pytest.param({"precision": "bf16"}, profiled(), PEAK, id="a precision that is made while loading starts from the same file"),
    pytest.param({}, profiled(batch=8), PEAK - 7 * ACTIVATIONS, id="the peak may have been that of a larger batch"),
    pytest.param({"batch_size": 16, "concurrency": 4}, profiled(), WEIGHTS + 64 * ACTIVATIONS, id="larger batches than profiled are computed"),
    pytest.param({"precision": "int8"}, profiled(), WEIGHTS / 4 + ACTIVATIONS, id="int8 is loaded from a smaller file"),
    pytest.param({}, profiled(CPU_PROVIDER), WEIGHTS + ACTIVATIONS, id="another provider's peak says nothing"),
    pytest.param({}, profiled(failure=Failure(reason="TimedOut", message="late")), WEIGHTS + ACTIVATIONS, id="a peak that ended early says nothing"),
    pytest.param({}, profiled(peak=0), WEIGHTS + ACTIVATIONS, id="an older report has no peak"),
    pytest.param({"execution_provider": CUDA}, profiled(CUDA), WEIGHTS + ACTIVATIONS, id="a process tells nothing of a card's own memory"),
]


@pytest.mark.parametrize(("config", "profile", "want_bytes"), CASES)
def test_what_is_needed_is_no_less_than_what_loading_took(config: dict[str, Any], profile: ProfileReport, want_bytes: float) -> None:
    """Runtimes hold weights more than once while they compile: the measured peak bounds the computed sum from below."""
    assert needed_bytes(make_config(**{"execution_provider": OPENVINO_PROVIDER} | config), profile) == want_bytes
