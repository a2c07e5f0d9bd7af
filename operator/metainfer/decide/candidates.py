"""Every point of the choice, before any rule looks at it. Pure; knows nothing of profiles, portraits or figures.

A point that cannot differ from another one under the given load is not built at all:

* the load is a closed loop of ``load_clients`` single requests, so requests are joined only by dynamic batching: a batch above 1
  exists only with it, batch 1 only without it;
* a batch larger than the requests in flight can never form, and none forms where the owner declares a batch delay of 0;
* of ``concurrency`` parallel executions the last one never gets a request when the others, full, hold all requests in flight.

Values that the owner declares are taken as they are, also where these rules would leave them out: they are what runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from metainfer.decide.facts import Candidate
from metainfer.decide.families import FamilyOption
from metainfer.decide.settings_mapping import FixedSettings
from metainfer_probe.contract import Precision, ServingConfig

MAXIMUM_CANDIDATES = 4096
"""More are no choice but a mistake in configSpace; prediction and status stay bounded by it."""
DEFAULT_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
DEFAULT_BATCH_SIZES = (1, 4, 8, 16)
"""Factors of two to four: between them the throughput of a batch hardly moves."""
DEFAULT_CONCURRENCIES = (1, 2)
"""A second execution hides the host's share of the first; more is worth it only where the owner says so."""


class ChoiceRefused(ValueError):
    """The choice has no point, or far too many: a PascalCase reason and a sentence for the user."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Choice:
    """What bounds the choice. An empty tuple means the defaults above (of providers: everything that the family offers)."""

    families: tuple[FamilyOption, ...]
    providers: tuple[str, ...] = ()
    """What the target's image serves, already intersected with the spec."""
    precisions: tuple[Precision, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    dynamic_batching: tuple[bool, ...] = ()
    fixed: FixedSettings = field(default_factory=FixedSettings)
    batch_delay_us: int = 2_000
    """Longest wait for a batch, of every point that batches."""
    load_clients: int = 4
    current: Candidate | None = None
    """The present configuration; always one of the points."""


@dataclass(frozen=True, slots=True)
class _Shape:
    batch_size: int
    concurrency: int


def joins_requests(config: ServingConfig) -> bool:
    """Whether a server with these settings ever joins requests: switched on, room for two, and time to wait (all three, as MLServer has it)."""
    return config.dynamic_batching and config.batch_size > 1 and config.max_batch_delay_us > 0


def build_candidates(choice: Choice) -> tuple[Candidate, ...]:
    """All points, in the order pool, family, provider, precision, batch, concurrency; the current configuration first.

    Raises ChoiceRefused ``TooManyCandidates``, ``EmptyConfigSpace`` or ``FixedValueUnsupported``.
    """
    shapes, precisions = _shapes(choice), _precisions(choice)
    if choice.families and not shapes:
        raise ChoiceRefused("EmptyConfigSpace", _why_no_shape(choice))
    options = sorted(choice.families, key=lambda option: (option.pool, option.family.name))
    places = [(option, provider) for option in options for provider in _providers(choice, option)]
    count = len(places) * len(precisions) * len(shapes)
    if count > MAXIMUM_CANDIDATES:
        raise ChoiceRefused("TooManyCandidates", f"configSpace gives {count} candidates, at most {MAXIMUM_CANDIDATES} are compared: shorten its lists")
    points = _points(choice, places, precisions, shapes)
    if choice.current is None:
        return tuple(dict.fromkeys(points))
    present = _behaviour(choice.current)
    return (choice.current, *dict.fromkeys(point for point in points if _behaviour(point) != present))


def _behaviour(candidate: Candidate) -> tuple[object, ...]:
    """What a candidate does: settings of a batching that never happens do not count."""
    config = candidate.config
    batching = (config.batch_size, config.max_batch_delay_us) if joins_requests(config) else None
    return (candidate.pool, candidate.family, config.execution_provider, config.precision, config.concurrency, batching)


def _points(choice: Choice, places: list[tuple[FamilyOption, str]], precisions: tuple[Precision, ...], shapes: tuple[_Shape, ...]) -> Iterator[Candidate]:
    for option, provider in places:
        for precision in precisions:
            for shape in shapes:
                yield Candidate(option.pool, option.family.name, _config(choice, provider, precision, shape))


def _config(choice: Choice, provider: str, precision: Precision, shape: _Shape) -> ServingConfig:
    batches = shape.batch_size > 1
    declared_us = choice.fixed.max_batch_delay_us
    delay_us = choice.batch_delay_us if declared_us is None else declared_us
    try:
        return ServingConfig(
            execution_provider=provider,
            precision=precision,
            batch_size=shape.batch_size,
            concurrency=shape.concurrency,
            dynamic_batching=batches,
            max_batch_delay_us=delay_us if batches else 0,
        )
    except ValueError as error:
        message = f"a declared setting is out of range (batch size {shape.batch_size}, concurrency {shape.concurrency}, batch delay {delay_us} us)"
        raise ChoiceRefused("FixedValueUnsupported", message) from error


def _providers(choice: Choice, option: FamilyOption) -> tuple[str, ...]:
    """What both the family and the image can run. Where that is nothing, one that the image serves: the rules then say why it is dropped."""
    if choice.fixed.execution_provider is not None:
        return (choice.fixed.execution_provider,)
    offered = tuple(dict.fromkeys(option.family.execution_providers))
    common = tuple(provider for provider in offered if not choice.providers or provider in choice.providers)
    return common or choice.providers[:1]


def _precisions(choice: Choice) -> tuple[Precision, ...]:
    if choice.fixed.precision is not None:
        return (choice.fixed.precision,)
    allowed = choice.precisions or DEFAULT_PRECISIONS
    return tuple(precision for precision in DEFAULT_PRECISIONS if precision in allowed)


def _shapes(choice: Choice) -> tuple[_Shape, ...]:
    fixed = choice.fixed
    batches = sorted(set(choice.batch_sizes or DEFAULT_BATCH_SIZES)) if fixed.batch_size is None else [fixed.batch_size]
    concurrencies = sorted(set(choice.concurrencies or DEFAULT_CONCURRENCIES)) if fixed.concurrency is None else [fixed.concurrency]
    return tuple(
        _Shape(batch, concurrency)
        for batch in batches
        if fixed.batch_size is not None or _may_batch(choice, batch)
        for concurrency in concurrencies
        if _differs_under_load(choice, batch, concurrency)
    )


def _may_batch(choice: Choice, batch: int) -> bool:
    if batch > 1 and choice.fixed.max_batch_delay_us == 0:
        return False
    return (batch > 1) in (choice.dynamic_batching or (False, True))


def _differs_under_load(choice: Choice, batch: int, concurrency: int) -> bool:
    clients = choice.load_clients
    batch = batch if choice.fixed.batch_size is None else min(batch, clients)
    concurrency = concurrency if choice.fixed.concurrency is None else 1
    return batch <= clients and (concurrency - 1) * batch < clients


def _why_no_shape(choice: Choice) -> str:
    return (
        f"no combination of batch sizes {sorted(choice.batch_sizes or DEFAULT_BATCH_SIZES)}, concurrencies "
        f"{sorted(choice.concurrencies or DEFAULT_CONCURRENCIES)} and dynamic batching {sorted(choice.dynamic_batching or (False, True))} can be told apart "
        f"with {choice.load_clients} requests in flight: a batch above 1 needs dynamic batching, a batch delay above 0 and as many requests; "
        "widen configSpace or raise load.clients"
    )
