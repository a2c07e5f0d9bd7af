"""Learning in operation: looks for new samples, has a process of its own train on them, lets the winner serve.

The event loop only waits: samples are read in threads, training runs niced in a child without the operator's settings, and a child that
takes too long is ended. Whatever goes wrong here costs the next model, never a pass.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from metainfer.decide.facts import ProbeResult, ProfileResult, RunResult
from metainfer.decide.learned import NEW_SAMPLES, ModelRecord, must_make_anew, why_train
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.registry import Registry
from metainfer.predict.registry_files import read_record
from metainfer.predict.training_command import read_answer
from metainfer.predict.training_lines import Material, write_lines
from metainfer.predict.training_rows import build_training_rows

CHECK_SECONDS = 60.0
TRAIN_SECONDS = 1800.0
"""40,000 rows take a minute of one processor; judging trains a dozen times, and the child gives way to everything else."""
_OWN_VARIABLES = ("METAINFER_", "KUBERNETES_", "KUBECONFIG")

_log = logging.getLogger(__name__)


class TrainingFailed(Exception):
    """No model came out of it; ``reason`` in one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LearningStore(Protocol):
    """``store.SampleStore``. Every method raises ConnectionError when the store does not answer."""

    async def find_champion(self) -> ModelRecord | None:
        """The newest model that won."""
        ...

    async def find_last_model(self) -> ModelRecord | None:
        """The newest model."""
        ...

    async def count_runs(self, since: datetime | None = None) -> int:
        """Benchmarks with a report, finished after a moment."""
        ...

    async def training_material(self) -> tuple[Sequence[tuple[str, RunResult]], Sequence[ProfileResult], Sequence[ProbeResult]]:
        """What samples are joined from."""
        ...

    async def record_model(self, record: ModelRecord) -> ModelRecord:
        """Keep a model under the next version."""
        ...


Train = Callable[[Material, datetime | None], Awaitable[ModelRecord]]
"""Samples, and until when the champion knows them. Raises TrainingFailed."""


class Learner:
    """One per operator. ``changed`` is called when another model (or none) answers from now on."""

    def __init__(
        self, store: LearningStore, registry: Registry, changed: Callable[[], object], train: Train | None = None, *, enough: int = NEW_SAMPLES
    ) -> None:
        self._store = store
        self._registry = registry
        self._changed = changed
        self._train = train or train_in_process
        self._enough = enough
        """New samples after which a new model is tried."""
        self._tried = 0
        """Samples of the last try that gave no model: it is tried again when there are more."""
        self._met = 0

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.learn(datetime.now(UTC))
            except ConnectionError as error:
                _log.warning("learning is put off", extra={"error": str(error)})
            except Exception:  # noqa: BLE001 - the operator serves without learning; what went wrong is in the log, and tried again
                _log.exception("learning failed")
            await asyncio.sleep(CHECK_SECONDS)

    async def learn(self, now: datetime) -> ModelRecord | None:
        """Serve what the store has, and train when that is worth it; the model that was made, if one was."""
        last = await self._store.find_last_model()
        self._show(await self._store.find_champion(), last)
        state = self._registry.state
        count = await self._store.count_runs(None if must_make_anew(last, state) else _trained_until(last))
        await self._meet_cards(count)
        why = why_train(last, count - self._tried, state, now, enough=self._enough)
        if why is None:
            return None
        serving = self._registry.champion
        try:
            material = Material(*await self._store.training_material())
            record = await self._train(material, _known_to(serving.record) if serving else None)
        except TrainingFailed as error:
            self._tried = count
            _log.warning("nothing was learned", extra={"because": why, "reason": error.reason, "error": str(error)})
            return None
        self._tried = 0
        newest = max((run.finished_at for _, run in material.runs), default=now)
        stored = await self._store.record_model(replace(record, metrics={**record.metrics, "trained_until": newest.isoformat()}))
        _log.info("trained", extra={"because": why, "version": stored.version, "serves": stored.serves, "verdict": stored.metrics.get("verdict", "")})
        self._show(stored, stored)
        return stored

    async def _meet_cards(self, count: int) -> None:
        """New samples may be of cards that the champion has never seen."""
        if count != self._met:
            material = Material(*await self._store.training_material())
            self._registry.learn_cards(await asyncio.to_thread(lambda: build_training_rows(material.join())))
            self._met = count

    def _show(self, champion: ModelRecord | None, newest: ModelRecord | None) -> None:
        """Let a champion serve, and the pools say so, and what was trained last."""
        serves_anew = champion is not None and self._registry.offer(champion)
        is_news = newest is not None and self._registry.note_newest(newest)
        if serves_anew or is_news:
            self._changed()


async def train_in_process(
    material: Material, known_until: datetime | None, *, timeout_seconds: float = TRAIN_SECONDS, with_shipped: bool = True
) -> ModelRecord:
    """Run ``metainfer train`` in a child, on these samples and those that came with the operator. Raises TrainingFailed."""
    told = await asyncio.to_thread(lambda: "\n".join(write_lines(material)).encode())
    arguments = ["train", "--background", "--samples", "-", *([] if with_shipped else ["--no-shipped"])]
    arguments += ["--known-until", known_until.isoformat()] if known_until else []
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "metainfer.cli",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # It reads untrusted numbers and needs no rights: neither the store's password nor the cluster's address. One processor is enough.
        env={name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)} | {"OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            answer, complaints = await child.communicate(told)
    except TimeoutError as error:
        raise TrainingFailed("TimedOut", f"training was not done after {timeout_seconds:.0f} s") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return await asyncio.to_thread(_read_answer, answer.decode(errors="replace"), complaints.decode(errors="replace"), child.returncode or 0)


def _read_answer(answer: str, complaints: str, exit_status: int) -> ModelRecord:
    lines = answer.strip().splitlines()
    refused = read_answer(lines)
    if refused is not None:
        raise TrainingFailed(*refused)
    if exit_status or not lines:
        last = (complaints.strip().splitlines() or ["no word"])[-1]
        raise TrainingFailed("TrainingCrashed", f"the training process ended with {exit_status}: {last[:300]}")
    try:
        return read_record(lines[-1], "the training process's answer")
    except ModelUnreadable as error:
        raise TrainingFailed(error.reason, str(error)) from error


def _known_to(champion: ModelRecord) -> datetime | None:
    """Of the store's samples, the shipped model knows none."""
    return _trained_until(champion) if champion.version else datetime.fromtimestamp(0, UTC)


def _trained_until(record: ModelRecord | None) -> datetime | None:
    """Samples up to then are known to a model; its date where it does not say."""
    if record is None:
        return None
    try:
        return datetime.fromisoformat(str(record.metrics.get("trained_until", "")))
    except ValueError:
        return record.made_at
