"""How much memory a configuration needs, and how much a family's cards have. Pure; an estimate, so never a reason against what runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metainfer.decide.families import FamilyOption
from metainfer.decide.scene import HOST_PROVIDERS
from metainfer_probe.contract import Precision, ProfileReport, ServingConfig

BYTES_PER_WEIGHT: Final[Mapping[Precision, float]] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}


def needed_bytes(config: ServingConfig, profile: ProfileReport) -> float:
    """What is computed, and no less than what was measured."""
    return max(estimate_bytes(config, profile), measured_bytes(config, profile))


def estimate_bytes(config: ServingConfig, profile: ProfileReport) -> float:
    """Weights once (a session shares them between its callers) and activations for each sample of each parallel execution.

    Weights: ``profile.weight_bytes``, narrowed from the file's precision to the served one. Activations: the profile's bytes per
    sample (measured at fp32), at the precision's width; int8 keeps float activations between its layers.
    """
    stored = BYTES_PER_WEIGHT[profile.stored_precision]
    served = stored if config.precision == "fp32" else min(stored, BYTES_PER_WEIGHT[config.precision])
    activation = 4.0 if config.precision == "int8" else BYTES_PER_WEIGHT[config.precision]
    samples = config.batch_size * config.concurrency
    return profile.weight_bytes * served / stored + profile.activation_bytes_per_sample * samples * activation / 4.0


def measured_bytes(config: ServingConfig, profile: ProfileReport) -> float:
    """Peak of the process that loaded and ran the file on this provider, less the activations of larger batches than this one.

    It has what no formula knows: the runtime itself, and weights that are held again while they are compiled. 65.8 MiB of weights took
    290 MiB in ONNX Runtime and 256 MiB in OpenVINO, of which 100 MiB are the runtime (2026-11-30). 0 where it says nothing: of a card of
    its own a process tells nothing, and int8 is loaded from a smaller file.
    """
    if config.precision == "int8" or config.execution_provider not in HOST_PROVIDERS:
        return 0.0
    profiled = next((item for item in profile.providers if item.provider == config.execution_provider), None)
    if profiled is None or profiled.failure is not None:
        return 0.0
    samples = max((point.batch_size * point.concurrency for point in profiled.curve), default=1)
    spare = max(0, samples - config.batch_size * config.concurrency)
    return profiled.peak_memory_bytes - float(profile.activation_bytes_per_sample * spare)


def smallest_card_bytes(option: FamilyOption) -> int:
    """What the pool says, else the least that the probes saw, else the nodes' least allocatable memory; 0 = unknown."""
    if option.family.memory_bytes_per_card is not None:
        return option.family.memory_bytes_per_card
    seen = [item.status.memory_bytes for item in option.portraits if item.status.memory_bytes > 0]
    return min(seen or [node.allocatable.get("memory", 0) for node in option.nodes] or [0])
