"""``metainfer predict``: a model's portrait, portraits of cards and candidates in; a ranking with its reasons out. No cluster, no store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.api.v1alpha1.model_adaptation import Slo
from metainfer.api.v1alpha1.node_portrait import NodePortraitSpec
from metainfer.decide.candidates import DEFAULT_BATCH_SIZES, DEFAULT_CONCURRENCIES
from metainfer.decide.facts import Candidate, Portrait
from metainfer.decide.portraits import portray
from metainfer.decide.predictor import Question
from metainfer.decide.ranking import Goal, Objective, Ranked, rank
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned_predictor import LearnedPredictor
from metainfer.predict.registry import Registry
from metainfer.predict.registry_files import load_record
from metainfer.predict.shipped import open_shipped_model
from metainfer_probe.contract import NodeReport, Precision, ProfileReport, ServingConfig

BAD_INPUT = 2
BATCH_DELAY_US = 2_000


class _Border(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Card(_Border):
    """One family of cards, by the report of a probe (``metainfer-probe node``); without one it is guessed at, with much doubt."""

    pool: str = Field(default="local", max_length=253)
    family: str = Field(max_length=63)
    report: NodeReport | None = None
    hourly_cost_micros: int | None = Field(default=None, ge=0)


class AskedCandidate(_Border):
    """One point of the choice."""

    pool: str = "local"
    family: str
    config: ServingConfig


class PredictRequest(_Border):
    """What ``metainfer predict`` reads."""

    profile: ProfileReport
    """Of the model (``metainfer-probe profile``)."""
    profiled_on: str | None = None
    """Family in ``cards`` on whose card it was profiled."""
    cards: Annotated[tuple[Card, ...], Field(min_length=1, max_length=64)]
    candidates: tuple[AskedCandidate, ...] = Field(default=(), max_length=4096)
    """Default: every provider and native precision of every card, usual batches and concurrencies."""
    load_clients: int = Field(default=4, ge=1, le=1024)
    goal: Goal = "Throughput"
    slo: Slo | None = None


def run_predict(options: argparse.Namespace) -> tuple[int, str]:
    """Exit status and what to print."""
    try:
        text = sys.stdin.read() if options.request == "-" else Path(options.request).read_text(encoding="utf-8")
        request = PredictRequest.model_validate_json(text)
        registry = _open_registry(options)
        ranking = predict_ranking(request, registry)
    except ValidationError as error:
        first = error.errors()[0]
        return BAD_INPUT, f"{options.request}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, UnicodeDecodeError, ModelUnreadable, UnknownFamily) as error:
        return BAD_INPUT, str(error)
    shown = ranking[: options.top] if options.top > 0 else ranking
    return 0, json.dumps([_entry(place, item) for place, item in enumerate(shown, 1)], indent=1) if options.format == "json" else _table(shown)


class UnknownFamily(Exception):
    """A candidate on a card that the request does not describe."""


def predict_ranking(request: PredictRequest, registry: Registry) -> tuple[Ranked, ...]:
    """Best first. Raises UnknownFamily."""
    cards = {(card.pool, card.family): _portrait(card) for card in request.cards}
    home = next((_portrait(card) for card in request.cards if card.family == request.profiled_on), None)
    candidates = [Candidate(item.pool, item.family, item.config) for item in request.candidates] or _all_candidates(request.cards)
    for item in candidates:
        if (item.pool, item.family) not in cards:
            known = ", ".join(f"{pool}/{family}" for pool, family in sorted(cards))
            raise UnknownFamily(f"candidate {item.key} is on a card that is not described; cards are {known}")
    questions = [Question(item, request.profile, cards[item.pool, item.family], request.load_clients, home) for item in candidates]
    costs = {(card.pool, card.family): card.hourly_cost_micros for card in request.cards if card.hourly_cost_micros is not None}
    return rank(candidates, LearnedPredictor(registry).predict(questions), Objective(request.goal, request.slo), costs)


def _open_registry(options: argparse.Namespace) -> Registry:
    """Raises ModelUnreadable for a model that was asked for by name and cannot serve."""
    if options.base:
        return Registry()
    if options.model is None:
        return Registry(open_shipped_model())
    registry = Registry(load_record(options.model))
    if registry.champion is None:
        reason, message = registry.state.problem or ("NoModel", "it lost against the base when it was trained")
        raise ModelUnreadable(reason, f"{options.model}: {message}")
    return registry


def _portrait(card: Card) -> Portrait | None:
    if card.report is None:
        return None
    return Portrait(card.family, NodePortraitSpec(node_uid=card.family, pool=card.pool, family=card.family), portray(card.report))


def _all_candidates(cards: Sequence[Card]) -> list[Candidate]:
    found = []
    for card in cards:
        native: Mapping[tuple[str, Precision], None] = {(item.provider, item.precision): None for item in (card.report.figures if card.report else ())}
        for (provider, precision), batch, concurrency in product(native, DEFAULT_BATCH_SIZES, DEFAULT_CONCURRENCIES):
            config = ServingConfig(
                execution_provider=provider,
                precision=precision,
                batch_size=batch,
                concurrency=concurrency,
                dynamic_batching=batch > 1,
                max_batch_delay_us=BATCH_DELAY_US if batch > 1 else 0,
            )
            found.append(Candidate(card.pool, card.family, config))
    return found


def _entry(place: int, item: Ranked) -> dict[str, object]:
    prediction = item.prediction
    return {
        "rank": place,
        "candidate": item.candidate.key,
        "config": item.candidate.config.model_dump(mode="json"),
        "score_permille": item.score_permille,
        "p50_us": round(prediction.p50_us, 1),
        "p99_us": round(prediction.p99_us, 1),
        "throughput_per_second": round(prediction.throughput_per_second, 3),
        "log_sigma": round(prediction.log_sigma, 3),
        "slo_probability": round(item.slo_probability, 4),
        "rests_on": prediction.source,
    }


def _table(ranking: Sequence[Ranked]) -> str:
    head = f"{'':>4} {'relative':>8} {'p50 ms':>9} {'p99 ms':>9} {'per second':>10} {'doubt':>6} {'SLO':>5}  candidate, rests on"
    lines = [
        f"{place:>3}. {item.score_permille / 1000:>8.3f} {item.prediction.p50_us / 1000:>9.3f} {item.prediction.p99_us / 1000:>9.3f}"
        f" {item.prediction.throughput_per_second:>10.1f} {100 * item.prediction.log_sigma:>5.0f}% {100 * item.slo_probability:>4.0f}%"
        f"  {item.candidate.key}: {item.prediction.source}"
        for place, item in enumerate(ranking, 1)
    ]
    return "\n".join([head, *lines])
