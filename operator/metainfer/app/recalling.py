"""What was learned before, brought to where it is used: into snapshots, and from the store to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import ValidationError

from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, DecisionStatus
from metainfer.decide.conditions import format_time
from metainfer.decide.facts import AdaptationFacts, AdaptationSnapshot, MeasuringLimits, ProbeResult, ProfileResult, RunResult
from metainfer.decide.learned import ModelRecord
from metainfer.observe.gather import ClusterReader, GatheredAdaptation, GatheredPool, Gatherer, LooksAtLatency
from metainfer.observe.view import ClusterView
from metainfer.predict.registry import Registry
from metainfer.store.patient import PatientStore
from metainfer.store.rows import DecisionRecord

RECALLED_RUNS = 64
"""The newest benchmarks of a model that correct its next ranking: more say nothing new, and their cost grows with the cube."""


async def recall_decisions(samples: PatientStore, adaptation: AdaptationFacts) -> tuple[DecisionStatus, ...]:
    """An older decision, asked for only while somebody wants to go back to it and the status has forgotten it; none while the store is away."""
    wanted, known = adaptation.rollback_to, {entry.id for entry in adaptation.status.decisions}
    if not wanted or wanted in known or not wanted.isprintable() or samples.problem:  # what no database takes as text is no id
        return ()
    try:
        found = await samples.ask(lambda store: store.find_decisions(adaptation.uid, decision_id=wanted))
    except ConnectionError:
        return ()
    return tuple(entry for record in found if (entry := _past_decision(record)) is not None)


def _past_decision(record: DecisionRecord) -> DecisionStatus | None:
    """A decision as the status would have it; None for a rollback, and for one whose configuration was not recorded."""
    try:
        config = ConfigStatus.model_validate(record.document.get("config"))
    except ValidationError:
        return None
    return DecisionStatus(id=record.decision_id, decided_at=format_time(record.decided_at), config=config)


class RecallingGatherer(Gatherer):
    """A gatherer whose snapshots also hold the serving model's state and the model file's earlier benchmarks."""

    def __init__(  # budget: the parts of a gatherer, and what this one adds
        self,
        view: ClusterView,
        reader: ClusterReader,
        store: PatientStore,
        limits: MeasuringLimits,
        models: Registry,
        *,
        served: LooksAtLatency | None = None,
    ) -> None:
        super().__init__(view, reader, store, limits, served=served)
        self._samples = store
        self._models = models

    async def gather_pool(self, name: str) -> GatheredPool | None:
        """A pool's snapshot; None when it is gone."""
        gathered = await super().gather_pool(name)
        return replace(gathered, snapshot=replace(gathered.snapshot, learned=self._models.state)) if gathered is not None else None

    async def gather_adaptation(self, namespace: str, name: str) -> GatheredAdaptation | None:
        """An adaptation's snapshot; None when it is gone."""
        gathered = await super().gather_adaptation(namespace, name)
        if gathered is None:
            return None
        earlier, history = await self._earlier(gathered.snapshot), await recall_decisions(self._samples, gathered.snapshot.adaptation)
        return replace(gathered, snapshot=replace(gathered.snapshot, earlier=earlier, history=history))

    async def _earlier(self, snapshot: AdaptationSnapshot) -> tuple[RunResult, ...]:
        """Benchmarks of the same file in other runs, newest last; none while the store is away: they sharpen a ranking, no more."""
        report = snapshot.profile.report if snapshot.profile is not None else None
        if report is None or not report.digest or self._samples.problem:
            return ()
        own = {run.job_uid for run in snapshot.runs}
        try:
            found = await self._samples.find_model_runs(report.digest, RECALLED_RUNS + len(own))
        except ConnectionError:
            return ()
        return tuple(run for run in found if run.job_uid not in own)[-RECALLED_RUNS:]


@dataclass(frozen=True, slots=True)
class StoredModels:
    """See ``learning.LearningStore``: the part of the store that is never answered from memory."""

    store: PatientStore

    async def find_champion(self) -> ModelRecord | None:
        """See ``SampleStore``."""
        return await self.store.ask(lambda store: store.find_champion())

    async def find_last_model(self) -> ModelRecord | None:
        """See ``SampleStore``."""
        return await self.store.ask(lambda store: store.find_last_model())

    async def count_runs(self, since: datetime | None = None) -> int:
        """See ``SampleStore``."""
        return await self.store.ask(lambda store: store.count_runs(since))

    async def training_material(self) -> tuple[Sequence[tuple[str, RunResult]], Sequence[ProfileResult], Sequence[ProbeResult]]:
        """See ``SampleStore``. No deadline: it may read very much."""
        return await self.store.ask(lambda store: store.training_material(), patient=True)

    async def record_model(self, record: ModelRecord) -> ModelRecord:
        """See ``SampleStore``."""
        return await self.store.ask(lambda store: store.record_model(record))
