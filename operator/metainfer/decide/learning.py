"""Samples: benchmarks joined with what was known of model and card, the questions of a predictor with their answers. Pure.

``store`` keeps what they are joined from, ``predict`` learns from them, ``app`` carries them; none of those three may import another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec
from metainfer.decide.estimation import STATE_LIMIT
from metainfer.decide.evidence import find_broken, is_another_computation, is_figure
from metainfer.decide.facts import Candidate, Portrait, ProbeResult, ProfileResult, RunResult
from metainfer.decide.portraits import portray
from metainfer.decide.predictor import Question
from metainfer_probe.contract import BenchReport, Measured, NodeReport, ProfileReport


@dataclass(frozen=True, slots=True)
class Sample:
    """One benchmark with what was known of its model and card: a question and its answer."""

    key: str
    """Of the Job; recording twice is one sample."""
    question: Question
    measured: Measured
    digest: str
    """Of the model file."""
    node: str
    """The instance that it ran on."""
    finished_at: datetime
    speed: float = 1.0
    """Of the card at that moment over its speed in the portrait, by the micro-probe."""
    reference: Measured | None = None
    """What alternated with it in the same Job: it tells a slow candidate from a slow moment."""


def family_key(candidate: Candidate) -> str:
    """The family as models know it."""
    return f"{candidate.pool}/{candidate.family}"


def join_samples(runs: Sequence[tuple[str, RunResult]], profiles: Sequence[ProfileResult], probes: Sequence[ProbeResult]) -> tuple[Sample, ...]:
    """Samples of all runs (with the model's digest) that have figures and whose model was profiled.

    A run takes its model's last good profile, and of its card the last probe before the run, else the first after it: the portrait
    that the card had then.
    """
    models = {item.report.digest: item for item in sorted(profiles, key=lambda item: item.finished_at) if item.report is not None and _is_usable(item.report)}
    portraits = _Portraits(probes, {run.node: run.candidate for _, run in runs})
    found = (_sample(digest, run, models.get(digest), portraits) for digest, run in runs)
    return tuple(sample for sample in found if sample is not None)


def _is_usable(report: ProfileReport) -> bool:
    return report.failure is None and bool(report.digest)


class _Portraits:
    """Portraits by node and time; the same probe is always the same object, by which predictors tell cards apart."""

    def __init__(self, probes: Sequence[ProbeResult], homes: Mapping[str, Candidate]) -> None:
        self._probes: dict[str, list[tuple[ProbeResult, Portrait]]] = {}
        for probe in sorted(probes, key=lambda item: item.finished_at):
            if probe.report is not None and probe.report.figures:
                self._probes.setdefault(probe.node, []).append((probe, _as_portrait(probe.node, probe.report, homes.get(probe.node))))

    def find(self, node: str, moment: datetime, provider: str) -> Portrait | None:
        """The last one before the moment that says anything of the provider, else the first after it."""
        telling = [(probe, portrait) for probe, portrait in self._probes.get(node, ()) if _names(portrait, provider)]
        earlier = [portrait for probe, portrait in telling if probe.finished_at <= moment]
        chosen = earlier[-1:] or [portrait for _, portrait in telling[:1]]
        return chosen[0] if chosen else None


def _names(portrait: Portrait, provider: str) -> bool:
    return any(figure.execution_provider == provider for figure in portrait.status.figures)


def _as_portrait(node: str, report: NodeReport, home: Candidate | None) -> Portrait:
    """The node's family is that of any run on it; where there was none it is nobody's."""
    pool, family = (home.pool, home.family) if home is not None else ("", "")
    return Portrait(node, NodePortraitSpec(node_uid=node, pool=pool, family=family), portray(report))


def _sample(digest: str, run: RunResult, profile: ProfileResult | None, portraits: _Portraits) -> Sample | None:
    report = run.report
    if report is None or report.candidate is None or profile is None or profile.report is None:
        return None
    if find_broken(run) is not None or is_another_computation(run):
        return None
    provider = run.candidate.config.execution_provider
    question = Question(
        candidate=run.candidate,
        profile=profile.report,
        card=portraits.find(run.node, run.finished_at, provider),
        load_clients=max(1, report.load_clients),
        profiled_on=portraits.find(profile.node, profile.finished_at, provider),
    )
    speed = _state(report, question.card)
    return Sample(run.job_uid or run.job, question, report.candidate, digest, run.node, run.finished_at, speed, report.reference)


def _state(report: BenchReport, card: Portrait | None) -> float:
    """By the micro-probes of run and portrait, bounded as in ``estimation``; 1 where either is missing."""
    gflops = report.micro.gflops if report.micro is not None else 0.0
    if card is None or card.status.micro_megaflops <= 0 or not is_figure(gflops):
        return 1.0
    return max(1 / STATE_LIMIT, min(STATE_LIMIT, gflops * 1000 / card.status.micro_megaflops))
