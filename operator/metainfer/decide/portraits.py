"""From a probe's report to a NodePortrait, and from portraits to correction factors and health. Pure.

A correction factor is the instance's speed against its family's median: what makes 'this card' differ from 'this SKU'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from metainfer.api.durations import format_duration_us
from metainfer.api.v1alpha1.common import HEALTH_LABEL
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec, NodePortraitStatus, PortraitFigures
from metainfer.decide.calibration import chain_speed
from metainfer.decide.cards import count_cards, read_sharing
from metainfer.decide.conditions import format_time
from metainfer.decide.drivers import is_same_version, read_driver
from metainfer.decide.facts import NodeFacts, Portrait, ProbeResult
from metainfer.decide.families import Membership, selector_keys
from metainfer.decide.names import short_hash
from metainfer.decide.siblings import compare_with_siblings
from metainfer_probe.contract import NodeReport, ProviderFigures

DEGRADED_LABEL_VALUE = "degraded"


@dataclass(frozen=True, slots=True)
class Assessment:
    """One instance against its family."""

    correction_factor_permille: int
    siblings_permille: int | None
    """Its speed against its siblings (see ``siblings``), for its health; None = nothing to compare."""


def build_identity(node: NodeFacts, membership: Membership) -> str:
    """Hash over what makes it the same card: node UID, family, card count, and the labels the family selects on."""
    family = membership.family
    labels = [f"{key}={node.labels.get(key, '')}" for key in selector_keys(family.selector)]
    return short_hash(node.uid, membership.pool, family.name, str(node.allocatable.get(family.resource, 0)), *labels, length=16)


def build_portrait(node: NodeFacts, membership: Membership, result: ProbeResult) -> tuple[NodePortraitSpec, NodePortraitStatus]:
    """The portrait that a finished probe gives; factor and health are assessed afterwards, against the family."""
    report = result.report
    if report is None or report.machine is None or report.micro is None:
        msg = f"probe {result.job} has no figures"
        raise ValueError(msg)
    spec = NodePortraitSpec(node_uid=node.uid, pool=membership.pool, family=membership.family.name)
    identity = {
        "observed_generation": 1,
        "identity": build_identity(node, membership),
        "cards": count_cards(node, membership.family.resource),
        "sharing": read_sharing(node, membership.family.resource),
        "memory_bytes": membership.family.memory_bytes_per_card or report.machine.memory_bytes,
        "driver_version": read_driver(membership.family, node) or (report.machine.card.driver_version if report.machine.card is not None else ""),
        "measured_at": format_time(result.finished_at),
        "probe_job": result.job,
    }
    return spec, portray(report).model_copy(update=identity)


CARRIED = ("health", "trial", "driver_seen", "firmware_seen", "upgrade_seen")


def carry_on(known: NodePortraitStatus, status: NodePortraitStatus) -> NodePortraitStatus:
    """A new portrait with what goes on from one probe to the next. Labels that are missing just now say nothing new of the driver."""
    kept: dict[str, object] = {name: getattr(known, name) for name in CARRIED}
    if not status.driver_version and known.driver_seen is not None:
        kept["driver_version"] = known.driver_seen.value
    carried = status.model_copy(update=kept)
    if not _compares(known, carried):
        return carried.model_copy(update={"speed_ppm": known.speed_ppm, "speed_compared_at": known.speed_compared_at})
    speed = chain_speed(known.speed_ppm, speeds_of(known), speeds_of(carried))
    return carried.model_copy(update={"speed_ppm": speed, "speed_compared_at": carried.measured_at})


def _compares(known: NodePortraitStatus, status: NodePortraitStatus) -> bool:
    """Whether it is the same card under the same driver, measured with the same runtimes: then a difference is the card's own."""
    same = known.measured_at is not None and known.identity == status.identity
    return same and _runtimes(known) == _runtimes(status) and is_same_version(known.driver_version, status.driver_version)


def _runtimes(status: NodePortraitStatus) -> frozenset[tuple[str, str]]:
    return frozenset((item.execution_provider, item.runtime_version) for item in status.figures)


def portray(report: NodeReport) -> NodePortraitStatus:
    """What a probe measured, as a portrait has it; without machine or micro-probe those figures are zero."""
    machine, micro = report.machine, report.micro
    return NodePortraitStatus(
        card_model=machine.card_model if machine else "",
        figures=tuple(_figures(item) for item in report.figures),
        bandwidth_megabytes_per_second={level: round(value * 1000) for level, value in report.bandwidth_gigabytes_per_second.items()},
        micro_megaflops=round(micro.gflops * 1000) if micro else 0,
        micro_megabytes_per_second=round(micro.bandwidth_gigabytes_per_second * 1000) if micro else 0,
        load_permille=machine.load_permille if machine else 0,
        throttled_permille=machine.throttled_permille if machine else 0,
    )


def _figures(item: ProviderFigures) -> PortraitFigures:
    return PortraitFigures(
        execution_provider=item.provider,
        runtime_version=item.runtime_version,
        precision=item.precision,
        effective_precision=item.effective_precision,
        matmul_megaflops={shape: round(gflops * 1000) for shape, gflops in item.matmul_gflops.items()},
        launch_p50=format_duration_us(item.launch_p50_us),
        launch_p99=format_duration_us(item.launch_p99_us),
        launch_p50_nanoseconds=round(item.launch_p50_us * 1000),
    )


def tells_of_its_card(portrait: Portrait) -> bool:
    """A card that is shared was measured beside whoever had it at that moment: it is compared with nobody."""
    return portrait.status.measured_at is not None and not portrait.status.sharing


def assess_family(portraits: Sequence[Portrait]) -> Mapping[str, Assessment]:
    """Factor of each instance of one family, and its speed against its siblings.

    Factor = geometric mean, over every figure that the instance and its family share, of figure / family median. A family of one is
    its own median.
    """
    speeds = {portrait.node: speeds_of(portrait.status) for portrait in portraits}
    keys = {key for speed in speeds.values() for key in speed}
    medians = {key: median(speed[key] for speed in speeds.values() if key in speed) for key in keys}
    compared = compare_with_siblings(portraits, speeds)
    return {node: Assessment(_factor(speed, medians), compared[node]) for node, speed in speeds.items()}


def _factor(speed: Mapping[str, float], medians: Mapping[str, float]) -> int:
    ratios = [value / medians[key] for key, value in speed.items() if medians[key] > 0]
    return round(1000 * math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))) if ratios else 1000


def speeds_of(status: NodePortraitStatus) -> Mapping[str, float]:
    """Every positive figure as a speed (higher is better), keyed by what it is."""
    speeds: dict[str, float] = {f"bandwidth/{level}": value for level, value in status.bandwidth_megabytes_per_second.items()}
    for item in status.figures:
        prefix = f"{item.execution_provider}/{item.precision}"
        speeds |= {f"{prefix}/{shape}": value for shape, value in item.matmul_megaflops.items()}
        if item.launch_p50_nanoseconds > 0:
            speeds[f"{prefix}/launch"] = 1e9 / item.launch_p50_nanoseconds
    return {key: float(value) for key, value in speeds.items() if value > 0}


def health_labels(health: str) -> Mapping[str, str]:
    """Our health label on a node: only a degraded one carries it, because absence must pass ``NotIn``."""
    return {HEALTH_LABEL: DEGRADED_LABEL_VALUE} if health == "Degraded" else {}
